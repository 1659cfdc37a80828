"""Versions and listings against a naive model of S3: a dict of lists, sorted and cut by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from engine_store import Store, refused
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from forebay.engine.committer import Op
from forebay.engine.objects import Attributes
from forebay.errors import StoreError

LONG = b"long/" + b"L" * 500
SHORT = [b"a", b"a!", b"a/", b"a/b", b"a/b/c", b"a/c", b"a\x00", b"a\x00\x01", b"b", b"b/\xff", b"\xff", b"\xff\xff", "ü/é".encode()]
KEYS = [*SHORT, LONG, LONG + b"/x", LONG + b"/y", LONG[:440], LONG[:441]]
PREFIXES = st.sampled_from([b"", b"a", b"a/", b"a/b", b"b", b"\xff", b"long/", LONG[:300], LONG, LONG + b"/", b"zz"])
DELIMITERS = st.sampled_from([b"", b"/", b"/", b"b", b"LL", b"\x00"])
MARKERS = st.one_of(st.just(b""), st.sampled_from(KEYS), st.sampled_from([b"a/", b"a/b/", b"\xff\xff\xff", LONG[:200], b"0"]))

Versions = dict[bytes, list[tuple[str, bool, bytes]]]  # newest first: (id, whether it is a delete marker, content)


def naive_page(keys: list[bytes], prefix: bytes, delimiter: bytes, after: bytes) -> tuple[list[bytes], list[bytes]]:
    """All of S3's ListObjects at once: keys and common prefixes."""
    items, prefixes = [], []
    for key in sorted(keys):
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0:
            common = key[: cut + len(delimiter)]
            # A marker inside a common prefix does not hide the rest of it, unless the marker is that prefix itself.
            if key > after and common != after and common not in prefixes:
                prefixes.append(common)
        elif key > after:
            items.append(key)
    return items, prefixes


class S3(RuleBasedStateMachine):
    store: Store
    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        self.bucket = f"bucket-{next(self.numbers)}"
        self.store.engine.create_bucket(self.bucket)
        self.versioning = ""
        self.versions: Versions = {}

    # changes

    @rule(key=st.sampled_from(KEYS), content=st.binary(max_size=40))
    def put(self, key: bytes, content: bytes) -> None:
        written = self.store.engine.put(self.bucket, key, content, Attributes(etag="e")).wait()
        self.add(key, written.version_id, False, content)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: bytes) -> None:
        deleted = self.store.engine.delete(self.bucket, key).wait()
        assert deleted.is_delete_marker == bool(self.versioning)
        if self.versioning:
            self.add(key, deleted.version_id, True, b"")
        else:
            self.versions.pop(key, None)

    @rule(data=st.data())
    @precondition(lambda self: self.versioning and self.versions)
    def delete_version(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.versions)))
        version_id, is_marker, _ = data.draw(st.sampled_from(self.versions[key]))
        deleted = self.store.engine.delete(self.bucket, key, version_id).wait()
        assert deleted == (version_id, is_marker)
        self.versions[key] = [v for v in self.versions[key] if v[0] != version_id]
        if not self.versions[key]:
            del self.versions[key]

    @rule(key=st.sampled_from(KEYS))
    def delete_a_version_that_is_not_there(self, key: bytes) -> None:
        self.store.engine.delete(self.bucket, key, "0" * 32).wait()

    @rule(status=st.sampled_from(["Enabled", "Enabled", "Suspended"]))
    def set_versioning(self, status: str) -> None:
        self.store.engine.set_versioning(self.bucket, status)
        self.versioning = status

    @rule()
    def reap(self) -> None:
        for erasure_set in self.store.engine.sets:
            self.store.engine.submit(Op(lambda _: None, set_index=erasure_set.index)).wait()

    def add(self, key: bytes, version_id: str | None, is_marker: bool, content: bytes) -> None:
        if self.versioning != "Enabled":
            assert version_id == ("null" if self.versioning else None)
            version_id = "null"
            self.versions[key] = [v for v in self.versions.get(key, []) if v[0] != "null"]
        self.versions.setdefault(key, []).insert(0, (version_id, is_marker, content))

    # what must be seen

    @rule(key=st.sampled_from(KEYS))
    def read(self, key: bytes) -> None:
        engine, versions = self.store.engine, self.versions.get(key, [])
        if not versions or versions[0][1]:
            error = refused(lambda: engine.open(self.bucket, key), "NoSuchKey")
            assert ("x-amz-delete-marker" in error.headers) == bool(versions)
        else:
            assert engine.read(engine.open(self.bucket, key)) == versions[0][2]
        for i, (version_id, is_marker, content) in enumerate(versions):
            if is_marker:
                refused(lambda v=version_id: engine.open(self.bucket, key, v), "MethodNotAllowed")
                continue
            opened = engine.open(self.bucket, key, version_id)
            assert engine.read(opened) == content and opened.found.is_latest == (i == 0)
            assert opened.found.version_id == (version_id if self.versioning else None)
        refused(lambda: engine.open(self.bucket, key, "0" * 32), "NoSuchVersion")

    @rule(prefix=PREFIXES, delimiter=DELIMITERS, after=MARKERS, limit=st.integers(1, 7))
    def list_objects(self, prefix: bytes, delimiter: bytes, after: bytes, limit: int) -> None:
        current = [key for key, versions in self.versions.items() if not versions[0][1]]
        keys, prefixes, marker = [], [], after
        for _ in range(100):
            page = self.store.engine.list_objects(self.bucket, prefix=prefix, delimiter=delimiter, after=marker, limit=limit)
            assert len(page.objects) + len(page.common_prefixes) == limit or page.next_after is None
            keys += [o.key for o in page.objects]
            prefixes += page.common_prefixes
            if page.next_after is None:
                break
            assert page.next_after > marker
            marker = page.next_after
        assert (keys, prefixes) == naive_page(current, prefix, delimiter, after)

    @rule(prefix=PREFIXES, delimiter=DELIMITERS, limit=st.integers(1, 7))
    def list_versions(self, prefix: bytes, delimiter: bytes, limit: int) -> None:
        found, prefixes, marker = [], [], (b"", "")
        for _ in range(100):
            page = self.store.engine.list_versions(
                self.bucket, prefix=prefix, delimiter=delimiter, key_marker=marker[0], version_marker=marker[1], limit=limit
            )
            assert len(page.versions) + len(page.common_prefixes) == limit or page.next_marker is None
            found += [(v.key, v.version_id or "null", v.entry.is_delete_marker, v.is_latest) for v in page.versions]
            prefixes += page.common_prefixes
            if page.next_marker is None:
                break
            marker = page.next_marker
        keys, wanted_prefixes = naive_page(list(self.versions), prefix, delimiter, b"")
        wanted = [(k, v[0], v[1], i == 0) for k in keys for i, v in enumerate(self.versions[k])]
        assert (found, prefixes) == (wanted, wanted_prefixes)

    @rule()
    def delete_bucket(self) -> None:
        if self.versions:
            refused(lambda: self.store.engine.delete_bucket(self.bucket), "BucketNotEmpty")
            return
        self.store.engine.delete_bucket(self.bucket)
        refused(lambda: self.store.engine.put(self.bucket, b"k", b"", Attributes()).wait(), "NoSuchBucket")
        self.store.engine.create_bucket(self.bucket)
        self.versioning = ""

    @invariant()
    def the_bucket_is_as_configured(self) -> None:
        assert self.store.engine.bucket(self.bucket).versioning == self.versioning


@pytest.fixture(scope="module")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("model"), 2, 1, sets=3)
    yield store
    store.stop()


def test_against_the_model(model_store: Store) -> None:
    S3.store = model_store
    run_state_machine_as_test(
        S3,
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True),
    )
    assert not any(s.bad_records for s in model_store.engine.sets)


def test_limits_and_markers_of_the_empty_bucket(model_store: Store) -> None:
    model_store.engine.create_bucket("empty")
    assert model_store.engine.list_objects("empty") == ([], [], None)
    assert model_store.engine.list_versions("empty", key_marker=b"k", version_marker="null") == ([], [], None)
    assert model_store.engine.list_uploads("empty") == ([], [], None)
    with pytest.raises(StoreError) as caught:
        model_store.engine.list_versions("empty", key_marker=b"k", version_marker="x")
    assert caught.value.code == "InvalidArgument"
