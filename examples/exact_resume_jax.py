"""Train a small character-level transformer with JAX, kill it with -9, resume it on another number of devices: the losses are
those of a run that was never disturbed, to the last bit.

    python examples/exact_resume_jax.py --plot curves.svg

Parameters and Adam's moments lie sharded over the devices, so resuming on another number of them reshards. For the sums not
to depend on that number, each of the eight parts of a batch gives its own gradient, on whichever device, and these are
added in a fixed order.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import exact_resume

PARTS, ROWS, CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 8, 2, 48, 48, 2, 4, 128
RATE, DROPOUT = 3e-3, 0.1


def worker(location: str, log: Path, steps: int, devices: int) -> None:
    """Train from the newest checkpoint, or from the beginning, to step `steps`."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    import forebay

    data = np.frombuffer(exact_resume.text(), np.uint8)
    workers = jax.devices()[:2]  # as many as compute at a time; the state lies on all
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("shards",))

    def place(state: Any) -> Any:
        """Over all devices, by the first axis that they divide; by way of the host, so that nothing is compiled for it."""

        def spread(leaf: Any) -> Any:
            axis = next((axis for axis, n in enumerate(leaf.shape) if n % devices == 0), None)
            spec = PartitionSpec(*[None] * axis, "shards") if axis is not None else PartitionSpec()
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            return jax.device_put(leaf if is_key else np.asarray(leaf), NamedSharding(mesh, spec))

        return jax.tree.map(spread, state)

    def initial() -> Any:
        random = np.random.default_rng(0)

        def dense(*shape: int) -> Any:
            return (random.standard_normal(shape) * shape[-2] ** -0.5).astype(np.float32)

        layers = {
            "qkv": dense(LAYERS, WIDTH, 3 * WIDTH), "out": dense(LAYERS, WIDTH, WIDTH),
            "up": dense(LAYERS, WIDTH, 4 * WIDTH), "down": dense(LAYERS, 4 * WIDTH, WIDTH),
        }  # fmt: skip
        embeddings = {"tokens": dense(VOCABULARY, WIDTH), "places": dense(CONTEXT, WIDTH)}
        params = {**embeddings, "layers": layers, "head": dense(WIDTH, VOCABULARY)}
        zeros = jax.tree.map(np.zeros_like, params)
        return {"params": params, "m": zeros, "v": zeros, "key": jax.random.key(0), "step": np.int32(0)}

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def attention(layer: Any, x: Any) -> Any:
        q, k, v = (part.reshape(ROWS, CONTEXT, HEADS, -1) for part in jnp.split(norm(x) @ layer["qkv"], 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool)), scores, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(ROWS, CONTEXT, WIDTH) @ layer["out"]

    def block(x: Any, layer: Any) -> Any:
        x = x + attention(layer, x)
        return x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"], None

    def loss(params: Any, rows: Any, key: Any, part: Any) -> Any:
        x = params["tokens"][rows[:, :-1]] + params["places"]
        keep = jax.random.bernoulli(jax.random.fold_in(key, part), 1 - DROPOUT, x.shape)
        x = jnp.where(keep, x / (1 - DROPOUT), 0.0)
        x, _ = jax.lax.scan(block, x, params["layers"])
        logits = jax.nn.log_softmax(norm(x) @ params["head"])
        return -jnp.take_along_axis(logits, rows[:, 1:, None], -1).mean()

    @jax.jit
    def adam(state: Any, gradients: Any, losses: Any) -> Any:
        gradient = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]) / PARTS, *gradients)
        step = state["step"] + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradient)
        v = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, state["v"], gradient)

        def change(p: Any, m: Any, v: Any) -> Any:
            return p - RATE * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.98**step)) + 1e-8)

        params = jax.tree.map(change, state["params"], m, v)
        return {"params": params, "m": m, "v": v, "key": state["key"], "step": step}, sum(losses[1:], losses[0]) / PARTS

    gradient_of = jax.jit(jax.value_and_grad(loss))

    def train_step(state: Any) -> Any:
        step = int(state["step"])
        starts = np.random.default_rng([7, step]).integers(0, len(data) - CONTEXT - 1, (PARTS, ROWS))
        parts = []
        copies = [jax.device_put(state["params"], device) for device in workers]
        dropout = [jax.random.fold_in(jax.device_put(state["key"], device), step) for device in workers]
        for part in range(PARTS):
            device = part % len(workers)
            rows = np.stack([data[s : s + CONTEXT + 1] for s in starts[part]]).astype(np.int32)
            parts.append(gradient_of(copies[device], jax.device_put(rows, workers[device]), dropout[device], part))
        gathered, whole = jax.device_put((parts, state), workers[0])
        made, mean = adam(whole, [gradient for _, gradient in gathered], [value for value, _ in gathered])
        return place(made), float(mean)

    state = place(initial())
    with forebay.Checkpointer(location, forebay.Every(steps=10), forebay.Keep(last=2)) as checkpointer, log.open("a", buffering=1) as out:
        state = checkpointer.restore(state)
        while int(state["step"]) < steps:
            state, mean = train_step(state)
            out.write(f"{int(state['step'])} {mean.hex()}\n")
            checkpointer.maybe_save(int(state["step"]), state, {"loss": mean})


JOB = exact_resume.Job("JAX, 8, 4 and 2 devices", __file__, (8, 4, 2), processes=False)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        sys.exit(exact_resume.main(JOB))
