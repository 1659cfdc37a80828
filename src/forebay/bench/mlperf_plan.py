"""The MLPerf Storage checkpointing workload as data: which process writes which objects of which size, in which order.

Source: the public rules and configurations of MLPerf Storage v3.0 (github.com/mlcommons/storage). A checkpoint of the 8B model is what
ZeRO-3 leaves: every process holds an equal share of the fp16 parameters (`model_states`) and of the fp32 optimizer state
(`optim_states`: master copy and two moments), and writes one object for each. For the larger models the rules publish the total only,
to three digits; they are split here as the 8B model is, 1 to 6.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, MIB
from forebay.bench.wire import Endpoint

PART_BYTES = 32 * MIB
READ_BLOCK_BYTES = 128 * MIB
CHECKPOINTS = 10  # written, then read
IN_FLIGHT_TOTAL = 16
IN_FLIGHT_MIN = 2
ALIGN_BYTES = 16  # sizes of scaled runs are multiples of this


@dataclass(frozen=True)
class Model:
    """A workload: its name in the rules, how many processes write it, and the bytes of a whole checkpoint."""

    name: str
    processes: int
    model_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of one checkpoint."""
        return self.model_bytes + self.optimizer_bytes


def _published(name: str, processes: int, total_bytes: int) -> Model:
    """A model of which the rules give only the size of a checkpoint."""
    model_bytes = total_bytes // 7 // processes * processes
    optimizer_bytes = (total_bytes - model_bytes) // processes * processes
    return Model(name, processes, model_bytes, optimizer_bytes)


MODELS = {
    "llama3-8b": Model("llama3-8b", 8, 8 * 2_007_565_312, 8 * 12_045_637_632),  # as the reference harness writes it
    "llama3-70b": _published("llama3-70b", 64, 912 * GIB),
    "llama3-405b": _published("llama3-405b", 512, round(5.29 * 1024 * GIB)),
    "llama3-1t": _published("llama3-1t", 1024, 18 * 1024 * GIB),
}


class ObjectPlan(msgspec.Struct, frozen=True):
    """One object of a checkpoint, under the checkpoint's folder."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Workload:
    """What one run does."""

    model: Model
    processes: int
    scale: Fraction

    @property
    def is_comparable(self) -> bool:
        """Whether the bytes and processes are those of the rules."""
        return self.scale == 1 and self.processes == self.model.processes

    @property
    def in_flight(self) -> int:
        """Requests that a process keeps in flight."""
        return max(IN_FLIGHT_MIN, math.ceil(IN_FLIGHT_TOTAL / self.processes))

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint over all processes."""
        return sum(each.size_bytes for each in self.objects(0)) * self.processes

    def objects(self, rank: int) -> list[ObjectPlan]:
        """The two objects of a process, in the order in which it writes them."""
        return [
            ObjectPlan(f"zero_pp_rank_{rank}_model_states.pt", self._share(self.model.model_bytes)),
            ObjectPlan(f"zero_pp_rank_{rank}_optim_states.pt", self._share(self.model.optimizer_bytes)),
        ]

    def _share(self, total_bytes: int) -> int:
        exact = Fraction(total_bytes, self.processes) * self.scale
        return int(exact) if self.scale == 1 else max(1, round(exact / ALIGN_BYTES)) * ALIGN_BYTES


class RankJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process is to do: write its objects of every checkpoint, then read them, then verify some."""

    target: str  # s3://bucket/prefix or a folder
    endpoint: Endpoint | None
    client: str
    objects: list[ObjectPlan]
    in_flight: int
    seed: str
    writes: int
    reads: int
    verifies: int


def checkpoint_folder(number: int) -> str:
    """The folder of a checkpoint, below the run's."""
    return f"global_epoch{number + 1}_step1"


def pieces(size_bytes: int, piece_bytes: int) -> list[tuple[int, int]]:
    """(offset, length) of the pieces of an object; the last may be shorter."""
    return [(offset, min(piece_bytes, size_bytes - offset)) for offset in range(0, size_bytes, piece_bytes)]


def workload_of(model: str, processes: int | None, scale: str) -> Workload:
    """Parse the options. `model` may be short (`8b`); raises BenchmarkFailed naming what is wrong."""
    name = model if model in MODELS else f"llama3-{model}"
    if name not in MODELS:
        raise BenchmarkFailed(f"{model!r} is no model: choose from {', '.join(MODELS)}")
    if processes is not None and processes < 1:
        raise BenchmarkFailed(f"processes must be above zero, not {processes}")
    return Workload(MODELS[name], processes or MODELS[name].processes, _scale(scale))


def _scale(text: str) -> Fraction:
    if not re.fullmatch(r"1(/[1-9]\d*)?", text):
        raise BenchmarkFailed(f"{text!r} is no scale: write 1 or 1/N, such as 1/64")
    return Fraction(text)
