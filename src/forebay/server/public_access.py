"""A bucket's block of public access, and what it does to access control lists.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-control-block-public-access.html. BlockPublicAcls refuses new public
grants, IgnorePublicAcls makes those that are there count for nothing. The other two settings are about bucket policies, and there are none.
"""

from __future__ import annotations

import msgspec

from forebay.engine.records import Bucket
from forebay.errors import StoreError
from forebay.s3 import acl
from forebay.s3.xml_requests import BLOCK_PUBLIC_ACLS, IGNORE_PUBLIC_ACLS

CONFIG_NAME = "public-access-block"  # in Bucket.config

_decode = msgspec.msgpack.Decoder(dict[str, bool]).decode


def settings(bucket: Bucket) -> dict[str, bool] | None:
    """The four settings; None if they were never made."""
    stored = bucket.config.get(CONFIG_NAME)
    return None if stored is None else _decode(stored)


def grants_that_count(bucket: Bucket, stored: bytes, owner_id: str) -> acl.Grants:
    """The grants of a stored list of the bucket or of an object in it, as far as the bucket lets them count."""
    grants = acl.decode(stored, owner_id)
    if (settings(bucket) or {}).get(IGNORE_PUBLIC_ACLS):
        return tuple(grant for grant in grants if not acl.is_public(grant))
    return grants


def check_new_grants(bucket: Bucket, grants: acl.Grants) -> None:
    """Raises StoreError AccessDenied if the bucket takes no public grants and these are."""
    if any(map(acl.is_public, grants)) and (settings(bucket) or {}).get(BLOCK_PUBLIC_ACLS):
        raise StoreError("AccessDenied", "The bucket's public access block refuses public access control lists (BlockPublicAcls).")
