"""A running server for the tests of operations, and clients for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from server_process import ACCESS_KEY, OTHER_KEY, OTHER_SECRET, SECRET_KEY, ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that do not harm it."""
    with ServerProcess(tmp_path_factory.mktemp("store")) as server:
        yield server
    errors = [line for line in server.lines if " ERROR " in line]
    assert not errors, errors


def make_client(
    server: ServerProcess, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, verify: str | None = None, **options: Any
) -> Any:
    """A boto3 client that does not retry."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        verify=verify,
        config=Config(retries={"total_max_attempts": 1}, **options),
    )


@pytest.fixture(scope="session")
def s3(store: ServerProcess) -> Iterator[Any]:
    """The root's client."""
    client = make_client(store)
    yield client
    client.close()


@pytest.fixture(scope="session")
def other(store: ServerProcess) -> Iterator[Any]:
    """Another user's client."""
    client = make_client(store, OTHER_KEY, OTHER_SECRET)
    yield client
    client.close()


@pytest.fixture
def bucket(s3: Any) -> str:
    """A new bucket; it dies with the server."""
    name = f"bucket-{next(_numbers)}"
    s3.create_bucket(Bucket=name)
    return name


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    return caught.value.response["ResponseMetadata"]["HTTPStatusCode"], caught.value.response["Error"]["Code"]


def refused(call: Any, **arguments: Any) -> tuple[int, str]:
    """(status, code) with which a call fails."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return code_of(caught)
