"""One store for all clients, started by its command line over four folders, and the content that they move."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop_store import MIB, Programs

from running_store import Store, running_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store(tmp_path_factory.mktemp("store"), "--domain", "localhost") as running:
        yield running
    assert " ERROR " not in running.log.read_text(), running.log.read_text()


@pytest.fixture
def bucket(store: Store) -> str:
    """A new, empty bucket."""
    name = f"interop-{uuid.uuid4().hex[:12]}"
    store.boto().create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def small() -> bytes:
    return random.Random(1).randbytes(5 * 1024 + 7)


@pytest.fixture(scope="session")
def large() -> bytes:
    """More than the 64 MiB at which several clients change how they upload; not a multiple of anything."""
    return random.Random(2).randbytes(66 * MIB + 12_345)


@pytest.fixture(scope="session")
def large_file(large: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("content") / "large.bin"
    path.write_bytes(large)
    return path


@pytest.fixture
def programs(store: Store, tmp_path: Path) -> Programs:
    home = tmp_path / "home"
    home.mkdir()
    return Programs(
        {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": store.access_key,
            "AWS_SECRET_ACCESS_KEY": store.secret_key,
            "AWS_REGION": store.region,
            "AWS_DEFAULT_REGION": store.region,
            "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",  # a fault must not hide behind a retry
            "S3_ENDPOINT_URL": store.endpoint,
        }
    )


@pytest.fixture
def s3cmd_config(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "s3cfg"
    path.write_text(
        f"[default]\naccess_key = {store.access_key}\nsecret_key = {store.secret_key}\nhost_base = {store.host}:{store.port}\n"
        f"host_bucket = {store.host}:{store.port}\nuse_https = False\nbucket_location = {store.region}\n"
    )
    return path
