"""A clean environment, and a stand-in for the server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from fake_server import ACCESS_KEY, SECRET_KEY, FakeServer, fake_server


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user of this machine has set must not matter."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "FOREBAY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with fake_server() as server:
        monkeypatch.setenv("FOREBAY_ENDPOINT", server.endpoint)
        monkeypatch.setenv("FOREBAY_ROOT_USER", ACCESS_KEY)
        monkeypatch.setenv("FOREBAY_ROOT_PASSWORD", SECRET_KEY)
        yield server
