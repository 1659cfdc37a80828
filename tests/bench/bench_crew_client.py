"""A client process for the tests of the crew. Its job says what goes wrong."""

from __future__ import annotations

import os
import time
from typing import Any

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.seat import Seat, client_main


def work(seat: Seat) -> dict[str, Any]:
    print("a library's chatter on standard output")
    if seat.job.get("die_early"):
        raise ValueError("no such thing as a free lunch")
    seat.barrier("first")
    end_s = time.monotonic() + seat.job.get("sleep_s", 0)
    while time.monotonic() < end_s:
        seat.progress(7)
        time.sleep(0.02)
    end_cpu_s = time.process_time() + seat.job.get("burn_cpu_s", 0)
    while time.process_time() < end_cpu_s:
        pass
    if seat.job.get("fail"):
        raise BenchmarkFailed("the answer was 41")
    if seat.job.get("vanish"):
        os._exit(3)
    seat.barrier("second", {"index": seat.index, "count": seat.count, "pid": os.getpid()})
    return {"done": True}


if __name__ == "__main__":
    client_main(work)
