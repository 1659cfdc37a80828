"""The MLPerf Storage checkpointing workload as data: which process writes which objects of which size, in which order.

Source: the public rules and configurations of MLPerf Storage v3.0 (github.com/mlcommons/storage). A checkpoint of the 8B model is what
ZeRO-3 leaves: every process holds an equal share of the fp16 parameters (`model_states`) and of the fp32 optimizer state
(`optim_states`: master copy and two moments), and writes one object for each.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, MIB

PART_BYTES = 32 * MIB
READ_BLOCK_BYTES = 128 * MIB
CHECKPOINTS = 10  # written, then read
IN_FLIGHT_TOTAL = 16
IN_FLIGHT_MIN = 2
ALIGN_BYTES = 16  # sizes of scaled runs are multiples of this
MODEL_BYTES_PER_PARAMETER = 2  # fp16
OPTIMIZER_BYTES_PER_PARAMETER = 12  # fp32 master copy and two moments


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
    """A model of which the rules give the size of a checkpoint: split like the 8B model's, 1 part to 6."""
    model_bytes = total_bytes // 7 // processes * processes
    optimizer_bytes = (total_bytes - model_bytes) // processes * processes
    return Model(name, processes, model_bytes, optimizer_bytes)


_8B_PARAMETERS = 8_030_261_248

MODELS = {
    "llama3-8b": Model("llama3-8b", 8, MODEL_BYTES_PER_PARAMETER * _8B_PARAMETERS, OPTIMIZER_BYTES_PER_PARAMETER * _8B_PARAMETERS),
    "llama3-70b": _published("llama3-70b", 64, 912 * GIB),
    "llama3-405b": _published("llama3-405b", 512, round(5.29 * 1024 * GIB)),
    "llama3-1t": _published("llama3-1t", 1024, 18 * 1024 * GIB),
}


@dataclass(frozen=True)
class ObjectPlan:
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
