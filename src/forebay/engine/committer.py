"""Group commit: one thread a set and process takes all requests that wait, judges them under the set lock and commits them together.

A request is an `Op`. Its `judge` runs under the lock against the newest committed state and either changes its transaction or raises
StoreError. `writes` and `reads` name what it touches; a request whose names clash with one already in the batch waits for the next
batch, so that judging may scan.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from forebay.engine import keyspace, records
from forebay.engine.erasure_set import Changes, ErasureSet
from forebay.engine.lanes import Gather
from forebay.engine.records import Reap
from forebay.engine.shared import DriveState
from forebay.engine.transaction import Batch, Transaction
from forebay.errors import StoreError

log = logging.getLogger("forebay.engine")
R = TypeVar("R")

BATCH_OPS_MAX = 256  # bounds a transaction, and with it the time that the set lock is held
REAPS_PER_COMMIT_MAX = 256
REAP_IDLE_S = 0.05  # superseded versions are removed this long after the last commit, if no other one comes
OP_TIMEOUT_S = 60.0


class Op(Generic[R]):
    """A request on its way. Read `result` or `error` once it is done; `wait` does both for a thread."""

    __slots__ = ("_done", "discard", "error", "judge", "on_done", "reads", "result", "set_index", "writes")

    def __init__(
        self,
        judge: Callable[[Transaction], R],
        *,
        set_index: int = 0,
        writes: tuple[bytes, ...] = (),
        reads: tuple[bytes, ...] = (),
        on_done: Callable[[Op[R]], None] | None = None,
        discard: Callable[[], None] | None = None,
    ) -> None:
        """`on_done` is called through the engine's `notify`; `discard` when `judge` refused, to free what was prepared."""
        self.judge = judge
        self.set_index = set_index
        self.writes = writes
        self.reads = reads
        self.on_done = on_done
        self.discard = discard
        self.result: R | None = None
        self.error: StoreError | None = None
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def finish(self) -> None:
        """`result` or `error` is set."""
        self._done.release()

    def wait(self, timeout_s: float = OP_TIMEOUT_S) -> R:
        """Block until it is done; returns the result or raises StoreError."""
        if not self._done.acquire(timeout=timeout_s):
            raise StoreError("ServiceUnavailable", f"The drives did not commit within {timeout_s:g} s.")
        self._done.release()
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


Notify = Callable[[list[Op[Any]]], None]


def notify_directly(ops: Sequence[Op[Any]]) -> None:
    """Call each `on_done` in the committing thread."""
    for op in ops:
        if op.on_done is not None:
            op.on_done(op)


class Committer:
    """The committing thread of one set in this process."""

    def __init__(self, erasure_set: ErasureSet, notify: Notify) -> None:
        """Started by the first request."""
        self._set = erasure_set
        self._notify = notify
        self._waiting: deque[Op[Any]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._reaps_due = False

    def submit(self, op: Op[Any]) -> None:
        """Queue a request; order is kept among those that clash."""
        with self._wake:
            if self._closing:
                raise StoreError("ServiceUnavailable", "The server is stopping.")
            if self._thread is None:
                name = f"set{self._set.index}-committer"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._waiting.append(op)
            self._wake.notify()

    def close(self) -> None:
        """Commit what is queued, then end."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    if not self._wake.wait(REAP_IDLE_S if self._reaps_due else None):
                        break
                if self._closing and not self._waiting:
                    return
                ops = self._take()
            try:
                self._commit(ops)
            except Exception:  # this thread must not end: all that come after would wait for ever
                log.exception("the committer of set %d met something unforeseen", self._set.index)

    def _take(self) -> list[Op[Any]]:
        """The longest run of requests, in order, that do not clash with each other or with one left behind."""
        taken: list[Op[Any]] = []
        left: deque[Op[Any]] = deque()
        writes: set[bytes] = set()
        names: set[bytes] = set()
        while self._waiting and len(taken) < BATCH_OPS_MAX:
            op = self._waiting.popleft()
            if not names.isdisjoint(op.writes) or not writes.isdisjoint(op.reads):
                left.append(op)
            else:
                taken.append(op)
            writes.update(op.writes)
            names.update(op.writes)
            names.update(op.reads)
        left.extend(self._waiting)
        self._waiting = left
        return taken

    def _commit(self, ops: list[Op[Any]]) -> None:
        batch: Batch | None = None
        accepted: list[Op[Any]] = []
        try:
            with self._set.shared.lock(self._set.index):
                self._set.require_writable()
                batch = Batch(self._set, self._set.next_seq())
                for op in ops:
                    if self._judge(op, batch):
                        accepted.append(op)
                reaped = self._reap(batch)
                if batch.values:
                    self._set.commit(Changes(batch.seq, batch.values))
                self._reaps_due = batch.reap_index > 0 or reaped == REAPS_PER_COMMIT_MAX
        except StoreError as e:
            self._fail(ops, accepted, batch, e)
        except Exception:
            log.exception("a commit failed in an unforeseen way")
            self._fail(ops, accepted, batch, StoreError("InternalError"))
        else:
            self._finish(ops, batch)

    def _judge(self, op: Op[Any], batch: Batch) -> bool:
        def judge(drive: Any) -> Transaction:
            transaction = Transaction(batch, drive)
            op.result = op.judge(transaction)
            return transaction

        try:
            self._set.read(judge).join()
        except StoreError as e:
            op.error = e
            return False
        except Exception:
            log.exception("a request failed in an unforeseen way")
            op.error = StoreError("InternalError")
            return False
        return True

    def _fail(self, ops: list[Op[Any]], accepted: list[Op[Any]], batch: Batch | None, error: StoreError) -> None:
        for op in ops:
            if op.error is None:
                op.error = error
                op.result = None
                if batch is not None and op in accepted:
                    op.discard = None  # part of the commit may be on some drives: what it refers to must stay
        self._reaps_due = False
        self._finish(ops, None)

    def _finish(self, ops: list[Op[Any]], batch: Batch | None) -> None:
        for op in ops:
            if op.error is not None and op.discard is not None:
                try:
                    op.discard()
                except Exception:
                    log.exception("what a refused request had prepared was not discarded; it is collected later")
            op.finish()
        if ops:
            self._notify(ops)
        if batch is not None:
            trash_shards(self._set, batch.trash)

    def _reap(self, batch: Batch) -> int:
        """Remove what published commits superseded; returns how many reap records that took."""

        def due(drive: Any) -> tuple[Transaction, int]:
            transaction = Transaction(batch, drive)
            stop = keyspace.reap_key(transaction.published + 1, 0)
            found = drive.scan(keyspace.TABLE_REAP, stop, REAPS_PER_COMMIT_MAX)
            for key, raw in found:
                reap = records.unpack(key, raw, Reap)
                transaction.remove(key)
                for gone in reap.keys:
                    transaction.remove(gone)
                foreign = []
                for set_index, blob_id, owner in reap.claims:
                    if set_index == self._set.index:
                        transaction.release(blob_id, owner)
                    else:
                        foreign.append((set_index, blob_id, owner))
                if foreign:
                    transaction.put(keyspace.TABLE_FOREIGN + key[1:], Reap([], foreign))
            return transaction, len(found)

        try:
            transaction, count = self._set.read(due)
        except StoreError as e:  # requests go on; what is superseded stays
            log.error("set %d: superseded versions cannot be removed: %s", self._set.index, e)
            return 0
        transaction.join()
        return count


def trash_shards(erasure_set: ErasureSet, blob_ids: Sequence[bytes]) -> None:
    """Move the shards of blobs that nothing refers to any more to the trash, without waiting."""
    if not blob_ids:
        return
    from_drives = erasure_set.in_states(DriveState.STALE, DriveState.SYNCING, DriveState.CURRENT)
    gather = Gather(len(from_drives) * len(blob_ids))
    for position, drive in from_drives:
        for blob_id in blob_ids:
            erasure_set.submit(gather, position, partial(drive.trash_shard, blob_id))
