"""Access control lists: who may do what with a bucket or an object.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/acl-overview.html. A list names its owner, who may always read and
write the list itself, and grants: a grantee (an account by its id, or a group) and a permission. Canned lists are shorthands for
common grants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from forebay.errors import StoreError
from forebay.s3.xml_requests import SMALL_DOCUMENT_BYTES_MAX, Element, malformed, parse_document
from forebay.s3.xml_responses import Owner, access_control_policy

ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
AUTHENTICATED_USERS = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
LOG_DELIVERY = "http://acs.amazonaws.com/groups/s3/LogDelivery"
GROUPS = frozenset((ALL_USERS, AUTHENTICATED_USERS, LOG_DELIVERY))

FULL_CONTROL, READ, WRITE, READ_ACP, WRITE_ACP = "FULL_CONTROL", "READ", "WRITE", "READ_ACP", "WRITE_ACP"
PERMISSIONS = frozenset((FULL_CONTROL, READ, WRITE, READ_ACP, WRITE_ACP))
GRANTS_MAX = 100  # S3's limit

_GRANT_HEADERS = {
    "x-amz-grant-full-control": FULL_CONTROL,
    "x-amz-grant-read": READ,
    "x-amz-grant-write": WRITE,
    "x-amz-grant-read-acp": READ_ACP,
    "x-amz-grant-write-acp": WRITE_ACP,
}


HEADERS = frozenset(("x-amz-acl", *_GRANT_HEADERS))


class Grant(NamedTuple):
    """`grantee` is the id of an account or the URI of a group."""

    grantee: str
    permission: str


Grants = tuple[Grant, ...]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Grant, ...])


def encode(grants: Grants) -> bytes:
    """As records hold a list."""
    return _encoder.encode(grants)


def decode(stored: bytes, owner: str) -> Grants:
    """A stored list; what was stored without one is private to its owner."""
    return _decoder.decode(stored) if stored else canned("private", owner, owner)


def canned(name: str, owner: str, bucket_owner: str) -> Grants:
    """The grants of a canned list. Raises StoreError InvalidArgument."""
    own = Grant(owner, FULL_CONTROL)
    others = {
        "private": (),
        "public-read": (Grant(ALL_USERS, READ),),
        "public-read-write": (Grant(ALL_USERS, READ), Grant(ALL_USERS, WRITE)),
        "authenticated-read": (Grant(AUTHENTICATED_USERS, READ),),
        "bucket-owner-read": (Grant(bucket_owner, READ),) if bucket_owner != owner else (),
        "bucket-owner-full-control": (Grant(bucket_owner, FULL_CONTROL),) if bucket_owner != owner else (),
        "log-delivery-write": (Grant(LOG_DELIVERY, WRITE), Grant(LOG_DELIVERY, READ_ACP)),
        "aws-exec-read": (),
    }.get(name)
    if others is None:
        raise StoreError("InvalidArgument", ArgumentName="x-amz-acl", ArgumentValue=name)
    return (own, *others)


def from_headers(headers: Mapping[str, str], owner: str, bucket_owner: str, known: Collection[str]) -> Grants | None:
    """The list that a request's headers ask for; None if they say nothing.

    `known` are the ids of the accounts that exist. Raises StoreError: InvalidArgument, InvalidRequest, UnresolvableGrantByEmailAddress.
    """
    grants: list[Grant] = []
    for header, permission in _GRANT_HEADERS.items():
        if header in headers:
            grants.extend(_header_grants(headers[header], permission, known))
    name = headers.get("x-amz-acl")
    if name is None:
        return _limited(tuple(grants)) if grants else None
    if grants:
        raise StoreError("InvalidRequest", "Specifying both Canned ACLs and Header Grants is not allowed")
    return canned(name, owner, bucket_owner)


def _header_grants(value: str, permission: str, known: Collection[str]) -> list[Grant]:
    grants = []
    for item in value.split(","):
        kind, _, quoted = item.strip().partition("=")
        grants.append(Grant(_grantee(kind.strip().lower(), quoted.strip().strip('"'), known), permission))
    return grants


def _grantee(kind: str, who: str, known: Collection[str]) -> str:
    if kind == "emailaddress":
        raise StoreError("UnresolvableGrantByEmailAddress")
    if kind == "id" and who in known:
        return who
    if kind == "uri" and who in GROUPS:
        return who
    message = "Invalid id" if kind == "id" else "Invalid group uri" if kind == "uri" else "Argument format not recognized"
    raise StoreError("InvalidArgument", message, ArgumentName="CanonicalUser/ID" if kind == "id" else kind, ArgumentValue=who)


def parse(body: bytes, owner: str, known: Collection[str]) -> Grants:
    """AccessControlPolicy. Its owner must be `owner`. Raises StoreError: MalformedACLError, InvalidArgument, AccessDenied."""
    root = parse_document(body, "AccessControlPolicy", SMALL_DOCUMENT_BYTES_MAX)
    stated, listed = root.first("Owner"), root.first("AccessControlList")
    if listed is None or stated is None:
        raise StoreError("MalformedACLError")
    if stated.text_of("ID") != owner:
        raise StoreError("AccessDenied", "The owner of an access control list cannot be changed.")
    return _limited(tuple(_parse_grant(element, known) for element in listed.all("Grant")))


def _parse_grant(element: Element, known: Collection[str]) -> Grant:
    grantee, permission = element.first("Grantee"), element.text_of("Permission")
    if grantee is None or permission not in PERMISSIONS:
        raise StoreError("MalformedACLError")
    for kind, name in (("id", "ID"), ("uri", "URI"), ("emailaddress", "EmailAddress")):
        if who := grantee.text_of(name):
            return Grant(_grantee(kind, who, known), permission)
    raise malformed()


def _limited(grants: Grants) -> Grants:
    if len(grants) > GRANTS_MAX:
        raise StoreError("InvalidRequest", f"An access control list has at most {GRANTS_MAX} grants.")
    return grants


def document(owner: Owner, grants: Grants, names: Mapping[str, str]) -> bytes:
    """AccessControlPolicy; `names` gives the display names of accounts."""
    shown = [(g.grantee, None if g.grantee in GROUPS else names.get(g.grantee, ""), g.permission) for g in grants]
    return access_control_policy(owner, shown)


def is_public(grant: Grant) -> bool:
    """Whether it is for everybody, or for everybody with an account."""
    return grant.grantee in (ALL_USERS, AUTHENTICATED_USERS)


def allows(grants: Grants, account: str | None, permission: str) -> bool:
    """Whether an account (None: an anonymous request) is granted `permission`."""
    for grantee, granted in grants:
        applies = grantee in (account, ALL_USERS) or (grantee == AUTHENTICATED_USERS and account is not None)
        if applies and granted in (permission, FULL_CONTROL):
            return True
    return False
