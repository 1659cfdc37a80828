"""S3's error codes, their HTTP statuses and default sentences, and the error document.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html.
"""

from __future__ import annotations

from typing import NamedTuple

from forebay.errors import StoreError


class ErrorAnswer(NamedTuple):
    """An HTTP answer: status, headers (Content-Type included, Content-Length not) and body (empty for 304)."""

    status: int
    headers: dict[str, str]
    body: bytes


def status_of(code: str) -> int:
    """The HTTP status of an S3 error code; 500 for a code that the table does not know."""
    raise NotImplementedError


def error_document(error: StoreError, resource: str, request_id: str, host_id: str) -> ErrorAnswer:
    """The answer to a refused request. For HEAD the server sends the status and headers without the body."""
    raise NotImplementedError
