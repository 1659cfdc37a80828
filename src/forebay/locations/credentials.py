"""Credentials for S3: given, from the environment, or from where AWS's own tools find them.

They are held in objects whose text shows none of them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import ConfigError

REFRESH_BEFORE_S = 300.0
"""Temporary credentials are renewed this long before they end."""
CHAIN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key, its secret, and a session's token if it is temporary."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_s: float | None = None


CredentialSource = Callable[[], Credentials | None]
"""Gives the present credentials; None: requests are not signed."""


def credential_source(access_key: str | None, secret_key: str | None, session_token: str | None) -> CredentialSource:
    """Those given; else `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`; else AWS's default chain: profile, web
    identity, container, instance. `AWS_SKIP_SIGNATURE` (any value but 0 or false): none.
    """
    if os.environ.get("AWS_SKIP_SIGNATURE", "false").lower() not in ("", "0", "false"):
        return lambda: None
    access_key = access_key or os.environ.get("AWS_ACCESS_KEY_ID")
    if access_key:
        secret_key = secret_key or os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not secret_key:
            raise ConfigError("an S3 access key was given without its secret: set AWS_SECRET_ACCESS_KEY too")
        fixed = Credentials(access_key, secret_key, session_token or os.environ.get("AWS_SESSION_TOKEN"))
        return lambda: fixed
    return _Chain()


class _Chain:
    """AWS's default chain, as its common runtime walks it; the answer is kept until it is about to end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._provider: Any = None
        self._kept: Credentials | None = None

    def __call__(self) -> Credentials:
        with self._lock:
            kept = self._kept
            if kept is None or (kept.expires_s is not None and kept.expires_s - time.time() < REFRESH_BEFORE_S):
                kept = self._kept = self._fetch()
            return kept

    def _fetch(self) -> Credentials:
        from awscrt.auth import AwsCredentialsProvider  # noqa: PLC0415 - starts threads, which most programs do without

        try:
            if self._provider is None:
                self._provider = AwsCredentialsProvider.new_default_chain()
            found = self._provider.get_credentials().result(CHAIN_TIMEOUT_S)
        except Exception as error:
            raise ConfigError(
                "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where AWS provides a "
                "role (AWS_SKIP_SIGNATURE=true for public buckets)"
            ) from error
        expires = found.expiration.timestamp() if found.expiration is not None else None
        return Credentials(found.access_key_id, found.secret_access_key, found.session_token, expires)
