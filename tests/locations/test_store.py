"""Locations and checkpoints on a real Forebay store."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from location_kit import LocationTests, MiB, content

import forebay
from forebay.checkpoint import catalog
from forebay.locations import Location
from forebay.locations.s3 import S3

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
from server_process import ACCESS_KEY, SECRET_KEY, ServerProcess


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    server = ServerProcess(tmp_path_factory.mktemp("store"))
    try:
        yield {"endpoint": server.endpoint, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "retry_s": 10.0}
    finally:
        server.kill()


@pytest.fixture
def bucket(options: dict[str, Any]) -> S3:
    name = f"b-{uuid.uuid4().hex[:12]}"
    location = S3(name, **options)
    answer = location._bucket.ask("create", "PUT", "")
    assert answer.status == 200, answer
    return location


class TestStore(LocationTests):
    @pytest.fixture
    def location(self, bucket: S3) -> Location:
        return bucket.child("some/prefix")


def test_parts_are_copied_on_the_store(bucket: S3) -> None:
    data = content(20 * MiB)
    first = bucket.child("step-1").upload("data/x", len(data), 8 * MiB)
    for index in range(3):
        first.write_part(index, [data[index * 8 * MiB : (index + 1) * 8 * MiB]])
    entry = first.complete()
    second = bucket.child("step-2").upload("data/x", len(data), 8 * MiB)
    step1 = bucket.child("step-1")
    assert second.copy_part(0, step1, "data/x", offset=0, size_bytes=8 * MiB, etag=entry.etag)
    assert not second.copy_part(1, step1, "data/x", offset=8 * MiB, size_bytes=8 * MiB, etag='"another"')
    second.write_part(1, [data[8 * MiB : 16 * MiB]])
    assert second.copy_part(2, step1, "data/x", offset=16 * MiB, size_bytes=4 * MiB, etag=entry.etag)
    second.complete()
    step1.delete(["data/x"])
    assert bucket.get("step-2/data/x")[0] == data


def test_checkpoints_on_the_store(bucket: S3) -> None:
    rng = np.random.default_rng(0)
    run = bucket.child("run")
    state = {f"w{i}": rng.standard_normal(2 * MiB) for i in range(6)}
    forebay.save(state, run, step=1)
    state["w2"] = state["w2"] + 1
    saved = forebay.save(state, run, step=2)
    assert saved.copied_bytes > 0.6 * saved.size_bytes
    catalog.delete(run.child("step-00000001"))
    loaded = forebay.load(run)
    assert all(np.array_equal(loaded[key], state[key]) for key in state)
    assert np.array_equal(forebay.open(run)["w2"][5:9], state["w2"][5:9])
    assert catalog.sweep(run, older_than_s=-1) == []
