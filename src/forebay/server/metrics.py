"""Counters of all workers, in files that they map, and their text for Prometheus.

Each worker slot has one file of 8-byte words that only its worker writes and that any process may read; a replaced worker goes on
where its predecessor stopped, so counters never fall. A word is written by one aligned store, so readers need no lock.
Format of the text: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from forebay.s3.routing import IMPLEMENTED

OPERATIONS = (*sorted(operation.value for operation in IMPLEMENTED), "Admin", "Other")
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
FILE_PREFIX = "metrics-"

_STATUS, _RECEIVED, _SENT, _MICROSECONDS = 0, 5, 6, 7
_BUCKETS = 8
_ROW_WORDS = _BUCKETS + len(DURATION_BOUNDS_S) + 1
_ROWS = {operation: row * _ROW_WORDS for row, operation in enumerate(OPERATIONS)}
_REFUSED_WORD = len(OPERATIONS) * _ROW_WORDS
_CONNECTIONS_WORD = _REFUSED_WORD + 1
_FILE_BYTES = -(-(_CONNECTIONS_WORD + 1) * 8 // mmap.PAGESIZE) * mmap.PAGESIZE


class Counters:
    """The counters of one worker."""

    def __init__(self, run_dir: str, slot: int) -> None:
        fd = os.open(Path(run_dir) / f"{FILE_PREFIX}{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _FILE_BYTES)
            self._words = memoryview(mmap.mmap(fd, _FILE_BYTES)).cast("Q")
        finally:
            os.close(fd)
        self._words[_CONNECTIONS_WORD] = 0

    def completed(self, operation: str, status: int, elapsed_s: float, received_bytes: int, sent_bytes: int) -> None:
        """One request was answered. Body bytes only."""
        words = self._words
        row = _ROWS.get(operation, _ROWS["Other"])
        words[row + _STATUS + status // 100 - 1] += 1
        words[row + _RECEIVED] += received_bytes
        words[row + _SENT] += sent_bytes
        words[row + _MICROSECONDS] += int(elapsed_s * 1e6)
        words[row + _BUCKETS + bisect_left(DURATION_BOUNDS_S, elapsed_s)] += 1

    def refused(self) -> None:
        """A head was not served."""
        self._words[_REFUSED_WORD] += 1

    def connections(self, count: int) -> None:
        """How many connections are open now."""
        self._words[_CONNECTIONS_WORD] = count


def read_totals(run_dir: str) -> list[int]:
    """The words of all workers, summed."""
    totals = [0] * (_FILE_BYTES // 8)
    for path in sorted(Path(run_dir).glob(f"{FILE_PREFIX}*")):
        words = memoryview(path.read_bytes()).cast("Q")
        totals = [total + word for total, word in zip(totals, words, strict=True)]
    return totals


class Gauge:
    """A value that is read when asked for: `samples` are (labels, value)."""

    def __init__(self, name: str, text: str, samples: Sequence[tuple[dict[str, str], float]]) -> None:
        self.name = name
        self.text = text
        self.samples = samples


def render(run_dir: str, gauges: Sequence[Gauge]) -> str:
    """All metrics as text."""
    totals = read_totals(run_dir)
    lines = [
        *_family("forebay_requests_total", "counter", "Requests answered, by operation and class of status.", [
            ({"operation": operation, "status": status}, totals[row + _STATUS + position])
            for operation, row in _ROWS.items()
            for position, status in enumerate(STATUS_CLASSES)
        ]),
        *_family("forebay_received_bytes_total", "counter", "Bytes of request bodies received.", [
            ({"operation": operation}, totals[row + _RECEIVED]) for operation, row in _ROWS.items()
        ]),
        *_family("forebay_sent_bytes_total", "counter", "Bytes of answer bodies sent.", [
            ({"operation": operation}, totals[row + _SENT]) for operation, row in _ROWS.items()
        ]),
        *_durations(totals),
        *_family("forebay_refused_heads_total", "counter", "Request heads that were not HTTP as served here.", [
            ({}, totals[_REFUSED_WORD])
        ]),
        *_family("forebay_connections", "gauge", "Connections open now.", [({}, totals[_CONNECTIONS_WORD])]),
    ]  # fmt: skip
    for gauge in gauges:
        lines += _family(gauge.name, "gauge", gauge.text, gauge.samples)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, samples: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    rows = [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *rows]


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quote(value)}"' for name, value in labels.items()) + "}"


def _quote(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _durations(totals: list[int]) -> list[str]:
    name = "forebay_request_seconds"
    lines = [f"# HELP {name} From the end of a head to the answer, by operation.", f"# TYPE {name} histogram"]
    for operation, row in _ROWS.items():
        count = 0
        bounds = [*map(str, DURATION_BOUNDS_S), "+Inf"]
        for position, bound in enumerate(bounds):
            count += totals[row + _BUCKETS + position]
            lines.append(f"{name}_bucket{_labels({'operation': operation, 'le': bound})} {count}")
        labels = _labels({"operation": operation})
        lines += [f"{name}_sum{labels} {totals[row + _MICROSECONDS] / 1e6}", f"{name}_count{labels} {count}"]
    return lines
