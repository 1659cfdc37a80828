"""Signed requests to one S3 bucket, their retries, and what their errors mean."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from forebay.errors import (
    ConfigError,
    LocationDenied,
    LocationError,
    LocationFull,
    LocationUnavailable,
    ObjectMissing,
    PreconditionFailed,
)
from forebay.locations.credentials import CredentialSource, credential_source
from forebay.locations.interface import Buffer
from forebay.locations.signing import UNSIGNED, canonical_query, signed_headers, uri_encode
from forebay.locations.wire import RETRY_STATUSES, Answer, Failure, Request, Wire, read_all

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
RETRY_CODES = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted"})
_CODES: dict[str, type[LocationError]] = {
    "NoSuchKey": ObjectMissing, "NoSuchBucket": ObjectMissing, "NotFound": ObjectMissing,
    "PreconditionFailed": PreconditionFailed, "ConditionalRequestConflict": PreconditionFailed,
    "QuotaExceeded": LocationFull, "XMinioStorageFull": LocationFull, "InsufficientStorage": LocationFull,
}  # fmt: skip
_STATUSES: dict[int, type[LocationError]] = {
    401: LocationDenied, 403: LocationDenied, 404: ObjectMissing, 409: PreconditionFailed, 412: PreconditionFailed,
    507: LocationFull,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach a bucket; what is None comes from the environment, as AWS's tools read it.

    `endpoint`: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, or AWS. `region`: `AWS_REGION`, `AWS_DEFAULT_REGION`, or `us-east-1`.
    `path_style`: the bucket in the path instead of the host name; so it is by default with any endpoint but AWS's own.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    read_timeout_s: float = 60.0
    retry_s: float = 60.0


class Bucket:
    """One bucket at one endpoint. Keys are whole here."""

    def __init__(self, name: str, options: S3Options) -> None:
        given = options.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        self.region = options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        self.name = name
        self.credentials: CredentialSource = credential_source(options.access_key, options.secret_key, options.session_token)
        path_style = options.path_style if options.path_style is not None else given is not None or "." in name
        endpoint = given or f"https://s3.{self.region}.amazonaws.com"
        if not path_style:
            endpoint = endpoint.replace("://", f"://{name}.", 1)
        self.wire = Wire(endpoint, options.read_timeout_s, options.retry_s)
        self._prefix = self.wire.path + (f"/{uri_encode(name, keep_slash=False)}" if path_style else "")

    def url(self, key: str = "") -> str:
        """For people."""
        return f"s3://{self.name}/{key}"

    def request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        payload_hash: str = EMPTY_SHA256,
    ) -> Request:
        """A signed request; the signature is good for some minutes."""
        path = f"{self._prefix}/{uri_encode(key, keep_slash=True)}" if key else self._prefix or "/"
        text = canonical_query(query or {})
        size_bytes = sum(memoryview(buffer).nbytes for buffer in body)
        full = {"host": self.wire.netloc, **(headers or {})}
        full = signed_headers(self.credentials(), self.region, time.time(), method, path, text, full, payload_hash)
        if body or method in ("PUT", "POST"):
            full["content-length"] = str(size_bytes)
        return Request(method, f"{path}?{text}" if text else path, full, body)

    def ask(
        self,
        operation: str,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        payload_hash: str = EMPTY_SHA256,
    ) -> Answer:
        """Ask until there is an answer that is not "later"; it may be an error, see `check`. Raises `LocationUnavailable`."""
        for one in self.wire.tries(operation, self.url(key)):
            request = self.request(method, key, query, headers, body, payload_hash)
            try:
                with self.wire.exchange(request) as response:
                    answer = read_all(request, response)
            except Failure as error:
                one.failed(error)
                continue
            if answer.status in RETRY_STATUSES or error_code(answer) in RETRY_CODES:
                one.failed(f"status {answer.status} {error_code(answer)}")
                continue
            return answer
        raise AssertionError("unreachable: the tries end by an exception")

    def check(self, operation: str, key: str, answer: Answer) -> Answer:
        """The answer, if it is good. Raises the kind of `LocationError` that it means."""
        if answer.status in (200, 204, 206) and not error_code(answer):
            return answer
        raise self.error(operation, key, answer)

    def error(self, operation: str, key: str, answer: Answer) -> LocationError:
        """What an answer that is no success means."""
        code = error_code(answer)
        if answer.status in (301, 307, 400) and (region := answer.headers.get("x-amz-bucket-region")) not in (None, self.region):
            return LocationError(operation, self.url(key), f"the bucket is in region {region}: set AWS_REGION={region}")
        kind = _CODES.get(code) or _STATUSES.get(answer.status, LocationError)
        text = f"{code or 'status'} {answer.status}"
        message = error_message(answer)
        if kind is LocationDenied:
            text += "; check the credentials and what they may do"
        return kind(operation, self.url(key), f"{text}: {message}" if message else text)


def error_code(answer: Answer) -> str:
    """S3's error code, if the body is an error document (a copy or a completion may fail with status 200)."""
    if answer.status < 300 and not answer.body.lstrip()[:200].count(b"<Error"):
        return ""
    return _error_field(answer, "Code")


def error_message(answer: Answer) -> str:
    """S3's sentence."""
    return _error_field(answer, "Message")


def _error_field(answer: Answer, name: str) -> str:
    try:
        root = parse_xml(answer.body)
    except ElementTree.ParseError:
        return ""
    return text_of(root, name) if local_name(root) == "Error" else ""


def parse_xml(body: bytes) -> ElementTree.Element:
    """Raises `ElementTree.ParseError`, also for a document type, whose entities could grow without bound."""
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise ElementTree.ParseError("a document type is not allowed")
    return ElementTree.fromstring(body)  # noqa: S314 - entities are refused above


def local_name(element: ElementTree.Element) -> str:
    """The tag without its namespace."""
    return element.tag.rsplit("}", 1)[-1]


def children(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """The children of a local name."""
    return [child for child in element if local_name(child) == name]


def text_of(element: ElementTree.Element, name: str, default: str = "") -> str:
    """The text of a child."""
    found = children(element, name)
    return (found[0].text or "") if found else default


def parse_answer(bucket: Bucket, operation: str, key: str, answer: Answer) -> ElementTree.Element:
    """The document of a good answer. Raises `LocationUnavailable` if it is none."""
    try:
        return parse_xml(answer.body)
    except ElementTree.ParseError as error:
        raise LocationUnavailable(operation, bucket.url(key), f"the answer is no XML: {error}") from error


def options_from(given: Mapping[str, Any]) -> S3Options:
    """Options by keyword. Raises `ConfigError` naming one that does not exist."""
    unknown = set(given) - set(S3Options.__dataclass_fields__)
    if unknown:
        raise ConfigError(f"unknown S3 option {sorted(unknown)[0]!r}; there are {', '.join(S3Options.__dataclass_fields__)}")
    return S3Options(**given)


__all__ = ["UNSIGNED", "Bucket", "S3Options", "children", "error_code", "options_from", "parse_answer", "text_of"]
