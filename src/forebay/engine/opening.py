"""From a list of folders to a running engine.

`prepare` runs once, in the process that starts the others: it formats fresh folders, recognises the drives that are there, says what is
missing, settles what a crash left and sets the state of every drive. `open_engine` runs in every process with the layout that `prepare`
returned.

What each folder turns out to be:

====================  =================================================  =======================================
folder                and                                                so
====================  =================================================  =======================================
a drive of ours       of this deployment                                 opened at the position it names
a drive of ours       of another deployment, or named twice              refused: nothing starts
empty or missing      no folder is a drive yet                           formatted: a new deployment
empty or missing      on the filesystem that the peers remember here     formatted as the replacement, then refilled
empty or missing      on another filesystem, or the peers disagree       offline, until `forebay drive replace`
holds something else                                                     refused if new, offline if it was a drive
unreadable                                                               offline
====================  =================================================  =======================================
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

import msgspec

from forebay.drive import (
    PEER_KEY_PREFIX,
    Drive,
    FolderKind,
    Identity,
    LocalDrive,
    check_opening,
    classify_folder,
    filesystem_identity,
)
from forebay.drive.failures import Reporting
from forebay.engine import keyspace, recovery
from forebay.engine.committer import Notify, notify_directly
from forebay.engine.engine import ARENA_BYTES, Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.placement import Geometry
from forebay.engine.records import Log, pack
from forebay.engine.shared import DriveState, SharedState
from forebay.errors import ConfigError, DriveError, DriveFailed, DriveMismatch

log = logging.getLogger("forebay.engine")

GENESIS_SEQ = 1  # the commit that a fresh store starts with: a drive without any was never filled
START_GAP = 1 << 20  # numbers left out at each start, as drives that are away may have commits that nobody else knows of
PATH_KEY_PREFIX = keyspace.TABLE_SYSTEM + b"path/"  # + position: the folder that the drive was last opened at
SYNCING_KEY = keyspace.TABLE_SYSTEM + b"syncing"  # on a drive whose index is incomplete
FILL_KEY = keyspace.TABLE_SYSTEM + b"fill"  # on a drive that may lack shards which no heal record names

OpenDrives = dict[tuple[int, int], Drive]


class Layout(msgspec.Struct, frozen=True):
    """Which folder is which drive: `paths[set][position]`. Passed to every process."""

    deployment: str
    data: int
    parity: int
    paths: list[list[str]]

    @property
    def geometry(self) -> Geometry:
        """Of every set."""
        return Geometry(self.data, self.parity)

    def expected(self, set_index: int, position: int) -> Identity:
        """Who the drive there must be."""
        return Identity(
            deployment=self.deployment, set_index=set_index, position=position, data=self.data, parity=self.parity,
            sets=len(self.paths), drive_id="", device="",
        )  # fmt: skip


def prepare(paths: Sequence[str], geometry: Geometry, shared: SharedState) -> Layout:
    """Recognise or format the folders and settle what a crash left; nobody else uses the drives.

    `paths` are sets x drives folders in any order that was used before. Raises ConfigError, DriveMismatch, DriveError.
    """
    paths = [os.path.abspath(p) for p in paths]  # noqa: PTH100 - links are kept: a mount point may be one
    if len(set(paths)) != len(paths):
        raise ConfigError("the same drive folder is named twice")
    kinds = {p: classify_folder(p) for p in paths}
    unreadable: dict[str, DriveFailed] = {}
    if not any(kind is FolderKind.OURS for kind in kinds.values()):
        layout = _format_all(paths, kinds, geometry)
    else:
        unreadable = check_opening([p for p, kind in kinds.items() if kind is FolderKind.OURS])
        for failure in unreadable.values():
            log.error("%s", failure)
        layout = _recognise(paths, kinds, geometry, unreadable)
    drives = _open_all(layout, unreadable)
    try:
        _finish_format(layout, drives)
        _refill_replaced(layout, drives)
        for set_index in range(len(layout.paths)):
            _start_set(layout, set_index, drives, shared)
    finally:
        for drive in drives.values():
            drive.close()
    return layout


def open_engine(
    layout: Layout,
    shared: SharedState,
    *,
    notify: Notify = notify_directly,
    arena_bytes: int = ARENA_BYTES,
    opener: Callable[[Layout, int, int], Drive] | None = None,
) -> Engine:
    """The engine of one process over drives that `prepare` has looked at.

    `opener(layout, set_index, position)` opens a drive, raising DriveError: the seam for drives that are no local folder.
    """
    opener = opener or _open
    sets = []
    for set_index, paths in enumerate(layout.paths):
        opened: list[Drive | None] = []
        for position in range(len(paths)):
            drive: Drive | None = None
            if shared.state(set_index, position) is not DriveState.OFFLINE:
                try:
                    drive = opener(layout, set_index, position)
                except DriveError as e:
                    log.error("%s", e)
                    shared.set_state(set_index, position, DriveState.OFFLINE, str(e))
            opened.append(drive)
        sets.append(ErasureSet(set_index, layout.geometry, opened, shared, partial(opener, layout, set_index)))
    return Engine(sets, notify=notify, arena_bytes=arena_bytes)


def _open(layout: Layout, set_index: int, position: int) -> Drive:
    return LocalDrive.open(layout.paths[set_index][position], layout.expected(set_index, position))


def format_drive(layout: Layout, set_index: int, position: int, drive_id: str = "") -> None:
    """Make the folder at a position a fresh drive. Raises DriveMismatch if it holds anything."""
    path = layout.paths[set_index][position]
    with Reporting(path, "make the folder"):
        Path(path).mkdir(parents=True, exist_ok=True)
    identity = msgspec.structs.replace(
        layout.expected(set_index, position), drive_id=drive_id or uuid.uuid4().hex, device=filesystem_identity(path)
    )
    LocalDrive.format(path, identity)


def _first_drive_id(layout: Layout, set_index: int, position: int) -> str:
    """The id of a drive that was formatted with the deployment, not as a replacement."""
    name = f"{layout.deployment} {set_index} {position}".encode()
    return blake2b(name, digest_size=16).hexdigest()


def _format_all(paths: list[str], kinds: dict[str, FolderKind], geometry: Geometry) -> Layout:
    for path, kind in kinds.items():
        if kind not in (FolderKind.EMPTY, FolderKind.MISSING):
            raise DriveMismatch(path, "the folder is neither empty nor a Forebay drive; name an empty folder, or empty this one yourself")
    n = geometry.drives
    grouped = [paths[i : i + n] for i in range(0, len(paths), n)]
    layout = Layout(uuid.uuid4().hex, geometry.data, geometry.parity, grouped)
    for set_index in range(len(grouped)):
        for position in range(n):
            format_drive(layout, set_index, position, _first_drive_id(layout, set_index, position))
    return layout


def _recognise(paths: list[str], kinds: dict[str, FolderKind], geometry: Geometry, unreadable: Collection[str]) -> Layout:
    """Place every folder: drives by their identity, the rest where the peers remember them or where a place is free."""
    identities: dict[str, Identity] = {}
    for path, kind in kinds.items():
        if kind is FolderKind.OURS:
            try:
                identities[path] = LocalDrive.read_identity(path)
            except DriveMismatch:
                raise
            except DriveError as e:
                log.error("%s", e)
    if not identities:
        raise ConfigError("no drive could be read; see the errors above")
    first_path, first = next(iter(identities.items()))
    if len(paths) != first.sets * (first.data + first.parity):
        raise ConfigError(
            f"{first_path} belongs to a store of {first.sets * (first.data + first.parity)} drives, but {len(paths)} are named; "
            "name all of them, the missing ones too"
        )
    if (first.data, first.parity) != tuple(geometry):
        raise ConfigError(
            f"the store was made with {first.data}+{first.parity} drives a set, which cannot be changed to "
            f"{geometry.data}+{geometry.parity}; start it with --parity {first.parity}"
        )
    return _place(paths, identities, first, unreadable)


def _place(paths: list[str], identities: dict[str, Identity], first: Identity, unreadable: Collection[str]) -> Layout:
    n = first.data + first.parity
    placed: dict[tuple[int, int], str] = {}
    for path, identity in identities.items():
        at = (identity.set_index, identity.position)
        if identity.deployment != first.deployment:
            raise DriveMismatch(path, f"belongs to deployment {identity.deployment}, the other drives to {first.deployment}")
        if at in placed:
            raise DriveMismatch(path, f"is the same drive (set {at[0]}, position {at[1]}) as {placed[at]}")
        placed[at] = path
    free = [(s, p) for s in range(first.sets) for p in range(n) if (s, p) not in placed]
    loose = [path for path in paths if path not in identities]
    remembered = _remembered_paths({path: found for path, found in identities.items() if path not in unreadable})
    for path in list(loose):
        at = remembered.get(path, (-1, -1))
        if at in free:
            placed[at] = path
            free.remove(at)
            loose.remove(path)
    placed.update(zip(free, loose, strict=True))
    return Layout(first.deployment, first.data, first.parity, [[placed[s, p] for p in range(n)] for s in range(first.sets)])


def _remembered_paths(identities: dict[str, Identity]) -> dict[str, tuple[int, int]]:
    """Where each folder was when the store last ran."""
    found: dict[str, tuple[int, int]] = {}
    for path, identity in identities.items():
        try:
            drive = LocalDrive.open(path)
        except DriveError as e:
            log.error("%s", e)
            continue
        for key, value in drive.scan(PATH_KEY_PREFIX, keyspace.successor(PATH_KEY_PREFIX) or b"", 64):
            found.setdefault(value.decode(), (identity.set_index, key[-1]))
        drive.close()
    return found


def _open_all(layout: Layout, unreadable: Collection[str]) -> OpenDrives:
    drives: OpenDrives = {}
    for set_index, paths in enumerate(layout.paths):
        for position, path in enumerate(paths):
            if path not in unreadable and classify_folder(path) is FolderKind.OURS:
                try:
                    drives[set_index, position] = _open(layout, set_index, position)
                except DriveError as e:
                    log.error("%s", e)
    return drives


def _finish_format(layout: Layout, drives: OpenDrives) -> None:
    """Give a store its first commit; go on with a first start that was cut short, recognised by that no drive has any commit."""
    first = {at: d.identity.drive_id == _first_drive_id(layout, *at) for at, d in drives.items()}
    newest = {at: found for at, d in drives.items() if (found := recovery.newest_log(d)) is not None}
    if any(first.values()) and not newest:
        for set_index, paths in enumerate(layout.paths):
            for position, path in enumerate(paths):
                if (set_index, position) not in drives and classify_folder(path) in (FolderKind.EMPTY, FolderKind.MISSING):
                    format_drive(layout, set_index, position, _first_drive_id(layout, set_index, position))
                    drives[set_index, position] = _open(layout, set_index, position)
                    first[set_index, position] = True
    everywhere = len(drives) == len(layout.paths) * layout.geometry.drives and all(first.values())
    if everywhere and all(found.seq == GENESIS_SEQ for found in newest.values()):
        key = keyspace.log_key(GENESIS_SEQ)
        genesis = Log([], bytes.fromhex(layout.deployment), 0, 0, list(range(layout.geometry.drives)))
        for drive in drives.values():
            drive.commit(GENESIS_SEQ, [(key, pack(key, genesis))], [])


def _refill_replaced(layout: Layout, drives: OpenDrives) -> None:
    for set_index, paths in enumerate(layout.paths):
        peers = [d for (s, _), d in drives.items() if s == set_index]
        for position, path in enumerate(paths):
            if (set_index, position) in drives:
                continue
            try:
                if refill_if_safe(layout, set_index, position, peers):
                    drives[set_index, position] = _open(layout, set_index, position)
                else:
                    log.error("drive %s is not there; it stays out until it is back or `forebay drive replace` says otherwise", path)
            except DriveError as e:
                log.error("%s", e)


def refill_if_safe(layout: Layout, set_index: int, position: int, peers: Sequence[Drive]) -> bool:
    """Format an emptied drive, if the peers agree that the filesystem there is the one that was always there. Raises DriveError."""
    path = layout.paths[set_index][position]
    remembered = {v.decode() for d in peers if (v := d.get(PEER_KEY_PREFIX + bytes([position]))) is not None}
    if not _is_safe_to_refill(path, remembered):
        return False
    log.warning("drive %s was emptied or replaced: it is formatted and will be refilled", path)
    format_drive(layout, set_index, position)
    return True


def _is_safe_to_refill(path: str, remembered: set[str]) -> bool:
    """An empty folder is a drive to refill only if it is surely not a mount point whose disk is missing."""
    kind = classify_folder(path, remembered)
    if kind is FolderKind.MISSING:
        # Made anew by format_drive: judged by the filesystem that the folder would be on.
        parent = next(p for p in Path(path).parents if p.exists())
        return len(remembered) == 1 and filesystem_identity(str(parent)) in remembered
    return kind is FolderKind.EMPTY and len(remembered) == 1


def is_complete(drive: Drive) -> bool:
    """Whether the index of a drive is whole, as of its newest commit."""
    return drive.get(SYNCING_KEY) is None and recovery.newest_log(drive) is not None


def _start_set(layout: Layout, set_index: int, drives: OpenDrives, shared: SharedState) -> None:
    """Settle the newest commit of a set and give every drive its state."""
    geometry = layout.geometry
    for position in range(geometry.drives):
        shared.set_state(set_index, position, DriveState.OFFLINE, "the folder is not there, or holds no drive")
    present: list[recovery.Source] = []
    complete: list[recovery.Source] = []
    for (_, position), drive in sorted((at, d) for at, d in drives.items() if at[0] == set_index):
        try:
            complete += [(position, drive)] if is_complete(drive) else []
            present.append((position, drive))
            shared.set_state(set_index, position, DriveState.STALE, "it missed commits")
        except DriveError as e:
            shared.set_state(set_index, position, DriveState.OFFLINE, str(e))
    while len(complete) >= geometry.read_quorum:
        try:
            _start_from(layout, set_index, present, complete, shared)
        except DriveError as e:
            log.error("%s", e)
            left = [s for s in complete if s[1].path != e.drive]
            if len(left) == len(complete):
                raise
            complete = left
            continue
        return
    log.error("set %d: %d of %d drives are usable, %d are needed", set_index, len(complete), geometry.drives, geometry.read_quorum)


def _start_from(
    layout: Layout, set_index: int, present: list[recovery.Source], complete: list[recovery.Source], shared: SharedState
) -> None:
    newest, leaders = recovery.settle(layout.geometry, complete)
    seq = newest.seq
    next_seq = max(drive.seq() for _, drive in present) + START_GAP
    if len(leaders) >= layout.geometry.write_quorum:
        # From here on the leaders are all that matters: whoever is away cannot know a commit as new as this one.
        seq, key = next_seq, keyspace.log_key(next_seq)
        start = pack(key, Log([], os.urandom(8), newest.seq, newest.log.ordinal + 1, [p for p, _ in leaders]))
        known = known_records(layout, set_index, [p for p, _ in leaders])
        for _, drive in leaders:
            drive.commit(seq, [(key, start), *known], [])
    shared.reset(set_index, seq, next_seq)
    for position, _ in leaders:
        shared.set_state(set_index, position, DriveState.CURRENT)


def known_records(layout: Layout, set_index: int, positions: Iterable[int]) -> list[tuple[bytes, bytes]]:
    """What every current drive remembers of the drives at `positions`: their folders and filesystems. Raises DriveError."""
    known: list[tuple[bytes, bytes]] = []
    for position in positions:
        path = layout.paths[set_index][position]
        known.append((PATH_KEY_PREFIX + bytes([position]), path.encode()))
        known.append((PEER_KEY_PREFIX + bytes([position]), filesystem_identity(path).encode()))
    return known
