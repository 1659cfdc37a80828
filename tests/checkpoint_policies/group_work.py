"""What the ranks of test_groups.py do."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from forebay.checkpoint.groups import current_group
from forebay.errors import SaveFailed


def talk(rank: int) -> dict[str, Any]:
    group = current_group()
    assert (group.rank, current_group()) == (rank, group)
    heard = [group.broadcast(f"decision {n}".encode() if rank == 0 else None, 30.0).decode() for n in range(200)]
    group.post(f"from {rank}".encode())
    posted: list[str] = []
    deadline_s = time.monotonic() + 10
    while rank == 0 and len(posted) < group.size and time.monotonic() < deadline_s:
        posted += [p.decode() for p in group.take_posted()]
        time.sleep(0.01)
    group.check_peers()
    group.broadcast(b"end" if rank == 0 else None, 30.0)
    return {"size": group.size, "heard": heard == [f"decision {n}" for n in range(200)], "posted": sorted(posted)}


def lose(rank: int, victim: int, with_child: bool) -> dict[str, Any]:
    """All wait for a broadcast that does not come, or (rank 0) poll, until the victim's death is known."""
    group = current_group()
    group.broadcast(b"begin" if rank == 0 else None, 30.0)
    if rank == victim:
        if with_child and os.fork() == 0:  # a data loader's worker that outlives its parent
            time.sleep(5)
            os._exit(0)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    start_s = time.monotonic()
    try:
        if rank == 0:
            while time.monotonic() - start_s < 20:
                group.check_peers()
                time.sleep(0.05)
        group.broadcast(b"late" if rank == 0 else None, 20.0)
    except SaveFailed as error:
        return {"rank": error.rank, "message": error.message, "seconds": time.monotonic() - start_s}
    return {"rank": None}
