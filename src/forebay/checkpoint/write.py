"""Saving: plan, stage, checksum, stream out, report, commit.

`start_save` plans and stages what the user may change next; the rest goes on in threads. Parts of all of a rank's
files are worked off by a few threads. If the arrays stay as they are (JAX on CPU), the threads stage for themselves;
else the calling thread does, through the bounded ring of `Staging`, and returns when the last part is in it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forebay._version import __version__
from forebay.checkpoint import dtypes, views
from forebay.checkpoint.arrays import ArraySource, SnapshotSource
from forebay.checkpoint.attempt import Attempt
from forebay.checkpoint.catalog import LATEST_KEY, step_name
from forebay.checkpoint.group import Group, SingleProcess
from forebay.checkpoint.leaves import LeafCollector
from forebay.checkpoint.manifest import (
    BLOCK_BYTES,
    MANIFEST_FORMAT,
    MANIFEST_KEY,
    ArrayEntry,
    FileEntry,
    HostIndex,
    IndexPiece,
    Manifest,
    Node,
    Piece,
    decode,
)
from forebay.checkpoint.plan import ArraySpec, Plan, make_plan
from forebay.checkpoint.reuse import Reuse, find_reuse
from forebay.checkpoint.stage import BlockCrc, Part, Stager, Staging, block_count, parts_of
from forebay.checkpoint.timeline import Timeline
from forebay.checkpoint.tree import flatten
from forebay.codec import combine_crc64nvme, crc64nvme
from forebay.directio import Slot
from forebay.errors import CheckpointExists, ForebayError, LocationError, SaveFailed
from forebay.locations import Entry, Location, Upload

PARTS_MAX = 10_000
"""S3's limit of parts an object."""
REUSE_PART_BYTES = 8 * 2**20
"""Parts are smaller when an earlier checkpoint may hold them, so that a changed array spoils less of what surrounds
it.
"""
SNAPSHOT_BYTES_MAX = 64 * 2**20
"""Arrays that the user may change are copied at once if they are no more than this, nor a quarter of the memory."""
FILL_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""One thread copies and checksums some GiB a second, which is less than several accelerators or a fast network take."""
WATCH_S = 1.0
"""How often a rank looks for another's failure while it writes."""


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How to save.

    `memory_bytes` bounds the host memory of one process beyond the state itself (two parts are the least); `threads` are the parts in
    flight (None: as many as suit the location); `timeout_s` bounds the wait for other ranks. `views`: also write what TensorStore, Orbax,
    Levanter and Hugging Face look for.
    """

    memory_bytes: int = 2**30
    threads: int | None = None
    views: bool = True
    timeout_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint: where, which attempt, the manifest's entity tag, bytes of data, and how many of this
    rank's were copied by the location from an earlier checkpoint.
    """

    url: str
    step: int | None
    attempt: str
    etag: str
    size_bytes: int
    copied_bytes: int


class PendingSave:
    """A save that goes on behind. Every rank has one; all of them end alike.

    A program that ends waits for its saves first; one that failed and was never asked is logged then.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._future: Future[Saved] = Future()
        self._stop: list[BaseException] = []
        self._asked = False

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None while it goes on, and if it did not."""
        self._asked = self._asked or self._future.done()
        return self._future.exception() if self._future.done() else None

    def wait(self, timeout_s: float | None = None) -> Saved:
        """Wait for the end. Raises what it failed with, or `TimeoutError` (it goes on then)."""
        try:
            return self._future.result(timeout_s)
        finally:
            self._asked = self._future.done()

    def cancel(self, reason: str) -> None:
        """Make it fail soon, here and on every rank, unless it is committed already."""
        self._stop.append(SaveFailed(self.timeline.rank, reason))

    def tell(self) -> None:
        """Log the failure if nobody asked for it."""
        if self._future.done() and not self._asked and (error := self.error) is not None:
            logging.getLogger("forebay").error("a save failed and nobody asked how it ended: %s", error)

    def __del__(self) -> None:
        """No failure goes unseen."""
        self.tell()


_SAVES: weakref.WeakSet[PendingSave] = weakref.WeakSet()


def _finish_saves() -> None:
    """Before the program ends, its saves do."""
    for pending in list(_SAVES):
        wait([pending._future])
        pending.tell()


# The executors' own hook runs after those registered later, and refuses new work from then on; so this must come before it.
threading._register_atexit(_finish_saves)  # type: ignore[attr-defined]


class _Agreement(msgspec.Struct):
    """What rank 0 decides for all: the attempt's name and what it replaces (entity tag and attempt), or why there will be none."""

    attempt: str = ""
    replaces: str | None = None
    replaced_attempt: str | None = None
    error: str = ""
    exists: bool = False


def start_save(
    location: Location,
    tree: Any,
    *,
    step: int | None = None,
    group: Group | None = None,
    metadata: dict[str, Any] | None = None,
    temporary: bool = False,
    base: Location | None = None,
    overwrite: bool = False,
    options: SaveOptions | None = None,
    staging: Staging | None = None,
    blocking: bool = False,
    latest: Location | None = None,
) -> PendingSave:
    """Collective. Start saving `tree` as the checkpoint at `location` (its own folder, `<run>/step-00001234`).

    Returns when the state may be changed again; the rest goes on in threads. `base` is an earlier checkpoint whose
    unchanged parts may be copied by the location; if it cannot be read, everything is written. `staging` is memory shared
    with other saves. `metadata` is JSON of the user's. `blocking`: the caller will not touch the state before the end, so
    nothing is copied for its sake. `latest` is the run whose hint `LATEST` shall name this checkpoint. Raises
    `LeafRefused`, `CheckpointExists` or `LocationError` before anything is written.
    """
    group, options = group or SingleProcess(), options or SaveOptions()
    agreed = _agree(location, group, overwrite, options)
    attempt = Attempt(location, agreed.attempt, group, agreed.replaces, agreed.replaced_attempt)
    ring = staging or Staging(options.memory_bytes)
    save = _Save(attempt, options, ring, step, metadata or {}, temporary, blocking, latest)
    try:
        save.plan(tree, base)
        save.stage()
    except BaseException as error:
        save.fail(error)
        raise
    _SAVES.add(save.pending)
    threading.Thread(target=save.run, name="forebay-save", daemon=False).start()
    return save.pending


def _agree(location: Location, group: Group, overwrite: bool, options: SaveOptions) -> _Agreement:
    mine = _decide(location, overwrite) if group.rank == 0 else None
    payload = msgspec.json.encode(mine[0]) if mine else None
    agreed = msgspec.json.decode(group.broadcast(payload, options.timeout_s), type=_Agreement)
    if agreed.error:
        if mine and mine[1]:
            raise mine[1]
        raise (CheckpointExists(agreed.error) if agreed.exists else SaveFailed(0, agreed.error))
    return agreed


def _decide(location: Location, overwrite: bool) -> tuple[_Agreement, Exception | None]:
    """Rank 0's decision; what went wrong is broadcast too, so that nobody waits."""
    attempt = secrets.token_hex(6)
    try:
        if location.head(MANIFEST_KEY) is None:
            return _Agreement(attempt), None
        if not overwrite:
            exists = CheckpointExists(f"{location.url} is a complete checkpoint already; pass overwrite=True to replace it")
            return _Agreement(error=str(exists), exists=True), exists
        data, etag = location.get(MANIFEST_KEY)
        replaced = decode(data, MANIFEST_FORMAT, Manifest, f"{location.url}/{MANIFEST_KEY}").attempt
        return _Agreement(attempt, etag, replaced), None
    except ForebayError as error:
        return _Agreement(error=str(error)), error


@dataclass(slots=True)
class _FileState:
    """A data file being written: its upload, and the parts that are not done."""

    upload: Upload
    left: int


@dataclass(slots=True)
class _Save:
    """This rank's side of one attempt. `plan`, then `stage`, in the caller's thread; `run` in one of its own."""

    attempt: Attempt
    options: SaveOptions
    staging: Staging
    step: int | None
    metadata: dict[str, Any]
    temporary: bool
    blocking: bool
    latest: Location | None
    timeline: Timeline = field(init=False)
    pending: PendingSave = field(init=False)
    _tree: Node = field(init=False)
    _specs: list[ArraySpec] = field(init=False)
    _sources: list[ArraySource] = field(init=False)
    _plan: Plan = field(init=False)
    _reuse: Reuse | None = None
    _part_bytes: int = 0
    _threads: int = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)
    _futures: list[Future[None]] = field(default_factory=list)
    _files: dict[int, _FileState] = field(default_factory=dict)
    _entries: dict[int, Entry] = field(default_factory=dict)
    _crcs: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _copied_bytes: int = 0
    _may_be_committed: bool = False

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.attempt.group.rank, f"save {self.attempt.location.url}")
        self.pending = PendingSave(self.timeline)
        self._threads = self.options.threads or self.attempt.location.streams
        self._pool = ThreadPoolExecutor(self._threads, "forebay-part")

    # --- in the caller's thread

    def plan(self, tree: Any, base: Location | None) -> None:
        """Take the tree apart and decide who writes what."""
        group = self.attempt.group
        msgspec.json.encode(self.metadata)
        with self.timeline.span("plan"):
            collector = LeafCollector(group.size, group.rank)
            self._tree, _ = flatten(tree, collector.encode)
            self._sources = collector.sources
            named = zip(collector.names(), self._sources, strict=True)
            self._specs = [ArraySpec(name, s.dtype, s.shape, s.holders) for name, s in named]
            self._plan = make_plan(self._specs, group.size, self.attempt.name)
            self._reuse = find_reuse(base, self.attempt.location, self._specs, self._plan) if base is not None else None
            largest = max((self._plan.files[f].size_bytes for f in self._plan.files_of(group.rank)), default=0)
            self._part_bytes = part_bytes_for(self.attempt.location.part_bytes, largest, self._reuse is not None)

    def stage(self) -> None:
        """Return when the user may change the state: at once if all arrays are settled, else with all parts in
        memory.
        """
        if self.blocking:
            return
        self._snapshot_few()
        if all(source.settled for source in self._my_sources()):
            return
        stager = Stager(self._plan, self._sources)
        parts = self._begin_uploads()
        with ThreadPoolExecutor(FILL_THREADS, "forebay-stage") as fillers:
            for filled in [fillers.submit(self._fill_and_queue, stager, part, len(parts)) for part in parts]:
                filled.result()

    def _fill_and_queue(self, stager: Stager, part: Part, parts: int) -> None:
        self._check_stop()
        slot = self._slot(parts)
        try:
            crcs = self._fill(stager, part, slot)
        except BaseException as error:
            self.pending._stop.append(error)
            raise
        future = self._submit(self._write_slot, part, slot, crcs)
        future.add_done_callback(lambda _: slot.release())  # also if it never ran

    def _submit(self, work: Callable[..., None], *arguments: object) -> Future[None]:
        """Queue work on a part; if it fails, the others stop."""

        def stop_if_failed(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self.pending._stop.append(error)

        future = self._pool.submit(work, *arguments)
        future.add_done_callback(stop_if_failed)
        with self._lock:
            self._futures.append(future)
        return future

    def _begin_uploads(self) -> list[Part]:
        """Start this rank's files; all parts of them, in order."""
        parts: list[Part] = []
        for file in self._plan.files_of(self._rank):
            planned = self._plan.files[file]
            mine = list(parts_of(self._plan, file, self._part_bytes))
            upload = self.attempt.location.upload(planned.key, planned.size_bytes, self._part_bytes)
            self._files[file] = _FileState(upload, len(mine))
            parts += mine
        return parts

    def _snapshot_few(self) -> None:
        """Copy small unsettled arrays, such as counters beside the JAX arrays of a model, so that all are settled."""
        unsettled = [source for source in self._my_sources() if not source.settled]
        room = min(SNAPSHOT_BYTES_MAX, self.options.memory_bytes // 4)
        if sum(_held_bytes(source, self.attempt.group.rank) for source in unsettled) <= room:
            rank = self.attempt.group.rank
            mine = set(map(id, unsettled))
            self._sources = [SnapshotSource(s, rank) if id(s) in mine else s for s in self._sources]

    def _my_sources(self) -> Sequence[ArraySource]:
        rank = self.attempt.group.rank
        arrays = dict.fromkeys(piece.array for piece in self._plan.pieces if piece.rank == rank)
        return [self._sources[array] for array in arrays]

    # --- in the parts' threads

    def _stage_and_write(self, stager: Stager, part: Part) -> None:
        self._check_stop()
        if not self.attempt.location.direct_io:
            start_s = self.timeline.now_s()
            borrowed = stager.borrow(part)
            if borrowed is not None:
                views, crcs = borrowed
                self.timeline.add("checksum", "", start_s, self.timeline.now_s() - start_s, part.size_bytes)
                self._write(part, views, crcs)
                return
        slot = self._slot(self._threads + 1)
        self._write_slot(part, slot, self._fill(stager, part, slot))

    def _slot(self, parts: int) -> Slot:
        with self.timeline.span("memory"):
            arena = self.staging.arena(self._part_bytes, parts)
            while (slot := arena.acquire(WATCH_S)) is None:
                self._check_stop()
            return slot

    def _fill(self, stager: Stager, part: Part, slot: Slot) -> list[BlockCrc]:
        with self.timeline.span("stage", self._plan.files[part.file].key, part.size_bytes):
            try:
                return stager.fill(part, slot)
            except BaseException:
                slot.release()
                raise

    def _write_slot(self, part: Part, slot: Slot, crcs: list[BlockCrc]) -> None:
        with slot:
            self._check_stop()
            self._write(part, [slot.view[: part.size_bytes]], crcs)

    def _write(self, part: Part, buffers: list[memoryview], crcs: list[BlockCrc]) -> None:
        state = self._files[part.file]
        start_s = self.timeline.now_s()
        copied = self._reuse is not None and self._reuse.copy(state.upload, part, crcs)
        if copied:
            self.timeline.add("copy", self._plan.files[part.file].key, start_s, self.timeline.now_s() - start_s, part.size_bytes)
        else:
            with self.timeline.span("upload", self._plan.files[part.file].key, part.size_bytes), self._naming_arrays(part):
                state.upload.write_part(part.index, buffers)
        with self._lock:
            self._crcs.update({(c.piece, c.block): (c.crc, c.size_bytes) for c in crcs})
            self._copied_bytes += part.size_bytes * copied
            state.left -= 1
            last = state.left == 0
        if last:
            with self.timeline.span("sync", self._plan.files[part.file].key):
                self._entries[part.file] = state.upload.complete()

    @contextmanager
    def _naming_arrays(self, part: Part) -> Iterator[None]:
        """Say of a failed request which arrays were on their way."""
        try:
            yield
        except LocationError as error:
            names = [self._specs[self._plan.pieces[segment.piece].array].name for segment in part.segments]
            shown = ", ".join(map(repr, names[:3])) + f" and {len(names) - 3} more" * (len(names) > 3)
            raise type(error)(error.operation, error.url, f"{error.message} (writing {shown or 'a file header'})") from error

    def _check_stop(self) -> None:
        if self.pending._stop:
            raise self.pending._stop[0]

    # --- in the save's own thread

    def run(self) -> None:
        """Wait for the parts, report, commit; then resolve the pending save."""
        try:
            saved = self._run()
        except BaseException as error:
            late = self._saved_after_all(error)
            if late is None:
                self.fail(error)
                self.pending._future.set_exception(self._named(error))
                return
            saved = late
        self._pool.shutdown()
        self._sources = []
        self.pending._future.set_result(saved)

    def _run(self) -> Saved:
        deadline_s = time.monotonic() + self.options.timeout_s
        if not self._files:
            stager = Stager(self._plan, self._sources)
            for part in self._begin_uploads():
                self._submit(self._stage_and_write, stager, part)
        self._wait_for_parts()
        self._check_stop()
        self._may_be_committed = True
        with self.timeline.span("commit"):
            built, etag = self.attempt.finish(self._index(), self._manifest, deadline_s)
        return self._finished(built, etag)

    def _finished(self, built: Manifest | None, etag: str) -> Saved:
        """The commit is done. Views are written by the rank that committed; every reader of ours does without them."""
        location = self.attempt.location
        if built is not None:
            with self.timeline.span("views"):
                if self.options.views:
                    views.write(location, built)
                if self.latest is not None and self.step is not None:
                    self.latest.put(LATEST_KEY, step_name(self.step).encode())
                self.attempt.remove_replaced()
        size_bytes = sum(file.size_bytes for file in self._plan.files)
        return Saved(location.url, self.step, self.attempt.name, etag, size_bytes, self._copied_bytes)

    def _saved_after_all(self, error: BaseException) -> Saved | None:
        """After a failure in the commit it may stand all the same: by another rank, or by a request whose answer was lost."""
        if not self._may_be_committed or isinstance(error, CheckpointExists):
            return None
        try:
            etag = self.attempt.committed()
            return self._finished(None, etag) if etag is not None else None
        except ForebayError:
            return None

    def _wait_for_parts(self) -> None:
        """Until all parts are written; stops them when one fails, or another rank does."""
        for future in self._futures:
            while True:
                try:
                    future.result(WATCH_S)
                    break
                except TimeoutError:
                    if future.done():
                        raise
                    self._check_stop()
                    if self.attempt.group.size > 1:
                        self.attempt.check_failures()
                        self.attempt.group.check_peers()

    def fail(self, error: BaseException) -> None:
        """Stop the threads, free what was stored, tell the other ranks."""
        self.pending._stop.append(error)
        self._pool.shutdown(cancel_futures=True)
        for file, state in self._files.items():
            if file not in self._entries:
                state.upload.abort()
        if self.attempt.group.size > 1:
            self.attempt.report_failure(error)
        if not self._may_be_committed or isinstance(error, CheckpointExists):
            self._remove_data()
        self._sources = []

    def _remove_data(self) -> None:
        """The attempt cannot be committed any more, so this rank's files are garbage. What stays of it is swept later."""
        try:
            self.attempt.location.delete([self._plan.files[file].key for file in self._entries])
        except ForebayError as error:
            self.timeline.add("leftover", str(error), self.timeline.now_s(), 0.0)

    @property
    def _rank(self) -> int:
        return self.attempt.group.rank

    def _named(self, error: BaseException) -> BaseException:
        """The error with the rank it happened on."""
        if isinstance(error, SaveFailed | CheckpointExists) or self.attempt.group.size == 1:
            return error
        failed = SaveFailed(self._rank, str(error) or repr(error))
        failed.__cause__ = error
        return failed

    def _index(self) -> HostIndex:
        plan = self._plan
        mine = [i for i, piece in enumerate(plan.pieces) if piece.rank == self._rank]
        pieces = tuple(IndexPiece(i, tuple(self._piece_crcs(i))) for i in mine)
        files = []
        for file in plan.files_of(self._rank):
            crc = crc64nvme(plan.files[file].header)
            for index in plan.files[file].pieces:
                for block in range(block_count(plan.pieces[index].offset, plan.pieces[index].size_bytes)):
                    crc = combine_crc64nvme(crc, *self._crcs[index, block])
            entry = self._entries[file]
            files.append(FileEntry(plan.files[file].key, entry.size_bytes, crc, entry.etag))
        return HostIndex(self._rank, plan.digest, tuple(files), pieces)

    def _piece_crcs(self, index: int) -> list[int]:
        piece = self._plan.pieces[index]
        return [self._crcs[index, block][0] for block in range(block_count(piece.offset, piece.size_bytes))]

    def _manifest(self, indexes: list[HostIndex]) -> Manifest:
        return build_manifest(
            self._plan, self._specs, self._sources_text(), self._tree, indexes,
            attempt=self.attempt.name, step=self.step, metadata=self.metadata, temporary=self.temporary,
        )  # fmt: skip

    def _sources_text(self) -> list[str]:
        return [source.sharding for source in self._sources]


def _held_bytes(source: ArraySource, rank: int) -> int:
    return sum(box.size for box in source.holders[rank]) * dtypes.itemsize_of(source.dtype)


def part_bytes_for(preferred: int, file_bytes: int, small: bool) -> int:
    """The size of parts: the location's, or small ones, but no more than `PARTS_MAX` of them; a multiple of
    `BLOCK_BYTES`.
    """
    wanted = max(REUSE_PART_BYTES if small else preferred, -(-file_bytes // PARTS_MAX))
    return -(-wanted // BLOCK_BYTES) * BLOCK_BYTES


def build_manifest(
    plan: Plan,
    specs: Sequence[ArraySpec],
    shardings: Sequence[str],
    tree: Node,
    indexes: Sequence[HostIndex],
    *,
    attempt: str,
    step: int | None,
    metadata: dict[str, Any],
    temporary: bool,
) -> Manifest:
    """Join the ranks' reports. Raises `SaveFailed` if one planned differently: their trees were not alike."""
    crcs: dict[int, tuple[int, ...]] = {}
    files: dict[str, FileEntry] = {}
    for index in indexes:
        if index.plan != plan.digest:
            message = "it planned another checkpoint: its tree has other keys, shapes, dtypes or shardings"
            raise SaveFailed(index.rank, message)
        crcs.update({piece.piece: piece.crcs for piece in index.pieces})
        files.update({file.key: file for file in index.files})
    by_array: list[list[Piece]] = [[] for _ in specs]
    for number, p in enumerate(plan.pieces):
        by_array[p.array].append(Piece(p.file, p.offset, p.box.start, p.stored_shape, crcs[number]))
    entries = [
        ArrayEntry(spec.name, spec.dtype, spec.shape, tuple(pieces), sharding)
        for spec, pieces, sharding in zip(specs, by_array, shardings, strict=True)
    ]
    return Manifest(
        attempt, step, time.time(), f"forebay {__version__}", BLOCK_BYTES, tree, tuple(entries),
        tuple(files[planned.key] for planned in plan.files), metadata, temporary,
    )  # fmt: skip
