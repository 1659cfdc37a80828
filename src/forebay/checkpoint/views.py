"""What other programs look for beside a checkpoint's data: views that refer to the same bytes. Written after the
commit.
"""

from __future__ import annotations

from forebay.checkpoint.manifest import Manifest
from forebay.locations import Location


def write(checkpoint: Location, manifest: Manifest) -> None:
    """Write all views of a committed checkpoint; again if they were half written."""
