"""Folders, memory and S3 against the kit, and what each of them does besides."""

from __future__ import annotations

import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_s3 import FakeS3, Fault
from location_kit import LocationTests, MiB, content, read

from forebay.errors import (
    ConfigError,
    LocationDenied,
    LocationError,
    LocationFull,
    LocationUnavailable,
    ObjectMissing,
    PreconditionFailed,
)
from forebay.locations import Absent, Location, Unchanged, open_location
from forebay.locations.cloud import memory
from forebay.locations.folder import Folder
from forebay.locations.s3 import S3


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with FakeS3() as fake:
        yield fake


class TestFolder(LocationTests):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        return open_location(tmp_path / "checkpoints")

    def test_empty_folders_go_and_the_root_stays(self, location: Location) -> None:
        location.put("a/b/c/d", b"x")
        location.delete(["a/b/c/d"])
        assert list(Path(location.url).iterdir()) == []

    def test_unfinished_files_are_hidden_and_their_names_refused(self, location: Location) -> None:
        location.upload("x/y", 5, 4096)
        assert list(location.walk()) == []
        assert location.list_folder("x").objects == ()
        with pytest.raises(ValueError, match="unfinished"):
            location.put("x/.forebay-tmp-1", b"")

    def test_data_is_synced_before_its_name_appears_and_the_folder_after(self, location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        location.put("d/first", b"")
        calls: list[str] = []

        def note(name: str, real: object) -> object:
            def call(*args: object, **more: object) -> object:
                is_folder = isinstance(args[0], int) and stat.S_ISDIR(os.fstat(args[0]).st_mode)
                calls.append(f"{name}{' folder' if is_folder else ''}")
                return real(*args, **more)  # type: ignore[operator]

            return call

        for name in ("fsync", "fdatasync", "link", "rename"):
            monkeypatch.setattr(os, name, note(name, getattr(os, name)))
        location.put("d/doc", b"x", Absent())
        assert calls == ["fsync", "link", "fsync folder"]
        calls.clear()
        upload = location.upload("d/data", 4096, 4096)
        upload.write_part(0, [bytes(4096)])
        upload.complete()
        assert calls == ["fdatasync", "rename", "fsync folder"]

    def test_incomplete_upload_does_not_appear(self, location: Location) -> None:
        upload = location.upload("x", 8192, 4096)
        upload.write_part(0, [bytes(4096)])
        with pytest.raises(LocationError, match="4096 bytes, not 8192"):
            upload.complete()
        upload.abort()
        assert location.head("x") is None

    def test_full_disk(self, location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        upload = location.upload("x", 4096, 4096)
        monkeypatch.setattr(os, "pwritev", full)
        with pytest.raises(LocationFull, match="No space left"):
            upload.write_part(0, [bytes(4096)])
        upload.abort()

    def test_denied(self, location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        location.put("x", b"1")
        monkeypatch.setattr(Path, "open", denied)
        with pytest.raises(LocationDenied, match="Permission denied"):
            location.get("x")


class TestMemory(LocationTests):
    sweeps = 0

    @pytest.fixture
    def location(self) -> Location:
        return memory(uuid.uuid4().hex)


class TestS3(LocationTests):
    @pytest.fixture
    def location(self, s3: FakeS3) -> Location:
        return S3("bucket", "some/prefix", **s3.options)


class TestS3Root(LocationTests):
    """The whole bucket, and a server that knows no checksums."""

    @pytest.fixture
    def location(self, s3: FakeS3) -> Location:
        s3.knows_checksums = False
        return S3("bucket", **s3.options)


def test_parts_are_copied_on_the_server(s3: FakeS3) -> None:
    location = S3("bucket", "run", **s3.options)
    data = content(20 * MiB)
    first = location.child("step-1").upload("data/x", len(data), 8 * MiB)
    for index in range(3):
        first.write_part(index, [data[index * 8 * MiB : (index + 1) * 8 * MiB]])
    entry = first.complete()
    s3.reset_requests()
    second = location.child("step-2").upload("data/x", len(data), 8 * MiB)
    step1 = location.child("step-1")
    assert second.copy_part(0, step1, "data/x", offset=0, size_bytes=8 * MiB, etag=entry.etag)
    assert not second.copy_part(1, step1, "data/x", offset=8 * MiB, size_bytes=8 * MiB, etag='"another"')
    second.write_part(1, [data[8 * MiB : 16 * MiB]])
    assert second.copy_part(2, step1, "data/x", offset=16 * MiB, size_bytes=4 * MiB, etag=entry.etag)
    second.complete()
    step1.delete(["data/x"])
    assert location.get("step-2/data/x")[0] == data
    assert s3.bytes_received < 9 * MiB


def test_a_folder_takes_no_parts_from_elsewhere(tmp_path: Path) -> None:
    upload = Folder(tmp_path).upload("x", 4096, 4096)
    assert not upload.copy_part(0, memory("elsewhere"), "y", offset=0, size_bytes=4096, etag="")
    upload.abort()


def each_request(s3: FakeS3, action: object) -> int:
    """How many requests an action takes when nothing fails."""
    s3.reset_requests()
    action()  # type: ignore[operator]
    return len(s3.requests)


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 500}, {"cut": "before"}, {"cut": "after"}, {"cut": "middle"}], ids=str)
def test_every_request_survives_one_fault(s3: FakeS3, fault: dict[str, object]) -> None:
    data = content(9 * MiB)

    def run(name: str) -> None:
        location = S3("bucket", name, **s3.options)
        etag = location.put("doc", b"one", Absent())
        location.put("doc", b"two", Unchanged(etag))
        upload = location.upload("data", len(data), 8 * MiB)
        upload.write_part(0, [data[: 8 * MiB]])
        upload.write_part(1, [data[8 * MiB :]])
        upload.complete()
        assert read(location, "data", 8 * MiB - 5, 10) == data[8 * MiB - 5 :][:10]
        assert [entry.key for entry in location.walk()] == ["data", "doc"]
        assert location.head("doc").size_bytes == 3
        location.delete(["doc", "data"])
        assert list(location.walk()) == []
        location.close()

    for number in range(each_request(s3, lambda: run("none"))):
        s3.reset_requests(Fault(number, **fault))
        run(f"run-{number}")


def test_a_broken_read_goes_on_where_it_stopped(s3: FakeS3) -> None:
    location = S3("bucket", **s3.options)
    data = content(4 * MiB)
    location.put("x", data)
    s3.reset_requests(Fault(0, cut="middle"))
    assert read(location, "x", 0, len(data)) == data
    assert len(s3.requests) == 2


def test_what_lasts_is_reported(s3: FakeS3) -> None:
    location = S3("bucket", **{**s3.options, "retry_s": 0.3})
    s3.reset_requests(Fault(0, status=503, times=10**6))
    with pytest.raises(LocationUnavailable, match=r"put s3://bucket/x: status 503 InternalError \(tried \d+ times"):
        location.put("x", b"1")
    s3.reset_requests(Fault(0, cut="before", times=10**6))
    with pytest.raises(LocationUnavailable, match="read s3://bucket/x"):
        read(location, "x", 0, 1)


def test_denied_is_not_retried(s3: FakeS3) -> None:
    location = S3("bucket", **s3.options)
    s3.reset_requests(Fault(0, status=403, times=10**6))
    with pytest.raises(LocationDenied, match="AccessDenied 403; check the credentials"):
        location.get("x")
    assert len(s3.requests) == 1


def test_a_server_that_is_silent_times_out(s3: FakeS3) -> None:
    location = S3("bucket", **{**s3.options, "read_timeout_s": 0.2, "retry_s": 0.3})
    s3.on_request = lambda number, method: time.sleep(0.6)
    with pytest.raises(LocationUnavailable, match="timed out"):
        location.get("x")


def test_a_closed_idle_connection_is_replaced(s3: FakeS3) -> None:
    location = S3("bucket", **{**s3.options, "retry_s": 0.0})
    location.put("x", b"1")
    (_, connection), *_ = location._bucket.wire._idle
    connection.sock.shutdown(2)
    assert location.get("x")[0] == b"1"


def test_lost_answers_of_conditional_puts_are_resolved(s3: FakeS3) -> None:
    location = S3("bucket", **s3.options)
    s3.reset_requests(Fault(0, cut="after"))
    location.put("commit", b"mine", Absent())
    with pytest.raises(PreconditionFailed):
        location.put("commit", b"other", Absent())
    assert location.get("commit")[0] == b"mine"


def test_credentials_show_nowhere(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    location = open_location("s3://bucket/run", retry_s=0.2)
    seen = [repr(location), location.url, repr(location._bucket.credentials()), repr(location._bucket)]
    for fault in (Fault(0, status=403, times=99), Fault(0, status=500, times=99), Fault(0, cut="before", times=99)):
        s3.reset_requests(fault)
        with pytest.raises(LocationError) as caught:
            location.get("x")
        seen += [str(caught.value), repr(caught.value), repr(caught.value.__cause__)]
    assert not [text for text in seen if "env-secret" in text or "env-token" in text]


def test_the_environment_is_read_as_aws_tools_do(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    location = open_location("s3://bucket/run")
    location.put("x", b"1")
    assert s3.objects["run/x"].data == b"1"
    assert s3.requests == ["PUT /bucket/run/x"]
    assert location._bucket.region == "eu-north-1"
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY"):
        open_location("s3://bucket/run")


def test_aws_itself_is_addressed_by_virtual_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    plain = S3("bucket", region="eu-west-1", access_key="a", secret_key="b")
    assert plain._bucket.wire.netloc == "bucket.s3.eu-west-1.amazonaws.com"
    assert plain._bucket.request("GET", "k y").target == "/k%20y"
    dotted = S3("my.bucket", region="eu-west-1", access_key="a", secret_key="b")
    assert dotted._bucket.request("GET", "k").target == "/my.bucket/k"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "not a path"),
        ("s3:///x", "bucket/prefix"),
        ("s3://key:secret@bucket/x", "without credentials"),
        ("s3://bucket/x?versionId=1", "without credentials, query"),
        ("file://host/x", "three slashes"),
    ],
)
def test_bad_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_location(url)
    assert "secret" not in str(caught.value)


def test_urls(tmp_path: Path) -> None:
    assert open_location(f"file://{tmp_path}/a%20b").url == f"{tmp_path}/a b"
    assert open_location(tmp_path).url == str(tmp_path)
    assert open_location("memory://x/y").url == "memory://x/y"
    assert open_location("s3://bucket/a/b/", access_key="a", secret_key="b").url == "s3://bucket/a/b"
    assert open_location("gs://bucket/a", skip_signature=True).url == "gs://bucket/a"
    with pytest.raises(ConfigError, match="unknown S3 option 'acess_key'"):
        open_location("s3://bucket", acess_key="a")


def test_errors_can_be_pickled() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(ObjectMissing("get", "s3://b/k", "NoSuchKey 404")))
    assert isinstance(error, ObjectMissing) and str(error) == "get s3://b/k: NoSuchKey 404"
