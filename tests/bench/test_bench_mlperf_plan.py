"""The workload's bytes, objects and order are those of the rules."""

from __future__ import annotations

import pytest

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB
from forebay.bench.mlperf_plan import MODELS, pieces, workload_of


def test_the_8b_checkpoint_to_the_byte() -> None:
    workload = workload_of("llama3-8b", None, "1")
    assert workload.processes == 8
    sizes = [plan.size_bytes for rank in range(8) for plan in workload.objects(rank)]
    assert sizes == [2_007_565_312, 12_045_637_632] * 8
    assert len(sizes) == 16
    assert sum(sizes) == workload.checkpoint_bytes == 112_425_623_552
    assert workload.checkpoint_bytes / GIB == pytest.approx(104.7045, abs=1e-4)
    assert workload.is_comparable


def test_the_model_comes_before_the_optimizer() -> None:
    first, second = workload_of("8b", None, "1").objects(3)
    assert ("model_states" in first.name, "optim_states" in second.name) == (True, True)
    assert first.name != workload_of("8b", None, "1").objects(4)[0].name


@pytest.mark.parametrize(("model", "processes", "gib"), [("70b", 64, 912), ("405b", 512, 5.29 * 1024), ("1t", 1024, 18 * 1024)])
def test_larger_models_have_the_published_sizes(model: str, processes: int, gib: float) -> None:
    workload = workload_of(model, None, "1")
    assert workload.processes == processes
    assert workload.checkpoint_bytes / GIB == pytest.approx(gib, rel=1e-6)


@pytest.mark.parametrize(("processes", "in_flight"), [(1, 16), (3, 6), (8, 2), (64, 2)])
def test_requests_in_flight(processes: int, in_flight: int) -> None:
    assert workload_of("8b", processes, "1").in_flight == in_flight


def test_a_scaled_run_says_that_it_is_not_comparable() -> None:
    workload = workload_of("8b", None, "1/64")
    assert not workload.is_comparable
    assert workload.checkpoint_bytes == pytest.approx(MODELS["llama3-8b"].total_bytes / 64, rel=1e-6)
    assert all(plan.size_bytes % 16 == 0 for plan in workload.objects(0))
    assert not workload_of("8b", 4, "1").is_comparable


@pytest.mark.parametrize("scale", ["0", "2", "1/0", "1/x", "0.5", ""])
def test_what_is_no_scale_is_refused(scale: str) -> None:
    with pytest.raises(BenchmarkFailed, match="scale"):
        workload_of("8b", None, scale)


def test_an_unknown_model_is_named_with_those_that_there_are() -> None:
    with pytest.raises(BenchmarkFailed, match=r"'9b'.*llama3-8b"):
        workload_of("9b", None, "1")


def test_pieces_cover_an_object() -> None:
    assert pieces(100, 40) == [(0, 40), (40, 40), (80, 20)]
    assert pieces(80, 40) == [(0, 40), (40, 40)]
