"""The format page and the code say the same."""

import os
import re
from pathlib import Path

import msgspec
import pytest

from forebay.drive import FORMAT_VERSION, PEER_KEY_PREFIX, SEQ_KEY, Identity, LocalDrive, layout
from forebay.drive.local import RESERVE_BYTES_MIN, RESERVE_FRACTION
from forebay.drive.testing import BLOB, IDENTITY, put_shard

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "drive.md"


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, without its head."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_fields_of_the_identity():
    documented = [row[0].strip("`") for row in rows("`forebay.json`")]
    assert documented == ["kind", *(f"identity.{name}" for name in Identity.__struct_fields__), "checksum"]
    types = {row[0].strip("`").removeprefix("identity."): row[1] for row in rows("`forebay.json`")}
    names = {int: "integer", str: "string"}
    for field in msgspec.structs.fields(Identity):
        assert types[field.name] == names[field.type]
    assert PAGE.read_text().split("\n")[2].startswith(f"Version {FORMAT_VERSION}.")


def test_the_names_in_the_folder(drive, folder):
    documented = [row[0].strip("`") for row in rows("Layout")]
    patterns = [
        re.sub(r"<(\w+)>", lambda m: {"ab": "[0-9a-f]{2}", "id": "[0-9a-f]{32}", "name": "[0-9a-z]+"}.get(m[1], r"\w+"), name)
        for name in documented
    ]
    for blob_id in (BLOB, bytes(16)):
        put_shard(drive, blob_id, bytes(4096))
    drive.trash_shard(BLOB)
    writer = drive.create_shard(BLOB)
    Path(folder, f"{layout.IDENTITY_DRAFT_PREFIX}00ff").touch()
    found = [str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()]
    writer.abort()
    for name in found:
        assert sum(bool(re.fullmatch(pattern, name)) for pattern in patterns) == 1, name
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in found), pattern


def test_modes_keys_and_limits(drive, folder):
    text = PAGE.read_text()
    assert f"mode 0{layout.FOLDER_MODE:o}, files 0{layout.FILE_MODE:o}" in text
    put_shard(drive, BLOB, bytes(4096))
    for path in Path(folder).rglob("*"):
        assert path.stat().st_mode & 0o777 == (layout.FOLDER_MODE if path.is_dir() else layout.FILE_MODE), path
    assert [row[0] for row in rows("Records of the drive itself")] == [
        f"`{SEQ_KEY.decode()}`",
        f"`{PEER_KEY_PREFIX.decode()}` + position (1 byte)",
    ]
    assert RESERVE_BYTES_MIN == 64 << 20 and RESERVE_FRACTION == 0.005 and "64 MiB or half a percent" in text


@pytest.mark.parametrize("step", ["shard", "format"])
def test_the_order_of_writing(tmp_path, monkeypatch, step):
    """Names follow bytes: content is synced before its name is given, the folder after."""
    calls: list[str] = []
    target = lambda descriptor: os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)  # noqa: E731
    kind = lambda path: re.sub(r"[0-9a-f]{16,}.*", "FILE", path)  # noqa: E731
    real_fsync, real_fdatasync, real_link, real_rename = os.fsync, os.fdatasync, os.link, Path.rename

    if step == "shard":
        LocalDrive.format(str(tmp_path / "d"), IDENTITY)
        drive = LocalDrive.open(str(tmp_path / "d"), reserve_bytes=0)
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(f"fsync {kind(target(fd))}"), real_fsync(fd)))
    monkeypatch.setattr(os, "fdatasync", lambda fd: (calls.append(f"fdatasync {kind(target(fd))}"), real_fdatasync(fd)))
    monkeypatch.setattr(os, "link", lambda a, b: (calls.append(f"link {Path(b).name}"), real_link(a, b)))
    monkeypatch.setattr(Path, "rename", lambda a, b: (calls.append(f"rename {Path(b).parent.name}"), real_rename(a, b)))
    if step == "shard":
        put_shard(drive, BLOB, bytes(4096))
        drive.close()
        assert calls == ["fdatasync d/staging/FILE", "rename ab", "fsync d/blobs/ab"]
    else:
        LocalDrive.format(str(tmp_path / "a" / "d"), IDENTITY)
        assert calls == ["fsync a/d/.forebay.json.FILE", "link forebay.json", "fsync a/d", "fsync a", "fsync ."]
