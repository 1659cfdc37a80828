"""Client processes, barriers, clocks and CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.bench.crew import Crew
from forebay.bench.errors import BenchmarkFailed

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parent)}


def crew(jobs: list[dict[str, Any]], **options: Any) -> Crew:
    return Crew("bench_crew_client", jobs, environment=ENVIRONMENT, **options)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_stretch_lasts_as_long_as_its_slowest_client() -> None:
    moved: list[float] = []
    with crew([{}, {"sleep_s": 0.4}], on_progress=moved.append) as clients:
        first = clients.stretch("first", "second")
        second = clients.stretch("second", "end")
    assert first.seconds >= 0.4
    assert [report["index"] for report in first.reports] == [0, 1]
    assert all(report["count"] == 2 for report in first.reports)
    assert second.reports == [{"done": True}, {"done": True}]
    assert second.start_s >= first.end_s
    assert max(moved) == 7


def test_cpu_of_clients_and_server_is_that_of_the_stretch() -> None:
    readings = iter([10.0, 12.5, 20.0, 20.5])
    with crew([{"burn_cpu_s": 0.2}], server_cpu=lambda: next(readings)) as clients:
        busy, idle = clients.stretch("first", "second"), clients.stretch("second", "end")
    assert busy.client_cpu_s >= 0.2
    assert idle.client_cpu_s < 0.2
    assert (busy.server_cpu_s, idle.server_cpu_s) == (2.5, 0.5)


def test_an_unknown_server_has_no_cpu() -> None:
    with crew([{}]) as clients:
        assert clients.stretch("first", "second").server_cpu_s is None
        clients.stretch("second", "end")


@pytest.mark.parametrize(
    ("job", "words"), [({"die_early": True}, "free lunch"), ({"fail": True}, "the answer was 41"), ({"vanish": True}, "ended before")]
)
def test_a_failing_client_fails_the_run_in_its_own_words(job: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchmarkFailed, match=words), crew([{}, job]) as clients:
        clients.stretch("first", "second")


def test_leaving_ends_every_process() -> None:
    started: list[int] = []
    with pytest.raises(KeyboardInterrupt), crew([{}, {}]) as clients:
        started += [report["pid"] for report in clients.stretch("first", "second").reports]
        assert all(map(is_alive, started))
        raise KeyboardInterrupt
    assert len(started) == 2
    assert not any(map(is_alive, started))


def test_a_client_that_does_not_arrive_is_not_waited_for_longer_than_asked() -> None:
    with pytest.raises(BenchmarkFailed, match="in time"), crew([{"sleep_s": 60}]) as clients:
        clients.stretch("first", "second", timeout_s=1.5)
