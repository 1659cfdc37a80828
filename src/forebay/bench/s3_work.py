"""A client process of `forebay bench s3`: fills a data set, then puts, gets, mixes and lists as its job says.

The data set is `objects` keys under the run's prefix; client i of n writes every n-th of them, and every client reads
all of them. Timed PUTs go to new keys, never to those that are read.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from forebay.bench.content import Payloads
from forebay.bench.s3_large import LargeClient, Transfer
from forebay.bench.s3_plan import Job, stretch_name
from forebay.bench.s3_small import Request, SmallClient
from forebay.bench.seat import Seat, client_main
from forebay.bench.tally import Recorder
from forebay.bench.wire import EMPTY_SHA256, UNSIGNED, Signer, quote_path

PAYLOADS_MAX = 256
PAYLOAD_WINDOW_BYTES = 64 << 20  # distinct bodies cost little memory (4 KiB each), their checksums cost time
LIST_ANSWER_BYTES_MAX = 4 << 20
PAGE_KEYS = 1000


class _Client:
    """The requests of a job, for either kind of client."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.job = job = msgspec.convert(seat.job, Job)
        count = max(1, min(PAYLOADS_MAX, job.objects, PAYLOAD_WINDOW_BYTES // max(1, job.size_bytes) + 8))
        self.payloads = Payloads(job.seed, job.size_bytes, count, with_sha256=job.payload_check == "sha256")
        self.bodies = [bytes(view) for view in self.payloads.views] if job.small else []
        self.signer = Signer(job.endpoint)
        self.random = random.Random(f"{job.seed}/{seat.index}")  # noqa: S311 - which object to read next
        self.base = quote_path(job.bucket, job.prefix)
        self.new_keys = itertools.count()  # shared by threads: `next` on it is atomic
        self.stretch_index = 0
        lists = any(plan.operation == "list" for plan in job.stretches)
        answer_bytes_max = LIST_ANSWER_BYTES_MAX if lists else job.size_bytes
        self.small = SmallClient(job.endpoint, job.connections, answer_bytes_max) if job.small else None
        self.large = None if job.small else LargeClient(job.endpoint, job.connections)

    def run(self) -> dict[str, Any]:
        """All stretches in order; returns the report of the last one."""
        report: dict[str, Any] = {}
        for index, plan in enumerate(self.job.stretches):
            self.stretch_index = index
            self.seat.barrier(stretch_name(index, plan.operation), report)
            report = self._stretch(self._items(plan.operation), plan.seconds or math.inf)
        return report

    def _stretch(self, items: Callable[[], tuple[str, int] | None], seconds: float) -> dict[str, Any]:
        start_s = time.monotonic()
        if self.small is not None:
            recorder = Recorder(start_s, start_s + seconds)
            self.small.run(lambda _lane: self._request(items()), recorder, self.seat.progress)
            return msgspec.to_builtins(recorder.tally(), str_keys=True)  # type: ignore[no-any-return]
        assert self.large is not None
        tally = self.large.run(lambda _lane: self._transfer(items()), start_s, start_s + seconds, self.seat.progress)
        return msgspec.to_builtins(tally, str_keys=True)  # type: ignore[no-any-return]

    # Items are (verb, number): pure choices, turned into bytes by `_request` or `_transfer`.

    def _items(self, operation: str) -> Callable[[], tuple[str, int] | None]:
        chance, objects, share = self.random.random, self.job.objects, self.job.mixed_get_share
        if operation == "fill":
            numbers = iter(range(self.seat.index, objects, self.seat.count))
            return lambda: None if (number := next(numbers, None)) is None else ("fill", number)
        if operation == "put":
            return lambda: ("put", next(self.new_keys))
        if operation == "mixed":
            return lambda: ("get", int(chance() * objects)) if chance() < share else ("put", next(self.new_keys))
        return lambda: (operation, int(chance() * objects))

    def _path(self, verb: str, number: int) -> str:
        if verb == "put":
            return f"{self.base}new/{self.stretch_index}/{self.seat.index}/{number:09d}"
        return list_key(f"{self.base}set/", number)

    def _request(self, item: tuple[str, int] | None) -> Request | None:
        if item is None:
            return None
        verb, number = item
        if verb == "list":
            query = list_query(f"{self.job.prefix}set/", number, self.job.objects)
            keys = min(PAGE_KEYS, self.job.objects)
            return self.signer.head("GET", f"/{self.job.bucket}", query, EMPTY_SHA256, 0), None, keys, 0
        which = number % self.payloads.count
        if verb == "get":
            head = self.signer.head("GET", self._path(verb, number), "", EMPTY_SHA256, 0)
            return head, self.job.size_bytes, self.bodies[which], self.job.size_bytes
        sha256, crc = self._checks(which)
        head = self.signer.head("PUT", self._path(verb, number), "", sha256, self.job.size_bytes, crc)
        return head + self.bodies[which], 0, None, self.job.size_bytes

    def _transfer(self, item: tuple[str, int] | None) -> Transfer | None:
        if item is None:
            return None
        verb, number = item
        which = number % self.payloads.count
        path, crc64nvme = self._path(verb, number), self.payloads.crc64nvme[which]
        if verb == "get":
            return Transfer("GET", path, self.job.size_bytes, crc64nvme)
        sha256, crc = self._checks(which)
        return Transfer("PUT", path, self.job.size_bytes, crc64nvme, self.payloads.views[which], sha256, crc)

    def _checks(self, which: int) -> tuple[str, str]:
        """The payload hash and the checksum header of a PUT."""
        if self.payloads.sha256_hex is not None:
            return self.payloads.sha256_hex[which], ""
        return UNSIGNED, self.payloads.crc64nvme_base64[which] if self.job.payload_check == "crc64nvme" else ""


def list_key(prefix: str, number: int) -> str:
    """The key of entry `number` in a prefix that is listed."""
    return f"{prefix}{number:09d}"


def list_query(prefix: str, number: int, keys: int) -> str:
    """The sorted query of a full page (of all keys, if they are fewer) that starts after entry `number` or before."""
    start_after = ""
    if keys > PAGE_KEYS:
        start_after = quote(list_key(prefix, min(number, keys - PAGE_KEYS - 1)), safe="-_.~")
    return f"list-type=2&max-keys={PAGE_KEYS}&prefix={quote(prefix, safe='-_.~')}&start-after={start_after}"


def work(seat: Seat) -> dict[str, Any]:
    """The client process."""
    return _Client(seat).run()


if __name__ == "__main__":
    client_main(work)
