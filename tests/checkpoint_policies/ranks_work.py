"""What the ranks of test_ranks.py do."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from places import Place

from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.policy import Every
from forebay.checkpoint.write import SaveOptions
from forebay.errors import LocationFull, SaveFailed

OPTIONS = SaveOptions(timeout_s=60)


def fail_and_die(rank: int, path: str) -> dict[str, Any]:
    """Step 1 is saved well; at step 2 rank 1's drive is full; at step 3 rank 2 is killed while it writes."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def before(operation: str, key: str) -> None:
        if operation == "part" and rank == 1 and key.startswith("step-00000002"):
            raise LocationFull("write", key, "no space left on device")
        if operation == "part" and rank == 2 and key.startswith("step-00000003"):
            os.kill(os.getpid(), signal.SIGKILL)

    mesh = init_device_mesh("cpu", (3,))
    weights = torch.arange(24.0).reshape(6, 4)
    report: dict[str, Any] = {}
    ckpt = Checkpointer(Place(path, before), Every(steps=1), save_options=OPTIONS)
    for step in (1, 2, 3):
        state = {"w": distribute_tensor(weights + step, mesh, [Shard(0)]), "step": step, "b": torch.full((5,), float(step))}
        start_s = time.monotonic()
        try:
            pending = ckpt.maybe_save(step, state)
            assert pending is not None
            pending.wait(40)
            ckpt.wait()
        except SaveFailed as error:
            report[str(step)] = {"rank": error.rank, "message": str(error), "seconds": time.monotonic() - start_s}
            ckpt._pending.clear()
    return report


def resume_torch(rank: int, path: str) -> dict[str, Any]:
    """Restore on other ranks than those that saved; the newest whole one is step 1."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    with Checkpointer(path) as ckpt:
        like = {"w": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)]), "step": 0, "b": torch.zeros(5)}
        state = ckpt.restore(like)
        whole = state["w"].full_tensor()
        return {"step": state["step"], "restored": ckpt.restored_step, "w": whole.tolist(), "b": state["b"].tolist()}


def jax_sharded(rank: int, path: str) -> dict[str, Any]:
    """Sharded over the devices of two processes; requested on rank 1; ended by a signal to rank 1 alone."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    saved = []
    try:
        with Checkpointer(path, Every(minutes=None), save_options=OPTIONS) as ckpt:
            for step in range(1, 40):
                array = jax.make_array_from_callback((8, 8), sharding, lambda index, step=step: whole[index] + step)
                if step == 3 and rank == 1:
                    ckpt.request_save()
                if step == 12 and rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if ckpt.maybe_save(step, {"w": array, "step": step}) is not None:
                    saved.append(step)
                time.sleep(0.02)
    except SystemExit as ended:
        code = ended.code
    jax.distributed.shutdown()
    return {"saved": saved, "step": step, "code": code}
