"""A client process of `forebay bench mlperf`: one rank. It generates, writes, reads and verifies its own objects, between barriers."""

from __future__ import annotations

import mmap
import time
from typing import Any

import msgspec
import numpy as np

from forebay.bench.content import Stream
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.mlperf_clients import FOLDER_CLIENTS, S3_CLIENTS
from forebay.bench.mlperf_plan import ALIGN_BYTES, PART_BYTES, READ_BLOCK_BYTES, ObjectPlan, RankJob, checkpoint_folder, pieces
from forebay.bench.parallel import in_lanes
from forebay.bench.seat import Seat, client_main
from forebay.bench.tally import Recorder

GENERATE_BYTES_MAX = 2 << 30  # enough to know the rate


class _Rank:
    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.job = msgspec.convert(seat.job, RankJob)
        clients = S3_CLIENTS if self.job.target.startswith("s3://") else FOLDER_CLIENTS
        self.client = clients[self.job.client](self.job.target, self.job.endpoint)
        if hasattr(self.client, "in_flight"):
            self.client.in_flight = self.job.in_flight
        part_bytes = min(PART_BYTES, max(plan.size_bytes for plan in self.job.objects))
        block_bytes = min(READ_BLOCK_BYTES, max(self._lane_bytes(plan) for plan in self.job.objects))
        # boto3 sends a bytearray as it is, and would copy anything else; the others want page-aligned memory
        make = _zeroed if self.job.client == "boto3" else _mapped
        self.parts = [make(part_bytes) for _ in range(self.job.in_flight)]
        self.blocks = [_mapped(block_bytes) for _ in range(self.job.in_flight if self.job.reads + self.job.verifies else 0)]
        self.spans: list[tuple[float, float, int]] = []
        self.moved_bytes = 0

    def run(self) -> dict[str, Any]:
        """Everything in order; the report of each stretch is its part latencies and timeline."""
        self.seat.barrier("generate")
        report: dict[str, Any] = {"bytes": self._generate()}
        for verb, count, work in (
            ("write", self.job.writes, self._write), ("read", self.job.reads, self._read), ("verify", self.job.verifies, self._verify)
        ):  # fmt: skip
            for number in range(count):
                self.seat.barrier(f"{verb} {number}", report)
                start_s, self.spans, self.moved_bytes = time.monotonic(), [], 0
                for plan in self.job.objects:
                    work(number % max(1, self.job.writes), plan)
                report = self._report(start_s)
        return report

    def _report(self, start_s: float) -> dict[str, Any]:
        recorder = Recorder(start_s, float("inf"))
        for span in self.spans:
            recorder.add(*span)
        report: dict[str, Any] = msgspec.to_builtins(recorder.tally(), str_keys=True)
        return report

    def _generate(self) -> int:
        """Make content as writing does, but keep none of it."""
        content = Stream(f"{self.job.seed}/generate/{self.seat.index}")
        parts = pieces(min(GENERATE_BYTES_MAX, sum(plan.size_bytes for plan in self.job.objects)), PART_BYTES)

        def make(lane: int, index: int) -> None:
            content.fill(memoryview(self.parts[lane])[: parts[index][1]], parts[index][0])

        in_lanes(self.job.in_flight, len(parts), make, lambda: None)
        return sum(size_bytes for _, size_bytes in parts)

    def _write(self, number: int, plan: ObjectPlan) -> None:
        name, content = self._object(number, plan)
        if hasattr(self.client, "write_stream"):
            self._write_stream(name, plan.size_bytes, content)
            return
        parts = pieces(plan.size_bytes, PART_BYTES)
        upload = self.client.begin(name, plan.size_bytes)

        def write(lane: int, index: int) -> None:
            offset, size_bytes = parts[index]
            view = memoryview(self.parts[lane])[:size_bytes]
            content.fill(view, offset)
            begin_s = time.monotonic()
            self.client.put_part(upload, index, view)
            self._moved(begin_s, size_bytes)

        in_lanes(self.job.in_flight, len(parts), write, self._progress)
        self.client.finish(upload)

    def _write_stream(self, name: str, size_bytes: int, content: Stream) -> None:
        """The library decides when a part leaves; a part's latency is not ours to see, so the whole object counts as one."""

        def fill(view: memoryview, offset: int) -> None:
            content.fill(view, offset)
            self.moved_bytes += len(view)
            self._progress()

        begin_s = time.monotonic()
        self.client.write_stream(name, size_bytes, fill)
        self.spans.append((begin_s, time.monotonic(), size_bytes))

    def _read(self, number: int, plan: ObjectPlan) -> None:
        self._read_blocks(number, plan, verify=False)

    def _verify(self, number: int, plan: ObjectPlan) -> None:
        self._read_blocks(number, plan, verify=True)

    def _read_blocks(self, number: int, plan: ObjectPlan, *, verify: bool) -> None:
        """Each lane reads a contiguous block of the object, by ranged requests of at most READ_BLOCK_BYTES."""
        name, content = self._object(number, plan)
        lane_bytes = self._lane_bytes(plan)

        def read(lane: int, index: int) -> None:
            start, end = index * lane_bytes, min((index + 1) * lane_bytes, plan.size_bytes)
            for offset in range(start, end, READ_BLOCK_BYTES):
                view = memoryview(self.blocks[lane])[: min(READ_BLOCK_BYTES, end - offset)]
                begin_s = time.monotonic()
                self.client.read(name, offset, view)
                self._moved(begin_s, len(view))
                if verify:
                    _require_equal(name, offset, view, content)

        in_lanes(self.job.in_flight, self.job.in_flight, read, self._progress)

    def _lane_bytes(self, plan: ObjectPlan) -> int:
        """The contiguous share of an object that one lane reads; the last may be shorter, or empty."""
        return -(-plan.size_bytes // self.job.in_flight // ALIGN_BYTES) * ALIGN_BYTES

    def _object(self, number: int, plan: ObjectPlan) -> tuple[str, Stream]:
        name = f"{checkpoint_folder(number)}/{plan.name}"
        return name, Stream(f"{self.job.seed}/{name}")

    def _moved(self, begin_s: float, size_bytes: int) -> None:
        self.spans.append((begin_s, time.monotonic(), size_bytes))
        self.moved_bytes += size_bytes

    def _progress(self) -> None:
        self.seat.progress(self.moved_bytes)


def _mapped(size_bytes: int) -> mmap.mmap:
    """Page-aligned memory that is there already: page faults are not what is to be measured."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


def _zeroed(size_bytes: int) -> bytearray:
    return bytearray(b"\1") * size_bytes  # not zeros, which would not be there until written


def _require_equal(name: str, offset: int, view: memoryview, content: Stream) -> None:
    expected = bytearray(len(view))
    content.fill(memoryview(expected), offset)
    if not np.array_equal(np.frombuffer(expected, np.uint8), np.frombuffer(view, np.uint8)):
        raise BenchmarkFailed(f"{name}: bytes {offset} to {offset + len(view)} are not what was written")


def work(seat: Seat) -> dict[str, Any]:
    """The client process."""
    return _Rank(seat).run()


if __name__ == "__main__":
    client_main(work)
