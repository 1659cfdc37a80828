from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_store import SLOTS, Store, wait_until


@pytest.fixture(autouse=True)
def no_peeking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store looks at its indexes in another process first; starting one for each of hundreds of starts takes longer than the tests."""
    if "peeking" not in request.keywords:
        for module in ("opening", "admission"):
            monkeypatch.setattr(f"forebay.engine.{module}.check_opening", lambda paths: {})


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "peeking: indexes are looked at in another process first, as in a server")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if there is room: for tests with many commits whose subject is not the disk."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="forebay-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Makes stores; at the end each has all its buffers back."""
    made: list[Store] = []

    def make(*args: int, **options: object) -> Store:
        root = tmp_path / f"store{len(made)}"
        root.mkdir()
        made.append(Store(root, *args, **options))
        return made[-1]

    yield make
    for store in made:
        if hasattr(store, "engine"):
            store.heal_faults()
            wait_until(lambda store=store: store.engine.arena.free_slots == SLOTS, 10, "all buffers are free again")
            store.stop()


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    """3 + 1 drives and a bucket."""
    return make_store()
