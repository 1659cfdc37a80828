"""Several ranks in threads, and arrays that lie in boxes over them, as a mesh of processes would have them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forebay.checkpoint.arrays import NumpySource, copy_from_parts, view_of_parts
from forebay.checkpoint.layout import Box
from forebay.checkpoint.leaves import LeafCollector
from forebay.errors import SaveFailed


class Ranks:
    """Several ranks of one group in threads; `gone` names those that are dead and why."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.gone: dict[int, str] = {}
        self._barrier = threading.Barrier(size)
        self._payload: bytes | None = None

    def rank(self, rank: int) -> Any:
        ranks = self

        class Rank:
            size = ranks.size

            def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
                if rank == 0:
                    ranks._payload = payload
                ranks._barrier.wait(timeout_s)
                assert ranks._payload is not None
                return ranks._payload

            def check_peers(self) -> None:
                for gone, why in ranks.gone.items():
                    raise SaveFailed(gone, why)

        made = Rank()
        made.rank = rank  # type: ignore[attr-defined]
        return made

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """What each rank's work returned or raised."""
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(self.rank(rank))
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


class Sharded:
    """A leaf: an array of which each rank has the boxes `holders[rank]`."""

    def __init__(self, array: np.ndarray[Any, Any], holders: list[list[Box]]) -> None:
        self.array, self.holders = array, tuple(map(tuple, holders))


class ShardedSource(NumpySource):
    """Reads only from the boxes of its rank."""

    def __init__(self, path: str, leaf: Sharded, ranks: int, rank: int) -> None:
        super().__init__(path, leaf.array, ranks)
        self.holders, self.sharding, self.settled = leaf.holders, "stub", True
        self._parts = [(box, leaf.array[box.within((0,) * leaf.array.ndim)].copy()) for box in leaf.holders[rank]]

    def view(self, box: Box) -> Any:
        return view_of_parts(self._parts, box)

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        copy_from_parts(self._parts, box, out)


def know_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `forebay.save` take `Sharded` leaves."""
    real = LeafCollector._source

    def source(self: LeafCollector, path: str, leaf: Any) -> Any:
        if isinstance(leaf, Sharded):
            return "numpy", "", ShardedSource(path, leaf, self.ranks, self.rank)
        return real(self, path, leaf)

    monkeypatch.setattr(LeafCollector, "_source", source)


def rows(shape: tuple[int, ...], ranks: int) -> list[list[Box]]:
    """Runs of ceil(n / ranks) along the first axis, the last ones shorter or empty."""
    step = -(-shape[0] // ranks)
    bounds = [(min(r * step, shape[0]), min((r + 1) * step, shape[0])) for r in range(ranks)]
    return [[Box((a, *(0,) * (len(shape) - 1)), (b - a, *shape[1:]))] if b > a else [] for a, b in bounds]


def columns(shape: tuple[int, int], ranks: int) -> list[list[Box]]:
    """The same along the second axis."""
    return [[Box((box.start[1], box.start[0]), (box.shape[1], box.shape[0])) for box in held] for held in rows(shape[::-1], ranks)]
