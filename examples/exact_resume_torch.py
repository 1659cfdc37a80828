"""Train a small character-level transformer with PyTorch, kill all its processes with -9, resume it on another number of them:
the losses are those of a run that was never disturbed, to the last bit.

    python examples/exact_resume_torch.py --plot curves.svg

Parameters and AdamW's moments are kept as DTensors sharded over the processes (gloo), so resuming on another number of
them reshards. For the sums not to depend on that number, each of the four parts of a batch gives its own gradient, on
whichever process, and these are gathered and added in a fixed order; one thread a process keeps PyTorch's own sums in order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import exact_resume

PARTS, ROWS, CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 4, 4, 48, 48, 2, 4, 128
RATE, DROPOUT = 3e-3, 0.1


def worker(location: str, log: Path, steps: int) -> None:
    """Train from the newest checkpoint, or from the beginning, to step `steps`."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import forebay

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = torch.frombuffer(bytearray(exact_resume.text()), dtype=torch.uint8).long()
    mesh = init_device_mesh("cpu", (ranks,))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, DROPOUT, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, rows: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
            x = self.tokens(rows[:, :-1]) + self.places.weight
            logits = self.head(self.layers(x, mask=mask, is_causal=True))
            return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def sharded(tensor: Any) -> Any:
        return distribute_tensor(tensor.detach().clone(), mesh, [Shard(0)])

    def gradient_of(model: Any, step: int, part: int) -> Any:
        """The loss and the gradient of one part, as one vector. The part's random numbers are its own."""
        torch.manual_seed(1_000_003 * step + part)
        starts = torch.randint(len(data) - CONTEXT - 1, (ROWS,))
        rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts.tolist()])
        model.zero_grad()
        loss = model(rows)
        loss.backward()
        return torch.cat([loss.detach().reshape(1), *(p.grad.reshape(-1) for p in model.parameters())])

    def mean_gradient(model: Any, step: int) -> Any:
        """Each process does its share of the parts; all add all of them in the same order."""
        mine = [gradient_of(model, step, part) for part in range(rank, PARTS, ranks)]
        gathered = [torch.empty_like(mine[0]) if mine else None for _ in range(PARTS)]
        for part in range(PARTS):
            owner = part % ranks
            gathered[part] = mine[part // ranks] if owner == rank else torch.empty(1 + sum(p.numel() for p in model.parameters()))
            dist.broadcast(gathered[part], owner)
        return sum(gathered[1:], gathered[0]) / PARTS

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    for parameter in model.parameters():  # AdamW makes its moments at the first step; here they must be there to be restored
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter),
        }  # fmt: skip

    def state_of(step: int) -> Any:
        """As it is saved: everything large in shards."""
        moments = [{k: v if k == "step" else sharded(v) for k, v in optimizer.state[p].items()} for p in model.parameters()]
        return {"model": {name: sharded(p) for name, p in model.named_parameters()}, "moments": moments, "step": step}

    def take(state: Any) -> int:
        with torch.no_grad():
            for (name, parameter), moments in zip(model.named_parameters(), state["moments"], strict=True):
                parameter.copy_(state["model"][name].full_tensor())
                for key, value in moments.items():
                    optimizer.state[parameter][key].copy_(value if key == "step" else value.full_tensor())
        return int(state["step"])

    with forebay.Checkpointer(location, forebay.Every(steps=10), forebay.Keep(last=2)) as checkpointer, log.open("a", buffering=1) as out:
        step = take(checkpointer.restore(state_of(0)))
        while step < steps:
            gradient = mean_gradient(model, step)
            place = 1
            for parameter in model.parameters():
                parameter.grad = gradient[place : place + parameter.numel()].reshape(parameter.shape).clone()
                place += parameter.numel()
            optimizer.step()
            step += 1
            if rank == 0:
                out.write(f"{step} {float(gradient[0]).hex()}\n")
            checkpointer.maybe_save(step, metrics={"loss": gradient[0]}, make_state=lambda step=step: state_of(step))
    dist.destroy_process_group()


JOB = exact_resume.Job("PyTorch, 2, 3 and 1 processes", __file__, (2, 3, 1), processes=True)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(exact_resume.main(JOB))
