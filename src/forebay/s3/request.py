"""One S3 request head, decoded: where it points (bucket, key), what it asks (query) and its headers.

Nothing is normalised: a key is the exact byte string of the path, so `//`, a leading or trailing `/`, `.` and `..` are
ordinary. In a query `+` is a space, as in HTML forms; in a path it is a plus.
Sources: https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html and RFC 9112 section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from forebay.errors import StoreError
from forebay.s3.names import check_key, is_ipv4

TARGET_BYTES_MAX = 16 * 1024  # a key of 1,024 bytes, each percent-encoded, and a presigned query with a session token
HEADERS_BYTES_MAX = 32 * 1024  # names and values; S3 stops at 8 KiB, proxies add theirs
HEADERS_COUNT_MAX = 200
QUERY_FIELDS_MAX = 100
HOSTS_CACHED_MAX = 1024

# Headers that mean one thing: sent twice, they are an attempt to be read differently by two readers.
_SINGLE = frozenset(
    (
        "host",
        "authorization",
        "content-length",
        "content-md5",
        "content-type",
        "date",
        "range",
        "x-amz-content-sha256",
        "x-amz-copy-source",
        "x-amz-copy-source-range",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amz-tagging",
    )
)


class Hosts:
    """The host names that the server goes by, to tell `bucket.name` (virtual-hosted) from `name` (path-style).

    A Host equal to a known name, an IP address or an unknown name is path-style. `<bucket>.<known name>`,
    `<bucket>.localhost` and `<bucket>.<IPv4>` are virtual-hosted; the longest known name wins, so a node called
    `n1.example.com` must be listed beside `example.com`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        known = {_host_name(name) for name in names} - {""} | {"localhost"}
        self._names = tuple(sorted(known, key=len, reverse=True))
        self._cache: dict[str, str | None] = {}  # Host header -> bucket

    def bucket_of(self, host: str) -> str | None:
        """The bucket that a Host header (port included) names, or None for path-style."""
        try:
            return self._cache[host]
        except KeyError:
            pass
        if len(self._cache) >= HOSTS_CACHED_MAX:
            self._cache.clear()
        bucket = self._cache[host] = self._find(_host_name(host))
        return bucket

    def _find(self, name: str) -> str | None:
        for known in self._names:
            if name == known:
                return None
            if name.endswith("." + known):
                return name[: -len(known) - 1] or None
        labels = name.split(".")
        if len(labels) > 4 and is_ipv4(".".join(labels[-4:])):
            return ".".join(labels[:-4]) or None
        return None


def _host_name(host: str) -> str:
    """Lower case, without port and trailing dot."""
    name = host.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0].rstrip(".")


class Request:
    """A decoded request head.

    `method`: upper case. `target`: as received. `path`: the raw, still percent-encoded path (bytes), which signatures
    cover. `bucket`, `key`: None where the request names none. `query`: decoded pairs in order; `params`: the same as
    a dict (a parameter given twice is refused). `headers`: lower-case name -> value,
    latin-1 decoded so that the bytes can be had back; repeated headers are joined with a comma.
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
        if self.key is not None:
            return f"/{self.bucket}/{self.key}"
        return f"/{self.bucket or ''}"


def parse_request(method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], hosts: Hosts) -> Request:
    """Decode a head as the HTTP parser delivers it: (name, value) pairs, names in any case.

    Raises StoreError: InvalidURI, URITooLong, KeyTooLongError, InvalidArgument (repeated parameters), InvalidRequest
    (repeated or missing Host and the like), RequestHeaderSectionTooLarge.
    """
    if len(target) > TARGET_BYTES_MAX:
        raise StoreError("URITooLong", f"The request target is longer than {TARGET_BYTES_MAX} bytes.")
    request = Request()
    request.method = method
    request.target = target
    request.headers = _decode_headers(headers)
    path, _, raw_query = target.partition(b"?")
    if not path.startswith(b"/"):
        path = _absolute_form(path, request.headers)
    request.path = path
    request.query, request.params = _decode_query(raw_query) if raw_query else ([], {})
    host = request.headers.get("host")
    if host is None:
        raise StoreError("InvalidRequest", "The request has no Host header.")
    bucket = hosts.bucket_of(host)
    request.virtual_hosted = bucket is not None
    text = _decode(path)
    if bucket is None:
        bucket, _, key = text[1:].partition("/")
        if not bucket and key:
            raise StoreError("InvalidURI", "The path names no bucket before its second slash.", URI=text)
    else:
        key = text[1:]
    request.bucket = bucket or None
    request.key = key or None
    if key:
        check_key(key)
    return request


def _decode_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    size_bytes = count = 0
    for raw_name, raw_value in pairs:
        size_bytes += len(raw_name) + len(raw_value)
        count += 1
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1").strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name not in _SINGLE:
            headers[name] += "," + value
        else:
            raise StoreError("InvalidRequest", f"The header {name} was sent more than once.")
    if size_bytes > HEADERS_BYTES_MAX or count > HEADERS_COUNT_MAX:
        raise StoreError("RequestHeaderSectionTooLarge", MaxSizeAllowed=str(HEADERS_BYTES_MAX))
    return headers


def _absolute_form(path: bytes, headers: dict[str, str]) -> bytes:
    """`http://host/path` (RFC 9112 section 3.2.2): the target's host replaces the Host header."""
    scheme, slashes, rest = path.partition(b"://")
    if not slashes or scheme.lower() not in (b"http", b"https"):
        raise StoreError("InvalidURI", URI=path.decode("latin-1"))
    host, _, rest = rest.partition(b"/")
    headers["host"] = host.decode("latin-1")
    return b"/" + rest


def _decode(raw: bytes) -> str:
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise StoreError("InvalidURI", "The URI is not UTF-8.", URI=raw.decode("latin-1")) from None


def _decode_query(raw: bytes) -> tuple[list[tuple[str, str]], dict[str, str]]:
    fields = raw.replace(b"+", b" ").split(b"&")
    if len(fields) > QUERY_FIELDS_MAX:
        raise StoreError("InvalidURI", f"The query has more than {QUERY_FIELDS_MAX} parameters.")
    query: list[tuple[str, str]] = []
    params: dict[str, str] = {}
    for field in fields:
        if not field:
            continue
        name, _, value = field.partition(b"=")
        pair = (_decode(name), _decode(value))
        query.append(pair)
        if pair[0] in params:
            raise StoreError("InvalidArgument", "A query parameter was given more than once.", ArgumentName=pair[0])
        params[pair[0]] = pair[1]
    return query, params
