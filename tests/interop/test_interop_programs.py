"""The command-line clients: aws, s5cmd, rclone, s3cmd. What they report is compared byte for byte with what went in."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from interop_store import Programs, read_tree, write_tree

from running_store import Store


@pytest.fixture
def tree(tmp_path: Path, small: bytes, large: bytes) -> dict[str, bytes]:
    return write_tree(tmp_path / "tree", small, large)


def test_aws_cli(programs: Programs, bucket: str, tmp_path: Path, small: bytes, large: bytes, large_file: Path) -> None:
    (tmp_path / "small.bin").write_bytes(small)
    programs.run("aws", "s3", "mb", f"s3://{bucket}-made")
    programs.run("aws", "s3", "cp", tmp_path / "small.bin", f"s3://{bucket}/dir/small one.bin", "--metadata", "color=blue,shape=round")
    programs.run("aws", "s3", "cp", large_file, f"s3://{bucket}/large.bin")
    assert "small one.bin" in programs.run("aws", "s3", "ls", f"s3://{bucket}/dir/")

    head = json.loads(programs.run("aws", "s3api", "head-object", "--bucket", bucket, "--key", "dir/small one.bin"))
    assert head["Metadata"] == {"color": "blue", "shape": "round"} and head["ContentLength"] == len(small)

    programs.run("aws", "s3", "cp", f"s3://{bucket}/large.bin", f"s3://{bucket}-made/copied.bin")
    programs.run("aws", "s3", "mv", f"s3://{bucket}/dir/small one.bin", f"s3://{bucket}/moved.bin")
    programs.run("aws", "s3", "cp", f"s3://{bucket}-made/copied.bin", tmp_path / "back.bin")
    programs.run("aws", "s3", "cp", f"s3://{bucket}/moved.bin", tmp_path / "small-back.bin")
    assert (tmp_path / "back.bin").read_bytes() == large
    assert (tmp_path / "small-back.bin").read_bytes() == small

    programs.run("aws", "s3", "rm", f"s3://{bucket}", "--recursive")
    assert programs.run("aws", "s3", "ls", f"s3://{bucket}", "--recursive") == ""
    programs.run("aws", "s3", "rb", f"s3://{bucket}-made", "--force")


def test_aws_cli_sync(programs: Programs, bucket: str, tmp_path: Path, tree: dict[str, bytes]) -> None:
    programs.run("aws", "s3", "sync", "--cli-read-timeout", 20, tmp_path / "tree", f"s3://{bucket}/t")
    assert programs.run("aws", "s3", "sync", tmp_path / "tree", f"s3://{bucket}/t") == "", "a second sync moves nothing"
    programs.run("aws", "s3", "sync", f"s3://{bucket}/t", tmp_path / "back")
    assert read_tree(tmp_path / "back") == tree
    (tmp_path / "tree" / "one.bin").unlink()
    programs.run("aws", "s3", "sync", "--delete", tmp_path / "tree", f"s3://{bucket}/t")
    assert "t/one.bin" not in programs.run("aws", "s3", "ls", "--recursive", f"s3://{bucket}/t")


def test_aws_cli_low_level(programs: Programs, bucket: str, tmp_path: Path, small: bytes) -> None:
    (tmp_path / "small.bin").write_bytes(small)
    put = ["aws", "s3api", "put-object", "--bucket", bucket, "--key", "k", "--body", tmp_path / "small.bin"]
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
        answer = json.loads(programs.run(*put, "--checksum-algorithm", algorithm))
        assert answer[f"Checksum{algorithm}"]
    programs.run("aws", "s3api", "get-object", "--bucket", bucket, "--key", "k", "--range", "bytes=100-199", tmp_path / "part.bin")
    assert (tmp_path / "part.bin").read_bytes() == small[100:200]
    programs.run("aws", "configure", "set", "default.s3.signature_version", "s3v4")  # it presigns with version 2 otherwise
    url = programs.run("aws", "s3", "presign", f"s3://{bucket}/k", "--expires-in", "60").strip()
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == small


def test_s5cmd(programs: Programs, bucket: str, tmp_path: Path, tree: dict[str, bytes], large: bytes, large_file: Path) -> None:
    programs.run("s5cmd", "mb", f"s3://{bucket}-made")
    programs.run("s5cmd", "cp", large_file, f"s3://{bucket}/large.bin")
    programs.run("s5cmd", "cp", f"s3://{bucket}/large.bin", f"s3://{bucket}-made/copied.bin")
    programs.run("s5cmd", "cp", f"s3://{bucket}-made/copied.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == large

    programs.run("s5cmd", "sync", f"{tmp_path / 'tree'}/", f"s3://{bucket}/t/")
    assert programs.run("s5cmd", "sync", "--size-only", f"{tmp_path / 'tree'}/", f"s3://{bucket}/t/") == "", "a second sync moves nothing"
    listed = [json.loads(line) for line in programs.run("s5cmd", "--json", "ls", f"s3://{bucket}/t/*").splitlines()]
    assert {entry["key"].split("/t/")[1]: entry.get("size", 0) for entry in listed} == {
        name: len(content) for name, content in tree.items()
    }
    programs.run("s5cmd", "cp", f"s3://{bucket}/t/*", f"{tmp_path / 'tree-back'}/")
    assert read_tree(tmp_path / "tree-back") == tree

    programs.run("s5cmd", "rm", f"s3://{bucket}/*")
    programs.run("s5cmd", "rm", f"s3://{bucket}-made/*")
    programs.run("s5cmd", "rb", f"s3://{bucket}-made")
    assert f"{bucket}-made" not in programs.run("s5cmd", "ls")


def _rclone(store: Store, *options: str) -> list[str]:
    """Arguments of a remote defined in place; strict, so that what it doubts is an error."""
    remote = (
        f":s3,provider=Other,endpoint='{store.endpoint}',access_key_id='{store.access_key}',"
        f"secret_access_key='{store.secret_key}',region={store.region}{''.join(',' + option for option in options)}:"
    )
    return [remote]


def test_rclone(store: Store, programs: Programs, bucket: str, tmp_path: Path, tree: dict[str, bytes]) -> None:
    [remote] = _rclone(store)
    programs.run("rclone", "copy", tmp_path / "tree", f"{remote}{bucket}/t")
    programs.run("rclone", "check", tmp_path / "tree", f"{remote}{bucket}/t")
    assert "0 differences found" in programs.warnings
    programs.run("rclone", "check", "--download", tmp_path / "tree", f"{remote}{bucket}/t")
    programs.run("rclone", "sync", f"{remote}{bucket}/t", f"{remote}{bucket}/copied")
    programs.run("rclone", "sync", f"{remote}{bucket}/copied", tmp_path / "back")
    assert read_tree(tmp_path / "back") == tree
    entries = json.loads(programs.run("rclone", "lsjson", "-R", "--files-only", f"{remote}{bucket}/t"))
    assert {entry["Path"]: entry["Size"] for entry in entries} == {name: len(content) for name, content in tree.items()}
    programs.run("rclone", "purge", f"{remote}{bucket}/t")
    assert programs.run("rclone", "lsf", f"{remote}{bucket}") == "copied/\n"


def test_s3cmd(
    programs: Programs, s3cmd_config: Path, bucket: str, tmp_path: Path, tree: dict[str, bytes], large: bytes, large_file: Path
) -> None:
    s3cmd = ("s3cmd", "-c", s3cmd_config, "--no-progress")
    programs.run(*s3cmd, "mb", f"s3://{bucket}-made")
    programs.run(*s3cmd, "put", large_file, f"s3://{bucket}/large.bin", "--add-header=x-amz-meta-color:blue")
    assert "blue" in programs.run(*s3cmd, "info", f"s3://{bucket}/large.bin")
    programs.run(*s3cmd, "cp", f"s3://{bucket}/large.bin", f"s3://{bucket}-made/copied.bin")
    programs.run(*s3cmd, "get", f"s3://{bucket}-made/copied.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == large

    programs.run(*s3cmd, "sync", f"{tmp_path / 'tree'}/", f"s3://{bucket}/t/")
    programs.run(*s3cmd, "sync", f"s3://{bucket}/t/", f"{tmp_path / 'tree-back'}/")
    assert read_tree(tmp_path / "tree-back") == tree
    programs.run(*s3cmd, "mv", f"s3://{bucket}/t/one.bin", f"s3://{bucket}/t/renamed.bin")
    programs.run(*s3cmd, "del", "--recursive", "--force", f"s3://{bucket}/")
    programs.run(*s3cmd, "del", f"s3://{bucket}-made/copied.bin")
    programs.run(*s3cmd, "rb", f"s3://{bucket}-made")
    assert programs.run(*s3cmd, "ls", "--recursive", f"s3://{bucket}") == ""
