import os
from types import SimpleNamespace

import pytest

from forebay.drive import FolderKind, LocalDrive, classify_folder, filesystem, filesystem_identity
from forebay.drive.testing import IDENTITY
from forebay.errors import DriveFailed

ELSEWHERE = {"uuid:ffffffffffffffffffffffffffffffff"}


def test_folders_of_one_filesystem_have_its_identity(tmp_path):
    (tmp_path / "a").mkdir()
    identity = filesystem_identity(str(tmp_path))
    assert identity == filesystem_identity(str(tmp_path / "a"))
    assert identity.split(":")[0] in ("uuid", "fsid", "mount") and len(identity) > 6
    assert identity != filesystem_identity("/proc")


def test_filesystems_have_different_identities(mount, tmp_path):
    one, two = mount("one"), mount("two")
    assert len({filesystem_identity(path) for path in (one, two, str(tmp_path))}) == 3


def test_without_uuid_and_fsid_the_mount_is_the_identity(monkeypatch, tmp_path):
    monkeypatch.setattr(filesystem, "_uuid", lambda path: None)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_fsid=0x12AB))
    assert filesystem_identity(str(tmp_path)) == "fsid:00000000000012ab"
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_fsid=0))
    assert filesystem_identity("/proc") == "mount:proc:proc"
    assert filesystem_identity("/proc/self") == "mount:proc:proc"
    assert filesystem_identity(str(tmp_path)).startswith("mount:")


def test_a_filesystem_that_cannot_be_asked(tmp_path):
    with pytest.raises(DriveFailed, match="identify the filesystem: No such file"):
        filesystem_identity(str(tmp_path / "missing"))


def test_what_a_folder_can_be_when_nothing_is_remembered(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo.jpg").touch()
    (tmp_path / "file").touch()
    LocalDrive.format(str(tmp_path / "ours"), IDENTITY)
    kinds = {name: classify_folder(str(tmp_path / name)) for name in ("missing", "missing/below", "empty", "foreign", "file", "ours")}
    assert kinds == {
        "missing": FolderKind.MISSING,
        "missing/below": FolderKind.MISSING,
        "empty": FolderKind.EMPTY,
        "foreign": FolderKind.FOREIGN,
        "file": FolderKind.FOREIGN,
        "ours": FolderKind.OURS,
    }


def test_an_emptied_drive_lies_on_the_remembered_filesystem(tmp_path):
    here = {filesystem_identity(str(tmp_path))}
    (tmp_path / "empty").mkdir()
    assert classify_folder(str(tmp_path / "empty"), here | ELSEWHERE) is FolderKind.EMPTY
    assert classify_folder(str(tmp_path / "gone"), here) is FolderKind.MISSING


def test_an_empty_folder_on_another_filesystem_than_remembered_is_suspect(tmp_path):
    (tmp_path / "empty").mkdir()
    assert classify_folder(str(tmp_path / "empty"), ELSEWHERE) is FolderKind.UNMOUNTED
    assert classify_folder(str(tmp_path / "gone"), ELSEWHERE) is FolderKind.UNMOUNTED


def test_contents_count_more_than_what_is_remembered(tmp_path):
    LocalDrive.format(str(tmp_path / "ours"), IDENTITY)
    assert classify_folder(str(tmp_path / "ours"), ELSEWHERE) is FolderKind.OURS
    assert classify_folder(str(tmp_path), ELSEWHERE) is FolderKind.FOREIGN


def test_a_disk_that_is_not_mounted_is_told_from_one_that_is_new(mount):
    path = mount("disk")
    remembered = {filesystem_identity(path)}
    LocalDrive.format(path, IDENTITY)
    assert classify_folder(path, remembered) is FolderKind.OURS
    mount.unmount(path)
    assert classify_folder(path, remembered) is FolderKind.UNMOUNTED
    assert classify_folder(path + "/folder", remembered) is FolderKind.UNMOUNTED
    mount("disk")
    assert filesystem_identity(path) not in remembered
    assert classify_folder(path, remembered) is FolderKind.EMPTY, "a mount point of its own: the disk was replaced"
    os.mkdir(path + "/lost+found")
    assert classify_folder(path, remembered) is FolderKind.EMPTY, "as mkfs leaves it"


def test_an_interrupted_format_left_nothing_of_anybodys(tmp_path):
    (tmp_path / ".forebay.json.77").touch()
    assert classify_folder(str(tmp_path)) is FolderKind.EMPTY


def test_the_bare_mount_point_of_a_missing_disk_handed_into_a_container_is_suspect(mount, tmp_path):
    """A bind mount of an empty folder is a mount point too, but no disk."""
    (tmp_path / "host").mkdir()
    path = mount.bind(str(tmp_path / "host"), "inside")
    assert classify_folder(path, ELSEWHERE) is FolderKind.UNMOUNTED
    assert classify_folder(path) is FolderKind.EMPTY
