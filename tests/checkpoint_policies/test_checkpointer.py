"""The Checkpointer of one process: what it saves, keeps, restores, and how it fails."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from places import Failing, Gate, Place

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.policy import Best, Every, Keep
from forebay.checkpoint.read import read_manifest
from forebay.checkpoint.write import SaveOptions
from forebay.errors import CheckpointCorrupt, CheckpointExists, CheckpointMissing, LeafRefused, LocationError, SaveFailed
from forebay.locations import open_location

QUICK = SaveOptions(views=False)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def state_of(step: int) -> dict[str, Any]:
    return {"w": np.full(8, step, np.float32), "step": step}


def steps_in(path: Path) -> list[int]:
    return [item.step for item in catalog.list_steps(open_location(path))]


def make(path: Any, *args: Any, **how: Any) -> Checkpointer:
    return Checkpointer(path, *args, save_options=QUICK, **how)


def test_steps_and_clock_together_as_levanter_users_know_them(tmp_path: Path) -> None:
    clock = Clock()
    rules = [Every(2, 10 / 60, until=10), Every(5, 10 / 60, until=20), Every(10, 10 / 60)]
    with make(tmp_path, rules, clock=clock) as ckpt:

        def at(step: int, passed_s: float) -> list[int]:
            clock.now_s += passed_s
            ckpt.maybe_save(step, state_of(step))
            ckpt.wait()
            return steps_in(tmp_path)

        assert at(0, 100) == []
        assert at(1, 10) == [1]
        assert at(2, 9) == [2], "a permanent one replaces the temporary one"
        assert at(3, 1) == [2], "the clock runs from the last save"
        for step in range(4, 11):
            at(step, 10)
        assert at(11, 9) == [2, 4, 6, 8, 10]
        for step in range(12, 50):
            at(step, 10)
        assert steps_in(tmp_path) == [2, 4, 6, 8, 10, 15, 20, 30, 40, 49]
        assert read_manifest(open_location(tmp_path / "step-00000049"))[0].temporary


def test_step_0_is_saved_only_when_forced(tmp_path: Path) -> None:
    with make(tmp_path, Every(steps=1)) as ckpt:
        assert ckpt.maybe_save(0, state_of(0)) is None
        ckpt.save(0, state_of(0)).wait()
        assert steps_in(tmp_path) == [0]


def test_a_request_from_another_thread_is_met_once(tmp_path: Path) -> None:
    with make(tmp_path, Every(minutes=None)) as ckpt:
        assert ckpt.maybe_save(1, state_of(1)) is None
        thread = threading.Thread(target=ckpt.request_save)
        thread.start()
        thread.join()
        pending = ckpt.maybe_save(2, state_of(2))
        assert pending is not None and pending.wait().step == 2
        assert ckpt.maybe_save(3, state_of(3)) is None
        assert not read_manifest(open_location(tmp_path / "step-00000002"))[0].temporary


def test_a_temporary_one_that_is_wanted_is_promoted_not_written_again(tmp_path: Path) -> None:
    clock = Clock()
    with make(tmp_path, Every(steps=100, minutes=1), clock=clock) as ckpt:
        clock.now_s += 60
        pending = ckpt.maybe_save(7, state_of(7))
        assert pending is not None
        attempt = pending.wait().attempt
        ckpt.request_save()
        assert ckpt.maybe_save(7, state_of(7)) is None
        manifest, _ = read_manifest(open_location(tmp_path / "step-00000007"))
        assert (manifest.attempt, manifest.temporary) == (attempt, False)
        ckpt.save(8, state_of(8)).wait()
    assert steps_in(tmp_path) == [7, 8]


def test_keep_last_every_and_best(tmp_path: Path) -> None:
    losses = {1: 5.0, 2: 1.0, 3: 4.0, 4: 3.0, 5: 9.0, 6: 8.0}
    with make(tmp_path, Every(steps=1), Keep(last=1, every=3, best=Best("loss"))) as ckpt:
        for step, loss in losses.items():
            ckpt.maybe_save(step, state_of(step), {"loss": jnp.float32(loss)})
        ckpt.wait()
    assert steps_in(tmp_path) == [2, 3, 6]


def test_temporary_ones_in_another_place(tmp_path: Path) -> None:
    clock, scratch = Clock(), tmp_path / "scratch"
    with make(tmp_path / "run", Every(steps=3, minutes=1), temporary=scratch, clock=clock) as ckpt:
        for step in (1, 2):
            clock.now_s += 60
            ckpt.maybe_save(step, state_of(step))
            ckpt.wait()
            assert steps_in(scratch) == [step]
        again = make(tmp_path / "run", temporary=scratch)
        assert again.restore(state_of(0))["step"] == 2
        assert again.restored_step == again.latest_step() == 2
        again.close()
        ckpt.maybe_save(3, state_of(3))
    assert (steps_in(scratch), steps_in(tmp_path / "run")) == ([], [3])


def test_a_temporary_one_left_by_the_last_process_goes_after_the_next_commit(tmp_path: Path) -> None:
    with make(tmp_path) as ckpt:
        ckpt.save(5, state_of(5), temporary=True)
    with make(tmp_path) as ckpt:
        assert ckpt.restore(state_of(0))["step"] == 5
        ckpt.wait()
        assert steps_in(tmp_path) == [5]
        ckpt.save(6, state_of(6))
    assert steps_in(tmp_path) == [6]


def test_a_temporary_checkpoint_that_was_copied_here_is_not_ours_to_delete(tmp_path: Path) -> None:
    with make(tmp_path / "a") as ckpt:
        ckpt.save(5, state_of(5), temporary=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with make(tmp_path / "b", Every(steps=1), Keep(last=1)) as ckpt:
        for step in (6, 7):
            ckpt.maybe_save(step, state_of(step))
    assert steps_in(tmp_path / "b") == [5, 7]


def test_the_next_save_does_not_wait_for_the_last(tmp_path: Path) -> None:
    gate = Gate("put", "step-00000001/manifest.json")
    with make(Place(tmp_path, gate), Every(steps=1)) as ckpt:
        first = ckpt.maybe_save(1, state_of(1))
        assert first is not None
        assert gate.waiting.wait(10)
        second = ckpt.maybe_save(2, state_of(2))
        assert second is not None
        second.wait(10)
        assert not first.done
        assert steps_in(tmp_path) == [2]
        gate.open.set()
    assert steps_in(tmp_path) == [1, 2]


def test_a_third_save_waits_for_the_first(tmp_path: Path) -> None:
    gate = Gate("put", "manifest.json")
    with make(Place(tmp_path, gate), Every(steps=1)) as ckpt:
        ckpt.maybe_save(1, state_of(1))
        ckpt.maybe_save(2, state_of(2))
        threading.Timer(0.5, gate.open.set).start()
        start_s = time.monotonic()
        ckpt.maybe_save(3, state_of(3))
        assert gate.open.is_set() and time.monotonic() - start_s > 0.1
    assert steps_in(tmp_path) == [1, 2, 3]


def test_state_may_be_changed_at_once(tmp_path: Path) -> None:
    gate = Gate("part")
    state = {"w": np.zeros(1000, np.float32)}
    with make(Place(tmp_path, gate), Every(steps=1)) as ckpt:
        ckpt.maybe_save(1, state)
        state["w"] += 1
        gate.open.set()
    assert not forebay.load(tmp_path)["w"].any()


def test_a_failed_save_is_raised_at_the_next_call_and_the_one_before_stays(tmp_path: Path) -> None:
    failing = Failing("part", "step-00000002")
    with make(Place(tmp_path, failing), Every(steps=1)) as ckpt:
        first = ckpt.maybe_save(1, state_of(1))
        pending = ckpt.maybe_save(2, state_of(2))
        assert first is not None and pending is not None
        while not (first.done and pending.done):
            time.sleep(0.01)
        with pytest.raises(LocationError, match=r"503 Slow Down, after 5 tries \(writing 'w'\)") as raised:
            ckpt.maybe_save(3, state_of(3))
        assert any("step 2 of" in note for note in raised.value.__notes__)
        assert ckpt.latest_step() is not None
        ckpt.maybe_save(4, state_of(4))
    assert steps_in(tmp_path) == [1, 3, 4], "what was due was saved before the old failure was raised"


def test_a_failed_save_is_raised_at_exit(tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="503"), make(Place(tmp_path, Failing("part")), Every(steps=1)) as ckpt:
        ckpt.maybe_save(1, state_of(1))
    assert steps_in(tmp_path) == []


def test_the_programs_own_exception_is_not_hidden_by_a_failed_save(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised, make(Place(tmp_path, Failing("part")), Every(steps=1)) as ckpt:
        ckpt.maybe_save(1, state_of(1))
        raise ZeroDivisionError
    assert "a checkpoint failed" in raised.value.__notes__[0]


def test_what_cannot_be_saved_is_refused_at_once_by_path(tmp_path: Path) -> None:
    with make(tmp_path, Every(steps=1)) as ckpt:
        with pytest.raises(LeafRefused, match="model/activation"):
            ckpt.maybe_save(1, {"model": {"activation": jax.nn.relu}})
        ckpt.maybe_save(2, state_of(2))
    assert steps_in(tmp_path) == [2]


def test_two_jobs_that_save_the_same_step(tmp_path: Path) -> None:
    gate = Gate("put", "manifest.json")
    with make(tmp_path) as one, pytest.raises(CheckpointExists, match="committed before"), make(Place(tmp_path, gate)) as two:
        two.save(3, {"w": np.ones(8, np.float32), "step": 3})
        assert gate.waiting.wait(10)
        one.save(3, state_of(3)).wait()
        gate.open.set()
    assert forebay.load(tmp_path)["w"][0] == 3


def test_a_step_of_an_earlier_job_is_not_replaced_unless_told_so(tmp_path: Path) -> None:
    with make(tmp_path) as ckpt:
        ckpt.save(3, state_of(3))
    with make(tmp_path, Every(steps=3)) as ckpt, pytest.raises(CheckpointExists):
        ckpt.maybe_save(3, {"w": np.zeros(8, np.float32), "step": -3})
    with make(tmp_path, Every(steps=3), overwrite=True) as ckpt:
        ckpt.maybe_save(3, {"w": np.zeros(8, np.float32), "step": -3})
    assert forebay.load(tmp_path)["step"] == -3


def test_restored_steps_are_not_saved_again_unless_forced(tmp_path: Path) -> None:
    with make(tmp_path) as ckpt:
        ckpt.save(3, state_of(3))
    with make(tmp_path, Every(steps=3)) as ckpt:
        state = ckpt.restore(state_of(0))
        assert ckpt.maybe_save(3, state) is None
        state["w"] = state["w"] + 1
        ckpt.save(3, state)
    assert forebay.load(tmp_path)["w"][0] == 4


def test_restore_without_a_checkpoint_returns_like_itself(tmp_path: Path) -> None:
    with make(tmp_path / "nowhere") as ckpt:
        like = state_of(0)
        assert ckpt.restore(like) is like
        assert (ckpt.restored_step, ckpt.latest_step()) == (None, None)
        with pytest.raises(CheckpointMissing, match="step 9"):
            ckpt.restore(like, step=9)


def test_a_place_that_does_not_answer_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    for operation in ("list", "head", "get"):
        with make(tmp_path / operation) as ckpt:
            ckpt.save(1, state_of(1))
        failing = Failing(operation)
        failing.armed = False
        ckpt = make(Place(tmp_path / operation, failing))
        ckpt.wait()
        failing.armed = True
        with pytest.raises(LocationError, match="503"):
            ckpt.restore(state_of(0))
        failing.armed = False
        ckpt.close()


def test_a_damaged_newest_checkpoint_is_an_error(tmp_path: Path) -> None:
    with make(tmp_path) as ckpt:
        ckpt.save(1, state_of(1))
        ckpt.save(2, state_of(2))
        ckpt.wait()
        (data,) = (tmp_path / "step-00000002").rglob("*.safetensors")
        raw = bytearray(data.read_bytes())
        raw[-3] ^= 1
        data.write_bytes(raw)
        with pytest.raises(CheckpointCorrupt, match="'w'"):
            ckpt.restore(state_of(0))
        assert ckpt.restore(state_of(0), step=1)["step"] == 1


def test_deleting_that_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing("delete")
    with make(Place(tmp_path, failing), Every(steps=1), Keep(last=1)) as ckpt:
        ckpt.maybe_save(1, state_of(1))
        ckpt.maybe_save(2, state_of(2))
        ckpt.wait()
        assert steps_in(tmp_path) == [1, 2]
        assert "it will be tried again" in caplog.text
        failing.armed = False
        ckpt.maybe_save(3, state_of(3))
    assert steps_in(tmp_path) == [3]


def test_load_or_initialize_for_jax(tmp_path: Path) -> None:
    sharding = NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), PartitionSpec("x"))
    init = jax.jit(lambda key: {"w": jax.random.normal(key, (16, 4)), "n": jnp.int32(0)}, out_shardings=sharding_of_w(sharding))
    key = jax.random.key(0)
    with make(tmp_path) as ckpt:
        made = ckpt.load_or_initialize(init, key)
        ckpt.save(4, {**made, "n": made["n"] + 4})
    with make(tmp_path) as ckpt:
        loaded = ckpt.load_or_initialize(init, jax.random.key(1))
        assert np.array_equal(loaded["w"], made["w"]) and int(loaded["n"]) == 4
        assert loaded["w"].sharding == made["w"].sharding == sharding
        more = ckpt.load_or_initialize(lambda: {**init(key), "new": jnp.ones(3)}, allow_missing=True)
        assert np.array_equal(more["w"], made["w"]) and np.array_equal(more["new"], np.ones(3))


def sharding_of_w(sharding: NamedSharding) -> dict[str, NamedSharding]:
    return {"w": sharding, "n": NamedSharding(sharding.mesh, PartitionSpec())}


def test_load_or_initialize_for_torch(tmp_path: Path) -> None:
    import torch

    with make(tmp_path) as ckpt:
        model = torch.nn.Linear(4, 2)
        ckpt.save(1, {"model": model})
    with make(tmp_path) as ckpt:
        loaded = ckpt.load_or_initialize(lambda: {"model": torch.nn.Linear(4, 2)})
    assert torch.equal(loaded["model"].weight, model.weight)


TRAIN = """
import sys, time, signal, numpy as np, forebay
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.policy import Every
mode, run = sys.argv[1:]
seen = []
if mode == "own":
    signal.signal(signal.SIGTERM, lambda *a: seen.append(a))
with Checkpointer(run, Every(minutes=None)) as ckpt:
    state = ckpt.restore({"w": np.zeros(4), "step": 0})
    for step in range(1, 400):
        time.sleep(0.02)
        state = {"w": state["w"] + 1, "step": step}
        ckpt.maybe_save(step, state)
        if step == 5:
            print("going", flush=True)
        if ckpt.preempted:
            print("preempted", len(seen), flush=True)
            break
"""


@pytest.mark.parametrize(("mode", "code"), [("default", 128 + signal.SIGTERM), ("own", 0)])
def test_sigterm_saves_and_then_ends_as_it_would(tmp_path: Path, mode: str, code: int) -> None:
    command = [sys.executable, "-c", TRAIN, mode, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert out == ("preempted 1\n" if mode == "own" else "")
    (step,) = steps_in(tmp_path)
    loaded = forebay.load(tmp_path)
    assert step >= 5 and loaded["step"] == step and loaded["w"][0] == step
    assert read_manifest(open_location(tmp_path / catalog.step_name(step)))[0].temporary


def test_signals_are_watched_only_inside_with(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ckpt = make(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before
    with ckpt:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_must_be_at_the_same_step(tmp_path: Path) -> None:
    from forebay.checkpoint.group import SingleProcess

    class Ahead(SingleProcess):
        rank = 0

        def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
            return b'{"step":10,"why":"step"}'

    ckpt = make(tmp_path, Every(steps=10), group=Ahead())
    with pytest.raises(SaveFailed, match="it is at step 11, rank 0 at 10"):
        ckpt.maybe_save(11, state_of(11))
    ckpt.close()


def test_every_save_and_restore_leaves_a_timeline(tmp_path: Path) -> None:
    with make(tmp_path) as ckpt:
        ckpt.save(1, state_of(1)).wait()
        ckpt.restore(state_of(0))
        saved, restored = (timeline.totals() for timeline in ckpt.timelines)
    assert {"plan", "upload", "commit"} <= set(saved)
    assert {"match", "read", "checksum"} <= set(restored)
    assert saved["upload"].size_bytes > 0 and restored["read"].size_bytes > 0
