import subprocess

import pytest

from forebay.drive import LocalDrive
from forebay.drive.testing import IDENTITY


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "drive")


@pytest.fixture
def drive(folder):
    LocalDrive.format(folder, IDENTITY)
    drive = LocalDrive.open(folder, IDENTITY, reserve_bytes=0)
    yield drive
    drive.close()


@pytest.fixture
def mount(tmp_path):
    """`mount(name, size_mib)` mounts a small tmpfs at tmp_path/name, `.bind` a folder, `.unmount` takes it away.

    Needs the right to mount; skips the test where there is none.
    """
    mounted = []

    def do_mount(*arguments: str, name: str) -> str:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        mounted.append(str(path))
        return str(path)

    def mount_tmpfs(name: str, size_mib: int = 16) -> str:
        return do_mount("-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", name=name)

    def unmount(path: str) -> None:
        subprocess.run(["umount", path], check=True)
        mounted.remove(path)

    mount_tmpfs.bind = lambda source, name: do_mount("--bind", source, name=name)
    mount_tmpfs.unmount = unmount
    yield mount_tmpfs
    for path in reversed(mounted):
        subprocess.run(["umount", "--lazy", path], check=True)
