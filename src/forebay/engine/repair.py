"""Repairing damaged index records: a commit that writes the same record again on every drive."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable
from typing import Any, NamedTuple

from forebay.engine import records, recovery
from forebay.engine.committer import Op
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.records import BadRecord, Version
from forebay.engine.recovery import Lost, Source
from forebay.engine.transaction import Transaction

log = logging.getLogger("forebay.engine")


class Copy(NamedTuple):
    """A drive's copy of a record. `sameness` is equal for copies that differ in nothing but their shard; None: damaged."""

    source: Source
    sameness: tuple[Hashable, ...] | None
    shard_is_right: bool


def repair_record(erasure_set: ErasureSet, key: bytes, **op: Any) -> Op[bool]:
    """Make the current drives agree about `key` again; the result tells whether anything had to be done.

    What the most whole copies say is written to all drives; a record that most drives lack is removed; one that is damaged wherever it
    is stays as it is.
    """

    def judge(tx: Transaction) -> bool:
        if tx.is_changed(key):
            return False  # another request of this batch writes it
        current = erasure_set.current()
        copies = [look(key, raw, source, erasure_set) for source in current if (raw := source[1].get(key)) is not None]
        if 2 * len(copies) < len(current):
            tx.remove(key)
            return bool(copies)
        groups = Counter(copy.sameness for copy in copies if copy.sameness is not None)
        if not groups:
            return False
        best, count = groups.most_common(1)[0]
        leaders = [copy.source for copy in copies if copy.sameness == best]
        if count == len(current) and all(copy.shard_is_right for copy in copies):
            return False
        found = [recovery.value_for(key, p, erasure_set.geometry, leaders) for p in range(erasure_set.geometry.drives)]
        values = [value.record if isinstance(value, Lost) else value or b"" for value in found]
        if len(set(values)) == 1:
            tx.put_raw(key, values[0])
        else:
            tx.put_each(key, values)
        log.warning("set %d: record %r is written again on every drive", erasure_set.index, key)
        return True

    return Op(judge, set_index=erasure_set.index, **op)


def look(key: bytes, raw: bytes, source: Source, erasure_set: ErasureSet) -> Copy:
    """Judge what a drive has under `key`."""
    if not raw:
        return Copy(source, (), True)
    try:
        frame = records.unframe(key, raw)
        sameness = (frame.kind, frame.deleted_seq, bytes(frame.meta))
        has_shard = frame.kind == records.KIND_VERSION and not frame.deleted_seq and records.decode(key, frame, Version).inline
    except BadRecord:
        return Copy(source, None, False)
    wanted = recovery.shard_position(key, source[0], erasure_set.geometry) if has_shard else records.NO_SHARD
    return Copy(source, sameness, not has_shard or frame.shard_position == wanted)
