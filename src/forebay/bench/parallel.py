"""A few threads that take numbered pieces of work from one counter, as clients with several requests in flight do."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable


def in_lanes(lanes: int, count: int, work: Callable[[int, int], None], while_waiting: Callable[[], None]) -> None:
    """Call `work(lane, index)` for every index below `count`, from `lanes` threads; each takes the next index when it is free.

    `while_waiting` is called ten times a second from the calling thread. The first exception ends the other lanes after the piece
    they are at, and is raised here.
    """
    indices = itertools.count()
    failures: list[BaseException] = []

    def run(lane: int) -> None:
        try:
            while not failures and (index := next(indices)) < count:
                work(lane, index)
        except BaseException as error:  # raised again in the calling thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(lane,), daemon=True) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            while_waiting()
    if failures:
        raise failures[0]
