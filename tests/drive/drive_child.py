"""A process that works on a drive and may be killed at a crash point: `drive_child.py FOLDER ROUNDS`.

It says on standard output what has been acknowledged, one line each, as soon as it is. DRIVE_CHILD_STOPS_AFTER is the
line after which it waits to be killed; with DRIVE_CHILD_NEVER_SYNCS it only pretends to make shards durable.
"""

import os
import sys
import time
from contextlib import closing
from pathlib import Path

from forebay.drive import LocalDrive, classify_folder
from forebay.drive.testing import IDENTITY, aligned, read_shard

ROUNDS = 4


def say(*words: object) -> None:
    line = " ".join(map(str, words))
    os.write(1, f"{line}\n".encode())
    if line == os.environ.get("DRIVE_CHILD_STOPS_AFTER"):
        time.sleep(600)


def blob_id(round_number: int, kind: int) -> bytes:
    return bytes([kind, round_number] * 8)


def content(round_number: int) -> bytes:
    return bytes([round_number]) * 4096 * 3


def work(folder: str, rounds: int) -> None:
    if classify_folder(folder).value in ("missing", "empty"):
        LocalDrive.format(folder, IDENTITY)
        say("formatted")
    drive = LocalDrive.open(folder, IDENTITY, reserve_bytes=0)
    if os.environ.get("DRIVE_CHILD_NEVER_SYNCS"):
        os.fsync = os.fdatasync = lambda descriptor: None
    for number in range(1, rounds + 1):
        for kind in (1, 2):
            writer = drive.create_shard(blob_id(number, kind))
            writer.write([aligned(content(number)[:4096])], 0)
            writer.write([aligned(content(number)[4096:])], 4096)
            writer.sync()
            writer.publish()
            say("shard", number, kind)
        keys = [f"O{number:03}-{index}".encode() for index in range(50)]
        drive.commit(number, [(key, content(number)[:500]) for key in keys], [f"O{number - 1:03}-0".encode()])
        say("commit", number)
        drive.trash_shard(blob_id(number, 2))
        say("trash", number)
    drive.close()
    say("done")


def check_rounds(folder: str, said: list[str]) -> int:
    """Everything that was acknowledged is there; a commit is there whole or not at all; a shard has all of its bytes.

    Returns the sequence number that was found.
    """
    with closing(LocalDrive.open(folder, IDENTITY, reserve_bytes=0)) as drive:
        acknowledged = sum(line.startswith("commit") for line in said)
        assert acknowledged <= drive.seq() <= acknowledged + 1
        for number in range(1, max(ROUNDS, drive.seq() + 1) + 1):
            check_round(drive, number, said)
        drive.clear_staging(())
        assert os.listdir(f"{folder}/staging") == []
        drive.probe()
        return drive.seq()


def check_round(drive: LocalDrive, number: int, said: list[str]) -> None:
    found = drive.scan(b"O%03d" % number, b"O%03d" % (number + 1), 1000)
    wanted = {0, 49 if number < drive.seq() else 50}
    assert len(found) in wanted and bool(found) == (number <= drive.seq()), (number, drive.seq(), len(found))
    assert all(value == content(number)[:500] for _, value in found)
    for kind in (1, 2):
        shard = read_shard(drive, blob_id(number, kind))
        assert shard is None or shard == content(number)
        assert shard is not None or f"shard {number} {kind}" not in said


if __name__ == "__main__":
    work(str(Path(sys.argv[1])), int(sys.argv[2]))
