"""Rates, averages and percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.compare import OPENLAKE_READS_S, OPENLAKE_WRITES_S, SIZE_BYTES
from forebay.bench.figures import (
    GIB,
    average_rate,
    half_rates,
    mean_of_rates,
    parse_size,
    percentile,
    show_rate,
    show_seconds,
    show_size,
    spread,
)

durations = st.lists(st.floats(0.01, 1000), min_size=1, max_size=30)


def test_published_durations_give_the_published_mean_and_the_real_average() -> None:
    assert mean_of_rates(SIZE_BYTES, OPENLAKE_WRITES_S) / GIB == pytest.approx(6.72, abs=0.01)
    assert average_rate(SIZE_BYTES, OPENLAKE_WRITES_S) / GIB == pytest.approx(3.56, abs=0.01)
    assert mean_of_rates(SIZE_BYTES, OPENLAKE_READS_S) / GIB == pytest.approx(11.55, abs=0.02)
    assert average_rate(SIZE_BYTES, OPENLAKE_READS_S) / GIB == pytest.approx(11.17, abs=0.01)
    first, second = half_rates(SIZE_BYTES, OPENLAKE_WRITES_S) or (0, 0)
    assert first / GIB == pytest.approx(11.3, abs=0.05)
    assert second / GIB == pytest.approx(2.1, abs=0.05)


@given(durations)
def test_the_mean_of_rates_is_never_below_the_average(values: list[float]) -> None:
    assert mean_of_rates(GIB, values) >= average_rate(GIB, values) * (1 - 1e-9)


def test_equal_durations_make_both_alike() -> None:
    assert mean_of_rates(GIB, [2.0] * 5) == average_rate(GIB, [2.0] * 5) == GIB / 2


def test_halves_leave_the_middle_out_and_need_two() -> None:
    assert half_rates(10, [1.0]) is None
    assert half_rates(10, [1.0, 99.0, 2.0]) == (10.0, 5.0)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_that_covers_enough(values: list[float], percent: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(value <= found for value in ordered) * 100 >= percent * len(ordered) - 1e-6
    below = [value for value in ordered if value < found]
    assert len(below) * 100 < percent * len(ordered) + 1e-6


def test_spread_is_of_the_population() -> None:
    found = spread([2, 4, 4, 4, 5, 5, 7, 9])
    assert (found.count, found.mean, found.stdev, found.minimum, found.p50, found.maximum) == (8, 5, 2, 2, 4, 9)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("4096", 4096), ("4KiB", 4096), ("4k", 4096), ("64 MiB", 64 << 20), ("1.5GiB", 3 << 29), ("1MB", 10**6)]
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "KiB", "4 XiB", "-1", "4KiB4"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_figures_are_written_for_people() -> None:
    assert [show_size(n) for n in (100, 4096, 3 << 29)] == ["100 B", "4 KiB", "1.5 GiB"]
    assert [show_rate(n) for n in (GIB, GIB / 100)] == ["1.00 GiB/s", "10.2 MiB/s"]
    assert [show_seconds(n) for n in (12.345, 0.004561, 0.000078)] == ["12.35 s", "4.56 ms", "78 µs"]
