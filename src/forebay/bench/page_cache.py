"""Reading from drives rather than from memory that still holds what was just written."""

from __future__ import annotations

import os
from pathlib import Path


def drop_page_cache() -> bool:
    """Write all dirty pages out and drop the clean ones of the whole host.

    False when that is not permitted (it takes root).
    """
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def drop_file_pages(paths: list[Path]) -> None:
    """Drop the cached pages of files, which must have been synced.

    Dirty pages stay. Needs no permission but to read them.
    """
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
