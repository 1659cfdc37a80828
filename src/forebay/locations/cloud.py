"""Google Cloud Storage, Azure Blob Storage, and memory, through obstore (the Rust `object_store` crate).

Credentials, time-outs and retries are obstore's. It copies bytes once on the way, and cannot copy parts on the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore

from forebay.errors import LocationDenied, LocationError, LocationUnavailable, ObjectMissing, PreconditionFailed
from forebay.locations.interface import Absent, Buffer, Condition, Entry, Listing, Location, Unchanged
from forebay.locations.keys import check_key, join_prefix

CONNECT_TIMEOUT = "10s"
REQUEST_TIMEOUT = "120s"
RETRIES = {"max_retries": 10, "retry_timeout": timedelta(seconds=60)}
TURN_TIMEOUT_S = 600.0
"""How long a part waits for those before it."""
_KINDS: tuple[tuple[type[Exception], type[LocationError]], ...] = (
    (exceptions.NotFoundError, ObjectMissing), (FileNotFoundError, ObjectMissing),
    (exceptions.AlreadyExistsError, PreconditionFailed), (exceptions.PreconditionError, PreconditionFailed),
    (exceptions.PermissionDeniedError, LocationDenied), (exceptions.UnauthenticatedError, LocationDenied),
)  # fmt: skip


class Cloud:
    """The location of a bucket or container, or of a prefix in it. See `locations.interface.Location` for the methods."""

    part_bytes = 32 * 2**20
    part_bytes_min = 5 * 2**20
    streams = 8
    direct_io = False
    copies_parts = False

    def __init__(self, store: Any, url: str, prefix: str = "") -> None:
        self._store, self._root, self._prefix = store, url, join_prefix(prefix)
        self.url = f"{url}/{self._prefix}" if self._prefix else url

    def __repr__(self) -> str:
        """The URL."""
        return f"Cloud({self.url!r})"

    def child(self, prefix: str) -> Cloud:
        """See `Location`."""
        return Cloud(self._store, self._root, join_prefix(self._prefix, prefix))

    def put(self, key: str, data: Buffer, condition: Condition = None) -> str:
        """See `Location`."""
        mode: Any = None
        if isinstance(condition, Absent):
            mode = "create"
        elif isinstance(condition, Unchanged):
            mode = self._version(key, condition.etag)
        with self._errors("put", key):
            try:
                result = obstore.put(self._store, self._key(key), bytes(data), mode=mode, use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                etag = self._stored(key, data)
                if etag is None:
                    raise
                return etag
            return result["e_tag"] or ""

    def get(self, key: str) -> tuple[bytes, str]:
        """See `Location`."""
        with self._errors("get", key):
            result = obstore.get(self._store, self._key(key))
            return bytes(result.bytes()), result.meta["e_tag"] or ""

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        """See `Location`."""
        if not len(view):
            return
        with self._errors("read", key):
            data = memoryview(obstore.get_range(self._store, self._key(key), start=offset, length=len(view)))
        if len(data) != len(view):
            raise LocationError("read", f"{self.url}/{key}", f"{len(data)} bytes from {offset} on, wanted {len(view)}")
        view[:] = data

    def head(self, key: str) -> Entry | None:
        """See `Location`."""
        try:
            with self._errors("head", key):
                return self._entry(obstore.head(self._store, self._key(key)))
        except ObjectMissing:
            return None

    def list_folder(self, prefix: str = "") -> Listing:
        """See `Location`."""
        folder = join_prefix(self._prefix, prefix)
        with self._errors("list", prefix):
            found = obstore.list_with_delimiter(self._store, folder or None)
        objects = sorted((self._entry(meta) for meta in found["objects"]), key=lambda entry: entry.key)
        return Listing(tuple(objects), tuple(sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found["common_prefixes"])))

    def walk(self, prefix: str = "") -> Iterator[Entry]:
        """See `Location`."""
        folder = join_prefix(self._prefix, prefix)
        with self._errors("list", prefix):
            found = [self._entry(meta) for batch in obstore.list(self._store, folder or None) for meta in batch]
        yield from sorted(found, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Location`."""
        for key in keys:
            try:
                with self._errors("delete", key):
                    obstore.delete(self._store, self._key(key))
            except ObjectMissing:
                pass

    def upload(self, key: str, size_bytes: int, part_bytes: int) -> CloudUpload:
        """See `Location`."""
        with self._errors("upload", key):
            writer = obstore.open_writer(self._store, self._key(key), buffer_size=part_bytes, max_concurrency=self.streams)
        return CloudUpload(self, key, writer, -(-size_bytes // part_bytes))

    def sweep_uploads(self, prefix: str, before_s: float) -> int:
        """Google and Azure drop blocks that were never committed by themselves."""
        return 0

    def close(self) -> None:
        """obstore closes its connections itself."""

    def _key(self, key: str) -> str:
        return join_prefix(self._prefix, check_key(key))

    def _entry(self, meta: Any) -> Entry:
        skip = len(self._prefix) + 1 if self._prefix else 0
        return Entry(meta["path"][skip:], meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())

    def _version(self, key: str, etag: str) -> dict[str, str]:
        """What obstore compares in a conditional write: Google goes by generation, which is called version, others by entity tag."""
        with self._errors("put", key):
            meta = obstore.head(self._store, self._key(key))
        if meta["e_tag"] != etag:
            raise PreconditionFailed("put", f"{self.url}/{key}", f"it is no longer the object with entity tag {etag}")
        return {"e_tag": etag} | ({"version": meta["version"]} if meta["version"] else {})

    def _stored(self, key: str, data: Buffer) -> str | None:
        """The entity tag of the object, if it is these very bytes: then a retry met what the first try wrote."""
        try:
            found, etag = self.get(key)
        except ObjectMissing:
            return None
        return etag if found == data else None

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        """Turn obstore's exceptions into ours."""
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            kind = next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), LocationUnavailable)
            raise kind(operation, f"{self.url}/{key}", str(error).split("\n", 1)[0]) from error


class CloudUpload:
    """A stream: parts are handed to obstore in order, which sends several at a time. See `locations.interface.Upload`."""

    def __init__(self, cloud: Cloud, key: str, writer: Any, parts: int) -> None:
        self._cloud, self._key, self._writer, self._parts = cloud, key, writer, parts
        self._turn = threading.Condition()
        self._next = 0
        self._broken: Exception | None = None
        self._ended = False

    def write_part(self, index: int, buffers: Sequence[Buffer]) -> None:
        """See `Upload`."""
        with self._turn:
            if not self._turn.wait_for(lambda: self._next == index or self._broken is not None, TURN_TIMEOUT_S):
                raise LocationUnavailable("upload", f"{self._cloud.url}/{self._key}", f"part {self._next} never came")
            self._check()
            try:
                with self._cloud._errors("upload", self._key):
                    for buffer in buffers:
                        self._writer.write(bytes(buffer))  # obstore goes on reading a buffer after this returns
            except Exception as error:
                self._broken = error
                raise
            finally:
                self._next += 1
                self._turn.notify_all()

    def copy_part(self, index: int, source: Location, source_key: str, *, offset: int, size_bytes: int, etag: str) -> bool:
        """See `Upload`."""
        return False

    def complete(self) -> Entry:
        """See `Upload`."""
        self._check()
        with self._cloud._errors("complete", self._key):
            self._writer.close()
        self._ended = True
        entry = self._cloud.head(self._key)
        if entry is None:
            raise LocationUnavailable("complete", f"{self._cloud.url}/{self._key}", "the object is not there after its upload")
        return entry

    def abort(self) -> None:
        """See `Upload`. What obstore has sent already is dropped by the store; a writer that is not closed publishes nothing."""
        with self._turn:
            if not self._ended:
                self._ended = True
                self._broken = self._broken or LocationError("upload", f"{self._cloud.url}/{self._key}", "aborted")
                self._turn.notify_all()
                self._writer = None

    def _check(self) -> None:
        if self._broken is not None:
            raise LocationUnavailable("upload", f"{self._cloud.url}/{self._key}", f"an earlier part failed: {self._broken}")


_MEMORY: dict[str, Any] = {}
_MEMORY_LOCK = threading.Lock()


def memory(name: str) -> Cloud:
    """A place in this process's memory, for tests and trials: the same for the same name."""
    with _MEMORY_LOCK:
        store = _MEMORY.setdefault(name, MemoryStore())
    return Cloud(store, f"memory://{name}")


def google(bucket: str, prefix: str, **options: Any) -> Cloud:
    """A bucket of Google Cloud Storage. `options` are obstore's for `GCSStore`."""
    return _cloud(GCSStore, f"gs://{bucket}", bucket, prefix, options)


def azure(container: str, prefix: str, **options: Any) -> Cloud:
    """A container of Azure Blob Storage. `options` are obstore's for `AzureStore`."""
    return _cloud(AzureStore, f"az://{container}", container, prefix, options)


def _cloud(store: Callable[..., Any], url: str, name: str, prefix: str, options: dict[str, Any]) -> Cloud:
    client = {"connect_timeout": CONNECT_TIMEOUT, "timeout": REQUEST_TIMEOUT, **options.pop("client_options", {})}
    return Cloud(store(name, client_options=client, **{"retry_config": RETRIES, **options}), url, prefix)
