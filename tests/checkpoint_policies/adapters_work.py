"""What the ranks of test_adapters.py do."""

from __future__ import annotations

from typing import Any


def sharded_model(seed: int) -> tuple[Any, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optim": optimizer_state, "step": 5, "pair": (1, 2.5)}


def whole(state: dict[str, Any]) -> dict[str, Any]:
    full = {name: value.full_tensor().tolist() for name, value in state["model"].items()}
    moments = {name: value["exp_avg"].full_tensor().tolist() for name, value in state["optim"]["state"].items()}
    return {"model": full, "moments": moments, "step": state["step"]}


def fsdp_save(rank: int, dcp_path: str, own_path: str) -> dict[str, Any]:
    """One FSDP step, saved through DCP with our writer and by `forebay.save`."""
    import torch
    import torch.distributed.checkpoint as dcp

    import forebay
    from forebay.torch import StorageWriter

    model, optimizer = sharded_model(0)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    state = state_of(model, optimizer)
    dcp.save(state, storage_writer=StorageWriter(dcp_path, step=5))
    forebay.save(state, own_path, step=5)
    return whole(state)


def fsdp_load(rank: int, dcp_path: str, own_path: str) -> list[dict[str, Any]]:
    """Through DCP with our reader from both, and by `forebay.load` from both."""
    import torch.distributed.checkpoint as dcp

    import forebay
    from forebay.torch import StorageReader

    loaded = []
    for path in (dcp_path, own_path):
        model, optimizer = sharded_model(1)
        state = state_of(model, optimizer)
        state["step"] = 0
        dcp.load(state, storage_reader=StorageReader(path))
        loaded.append(whole(state))
        state = forebay.load(path, state_of(*sharded_model(2)))
        loaded.append(whole(state))
    return loaded


def fetch_for_trainer(rank: int, path: str, output_dir: str) -> dict[str, Any]:
    """Rank 0 writes the folder that Trainer resumes from; the group goes on in step."""
    from forebay.transformers import ForebayCallback

    callback = ForebayCallback(path)
    folder = callback.fetch(output_dir)
    group = callback.checkpointer.group
    heard = group.broadcast(b"in step" if rank == 0 else None, 30.0).decode()
    callback.checkpointer.close()
    return {"folder": folder, "heard": heard}
