"""Bringing drives back to one truth: what a record should be on a drive, and what to do with a commit that a crash tore.

The newest log record on a drive says how far its index has come. A commit names its *members*, the drives that were current when it was
made, and is published only once every one of them has it; a member that fails is voted out by a further commit without it. So:

=========================================  ===============================================================================
of the newest commit, the drives present   so
=========================================  ===============================================================================
every member that is present has it        it may have been acknowledged: it stays
some member that is present lacks it       it was never acknowledged and never read: it is undone where it is, to the state
                                           of those that lack it; then the commit before it is looked at in the same way
=========================================  ===============================================================================

Undoing is possible because a member that lacks the newest commit has the complete state before it. Numbers are never used twice, so two
drives with a log record of one number have the same commit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from forebay.codec import ReedSolomon
from forebay.drive import Drive
from forebay.engine import keyspace, records
from forebay.engine.placement import Geometry, inline_rotation
from forebay.engine.records import NO_SHARD, BadRecord, Frame, Log, Version
from forebay.errors import RecordCorrupt

log = logging.getLogger("forebay.engine")

Source = tuple[int, Drive]


class Lost(NamedTuple):
    """Fewer than k shards of an inline object are left; `record` is what is known of it, without a shard."""

    record: bytes


def value_for(
    key: bytes, position: int, geometry: Geometry, leaders: Sequence[Source], others: Sequence[Source] = ()
) -> bytes | Lost | None:
    """What drive `position` should hold under `key`; None if it should hold nothing.

    The drives of `leaders` are up to date: metadata comes from the first of them whose copy is whole. Shards may come from `others`
    too. Raises BadRecord if every leader's copy is damaged.
    """
    raw, damage = None, None
    for _, drive in leaders:
        raw = drive.get(key)
        try:
            frame = records.unframe(key, raw) if raw else None
            damage = None
            break
        except BadRecord as e:
            damage = e
    if damage is not None:
        raise damage
    if raw is None or frame is None:  # absent, or one of the records that have no content (claims, heal records)
        return raw
    if frame.kind != records.KIND_VERSION or not records.decode(key, frame, Version).inline:
        return raw
    return _inline_value(key, frame, position, geometry, [*leaders, *others])


def _inline_value(key: bytes, leader: Frame, position: int, geometry: Geometry, sources: Sequence[Source]) -> bytes | Lost:
    version = records.decode(key, leader, Version)
    bare = records.frame(key, leader.kind, leader.meta, deleted_seq=leader.deleted_seq, changed=leader.changed)
    if leader.deleted_seq:
        return bare  # it needs no content any more
    shards = _shards(key, version, geometry, sources)
    wanted = shard_position(key, position, geometry)
    own = shards[wanted] if version.size else b""
    if own is not None:
        return records.frame(key, leader.kind, leader.meta, wanted, own, changed=leader.changed)
    if sum(s is not None for s in shards) < geometry.data:
        return Lost(bare)
    codec = ReedSolomon.of(geometry.data, geometry.parity)
    content = codec.join_small(shards, version.size)
    return records.frame(key, leader.kind, leader.meta, wanted, codec.encode_small(content)[wanted], changed=leader.changed)


def _shards(key: bytes, version: Version, geometry: Geometry, sources: Sequence[Source]) -> list[memoryview | None]:
    shards: list[memoryview | None] = [None] * geometry.drives
    for _, drive in sources:
        frame = _same_version(key, drive.get(key), version)
        if frame is not None and frame.shard_position != NO_SHARD:
            shards[frame.shard_position] = frame.shard
    return shards


def shard_position(key: bytes, position: int, geometry: Geometry) -> int:
    """Which shard of an inline version drive `position` holds."""
    return (position - inline_rotation(key[: -keyspace.VERSION_SUFFIX_BYTES], geometry.drives)) % geometry.drives


def _same_version(key: bytes, raw: bytes | None, version: Version) -> Frame | None:
    if not raw:
        return None
    try:
        frame = records.unframe(key, raw)
        return frame if records.decode(key, frame, Version).random == version.random else None
    except BadRecord:
        return None


class Newest(NamedTuple):
    """The newest log record of a drive: the commit up to which its index has come."""

    seq: int
    log: Log
    raw: bytes


def newest_log(drive: Drive) -> Newest | None:
    """None on a drive that was never filled. Raises RecordCorrupt."""
    found = drive.scan(keyspace.TABLE_LOG, keyspace.successor(keyspace.TABLE_LOG) or b"", 1, reverse=True)
    if not found:
        return None
    key, raw = found[0]
    try:
        return Newest(keyspace.log_seq(key), records.unpack(key, raw, Log), raw)
    except BadRecord as e:
        raise RecordCorrupt(drive.path, f"its newest log record is damaged: {e}") from e


def settle(geometry: Geometry, drives: Sequence[Source]) -> tuple[Newest, list[Source]]:
    """Undo what was never acknowledged, on `drives` with complete indexes; returns the newest commit and the drives that have it.

    Under the set lock, or while nobody else uses the drives. Raises DriveError; called again, it goes on where it was.
    """
    while True:
        histories = {p: found for p, d in drives if (found := newest_log(d)) is not None}
        newest = max(histories.values(), key=lambda each: each.seq)
        holders = [s for s in drives if s[0] in histories and histories[s[0]].seq == newest.seq]
        lacking = [s for s in drives if s[0] in newest.log.members and s not in holders]
        if not lacking:
            return newest, holders
        log.warning("commit %d was cut short on drives %s: undone", newest.seq, [p for p, _ in holders])
        for position, drive in holders:
            _undo(newest, position, drive, geometry, lacking, holders)


def _undo(newest: Newest, position: int, drive: Drive, geometry: Geometry, truth: Sequence[Source], holders: Sequence[Source]) -> None:
    puts: list[tuple[bytes, bytes]] = []
    deletes = [keyspace.log_key(newest.seq)]
    for key in newest.log.keys:
        try:
            value = value_for(key, position, geometry, truth, holders)
        except BadRecord as e:
            log.error("what %r was before commit %d is damaged everywhere: %s", key, newest.seq, e)
            continue
        if value is None:
            deletes.append(key)
        else:
            puts.append((key, value.record if isinstance(value, Lost) else value))
    drive.commit(drive.seq(), puts, deletes)


def drop_unreadable(newest: Newest, geometry: Geometry, drives: Sequence[Source]) -> None:
    """Of the commit `newest`, which was never acknowledged but that no drive can undo, drop the versions that nobody can read.

    What they supersede is kept: the commit's reap records go with them. `drives` are all that have the commit. Raises DriveError.
    """
    gone = [key for key in newest.log.keys if _is_unreadable_addition(key, newest, geometry, drives)]
    if gone:
        log.error("commit %d: %d small objects that were never acknowledged are lost", newest.seq, len(gone))
        gone += [key for key in newest.log.keys if key[:1] == keyspace.TABLE_REAP]
        for _, drive in drives:
            drive.commit(drive.seq(), [], gone)


def _is_unreadable_addition(key: bytes, newest: Newest, geometry: Geometry, drives: Sequence[Source]) -> bool:
    if key[:1] != keyspace.TABLE_OBJECT or keyspace.version_suffix(key)[0] <= newest.log.previous:
        return False
    for _, drive in drives:
        try:
            frame = records.unframe(key, drive.get(key) or b"")
        except BadRecord:
            continue  # absent, or damaged here
        if frame.kind != records.KIND_VERSION:
            return False
        version = records.decode(key, frame, Version)
        return version.inline and version.size > 0 and sum(s is not None for s in _shards(key, version, geometry, drives)) < geometry.data
    return False
