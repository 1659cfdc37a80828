"""Requests on buckets. A bucket's record is on every set; set 0 is the one that decides.

A bucket is created on the last set first and on set 0 at the end; it is deleted from set 0 first. So whatever a crash leaves, a bucket
that clients see exists on every set, and `leftovers` finds records on other sets that set 0 does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.engine import keyspace
from forebay.engine.committer import Op
from forebay.engine.records import Bucket
from forebay.engine.transaction import Transaction
from forebay.errors import StoreError


def put_record(record: Bucket, *, replace: bool, **op: Any) -> Op[Bucket]:
    """Store a bucket's record on one set. Raises BucketAlreadyOwnedByYou if it exists and `replace` is not set."""
    key = keyspace.bucket_key(record.name)

    def judge(tx: Transaction) -> Bucket:
        old = tx.get(key, Bucket)
        if old is not None and not replace:
            raise StoreError("BucketAlreadyOwnedByYou", BucketName=record.name)
        tx.put(key, record)
        return record

    return Op(judge, writes=(b"B" + record.name.encode(),), **op)


def change(name: str, update: Callable[[Bucket], None], **op: Any) -> Op[Bucket]:
    """Change a bucket's record on one set. Raises NoSuchBucket."""

    def judge(tx: Transaction) -> Bucket:
        record = tx.bucket(name)
        update(record)
        tx.put(keyspace.bucket_key(name), record)
        return record

    return Op(judge, writes=(b"B" + name.encode(),), **op)


def remove_record(name: str, is_empty: Callable[[Transaction, Bucket], bool], **op: Any) -> Op[None]:
    """Remove a bucket's record from one set. Raises NoSuchBucket, BucketNotEmpty."""

    def judge(tx: Transaction) -> None:
        record = tx.bucket(name)
        if not is_empty(tx, record):
            raise StoreError("BucketNotEmpty", BucketName=name)
        tx.remove(keyspace.bucket_key(name))

    return Op(judge, writes=(b"B" + name.encode(),), **op)
