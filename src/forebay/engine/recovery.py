"""Bringing drives back to one truth: what a record should be on a drive, and what to do with a commit that a crash tore.

A commit is torn when some current drives have it and others do not, because the process that made it died. Under the set lock, before
anything else is committed, the newest commit is settled:

====================================  =======================  ==========================================
the key, as the newest commit has it  can it be read?          so
====================================  =======================  ==========================================
absent                                                         removed everywhere (rolled forward)
the same on every drive               always                   written everywhere (rolled forward)
a share of an inline object           >= k shards               rebuilt everywhere (rolled forward)
a share of an inline object           < k, never acknowledged   removed everywhere (rolled back)
a share of an inline object           < k, maybe acknowledged   left alone, until more drives are back
====================================  =======================  ==========================================

"Never acknowledged" is known for sure while the server runs (the commit is not published), and after a start if the drives that have the
commit and the drives that are absent are together fewer than a write quorum.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum

from forebay.codec import ReedSolomon
from forebay.drive import Drive
from forebay.engine import keyspace, records
from forebay.engine.placement import Geometry, inline_rotation
from forebay.engine.records import NO_SHARD, BadRecord, Frame, Log, Version

log = logging.getLogger("forebay.engine")

Source = tuple[int, Drive]


class Lost(Enum):
    """Instead of a value: fewer than k shards of an inline object are left."""

    LOST = "lost"


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
    if leader.deleted_seq:
        return records.frame(key, leader.kind, leader.meta, deleted_seq=leader.deleted_seq)  # it needs no content any more
    shards: list[bytes | memoryview | None] = [None] * geometry.drives
    for _, drive in sources:
        frame = _same_version(key, drive.get(key), version)
        if frame is not None and frame.shard_position != NO_SHARD:
            shards[frame.shard_position] = frame.shard
    if sum(s is not None for s in shards) < geometry.data:
        return Lost.LOST
    codec = ReedSolomon.of(geometry.data, geometry.parity)
    content = codec.join_small(shards, version.size)
    wanted = (position - inline_rotation(key[: -keyspace.VERSION_SUFFIX_BYTES], geometry.drives)) % geometry.drives
    return records.frame(key, leader.kind, leader.meta, wanted, codec.encode_small(content)[wanted])


def _same_version(key: bytes, raw: bytes | None, version: Version) -> Frame | None:
    if not raw:
        return None
    try:
        frame = records.unframe(key, raw)
        return frame if records.decode(key, frame, Version).random == version.random else None
    except BadRecord:
        return None


def settle(geometry: Geometry, leaders: Sequence[Source], laggards: Sequence[Source], seq: int, *, maybe_acknowledged: bool) -> set[bytes]:
    """Under the set lock: bring `laggards`, which lack commit `seq`, to the state of `leaders`, which have it.

    Commits on the drives directly; returns the keys that could not be settled (the last row of the table). Raises DriveError.
    """
    log_key = keyspace.log_key(seq)
    raw_log = leaders[0][1].get(log_key)
    keys = records.unpack(log_key, raw_log, Log).keys if raw_log else []
    puts: dict[int, list[tuple[bytes, bytes]]] = {p: [] for p, _ in (*leaders, *laggards)}
    removed: list[bytes] = []
    unsettled: set[bytes] = set()
    for key in keys:
        for position, values in puts.items():
            value = value_for(key, position, geometry, leaders, laggards)
            if value is None:
                removed.append(key)
                break
            if isinstance(value, Lost):
                if maybe_acknowledged:
                    unsettled.add(key)
                else:
                    removed.append(key)
                break
            values.append((key, value))
    for values in puts.values():
        if raw_log:
            values.append((log_key, raw_log))
    log.warning(
        "commit %d was torn: %d keys rolled forward, %d removed, %d undecided", seq, len(keys) - len(removed), len(removed), len(unsettled)
    )
    for position, drive in (*laggards, *leaders):
        drive.commit(seq, puts[position], removed)
    return unsettled


def newest(drives: Sequence[Source]) -> tuple[int, list[Source], list[Source]]:
    """(highest sequence number, the drives that have it, the others)."""
    seqs = {p: d.seq() for p, d in drives}
    seq = max(seqs.values(), default=0)
    return seq, [s for s in drives if seqs[s[0]] == seq], [s for s in drives if seqs[s[0]] != seq]


def majority(leaders: list[Source], seq: int) -> list[Source]:
    """Of drives at the same sequence number, those that agree on what that commit was.

    Two commits get one number only if the first was torn on drives that were then away; it was never acknowledged, so the larger group
    is right.
    """
    groups: dict[bytes | None, list[Source]] = {}
    for source in leaders:
        groups.setdefault(source[1].get(keyspace.log_key(seq)), []).append(source)
    return max(groups.values(), key=len)
