"""Reading small objects, whose content is in the index records: the shares of k drives, each under its record's checksum."""

from __future__ import annotations

from forebay.codec import ReedSolomon
from forebay.engine import keyspace, records
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.lookup import Found
from forebay.engine.placement import inline_rotation
from forebay.engine.records import BadRecord, Version
from forebay.errors import DriveFailed


def read(erasure_set: ErasureSet, found: Found) -> bytes | None:
    """The content; None if fewer than k drives have their share (the object was replaced and reaped meanwhile, or it is lost)."""
    if not found.version.size:
        return b""
    geometry = erasure_set.geometry
    rotation = inline_rotation(found.entry.key[: -keyspace.VERSION_SUFFIX_BYTES], geometry.drives)
    shards: list[bytes | memoryview | None] = [None] * geometry.drives
    have = 0
    if found.entry.frame.shard_position < geometry.data:
        shards[found.entry.frame.shard_position] = found.entry.frame.shard
        have = 1
    for position in range(geometry.drives):  # data shards first, parity only if one of those is not there
        if have == geometry.data:
            break
        if shards[position] is None:
            shard = _share(erasure_set, (position + rotation) % geometry.drives, position, found)
            shards[position] = shard
            have += shard is not None
    if have < geometry.data:
        return None
    return ReedSolomon.of(*geometry).join_small(shards, found.version.size)


def _share(erasure_set: ErasureSet, drive_position: int, shard_position: int, found: Found) -> memoryview | None:
    drive = erasure_set.current_at(drive_position) or erasure_set.drive(drive_position)
    if drive is None:
        return None
    key = found.entry.key
    try:
        raw = drive.get(key)
        if raw is None:
            return None
        frame = records.unframe(key, raw)
        same = frame.meta == found.entry.frame.meta or records.decode(key, frame, Version).random == found.version.random
    except DriveFailed as e:
        erasure_set.take_out(drive_position, e)
        return None
    except BadRecord as e:
        erasure_set.report_bad_record(drive_position, e)
        return None
    return frame.shard if same and frame.shard_position == shard_position else None
