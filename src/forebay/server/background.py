"""What the supervisor does with the drives besides watching workers, and the answers to the admin API's questions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import msgspec

from forebay._version import __version__
from forebay.engine.engine import Engine
from forebay.engine.keeper import Keeper
from forebay.engine.opening import Layout, open_engine
from forebay.engine.shared import SharedState
from forebay.errors import ConfigError, DriveError, StoreError
from forebay.server.config import Config

ENGINE_ARENA_BYTES = 64 << 20  # healing and scrubbing move a few stripes at a time


class Background:
    """Owns the supervisor's engine and its keeper. Methods may block; they are called from threads."""

    def __init__(
        self, config: Config, layout: Layout, shared: SharedState, pids: Callable[[], set[int]], lock_folder: Callable[[str], None]
    ) -> None:
        """`lock_folder` keeps other servers from a folder that was made anew."""
        self._config = config
        self._layout = layout
        self._pids = pids
        self._lock_folder = lock_folder
        self._started_s = time.time()
        self.engine: Engine = open_engine(layout, shared, arena_bytes=ENGINE_ARENA_BYTES)
        self._keeper = Keeper(self.engine, layout, alive_pids=pids)
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "GET cluster": self._cluster,
            "GET topology": self._topology,
            "GET node": self._node,
            "GET drives": self._drives,
            "POST drives/replace": self._replace,
            "GET heal": lambda _: self._keeper.heal_status(),
            "POST heal": lambda _: self._keeper.start_heal(),
            "GET scrub": lambda _: self._keeper.scrub_status(),
            "POST scrub": lambda _: self._keeper.start_scrub(),
        }

    def start(self) -> None:
        """Begin the background work."""
        self.collect_staging()
        self._keeper.start()

    def close(self) -> None:
        """End it and let go of the drives."""
        self._keeper.close()
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

    def check_indexes(self) -> None:
        """A worker died as a damaged index makes it die: find the drive. Returns at once."""
        self._keeper.check_indexes()

    def answer(self, question: str, data: dict[str, Any]) -> Any:
        """Answer the admin API, with what JSON can hold. Raises StoreError."""
        found = self._answers.get(question)
        if found is None:
            known = ", ".join(sorted(self._answers))
            raise StoreError("NoSuchKey", f"There is no admin call {question!r}; there are: {known}.")
        return msgspec.to_builtins(found(data))

    def _cluster(self, data: dict[str, Any]) -> dict[str, Any]:
        geometry = self.engine.geometry
        return {
            "deployment": self._layout.deployment,
            "version": __version__,
            "region": self._config.region,
            "ready": self.engine.ready(),
            "nodes": 1,
            "sets": len(self.engine.sets),
            "drives_per_set": geometry.drives,
            "parity": geometry.parity,
            "write_quorum": geometry.write_quorum,
            "drives": self._keeper.drives(),
        }

    def _topology(self, data: dict[str, Any]) -> dict[str, Any]:
        drives = self._keeper.drives()
        return {
            "deployment": self._layout.deployment,
            "nodes": [{"id": self._config.self_id, "address": self._config.s3_addr}],
            "sets": [
                {
                    "index": each.index,
                    "published": each.shared.published(each.index),
                    "drives": [drive for drive in drives if drive.set == each.index],
                }
                for each in self.engine.sets
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
        return {"drives": self._keeper.drives()}

    def _replace(self, data: dict[str, Any]) -> Any:
        try:
            place = msgspec.convert(data, _Place)
        except msgspec.ValidationError as error:
            raise StoreError("InvalidArgument", f"Name the drive by set and position: {error}") from error
        report = self._keeper.replace(place.set, place.position)
        try:
            self._lock_folder(self._layout.paths[place.set][place.position])
        except ConfigError as error:
            raise StoreError("InvalidRequest", str(error)) from error
        return report


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    """Where a drive belongs."""

    set: int
    position: int
