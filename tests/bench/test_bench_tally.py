"""What clients count, and what becomes of requests that the end of a stretch catches."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.tally import TIMELINE_STEP_S, Recorder, Tally, put_together

spans = st.lists(st.tuples(st.floats(0, 10), st.floats(0.001, 5), st.integers(1, 10**9)), min_size=1, max_size=50)


def tally_of(operations: list[tuple[float, float, int]], deadline_s: float = math.inf) -> Tally:
    recorder = Recorder(0.0, deadline_s)
    for begin_s, seconds, size_bytes in operations:
        recorder.add(begin_s, begin_s + seconds, size_bytes)
    return recorder.tally()


def test_a_request_caught_by_the_deadline_counts_for_the_part_before_it() -> None:
    tally = tally_of([(0, 4, 100), (4, 4, 100), (8, 4, 100)], deadline_s=10)
    assert tally.window_operations == 2.5
    assert tally.window_bytes == 250
    assert tally.bytes_per_s == 25  # exactly the steady rate of one request in four seconds
    assert (tally.operations, tally.bytes) == (3, 300)


def test_without_a_deadline_the_window_ends_with_the_last_operation() -> None:
    tally = tally_of([(0, 1, 10), (1, 3, 10)])
    assert tally.window_s == 4
    assert tally.operations_per_s == 0.5


@given(spans)
def test_the_timeline_holds_every_byte(operations: list[tuple[float, float, int]]) -> None:
    tally = tally_of(operations)
    assert sum(tally.timeline_bytes.values()) == pytest.approx(tally.bytes, rel=1e-6)
    last = max(begin + seconds for begin, seconds, _ in operations)
    assert max(tally.timeline_bytes) <= last / TIMELINE_STEP_S + 1


@given(st.lists(st.floats(1e-5, 100), min_size=1, max_size=200), st.sampled_from([50, 90, 99, 100]))
def test_percentiles_are_exact_to_a_percent(latencies: list[float], percent: int) -> None:
    tally = tally_of([(0, seconds, 1) for seconds in latencies])
    exact = sorted(latencies)[math.ceil(len(latencies) * percent / 100) - 1]
    assert tally.latency_percentile_s(percent) == pytest.approx(exact, rel=0.01)


@given(st.lists(spans, min_size=1, max_size=4))
def test_clients_put_together_are_the_sum(clients: list[list[tuple[float, float, int]]]) -> None:
    tallies = [tally_of(client) for client in clients]
    total = put_together(tallies)
    assert total.operations == sum(map(len, clients))
    assert total.bytes == sum(size for client in clients for _, _, size in client)
    assert sum(total.latency_buckets.values()) == total.operations
    assert total.window_s == max(tally.window_s for tally in tallies)


def test_more_than_one_fold_loses_nothing() -> None:
    tally = tally_of([(i / 1000, 0.001, 7) for i in range(25_000)])
    assert (tally.operations, tally.bytes) == (25_000, 175_000)


def test_a_tally_survives_the_pipe() -> None:
    tally = tally_of([(0, 1, 10)], deadline_s=5)
    sent = msgspec.json.encode(msgspec.to_builtins(tally, str_keys=True))
    assert msgspec.convert(msgspec.json.decode(sent), Tally, strict=False) == tally
