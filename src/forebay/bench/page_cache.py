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
