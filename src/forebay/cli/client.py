"""The admin API's client: signed HTTP (SigV4, as for S3) to the paths under /forebay/ of a server."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from forebay.cli.exits import AccessDenied, CommandFailed, ServerUnreachable, WrongUsage
from forebay.s3.sigv4 import Credentials, sign_request

DEFAULT_ENDPOINT = "http://127.0.0.1:9000"  # where `forebay server` listens unless told otherwise
BUILT_IN_KEY = "forebayadmin"
DEFAULT_PORT = 9000
TIMEOUT_S = 60.0
LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")

ENDPOINT_VARIABLES = ("FOREBAY_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
KEY_VARIABLES = (("FOREBAY_ROOT_USER", "FOREBAY_ROOT_PASSWORD"), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")

_PORTS = {"http": 80, "https": 443}
_DENIED_HINTS = {
    "InvalidAccessKeyId": "the server does not know the access key {key!r}",
    "SignatureDoesNotMatch": "the secret key of {key!r} is not the server's",
    "AccessDenied": "{key!r} is not the root access key of this server (the first of its credentials)",
    "RequestTimeTooSkewed": "the clocks of this machine and of the server differ by more than 15 minutes",
}


class Answer(NamedTuple):
    """Status, body, and how long the answer took."""

    status: int
    body: bytes
    seconds: float


class Endpoint(NamedTuple):
    """Where a server listens."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """`host:port` as the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return f"{self.scheme}://{self.authority}"


def parse_endpoint(text: str) -> Endpoint:
    """An endpoint from `http://host:port`, `https://…`, or `host:port`. Raises WrongUsage."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme in _PORTS and parts.hostname and not parts.path.strip("/") and not parts.query:
            return Endpoint(parts.scheme, parts.hostname, parts.port or (_PORTS[parts.scheme] if "://" in text else DEFAULT_PORT))
    except ValueError:  # a port that is no number
        pass
    raise WrongUsage(f"{text!r} is no endpoint; write http://HOST:PORT, for example {DEFAULT_ENDPOINT}")


class AdminClient:
    """Asks one server. Every method raises ServerUnreachable, AccessDenied or CommandFailed, and nothing else on purpose."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, timeout_s: float = TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._timeout_s = timeout_s

    def ask(self, subject: str, **params: str) -> dict[str, Any]:
        """GET a subject of the admin API, such as `cluster`."""
        return self._call("GET", subject, params, b"")

    def act(self, subject: str, **data: Any) -> dict[str, Any]:
        """POST to a subject of the admin API."""
        return self._call("POST", subject, {}, json.dumps(data).encode())

    def look(self, path: str) -> Answer:
        """An open page: `health/live`, `health/ready`, `metrics`; whatever its status."""
        return self._exchange("GET", f"/forebay/{path}", {}, b"")

    def _call(self, method: str, subject: str, params: Mapping[str, str], body: bytes) -> dict[str, Any]:
        target = f"/forebay/admin/{quote(subject)}" + (f"?{urlencode(params, quote_via=quote)}" if params else "")
        headers = {"host": self.endpoint.authority}
        if body:
            headers["content-type"] = "application/json"
        headers |= sign_request(
            self._credentials, method, target, headers, payload_sha256=hashlib.sha256(body).hexdigest(), now_s=time.time()
        )
        answer = self._exchange(method, target, headers, body)
        if answer.status != 200:
            raise self._failure(answer)
        try:
            document = json.loads(answer.body)
        except ValueError as error:
            raise self._not_forebay() from error
        if not isinstance(document, dict):
            raise self._not_forebay()
        return document

    def _exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        kind = http.client.HTTPSConnection if self.endpoint.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.endpoint.host, self.endpoint.port, timeout=self._timeout_s)
        start_s = time.monotonic()
        try:
            connection.request(method, target, body=body or None, headers=dict(headers))
            response = connection.getresponse()
            return Answer(response.status, response.read(), time.monotonic() - start_s)
        except ConnectionRefusedError as error:
            raise ServerUnreachable(
                f"no server listens at {self.endpoint.url}. Start one with `forebay server PATH…`, or name another with "
                f"--endpoint or {ENDPOINT_VARIABLES[0]}"
            ) from error
        except http.client.HTTPException as error:
            raise self._not_forebay() from error
        except TimeoutError as error:
            raise ServerUnreachable(f"{self.endpoint.url} did not answer within {self._timeout_s:.0f} s") from error
        except OSError as error:
            raise ServerUnreachable(f"cannot reach {self.endpoint.url}: {error.strerror or error}") from error
        finally:
            connection.close()

    def _failure(self, answer: Answer) -> CommandFailed:
        code, message = _element(answer.body, "Code"), _element(answer.body, "Message")
        if code is None:
            return self._not_forebay()
        hint = _DENIED_HINTS.get(code)
        if hint is not None:
            return AccessDenied(
                f"{self.endpoint.url} refused: {hint.format(key=self._credentials.access_key)}. Set {KEY_VARIABLES[0][0]} and "
                f"{KEY_VARIABLES[0][1]} as for the server"
            )
        if code == "AuthorizationHeaderMalformed":
            return AccessDenied(f"{self.endpoint.url} refused: {message} Name the server's region with --region")
        return CommandFailed(f"{self.endpoint.url} answered {answer.status} {code}: {message}")

    def _not_forebay(self) -> ServerUnreachable:
        return ServerUnreachable(f"what answers at {self.endpoint.url} is no Forebay server; name it with --endpoint")


def _element(document: bytes, name: str) -> str | None:
    """The text of the first element of that name in an S3 error document."""
    match = re.search(rf"<{name}>([^<]*)</{name}>", document.decode(errors="replace"))
    return match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&") if match else None


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def connect(
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    region: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> AdminClient:
    """A client from flags, then environment, then the defaults of `forebay server`. Opens no connection. Raises WrongUsage."""
    environ = os.environ if environ is None else environ
    where = parse_endpoint(endpoint or _first(ENDPOINT_VARIABLES, environ) or DEFAULT_ENDPOINT)
    if (access_key is None) != (secret_key is None):
        raise WrongUsage("--access-key and --secret-key go together")
    keys = _keys(access_key, secret_key, environ)
    if keys is None:
        if not LOOPBACK.fullmatch(where.host):
            raise WrongUsage(f"no credentials: set {KEY_VARIABLES[0][0]} and {KEY_VARIABLES[0][1]} to the root credentials of {where.url}")
        keys = (BUILT_IN_KEY, BUILT_IN_KEY)
    return AdminClient(where, Credentials(*keys, region or _first(REGION_VARIABLES, environ) or "us-east-1"))


def _keys(access_key: str | None, secret_key: str | None, environ: Mapping[str, str]) -> tuple[str, str] | None:
    if access_key is not None and secret_key is not None:
        return access_key, secret_key
    for user, password in KEY_VARIABLES:
        if environ.get(user) and environ.get(password):
            return environ[user], environ[password]
    return None
