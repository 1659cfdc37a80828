"""Folders that misbehave on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from forebay.errors import LocationUnavailable
from forebay.locations import open_location


class Place:
    """A folder behind a hook: `before(operation, key)` is called before each request, and may wait or raise."""

    def __init__(self, path: Any, before: Callable[[str, str], None], inner: Any = None, prefix: str = "") -> None:
        self.inner = inner if inner is not None else open_location(str(path))
        self.before, self.prefix = before, prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def child(self, prefix: str) -> Place:
        return Place(None, self.before, self.inner.child(prefix), f"{self.prefix}{prefix}/")

    def put(self, key: str, *args: Any) -> str:
        self.before("put", self.prefix + key)
        return self.inner.put(key, *args)

    def get(self, key: str) -> Any:
        self.before("get", self.prefix + key)
        return self.inner.get(key)

    def head(self, key: str) -> Any:
        self.before("head", self.prefix + key)
        return self.inner.head(key)

    def list_folder(self, prefix: str = "") -> Any:
        self.before("list", self.prefix + prefix)
        return self.inner.list_folder(prefix)

    def delete(self, keys: Any) -> None:
        keys = list(keys)
        for key in keys:
            self.before("delete", self.prefix + key)
        self.inner.delete(keys)

    def upload(self, key: str, size_bytes: int, part_bytes: int) -> _Upload:
        return _Upload(self, key, self.inner.upload(key, size_bytes, part_bytes))


class _Upload:
    def __init__(self, place: Place, key: str, inner: Any) -> None:
        self.place, self.key, self.inner = place, key, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write_part(self, index: int, buffers: Sequence[Any]) -> None:
        self.place.before("part", self.place.prefix + self.key)
        self.inner.write_part(index, buffers)


class Gate:
    """A hook that holds one kind of request until opened."""

    def __init__(self, operation: str, ending: str = "") -> None:
        self.operation, self.ending = operation, ending
        self.open, self.waiting = threading.Event(), threading.Event()

    def __call__(self, operation: str, key: str) -> None:
        if operation == self.operation and key.endswith(self.ending) and not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(30)


class Failing:
    """A hook that fails some requests, while `armed`."""

    def __init__(self, operation: str, part: str = "") -> None:
        self.operation, self.part, self.armed = operation, part, True

    def __call__(self, operation: str, key: str) -> None:
        if self.armed and operation == self.operation and self.part in key:
            raise LocationUnavailable(operation, f"test://{key}", "503 Slow Down, after 5 tries")
