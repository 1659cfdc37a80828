"""A process that works on a drive and may be killed at a crash point: `drive_child.py FOLDER ROUNDS`.

It says on standard output what has been acknowledged, one line each, as soon as it is.
"""

import os
import sys
from pathlib import Path

from forebay.drive import LocalDrive, classify_folder
from forebay.drive.testing import IDENTITY, aligned


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def blob_id(round_number: int, kind: int) -> bytes:
    return bytes([kind, round_number] * 8)


def content(round_number: int) -> bytes:
    return bytes([round_number]) * 4096 * 3


def work(folder: str, rounds: int) -> None:
    if classify_folder(folder).value in ("missing", "empty"):
        LocalDrive.format(folder, IDENTITY)
        say("formatted")
    drive = LocalDrive.open(folder, IDENTITY)
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


if __name__ == "__main__":
    work(str(Path(sys.argv[1])), int(sys.argv[2]))
