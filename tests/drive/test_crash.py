"""The process is killed at every named step of the write path; what it said was done is there, the rest is whole or not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drive_child import ROUNDS, check_rounds

import forebay.drive
from forebay.drive import FolderKind, LocalDrive, classify_folder
from forebay.drive.testing import IDENTITY, crash_point_names

CHILD = Path(__file__).parent / "drive_child.py"
POINTS = crash_point_names(Path(forebay.drive.__file__).parent)


def run_child(folder: str, crash_at: str = "") -> tuple[int, list[str]]:
    """Exit status and what it acknowledged."""
    environment = os.environ | {"FOREBAY_CRASH_AT": crash_at}
    done = subprocess.run([sys.executable, CHILD, folder, str(ROUNDS)], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    return done.returncode, done.stdout.split("\n")[:-1]


def test_there_are_crash_points_in_every_part_of_the_write_path():
    assert {name.split(".")[0] for name in POINTS} == {"commit", "format", "shard"}
    assert len(POINTS) >= 11


def test_without_a_crash_everything_is_done(tmp_path):
    code, said = run_child(str(tmp_path / "d"))
    assert code == 0 and said[-1] == "done" and len(said) == 2 + 4 * ROUNDS
    check_rounds(str(tmp_path / "d"), said)


@pytest.mark.parametrize("name", [name for name in POINTS if not name.startswith("format")])
@pytest.mark.parametrize("hit", [1, 3])
def test_a_kill_at_any_step_leaves_what_was_acknowledged(tmp_path, name, hit):
    folder = str(tmp_path / "d")
    code, said = run_child(folder, f"{name}:{hit}")
    assert code == -signal.SIGKILL and "done" not in said
    seq = check_rounds(folder, said)
    if name.startswith("commit"):
        assert seq == sum(line.startswith("commit") for line in said) + (name == "commit.end"), "the commit point"


@pytest.mark.parametrize("name", [name for name in POINTS if name.startswith("format")])
def test_a_kill_while_formatting_leaves_a_drive_or_a_blank_folder(tmp_path, name):
    folder = str(tmp_path / "d")
    code, said = run_child(folder, name)
    assert code == -signal.SIGKILL and said == []
    assert classify_folder(folder) in (FolderKind.EMPTY, FolderKind.OURS)
    code, said = run_child(folder)
    assert code == 0 and said[-1] == "done"
    assert LocalDrive.read_identity(folder) == IDENTITY


def test_a_killed_writer_frees_the_lock_of_the_index(tmp_path):
    """Another process that has the index open goes on at once."""
    folder = str(tmp_path / "d")
    LocalDrive.format(folder, IDENTITY)
    drive = LocalDrive.open(folder)
    code, _ = run_child(folder, "commit.write")
    assert code == -signal.SIGKILL
    drive.commit(1, [(b"Oa", b"1")], [])
    assert drive.seq() == 1
    drive.close()


@pytest.mark.parametrize("crash_at", ["no.such.point", "commit.begin:99", "commit"])
def test_names_that_are_not_hit_do_nothing(tmp_path, crash_at):
    code, said = run_child(str(tmp_path / "d"), crash_at)
    assert code == 0 and said[-1] == "done"
