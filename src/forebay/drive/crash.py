"""Named crash points: where a test has the process killed, as a power cut would.

`FOREBAY_CRASH_AT=shard.sync` kills at the first time that this step is reached, `FOREBAY_CRASH_AT=shard.sync:3` at the
third. Read once, when the process starts.
"""

from __future__ import annotations

import os
import signal
from itertools import count

VARIABLE = "FOREBAY_CRASH_AT"

_name, _, _nth = os.environ.get(VARIABLE, "").partition(":")
_hits = count(1)


def crash_point(name: str) -> None:
    """Kill the process with SIGKILL if the environment asks for it here; else nothing, in well under a microsecond."""
    if name == _name and next(_hits) == int(_nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
