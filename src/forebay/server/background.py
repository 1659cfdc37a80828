"""What the supervisor does with the drives besides watching workers, and the answers to the admin API's questions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

from forebay._version import __version__
from forebay.engine.engine import Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.opening import Layout, open_engine
from forebay.engine.shared import SharedState
from forebay.errors import DriveError, StoreError
from forebay.server.config import Config

ENGINE_ARENA_BYTES = 64 << 20  # healing and scrubbing move a few stripes at a time


class Background:
    """Owns the supervisor's engine. Methods may block; they are called from threads."""

    def __init__(self, config: Config, layout: Layout, shared: SharedState, pids: Callable[[], set[int]]) -> None:
        self._config = config
        self._layout = layout
        self._pids = pids
        self._started_s = time.time()
        self.engine: Engine = open_engine(layout, shared, arena_bytes=ENGINE_ARENA_BYTES)
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "GET cluster": self._cluster,
            "GET topology": self._topology,
            "GET node": self._node,
            "GET drives": self._drives,
        }

    def start(self) -> None:
        """Begin the background work."""
        self.collect_staging()

    def close(self) -> None:
        """End it and let go of the drives."""
        self.engine.close()

    def collect_staging(self) -> None:
        """Remove what processes that are gone left half written."""
        alive = self._pids()
        for erasure_set in self.engine.sets:
            for position, drive in erasure_set.current():
                try:
                    drive.clear_staging(alive)
                except DriveError as error:
                    erasure_set.take_out(position, error)

    def answer(self, question: str, data: dict[str, Any]) -> Any:
        """Answer the admin API. Raises StoreError."""
        found = self._answers.get(question)
        if found is None:
            known = ", ".join(sorted(self._answers))
            raise StoreError("NoSuchKey", f"There is no admin call {question!r}; there are: {known}.")
        return found(data)

    def _cluster(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "deployment": self._layout.deployment,
            "version": __version__,
            "region": self._config.region,
            "ready": self.engine.ready(),
            "nodes": 1,
            "sets": len(self.engine.sets),
            "drives_per_set": self.engine.geometry.drives,
            "parity": self.engine.geometry.parity,
            "write_quorum": self.engine.geometry.write_quorum,
            "drives": self._drives(data)["drives"],
        }

    def _topology(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "deployment": self._layout.deployment,
            "nodes": [{"id": self._config.self_id, "address": self._config.s3_addr}],
            "sets": [
                {
                    "index": erasure_set.index,
                    "published": erasure_set.shared.published(erasure_set.index),
                    "drives": [self._drive(erasure_set, position) for position in range(erasure_set.geometry.drives)],
                }
                for erasure_set in self.engine.sets
            ],
        }

    def _node(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._config.self_id,
            "address": self._config.s3_addr,
            "version": __version__,
            "pid": os.getpid(),
            "workers": self._config.workers,
            "uptime_s": round(time.time() - self._started_s, 1),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "buffer_bytes": self._config.buffer_bytes,
        }

    def _drives(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "drives": [
                self._drive(erasure_set, position) for erasure_set in self.engine.sets for position in range(erasure_set.geometry.drives)
            ]
        }

    def _drive(self, erasure_set: ErasureSet, position: int) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "set": erasure_set.index,
            "position": position,
            "path": self._layout.paths[erasure_set.index][position],
            "state": erasure_set.shared.state(erasure_set.index, position).name.lower(),
        }
        drive = erasure_set.drive(position)
        if drive is not None:
            try:
                space = drive.space()
                shown |= {
                    "drive_id": drive.identity.drive_id,
                    "sequence": drive.seq(),
                    "total_bytes": space.total_bytes,
                    "free_bytes": space.free_bytes,
                }
            except DriveError as error:
                shown["error"] = str(error)
        return shown
