"""Requests on buckets. A bucket's record is on every set; set 0 is the one that decides.

A bucket is created on the last set first and on set 0 at the end; it is deleted from set 0 first. So whatever a crash leaves, a bucket
that clients see exists on every set; records on other sets that set 0 does not have are dealt with by `engine/collect.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from forebay.engine import keyspace
from forebay.engine.committer import Op
from forebay.engine.records import Bucket
from forebay.engine.transaction import Transaction
from forebay.errors import StoreError


class Clash(Enum):
    """What to do if there is a record of that name."""

    REFUSE = "refuse"
    REPLACE = "replace"
    ADOPT = "adopt"


def put_record(record: Bucket, clash: Clash, **op: Any) -> Op[Bucket]:
    """Store a bucket's record on one set; the result is what is there then. Raises BucketAlreadyOwnedByYou for Clash.REFUSE."""

    def judge(tx: Transaction) -> Bucket:
        old = tx.find_bucket(record.name)
        if old is not None and clash is Clash.REFUSE:
            raise StoreError("BucketAlreadyOwnedByYou", BucketName=record.name)
        if old is not None and clash is Clash.ADOPT:
            return old
        tx.put_bucket(record, old)
        return record

    return Op(judge, writes=(b"B" + record.name.encode(),), **op)


def change(name: str, update: Callable[[Bucket], None], **op: Any) -> Op[Bucket]:
    """Change a bucket's record on one set. Raises NoSuchBucket."""

    def judge(tx: Transaction) -> Bucket:
        record = tx.bucket(name)
        old = msgspec.structs.replace(record, config=dict(record.config))
        update(record)
        tx.put_bucket(record, old)
        return record

    return Op(judge, writes=(b"B" + name.encode(),), **op)


def remove_record(name: str, is_empty: Callable[[Transaction, Bucket], bool], **op: Any) -> Op[None]:
    """Remove a bucket's record from one set. Raises NoSuchBucket, BucketNotEmpty."""

    def judge(tx: Transaction) -> None:
        record = tx.bucket(name)
        if not is_empty(tx, record):
            raise StoreError("BucketNotEmpty", BucketName=name)
        tx.put_bucket(msgspec.structs.replace(record, removed=True), record)

    return Op(judge, writes=(b"B" + name.encode(),), **op)


def forget(name: str, **op: Any) -> Op[None]:
    """Remove what a removed bucket has left; nothing if there is a bucket of that name again."""
    key = keyspace.bucket_key(name)

    def judge(tx: Transaction) -> None:
        if tx.get_raw(key) is not None and tx.find_bucket(name) is None:
            tx.remove(key)

    return Op(judge, writes=(b"B" + name.encode(),), **op)
