"""What the ranks of test_foreign.py do."""

from __future__ import annotations

from typing import Any


def save_dcp(rank: int, path: str) -> dict[str, Any]:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    w = distribute_tensor(torch.arange(35.0).reshape(5, 7), mesh, [Shard(0)])
    dcp.save({"w": w, "b": torch.ones(3)}, checkpoint_id=path)
    return {}
