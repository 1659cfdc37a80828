"""Finding claims whose holder never came to be: a copy claims blobs of other sets before its version is published, and may die between."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from forebay.engine import keyspace, multipart, records
from forebay.engine.engine import Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.heal import walk
from forebay.engine.pace import Pace
from forebay.engine.records import KIND_VERSION, Part, Reap, Version
from forebay.engine.transaction import claims_of

log = logging.getLogger("forebay.engine")

Claim = tuple[int, bytes, bytes]  # set, blob, owner
CLAIMS_MAX = 1_000_000  # held in memory while everything is walked, about 200 bytes each


def unheld_claims(engine: Engine, pace: Pace) -> set[Claim]:
    """Claims that no version, part or reap record of any set holds, as far as one walk can tell: what moves meanwhile is missed.

    Nothing if a drive is away, or if there are too many claims to look at. Raises Stopping and StoreError.
    """
    if any(len(each.current()) < each.geometry.drives for each in engine.sets):
        return set()
    claims: set[Claim] = set()
    for erasure_set in engine.sets:
        for key, _ in walk(erasure_set, keyspace.TABLE_CLAIM):
            pace.check()
            claims.add((erasure_set.index, key[1:17], key[17:]))
            if len(claims) > CLAIMS_MAX:
                log.warning("there are more than %d claims: those of copies that were cut short are not looked for", CLAIMS_MAX)
                return set()
    for erasure_set in engine.sets:
        for claim in _held(erasure_set, pace):
            claims.discard(claim)
    return claims


def _held(erasure_set: ErasureSet, pace: Pace) -> Iterator[Claim]:
    for key, raw in walk(erasure_set, keyspace.TABLE_OBJECT):
        pace.check()
        frame = records.unframe(key, raw)
        if frame.kind == KIND_VERSION:
            yield from claims_of(records.decode(key, frame, Version))
    for key, raw in walk(erasure_set, keyspace.TABLE_PART):
        pace.check()
        yield from multipart.part_claims(records.unpack(key, raw, Part))
    for table in (keyspace.TABLE_REAP, keyspace.TABLE_FOREIGN):
        for key, raw in walk(erasure_set, table):
            pace.check()
            yield from records.unpack(key, raw, Reap).claims
