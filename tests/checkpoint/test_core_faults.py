"""A request fails, is cut, or is the last before the process dies, at every place in turn: only the old or the new checkpoint loads."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_s3 import FakeS3, Fault
from sharded_ranks import Ranks, Sharded, columns, know_sharded, rows

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.attempt import Attempt
from forebay.checkpoint.group import SingleProcess
from forebay.checkpoint.write import PendingSave, SaveOptions, start_save
from forebay.errors import CheckpointExists, CheckpointMissing, ForebayError, LocationUnavailable, SaveFailed
from forebay.locations import Location, open_location
from forebay.locations.s3 import S3

MiB = 2**20


def tree(value: float, mib: int = 1) -> dict[str, Any]:
    return {"w": np.full(mib * MiB // 8, value), "n": value}


def value_of(location: Location, mib: int = 1) -> float:
    """The value that a loaded checkpoint holds everywhere."""
    loaded = forebay.load(location)
    assert np.array_equal(loaded["w"], np.full(mib * MiB // 8, loaded["n"]))
    return float(loaded["n"])


class SmallParts(S3):
    """S3 with small parts, so that little data makes several."""

    part_bytes = 8 * MiB


FAULTS = [{"status": 403}, {"status": 503}, {"cut": "before"}, {"cut": "after"}, {"cut": "middle"}]


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from there on"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("mib", [1, 9])
def test_a_fault_at_every_request_of_a_save(fault: dict[str, Any], lasting: bool, mib: int) -> None:
    """A new step beside an old one. 9 MiB are a multipart upload, 1 MiB is not."""
    with FakeS3() as s3:
        calm = SmallParts("bucket", "run", **s3.options)
        run = SmallParts("bucket", "run", **{**s3.options, "retry_s": 0.05 if lasting else 2.0, "read_timeout_s": 2.0})
        forebay.save(tree(1, mib), calm, step=1)
        s3.reset_requests()
        forebay.save(tree(2, mib), calm, step=2)
        requests = len(s3.requests)
        assert mib == 1 or any("partNumber=2" in request for request in s3.requests)
        catalog.delete(calm.child("step-00000002"))
        for number in range(requests):
            s3.reset_requests(Fault(number, **fault, times=10**6 if lasting else 1))
            failure = save_failure(run, tree(2, mib), step=2)
            created = "?uploads=" in s3.requests[number]  # a lost answer to this leaves an upload that is swept later
            s3.reset_requests()
            found = value_of(calm, mib)
            assert found in (1, 2)
            if failure is None:
                assert found == 2, f"request {number} of {requests}: an acknowledged save is not the newest"
            if not lasting and fault.get("status") != 403:
                assert failure is None, f"request {number}: one fault is retried, but: {failure!r}"
            if not lasting and not created:
                assert not s3.uploads, "an unfinished upload is left over"
            catalog.delete(calm.child("step-00000002"))
            assert value_of(calm, mib) == 1


def save_failure(run: Location, state: Any, **how: Any) -> ForebayError | None:
    try:
        forebay.save(state, run, **how)
    except ForebayError as error:
        return error
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_at_every_request_of_an_overwrite(fault: dict[str, Any]) -> None:
    with FakeS3() as s3:
        calm = S3("bucket", "c", **s3.options)
        run = S3("bucket", "c", **{**s3.options, "retry_s": 0.05})
        forebay.save(tree(1), calm)
        s3.reset_requests()
        forebay.save(tree(2), calm, overwrite=True)
        old = 2.0
        for number in range(len(s3.requests)):
            new = old + 1
            s3.reset_requests(Fault(number, **fault, times=10**6))
            failure = save_failure(run, tree(new), overwrite=True)
            s3.reset_requests()
            found = value_of(calm)
            assert found in (old, new)
            assert failure is not None or found == new
            old = found


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": "before"}, {"cut": "middle"}], ids=str)
def test_a_fault_at_every_request_of_a_restore(fault: dict[str, Any]) -> None:
    with FakeS3() as s3:
        run = S3("bucket", "run", **s3.options)
        forebay.save(tree(1, 10), run, step=1)
        s3.reset_requests()
        forebay.load(run)
        requests = len(s3.requests)
        for number in range(requests):
            s3.reset_requests(Fault(number, **fault))
            assert value_of(run, 10) == 1
        impatient = S3("bucket", "run", **{**s3.options, "retry_s": 0.05})
        for number in range(requests):
            s3.reset_requests(Fault(number, **fault, times=10**6))
            with pytest.raises(LocationUnavailable):
                forebay.load(impatient)


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": "before"}, {"cut": "after"}], ids=str)
def test_a_delete_that_stops_anywhere_leaves_nothing_loadable(fault: dict[str, Any]) -> None:
    with FakeS3() as s3:
        calm = S3("bucket", "run", **s3.options)
        impatient = S3("bucket", "run", **{**s3.options, "retry_s": 0.05})
        forebay.save(tree(1), calm, step=1)
        for number in range(20):
            forebay.save(tree(2), calm, step=2)
            s3.reset_requests(Fault(number, **fault, times=10**6))
            try:
                catalog.delete(impatient.child("step-00000002"))
                stopped = False
            except ForebayError:
                stopped = True
            s3.reset_requests()
            assert value_of(calm) == (2 if number == 0 and fault.get("cut") != "after" else 1)
            catalog.delete(calm.child("step-00000002"))
            assert calm.list_folder().folders == ("step-00000001",)
            if not stopped:
                break
        else:
            raise AssertionError("the delete never ran to its end")


CHILD = """
import sys
import numpy as np
import forebay
from forebay.locations.s3 import S3
endpoint, number = sys.argv[1], int(sys.argv[2])
class SmallParts(S3):
    part_bytes = 8 * 2**20
location = SmallParts("bucket", "run", endpoint=endpoint, access_key="a", secret_key="b", retry_s=1.0)
forebay.save({"w": np.full(9 * 2**17, 2.0), "n": 2.0}, location, step=2)
print("saved", flush=True)
"""


def test_the_process_is_killed_at_every_request() -> None:
    with FakeS3() as s3:
        calm = S3("bucket", "run", **s3.options)
        forebay.save(tree(1, 9), calm, step=1)
        number, saved = 0, False
        while not saved:
            children: list[subprocess.Popen[str]] = []
            s3.reset_requests()

            def kill(seen: int, _: str, number: int = number, children: list[subprocess.Popen[str]] = children) -> None:
                if seen == number and children:
                    children[0].kill()
                    children[0].wait()

            s3.on_request = kill
            code = [sys.executable, "-c", CHILD, s3.endpoint, str(number)]
            environment = {"PYTHONPATH": str(Path(__file__).parent.parent / "locations")}
            with subprocess.Popen(code, stdout=subprocess.PIPE, text=True, env=environment) as child:
                children.append(child)
                saved = "saved" in child.communicate(timeout=60)[0]
            s3.on_request = None
            found = value_of(calm, 9)
            assert found in (1, 2)
            assert not saved or found == 2
            if not saved:
                catalog.delete(calm.child("step-00000002"))
            number += 1
        assert number > 5


def test_two_saves_of_one_step_one_wins(tmp_path: Path) -> None:
    location = open_location(tmp_path / "run/step-00000001")
    pending = [start_save(location, tree(value), step=1) for value in (1.0, 2.0, 3.0)]
    results = []
    for value, save in zip((1.0, 2.0, 3.0), pending, strict=True):
        try:
            save.wait(60)
            results.append(value)
        except CheckpointExists as error:
            assert "committed before" in str(error)
    assert len(results) == 1 and value_of(location) == results[0]
    files = [entry.key for entry in location.walk("data")]
    assert len(files) == 1, "those that lost removed their files"


def test_a_cancelled_save_leaves_the_old_one(tmp_path: Path) -> None:
    class Slow(type(open_location(tmp_path))):  # type: ignore[misc]
        def upload(self, *args: Any) -> Any:
            time.sleep(0.3)
            return super().upload(*args)

    run = Slow(tmp_path / "c")
    pending = start_save(run, tree(1), blocking=True)
    pending.cancel("the job is going down")
    with pytest.raises(SaveFailed, match="the job is going down"):
        pending.wait(60)
    assert pending.done and isinstance(pending.error, SaveFailed)
    with pytest.raises(CheckpointMissing):
        forebay.load(run)
    assert list(run.walk()) == []


def test_a_failing_part_stops_the_save_and_frees_its_memory(tmp_path: Path) -> None:
    from forebay.checkpoint.stage import Staging

    staging = Staging(64 * MiB)
    location = open_location(tmp_path / "c")
    real = location.upload

    def upload(key: str, size_bytes: int, part_bytes: int) -> Any:
        made = real(key, size_bytes, part_bytes)

        class Failing:
            def write_part(self, index: int, buffers: Any) -> None:
                if index == 2:
                    raise LocationUnavailable("write", key, "the disk went away")
                made.write_part(index, buffers)

            def __getattr__(self, name: str) -> Any:
                return getattr(made, name)

        return Failing()

    location.upload = upload  # type: ignore[method-assign, assignment]
    with pytest.raises(LocationUnavailable, match="the disk went away"):
        start_save(location, tree(1, 100), staging=staging).wait(60)
    assert staging._arena is not None and staging._arena.free_slots == staging._shape[1]
    assert list(location.walk()) == []


def test_sweep_removes_what_lost_and_spares_what_lives(tmp_path: Path) -> None:
    run = open_location(tmp_path)
    forebay.save(tree(1), run, step=1)
    lost = run.child("step-00000001")
    lost.put("data/aaaaaaaaaaaa/h00000-0.safetensors", b"loser")
    lost.put("index/aaaaaaaaaaaa/h00000.json", b"loser")
    run.child("step-00000002").put("data/bbbbbbbbbbbb/h00000-0.safetensors", b"unfinished")
    run.put("notes/readme", b"the user's")
    assert catalog.sweep(run) == [], "everything is young"
    swept = catalog.sweep(run, older_than_s=-1)
    assert swept == ["step-00000001", "step-00000002"]
    assert run.list_folder().folders == ("notes", "step-00000001")
    assert value_of(run) == 1 and catalog.sweep(run, older_than_s=-1) == []


def big_tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((4096, 2048)), **{f"b{i}": rng.standard_normal(1000 + i) for i in range(9)}, "n": 3}


def test_ranks_share_the_work_and_all_end_alike(tmp_path: Path) -> None:
    run = open_location(tmp_path / "run")
    state = big_tree()
    saved = Ranks(3).run(lambda group: forebay.save(state, run, step=4, group=group))
    assert len({(s.attempt, s.etag, s.size_bytes) for s in saved}) == 1, saved
    files = [entry.size_bytes for entry in run.walk() if entry.key.endswith(".safetensors")]
    assert len(files) == 3 and sum(files) < 1.01 * sum(v.nbytes for v in state.values() if hasattr(v, "nbytes"))
    loaded = Ranks(2).run(lambda group: forebay.load(run, group=group))
    for result in loaded:
        assert all(np.array_equal(result[k], state[k]) for k in state)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_uneven_shards_over_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Rows, columns, replicated shards and shards larger than a block; loaded by another number of ranks; and seen by TensorStore."""
    know_sharded(monkeypatch)
    rng = np.random.default_rng(ranks)
    arrays = {
        "r": rng.standard_normal((10, 6)),
        "c": rng.standard_normal((5, 50)),
        "v": rng.standard_normal(5),
        "m": rng.standard_normal((2050, 1500)),
    }
    state = {
        "r": Sharded(arrays["r"], rows((10, 6), ranks)), "c": Sharded(arrays["c"], columns((5, 50), ranks)),
        "v": Sharded(arrays["v"], rows((5,), ranks)), "m": Sharded(arrays["m"], columns((2050, 1500), ranks)),
        "pairs": Sharded(arrays["r"], [held for held in rows((10, 6), -(-ranks // 2)) for _ in "ab"][:ranks]), "whole": arrays["v"],
    }  # fmt: skip
    run = open_location(tmp_path / "run")
    saved = Ranks(ranks).run(lambda group: forebay.save(state, run, step=1, group=group))
    assert all(isinstance(result, forebay.Saved) for result in saved), saved
    wanted = {**arrays, "pairs": arrays["r"], "whole": arrays["v"]}
    loaded = forebay.load(run)
    assert all(np.array_equal(loaded[k], wanted[k]) for k in wanted)
    opened = forebay.open(run)
    assert np.array_equal(opened["m"][777:1500, 100:1400], arrays["m"][777:1500, 100:1400])
    ts = pytest.importorskip("tensorstore")
    for key, array in wanted.items():
        kvstore = {"driver": "ocdbt", "base": f"file://{tmp_path}/run/step-00000001/", "path": key}
        assert np.array_equal(ts.open({"driver": "zarr3", "kvstore": kvstore}).result().read().result(), array), key


def test_a_rank_that_fails_stops_the_others_with_its_error(tmp_path: Path) -> None:
    run = open_location(tmp_path / "run")
    forebay.save(tree(1), run, step=1)

    def work(group: Any) -> Any:
        location = open_location(tmp_path / "run")
        if group.rank == 1:
            location.child = lambda prefix: Broken(tmp_path / "run" / prefix)  # type: ignore[method-assign]
        return forebay.save(big_tree(), location, step=2, group=group)

    class Broken(type(run)):  # type: ignore[misc]
        def upload(self, key: str, *_: Any) -> Any:
            raise LocationUnavailable("upload", key, "cable pulled")

    started_s = time.monotonic()
    results = Ranks(3).run(work)
    assert time.monotonic() - started_s < 10
    for result in results:
        assert isinstance(result, SaveFailed) and result.rank == 1 and "cable pulled" in str(result), results
    assert value_of(run) == 1


def test_a_rank_that_vanishes_is_named(tmp_path: Path) -> None:
    run = open_location(tmp_path / "run")
    ranks = Ranks(2)

    def work(group: Any) -> Any:
        if group.rank == 1:
            group.broadcast(None, 10)
            ranks.gone[1] = "its process ended"
            return None
        return forebay.save(big_tree(), run, step=2, group=group)

    result = ranks.run(work)[0]
    assert isinstance(result, SaveFailed) and result.rank == 1 and "its process ended" in str(result)
    with pytest.raises(CheckpointMissing):
        forebay.load(run)


def test_ranks_with_different_trees_are_told(tmp_path: Path) -> None:
    def work(group: Any) -> Any:
        state = {"w": np.ones(10 + group.rank)}
        return forebay.save(state, tmp_path / "run", step=2, group=group)

    results = Ranks(2).run(work)
    assert all(isinstance(result, SaveFailed) and "planned another checkpoint" in str(result) for result in results), results


def test_any_rank_can_finish_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 reports and then never commits: rank 1 does, after its grace."""
    from forebay.checkpoint import attempt

    monkeypatch.setattr(attempt, "COMMIT_GRACE_S", 0.2)
    real = Attempt._commit

    def commit(self: Attempt, built: Any) -> Any:
        if self.group.rank == 0:
            raise SaveFailed(0, "rank 0 stopped before the commit")
        return real(self, built)

    monkeypatch.setattr(Attempt, "_commit", commit)
    monkeypatch.setattr(Attempt, "report_failure", lambda self, error: None)
    results = Ranks(2).run(lambda group: forebay.save(big_tree(), tmp_path / "run", step=2, group=group))
    assert isinstance(results[1], forebay.Saved)
    assert forebay.load(tmp_path / "run")["n"] == 3


def test_existing_checkpoints_and_bad_locations_are_raised_on_all_ranks(tmp_path: Path) -> None:
    forebay.save(tree(1), tmp_path / "run", step=2)
    results = Ranks(2).run(lambda group: forebay.save(tree(2), tmp_path / "run", step=2, group=group))
    assert all(isinstance(result, CheckpointExists) for result in results)
    results = Ranks(2).run(lambda group: forebay.load(tmp_path / "nothing", group=group))
    assert all(isinstance(result, CheckpointMissing) for result in results)


def test_unchanged_parts_are_copied_by_the_store() -> None:
    rng = np.random.default_rng(0)
    state = {f"w{i}": rng.standard_normal(2 * MiB) for i in range(8)}
    with FakeS3() as s3:
        run = S3("bucket", "run", **s3.options)
        forebay.save(state, run, step=1)
        state["w3"] = state["w3"] + 1
        s3.reset_requests()
        saved = forebay.save(state, run, step=2)
        assert saved.copied_bytes > 0.7 * saved.size_bytes and s3.bytes_received < 0.3 * saved.size_bytes
        catalog.delete(run.child("step-00000001"))
        loaded = forebay.load(run)
        assert all(np.array_equal(loaded[k], state[k]) for k in state)


def test_a_base_that_goes_away_meanwhile_does_no_harm() -> None:
    rng = np.random.default_rng(0)
    state = {f"w{i}": rng.standard_normal(2 * MiB) for i in range(4)}
    with FakeS3() as s3:
        run = S3("bucket", "run", **s3.options)
        forebay.save(state, run, step=1)
        calm = S3("bucket", "run", **s3.options)

        def remove(number: int, method: str) -> None:
            if method == "PUT" and any("partNumber" in request for request in s3.requests):
                s3.on_request = None
                catalog.delete(calm.child("step-00000001"))

        s3.on_request = remove
        forebay.save(state, run, step=2)
        loaded = forebay.load(run)
        assert all(np.array_equal(loaded[k], state[k]) for k in state)


def test_group_of_one() -> None:
    group = SingleProcess()
    assert (group.rank, group.size, group.broadcast(b"x", 1.0)) == (0, 1, b"x")
    group.check_peers()


def test_options_bound_the_memory(tmp_path: Path) -> None:
    pending: PendingSave = start_save(
        open_location(tmp_path / "c"), {"w": np.ones(20 * MiB // 8)}, options=SaveOptions(memory_bytes=1, threads=1)
    )
    pending.wait(60)
    assert np.array_equal(forebay.load(tmp_path / "c", options=forebay.LoadOptions(memory_bytes=1, threads=1))["w"], np.ones(20 * MiB // 8))
