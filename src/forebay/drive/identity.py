"""`forebay.json`: read with suspicion, written once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from forebay.codec import crc64nvme
from forebay.drive.crash import crash_point
from forebay.drive.failures import Reporting
from forebay.drive.filesystem import is_blank
from forebay.drive.interface import FORMAT_VERSIONS_READ, Identity
from forebay.drive.layout import FILE_MODE, FOLDER_MODE, IDENTITY_DRAFT_PREFIX, IDENTITY_FILE, sync_folder
from forebay.errors import DriveMismatch

IDENTITY_BYTES_MAX = 64 << 10  # a real one has about 400
KIND = "forebay drive"


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in the file. `kind` and `format_version` are read first, so that a newer file gets a fitting answer."""

    kind: str
    identity: Identity
    checksum: str  # CRC64NVME, 16 hex digits, of the identity encoded as below without white space


def encode_identity(identity: Identity) -> bytes:
    """The content of `forebay.json`."""
    document = _Document(KIND, identity, _checksum(identity))
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode_identity(drive: str, content: bytes) -> Identity:
    """The identity in `content`. DriveMismatch if it is damaged, of an unknown version, or not a drive's."""
    version = _format_version(drive, content)
    if version not in FORMAT_VERSIONS_READ:
        raise DriveMismatch(
            drive,
            f"{IDENTITY_FILE} has format version {version}, this Forebay reads {sorted(FORMAT_VERSIONS_READ)}: "
            "use the Forebay that wrote it, or a newer one",
        )
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.DecodeError as error:  # a ValidationError is one
        raise _damaged(drive, str(error)) from error
    if document.checksum != _checksum(document.identity):
        raise _damaged(drive, "its checksum does not match")
    return document.identity


def read_identity(drive: str) -> Identity:
    """The identity of the drive in a folder. DriveMismatch as above, DriveFailed if it cannot be read."""
    with Reporting(drive, f"read {IDENTITY_FILE}"):
        try:
            with Path(drive, IDENTITY_FILE).open("rb") as file:
                content = file.read(IDENTITY_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DriveMismatch(drive, f"no {IDENTITY_FILE} here: this folder is not a drive of Forebay") from error
    return decode_identity(drive, content)


def write_identity(drive: str, identity: Identity) -> None:
    """Make the folder a drive: create it if it is missing, then put `forebay.json` into it, durably and atomically.

    DriveMismatch, and nothing changed, if there is anything in the folder already.
    """
    folder = Path(drive).absolute()
    with Reporting(drive, "format"):
        missing = [parent for parent in folder.parents if not parent.exists()]
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        names = sorted(entry.name for entry in folder.iterdir())
        if IDENTITY_FILE in names:
            raise DriveMismatch(drive, f"already a drive: {describe(read_identity(drive))}")
        if not is_blank(names):
            raise DriveMismatch(drive, f"not empty, and not a drive of Forebay (it holds {names[0]!r})")
        _put_in_place(drive, folder, encode_identity(identity))
        for made in (folder, *missing):
            sync_folder(str(made.parent))


def check_identity(drive: str, found: Identity, expected: Identity) -> None:
    """DriveMismatch unless `found` is `expected`; `drive_id` and `device` are compared only where not empty."""
    wrong = [
        f"{name} is {getattr(found, name)!r}, expected {wanted!r}"
        for name, wanted in msgspec.structs.asdict(expected).items()
        if wanted != getattr(found, name) and not (name in ("drive_id", "device") and not wanted)
    ]
    if wrong:
        raise DriveMismatch(drive, f"not the drive that belongs here: {'; '.join(wrong)}")


def describe(identity: Identity) -> str:
    """One line for error messages."""
    place = f"set {identity.set_index}, position {identity.position}"
    return f"deployment {identity.deployment}, {place} of {identity.data}+{identity.parity}"


def _put_in_place(drive: str, folder: Path, content: bytes) -> None:
    draft = folder / f"{IDENTITY_DRAFT_PREFIX}{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    crash_point("format.draft")
    try:
        os.link(draft, folder / IDENTITY_FILE)  # unlike a rename, never replaces one that came in between
    except (FileExistsError, FileNotFoundError) as error:  # the winner removes the drafts of the others
        raise DriveMismatch(drive, "another process formats this folder at the same time") from error
    finally:
        draft.unlink(missing_ok=True)
    crash_point("format.link")
    for left_over in folder.glob(f"{IDENTITY_DRAFT_PREFIX}*"):
        left_over.unlink(missing_ok=True)
    sync_folder(str(folder))


def _format_version(drive: str, content: bytes) -> int:
    try:
        raw = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if msgspec.json.decode(raw["kind"]) != KIND:
            raise _damaged(drive, "it does not say that this is a drive")
        identity = msgspec.json.decode(raw["identity"], type=dict[str, msgspec.Raw])
        return msgspec.json.decode(identity["format_version"], type=int)
    except (msgspec.DecodeError, KeyError) as error:
        raise _damaged(drive, str(error)) from error


def _checksum(identity: Identity) -> str:
    return f"{crc64nvme(msgspec.json.encode(identity)):016x}"


def _damaged(drive: str, reason: str) -> DriveMismatch:
    return DriveMismatch(drive, f"{IDENTITY_FILE} is damaged ({reason}): restore it, or replace the drive")
