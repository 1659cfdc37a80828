"""Schedules and keeping: tables from the behaviour that users know, and properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.checkpoint.policy import Best, Complete, Every, Keep, Schedule, to_delete
from forebay.errors import ConfigError


def saved_by_steps(schedule: Schedule, steps: int) -> list[int]:
    return [step for step in range(1, steps) if schedule.due(step, 0.0) == "step"]


def test_rules_with_until_take_turns() -> None:
    schedule = Schedule([Every(steps=2, until=10), Every(steps=5, until=20), Every(steps=10)])
    assert saved_by_steps(schedule, 50) == [2, 4, 6, 8, 10, 15, 20, 30, 40]


def test_step_beats_clock_and_clock_outlives_the_last_rule() -> None:
    schedule = Schedule(Every(steps=4, minutes=1, until=8))
    assert schedule.due(4, 1e9) == "step"
    assert schedule.due(5, 59.9) == ""
    assert schedule.due(5, 60.0) == "clock"
    assert schedule.due(12, 59.9) == ""
    assert schedule.due(12, 60.0) == "clock"


def test_default_is_fifteen_minutes_and_none_turns_it_off() -> None:
    assert Schedule(Every(steps=1000)).due(1, 15 * 60) == "clock"
    assert Schedule(Every(steps=1000)).due(1, 15 * 60 - 1) == ""
    assert Schedule(Every(steps=1000, minutes=None)).due(1, 1e12) == ""
    assert Schedule([]).due(1000, 1e12) == ""


@pytest.mark.parametrize(
    "rules",
    [[Every(steps=1), Every(steps=2)], [Every(steps=1, until=5), Every(steps=2, until=5)], [Every(steps=1, until=5), Every(until=4)]],
)
def test_rules_out_of_order_are_refused(rules: list[Every]) -> None:
    with pytest.raises(ConfigError, match="until"):
        Schedule(rules)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Every(steps=0), lambda: Every(minutes=0), lambda: Every(minutes=math.nan), lambda: Keep(last=0), lambda: Keep(every=-1),
        lambda: Best("loss", mode="lowest"), lambda: Best("loss", count=0),
    ],
)  # fmt: skip
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()


def permanent(*steps: int, **metrics: float) -> list[Complete]:
    return [Complete(step, False, metrics) for step in steps]


def test_keep_by_last_every_and_best() -> None:
    complete = [Complete(s, False, {"loss": loss}) for s, loss in [(1, 5.0), (2, 1.0), (3, 4.0), (4, math.nan), (5, 3.0), (6, 2.0)]]
    assert to_delete(complete, Keep()) == []
    assert to_delete(complete, Keep(last=2)) == [1, 2, 3, 4]
    assert to_delete(complete, Keep(last=1, every=2)) == [1, 3, 5]
    assert to_delete(complete, Keep(every=3)) == [1, 2, 4, 5]
    assert to_delete(complete, Keep(best=Best("loss", 2))) == [1, 3, 4, 5]
    assert to_delete(complete, Keep(best=Best("loss", mode="max"))) == [2, 3, 4, 5]
    assert to_delete(complete, Keep(best=Best("accuracy"))) == [1, 2, 3, 4, 5]


def test_equal_metrics_keep_the_newer() -> None:
    assert to_delete(permanent(1, 2, 3, loss=1.0), Keep(best=Best("loss", 2))) == [1]


def test_temporary_ones_go_when_something_newer_is_there() -> None:
    complete = [Complete(1, False, {}), Complete(2, True, {}), Complete(3, True, {})]
    assert to_delete(complete, Keep()) == [2]
    assert to_delete([*complete, Complete(4, False, {})], Keep()) == [2, 3]
    assert to_delete([], Keep(last=1)) == []


COMPLETE = st.lists(
    st.builds(
        Complete,
        step=st.integers(0, 40),
        temporary=st.booleans(),
        metrics=st.dictionaries(st.just("loss"), st.floats(allow_infinity=True, allow_nan=True), max_size=1),
    ),
    unique_by=lambda c: c.step,
)
KEEP = st.builds(
    Keep,
    last=st.none() | st.integers(1, 5),
    every=st.none() | st.integers(1, 7),
    best=st.none() | st.builds(Best, st.just("loss"), st.integers(1, 4), st.sampled_from(["min", "max"])),
)


@settings(deadline=None)
@given(COMPLETE, KEEP)
def test_deleting_is_safe_and_settles_at_once(complete: list[Complete], keep: Keep) -> None:
    gone = to_delete(complete, keep)
    left = [c for c in complete if c.step not in gone]
    assert gone == sorted(gone)
    if complete:
        assert max(c.step for c in complete) not in gone
    assert not [c for c in left if c.temporary and c.step != max(x.step for x in complete)]
    kept_permanent = [c.step for c in left if not c.temporary]
    all_permanent = sorted(c.step for c in complete if not c.temporary)
    assert kept_permanent or not all_permanent
    if keep.last is not None:
        assert set(all_permanent[-keep.last :]) <= set(kept_permanent)
    if keep.every is not None:
        assert {s for s in all_permanent if s % keep.every == 0} <= set(kept_permanent)
    if keep.keeps_all:
        assert set(kept_permanent) == set(all_permanent)
    assert to_delete(left, keep) == [], "deleting again deletes nothing more"


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 500), st.floats(0, 1e5), st.floats(0.01, 1e3))
def test_due_agrees_with_its_definition(step: int, every: int, since_s: float, minutes: float) -> None:
    due = Schedule(Every(steps=every, minutes=minutes)).due(step, since_s)
    assert (due == "step") == (step % every == 0)
    assert (due == "clock") == (step % every != 0 and since_s >= minutes * 60)
