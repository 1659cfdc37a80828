"""Forebay for PyTorch programs that save with `torch.distributed.checkpoint`.

    import torch.distributed.checkpoint as dcp
    from forebay.torch import StorageReader, StorageWriter

    dcp.save(state, storage_writer=StorageWriter("s3://bucket/run", step=100))
    dcp.load(state, storage_reader=StorageReader("s3://bucket/run"))
"""

from forebay.checkpoint.adapters.dcp import StorageReader, StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
