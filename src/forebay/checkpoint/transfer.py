"""Copying a checkpoint from one location to another, byte for byte, every block checked on the way."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from forebay.checkpoint import manifest as records
from forebay.checkpoint import views
from forebay.checkpoint.manifest import MANIFEST_KEY, FileEntry, Manifest
from forebay.checkpoint.write import part_bytes_for
from forebay.codec import combine_crc64nvme, crc64nvme
from forebay.directio import Arena
from forebay.errors import CheckpointCorrupt, CheckpointExists, FormatUnknown, PreconditionFailed
from forebay.locations import Absent, Location

THREADS = 4


def copy_checkpoint(
    source: Location,
    manifest: Manifest,
    target: Location,
    *,
    keep_temporary: bool = False,
    write_views: bool = True,
    copied: Callable[[int], None] = lambda size_bytes: None,
) -> Manifest:
    """Copy the checkpoint at `source` to `target`, its own folder; the manifest last. A temporary one becomes permanent
    unless `keep_temporary`: the copy is someone's intention.

    `copied` is told of bytes, from some thread. Raises `CheckpointExists`, `CheckpointCorrupt` (then nothing of it is
    visible there), `LocationError`.
    """
    if manifest.is_foreign:
        raise FormatUnknown(f"{source.url} was written by {manifest.writer}; `convert` makes a checkpoint of Forebay's of it")
    if target.head(MANIFEST_KEY) is not None:
        raise CheckpointExists(f"{target.url} is a complete checkpoint already")
    files: list[FileEntry] = []
    # Of its own name, so that two copies to one place never write or remove each other's files.
    attempt = secrets.token_hex(6)
    try:
        for file in manifest.files:
            key = file.key.replace(f"data/{manifest.attempt}/", f"data/{attempt}/", 1)
            files.append(_copy_file(source, file, target, key, copied))
        temporary = manifest.temporary and keep_temporary
        made = msgspec.structs.replace(manifest, attempt=attempt, files=tuple(files), temporary=temporary)
        target.put(MANIFEST_KEY, records.encode(records.MANIFEST_FORMAT, made), Absent())
    except BaseException as error:
        target.delete([file.key for file in files])
        if isinstance(error, PreconditionFailed):
            raise CheckpointExists(f"{target.url}: another checkpoint was committed there meanwhile") from error
        raise
    if write_views:
        views.write(target, made)
    return made


def _copy_file(source: Location, file: FileEntry, target: Location, key: str, copied: Callable[[int], None]) -> FileEntry:
    part_bytes = part_bytes_for(target.part_bytes, file.size_bytes, False)
    upload = target.upload(key, file.size_bytes, part_bytes)
    arena = Arena(part_bytes, THREADS)

    def copy_part(index: int) -> tuple[int, int]:
        start = index * part_bytes
        size_bytes = min(part_bytes, file.size_bytes - start)
        with arena.acquire() as slot:
            view = slot.view[:size_bytes]
            source.read_into(file.key, start, view)
            crc = crc64nvme(view)
            upload.write_part(index, [view])
        copied(size_bytes)
        return crc, size_bytes

    try:
        with ThreadPoolExecutor(THREADS, "forebay-copy") as pool:
            parts = list(pool.map(copy_part, range(-(-file.size_bytes // part_bytes))))
        crc = 0
        for part in parts:
            crc = combine_crc64nvme(crc, *part)
        if crc != file.crc:
            raise CheckpointCorrupt(f"{source.url}/{file.key}: its checksum is {crc:016x}, want {file.crc:016x}; `verify` says where")
        entry = upload.complete()
    except BaseException:
        upload.abort()
        raise
    return FileEntry(key, entry.size_bytes, crc, entry.etag)
