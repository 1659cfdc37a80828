import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import crc64nvme
from forebay.drive import FORMAT_VERSION, Identity, LocalDrive
from forebay.drive.identity import decode_identity, encode_identity
from forebay.drive.testing import IDENTITY
from forebay.errors import DriveMismatch

GOLDEN = Path(__file__).parent.parent / "golden" / "drive-1" / "forebay.json"
GOLDEN_IDENTITY = Identity(
    deployment="5f3c0a52d1b94e7f8f1f6f4f7c8a9b0c",
    set_index=1,
    position=2,
    data=3,
    parity=1,
    sets=2,
    drive_id="0123456789abcdef0123456789abcdef",
    device="uuid:00112233445566778899aabbccddeeff",
    format_version=1,
)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_the_golden_identity_of_format_version_1_stays_readable():
    assert decode_identity("d", GOLDEN.read_bytes()) == GOLDEN_IDENTITY
    if FORMAT_VERSION == 1:
        assert encode_identity(GOLDEN_IDENTITY) == GOLDEN.read_bytes()


def test_every_flipped_bit_is_noticed():
    content = GOLDEN.read_bytes()
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            try:
                found = decode_identity("d", bytes(damaged))
            except DriveMismatch:
                continue
            assert found == GOLDEN_IDENTITY and not content[position : position + 1].strip(), "only white space is free"


@pytest.mark.parametrize("length", range(0, len(GOLDEN.read_bytes()), 7))
def test_a_torn_identity_is_refused(length):
    if GOLDEN.read_bytes()[:length].rstrip().endswith(b"}\n}"):
        return
    with pytest.raises(DriveMismatch, match="damaged"):
        decode_identity("d", GOLDEN.read_bytes()[:length])


@given(st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(msgspec.json.encode))
def test_nothing_but_a_mismatch_ever_comes_of_garbage(content):
    with pytest.raises(DriveMismatch, match="damaged"):
        decode_identity("d", content)


def test_a_newer_format_is_refused_by_its_number():
    newer = {"kind": "forebay drive", "identity": {"format_version": 7, "shape": "new"}, "checksum": "?", "extra": 1}
    with pytest.raises(DriveMismatch, match=r"format version 7, this Forebay reads \[1\]: use the Forebay that wrote it"):
        decode_identity("d", msgspec.json.encode(newer))


def test_another_kind_of_file_is_refused():
    document = msgspec.json.decode(GOLDEN.read_bytes())
    document["kind"] = "forebay node"
    with pytest.raises(DriveMismatch, match="does not say that this is a drive"):
        decode_identity("d", msgspec.json.encode(document))


def test_the_checksum_covers_the_identity():
    document = msgspec.json.decode(GOLDEN.read_bytes())
    document["identity"]["position"] = 3
    with pytest.raises(DriveMismatch, match="checksum does not match"):
        decode_identity("d", msgspec.json.encode(document))
    document["checksum"] = f"{crc64nvme(msgspec.json.encode(document['identity'])):016x}"
    assert decode_identity("d", msgspec.json.encode(document)).position == 3


def test_format_makes_missing_folders_and_writes_only_the_identity(tmp_path):
    folder = tmp_path / "a" / "b"
    LocalDrive.format(str(folder), GOLDEN_IDENTITY)
    assert names(folder) == ["forebay.json"]
    assert (folder / "forebay.json").read_bytes() == GOLDEN.read_bytes()
    assert LocalDrive.read_identity(str(folder)) == GOLDEN_IDENTITY


def test_format_takes_a_new_filesystem_and_clears_an_interrupted_format(tmp_path):
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".forebay.json.123").write_text("half")
    LocalDrive.format(str(tmp_path), IDENTITY)
    assert names(tmp_path) == ["forebay.json", "lost+found"]


@pytest.mark.parametrize("name", ["photo.jpg", "index", "blobs", ".hidden"])
def test_format_refuses_a_folder_with_anything_in_it(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(DriveMismatch, match=f"not empty, and not a drive of Forebay .*{name}"):
        LocalDrive.format(str(tmp_path), IDENTITY)
    assert names(tmp_path) == [name] and (tmp_path / name).read_text() == "precious"


def test_format_refuses_a_drive(tmp_path):
    LocalDrive.format(str(tmp_path), GOLDEN_IDENTITY)
    with pytest.raises(DriveMismatch, match=r"already a drive: deployment 5f3c.*, set 1, position 2 of 3\+1"):
        LocalDrive.format(str(tmp_path), IDENTITY)
    assert (tmp_path / "forebay.json").read_bytes() == GOLDEN.read_bytes()


def test_of_two_who_format_at_once_one_wins(tmp_path):
    outcomes: list[str] = []

    def attempt(number: int) -> None:
        mine = msgspec.structs.replace(IDENTITY, drive_id=f"{number:032x}")
        try:
            LocalDrive.format(str(tmp_path / "d"), mine)
            outcomes.append(mine.drive_id)
        except Exception as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    winners = [outcome for outcome in outcomes if outcome.isalnum() and len(outcome) == 32]
    assert winners == [LocalDrive.read_identity(str(tmp_path / "d")).drive_id]
    assert outcomes.count("DriveMismatch") == 3 and names(tmp_path / "d") == ["forebay.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("deployment", "0" * 32), ("set_index", 0), ("position", 0), ("data", 4), ("parity", 2), ("sets", 3)],
)
def test_open_refuses_a_drive_that_belongs_elsewhere(tmp_path, field, value):
    LocalDrive.format(str(tmp_path), GOLDEN_IDENTITY)
    expected = msgspec.structs.replace(GOLDEN_IDENTITY, drive_id="", device="", **{field: value})
    with pytest.raises(DriveMismatch, match=f"not the drive that belongs here: {field} is .*, expected {value!r}"):
        LocalDrive.open(str(tmp_path), expected)
    assert names(tmp_path) == ["forebay.json"], "nothing is created in a drive that is refused"


def test_open_compares_the_drive_id_and_the_device_when_they_are_given(tmp_path):
    LocalDrive.format(str(tmp_path), GOLDEN_IDENTITY)
    LocalDrive.open(str(tmp_path), msgspec.structs.replace(GOLDEN_IDENTITY, drive_id="", device="")).close()
    for field in ("drive_id", "device"):
        with pytest.raises(DriveMismatch, match=field):
            LocalDrive.open(str(tmp_path), msgspec.structs.replace(GOLDEN_IDENTITY, **{field: "other"}))


def test_open_refuses_what_is_no_drive(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(DriveMismatch, match=r"no forebay\.json here"):
            LocalDrive.open(str(path))
