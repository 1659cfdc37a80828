"""One S3 request head, decoded: where it points (bucket, key), what it asks (query) and its headers.

Nothing is normalised: a key is the exact byte string of the path, so `//`, a leading or trailing `/`, `.` and `..` are ordinary.
Sources: https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html and RFC 9112 section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable


class Hosts:
    """The host names that the server goes by, to tell `bucket.name` (virtual-hosted) from `name` (path-style).

    A Host equal to a known name, an IP address or an unknown name is path-style. `<bucket>.<known name>`,
    `<bucket>.localhost` and `<bucket>.<IPv4>` are virtual-hosted; the longest known name wins, so a node called
    `n1.example.com` must be listed beside `example.com`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        raise NotImplementedError

    def bucket_of(self, host: str) -> str | None:
        """The bucket that a Host header (port included) names, or None for path-style."""
        raise NotImplementedError


class Request:
    """A decoded request head.

    `method`: upper case. `target`: as received. `path`: the raw, still percent-encoded path (bytes), which signatures cover.
    `bucket`, `key`: None where the request names none. `query`: decoded pairs in order; `params`: the same as a dict (first wins).
    `headers`: lower-case name -> value, latin-1 decoded so that the bytes can be had back; repeated headers are joined with a comma
    where lists are allowed and refused where not. `resource`: what error documents name, e.g. `/bucket/key`.
    """

    __slots__ = ("bucket", "headers", "key", "method", "params", "path", "query", "target", "virtual_hosted")

    method: str
    target: bytes
    path: bytes
    query: list[tuple[str, str]]
    params: dict[str, str]
    headers: dict[str, str]
    bucket: str | None
    key: str | None
    virtual_hosted: bool

    @property
    def resource(self) -> str:
        """What an error document names: `/`, `/bucket` or `/bucket/key`."""
        raise NotImplementedError


def parse_request(method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], hosts: Hosts) -> Request:
    """Decode a head as the HTTP parser delivers it: (name, value) pairs, names in any case.

    Raises StoreError: InvalidURI, KeyTooLongError, InvalidRequest (repeated or missing Host and the like), RequestHeaderSectionTooLarge.
    """
    raise NotImplementedError
