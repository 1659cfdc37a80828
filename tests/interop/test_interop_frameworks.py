"""Clients that training uses: TensorStore and s3torchconnector. Each runs in a process of its own, as in use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from running_store import Store

TENSORSTORE = """
    import numpy as np, os, tensorstore as ts

    kvstore = {"driver": "s3", "bucket": os.environ["BUCKET"], "endpoint": os.environ["AWS_ENDPOINT_URL"],
               "aws_region": os.environ["AWS_REGION"], "path": "run/array/"}
    wanted = np.random.default_rng(3).standard_normal((2048, 2048), dtype=np.float32)
    for driver in ("zarr", "zarr3"):
        spec = {"driver": driver, "kvstore": kvstore | {"path": f"run/{driver}/"}}
        layout = ts.ChunkLayout(chunk_shape=(512, 512))
        array = ts.open(spec, create=True, dtype=ts.float32, shape=wanted.shape, chunk_layout=layout).result()
        array.write(wanted).result()
        again = ts.open(spec, open=True).result()
        assert np.array_equal(again.read().result(), wanted)
        assert np.array_equal(again[100:200, 7].read().result(), wanted[100:200, 7])

    store = ts.KvStore.open({"driver": "ocdbt", "base": kvstore | {"path": "run/ocdbt/"}}).result()
    for number in range(50):
        store.write(f"key {number}", f"value {number}".encode() * 1000).result()
    assert len(store.list().result()) == 50
    assert store.read("key 7").result().value == b"value 7" * 1000

    plain = ts.KvStore.open(kvstore | {"path": "large/"}).result()
    large = np.random.default_rng(4).bytes(70 << 20)
    written = plain.write("one", large).result()
    assert plain.read("one").result().value == large
    again = plain.write("one", large[::-1], if_equal=written.generation).result()
    refused = plain.write("one", b"x", if_equal=written.generation).result()
    assert refused.generation != again.generation and plain.read("one").result().value == large[::-1]
    plain.delete_range(ts.KvStore.KeyRange()).result()
    assert plain.list().result() == []
"""

S3TORCHCONNECTOR = """
    import os, random, torch
    from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3MapDataset

    bucket, config = os.environ["BUCKET"], S3ClientConfig(force_path_style=True)
    options = {"region": os.environ["AWS_REGION"], "endpoint": os.environ["AWS_ENDPOINT_URL"], "s3client_config": config}
    torch.manual_seed(5)
    state = {"weight": torch.randn(3000, 6000), "step": 17}  # 69 MiB
    checkpoint = S3Checkpoint(**options)
    with checkpoint.writer(f"s3://{bucket}/run/step 17.pt") as sink:
        torch.save(state, sink)
    with checkpoint.reader(f"s3://{bucket}/run/step 17.pt") as source:
        back = torch.load(source, weights_only=True)
    assert torch.equal(back["weight"], state["weight"]) and back["step"] == 17

    contents = {f"data/{number}": random.Random(number).randbytes(10_000) for number in range(20)}
    for key, content in contents.items():
        with checkpoint.writer(f"s3://{bucket}/{key}") as sink:
            sink.write(content)
    streamed = {item.key: item.read() for item in S3IterableDataset.from_prefix(f"s3://{bucket}/data/", **options)}
    assert streamed == contents
    mapped = S3MapDataset.from_prefix(f"s3://{bucket}/data/", **options)
    assert len(mapped) == 20 and mapped[3].read() == contents[mapped[3].key]
"""


def _run(program: str, store: Store, bucket: str, home: Path) -> None:
    environment = {
        **os.environ,
        "BUCKET": bucket,
        "AWS_ACCESS_KEY_ID": store.access_key,
        "AWS_SECRET_ACCESS_KEY": store.secret_key,
        "AWS_REGION": store.region,
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(home),
    }
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr


def test_tensorstore(store: Store, bucket: str, tmp_path: Path) -> None:
    _run(TENSORSTORE, store, bucket, tmp_path)


def test_s3torchconnector(store: Store, bucket: str, tmp_path: Path) -> None:
    _run(S3TORCHCONNECTOR, store, bucket, tmp_path)
