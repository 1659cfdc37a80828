"""Whole runs, as small as they can be: against a store that the benchmark starts itself, and against a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from forebay.bench import app, mlperf_result
from forebay.bench.checkpoint import CheckpointOptions, run_checkpoint
from forebay.bench.checkpoint_plan import CONTENDERS, state_shapes
from forebay.bench.checkpoint_result import CheckpointResult
from forebay.bench.checkpoint_result import report_of as checkpoint_report_of
from forebay.bench.compare import load_results
from forebay.bench.compare import report_of as compare_report_of
from forebay.bench.contenders import MAKERS
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.mlperf import FOLDER_CLIENTS, S3_CLIENTS, MlperfOptions, Target, folder_target, run_mlperf, store_target
from forebay.bench.mlperf_clients import FOLDER_CLIENTS as FOLDER_CLIENT_MAKERS
from forebay.bench.mlperf_clients import S3_CLIENTS as S3_CLIENT_MAKERS
from forebay.bench.mlperf_plan import MODELS, Workload
from forebay.bench.mlperf_result import MlperfResult
from forebay.bench.page import render_page
from forebay.bench.proctree import tree_of
from forebay.bench.result import read_json, write_json
from forebay.bench.s3 import S3Options, run_s3
from forebay.bench.s3_result import Measurement, Reading, S3Result
from forebay.bench.s3_result import report_of as s3_report_of
from forebay.bench.store import Store, bucket_for_run, key_sizes, remove_keys, running_store, temporary_store
from forebay.bench.terminal import Show
from forebay.bench.wire import Connection, endpoint_of

RUNNER = CliRunner()
TINY = Workload(MODELS["llama3-8b"], 2, Fraction(1, 20_000))


@pytest.fixture(autouse=True)
def short_gauge(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlperf.GAUGE_SECONDS", "checkpoint.GAUGE_SECONDS", "s3.GAUGE_SECONDS_MAX"):
        monkeypatch.setattr(f"forebay.bench.{name}", 0.1)
    monkeypatch.setattr("forebay.bench.s3.SETTLE_S", 0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with temporary_store(tmp_path_factory.mktemp("store"), drives=4, parity=1, workers=1) as found:
        yield found


def quiet() -> Show:
    return Show(quiet=True)


def test_a_started_store_says_what_it_is_and_leaves_nothing(tmp_path: Path) -> None:
    with temporary_store(tmp_path, drives=2, parity=None, workers=1) as started:
        assert str(started.geometry) == "1+1"
        assert started.cpu_seconds() is not None
        pids = started.process_roots
        again = running_store(started.endpoint, None, None)
        assert again.geometry == started.geometry
        assert again.process_roots >= pids or again.process_roots
        assert again.limit_folder is not None and again.limit_folder.is_dir()
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_s3_end_to_end(store: Store, tmp_path: Path) -> None:
    options = S3Options(sizes_bytes=[4096, 300 << 10], seconds=0.3, warmup_s=0.1, repeats=2, objects=20, connections=4, list_keys=[5, 1100])
    with quiet() as show:
        result = run_s3(options, store, None, show)
    assert [each.title for each in result.measurements] == [
        *("put 4 KiB", "get 4 KiB", "mixed 4 KiB", "put 300 KiB", "get 300 KiB", "mixed 300 KiB"),
        *("list, 5 keys", "list, 1,100 keys"),
    ]
    for each in result.measurements:
        assert len(each.readings) == 2
        for reading in each.readings:
            assert reading.operations > 0 and reading.operations_per_s > 0
            assert reading.bytes == reading.operations * each.size_bytes
            assert 0 < reading.latency_p50_s <= reading.latency_p99_s <= reading.latency_max_s
            assert reading.server_cpu_s is not None
            assert reading.verified_share == (1.0 if each.operation in ("get", "mixed") else 0.0)
    puts = [each for each in result.measurements if each.operation == "put"]
    assert result.limits is not None
    assert all(each.limit_bytes_per_s == pytest.approx(result.limits.direct_write_bytes_per_s * 3 / 4) for each in puts)
    assert (result.store.geometry, result.store.on_this_host) == ("3+1", True)
    path = tmp_path / "s3.json"
    write_json(result, path)
    assert read_json(path, S3Result) == result
    page = render_page(s3_report_of(result))
    assert all(text in page for text in ("put 300 KiB", "as long as one of 5 keys", "loopback TCP", "direct read"))


def test_a_bucket_that_was_there_is_left_as_it_was(store: Store) -> None:
    connection = Connection(store.endpoint)
    connection.request("PUT", "/kept-bucket")
    connection.request("PUT", "/kept-bucket/mine", body=b"12345")
    with bucket_for_run(store.endpoint, "kept-bucket") as name:
        assert name == "kept-bucket"
    with bucket_for_run(store.endpoint, None) as name:
        for number in range(3):
            connection.request("PUT", f"/{name}/a%26b/{number}", body=b"x")
        assert key_sizes(connection, name, "a&b/") == [1, 1, 1]
        assert remove_keys(connection, name, "a&b/1") == 1
        assert key_sizes(connection, name, "") == [1, 1]
    connection.request("GET", f"/{name}", "list-type=2", expect=(404,))
    assert key_sizes(connection, "kept-bucket", "") == [5]
    connection.close()


@pytest.mark.parametrize("client", FOLDER_CLIENTS)
def test_mlperf_to_a_folder(client: str, tmp_path: Path) -> None:
    with quiet() as show, folder_target(tmp_path) as target:
        result = run_mlperf(MlperfOptions(TINY, client, writes=2, reads=2, pause_s=0), target, show)
    check_mlperf(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("client", S3_CLIENTS)
def test_mlperf_to_a_store(client: str, store: Store) -> None:
    with quiet() as show, store_target(store, "mlperf", "some/where") as target:
        result = run_mlperf(MlperfOptions(TINY, client, writes=2, reads=2, pause_s=0), target, show)
    check_mlperf(result)
    assert result.write is not None and result.write.server_cpu_s_per_gib is not None


def check_mlperf(result: MlperfResult) -> None:
    size_bytes = TINY.checkpoint_bytes
    assert result.checkpoint_bytes == size_bytes
    assert result.write is not None and result.read is not None
    assert len(result.write.durations_s) == len(result.read.durations_s) == 2
    assert result.metric["save_checkpoint_io_mean_GB_per_second"] == pytest.approx(result.write.mean_of_rates / 2**30)
    assert result.metric["checkpoint_size_GB"] == size_bytes / 2**30
    assert (result.verified_checkpoints, result.is_comparable) == (1, False)
    warnings = mlperf_result.warnings_of(result)
    assert any("not comparable" in warning for warning in warnings)
    assert "not comparable" in render_page(mlperf_result.report_of(result))


def test_verification_finds_one_flipped_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet() as show, folder_target(tmp_path) as target:

        def corrupt() -> bool:
            path = sorted(Path(target.url).rglob("*optim_states*"))[0]
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            return True

        monkeypatch.setattr("forebay.bench.mlperf.drop_page_cache", corrupt)
        with pytest.raises(BenchmarkFailed, match="not what was written"):
            run_mlperf(MlperfOptions(TINY, "posix", writes=1, reads=1, pause_s=0), target, show)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_cannot_reach_the_target_is_refused(tmp_path: Path) -> None:
    with quiet() as show, folder_target(tmp_path) as target, pytest.raises(BenchmarkFailed, match=r"boto3.*forebay, posix"):
        run_mlperf(MlperfOptions(TINY, "boto3"), target, show)


def test_a_run_that_does_not_fit_is_refused_before_it_writes(tmp_path: Path) -> None:
    vast = Workload(MODELS["llama3-1t"], 2, Fraction(1))
    with quiet() as show, pytest.raises(BenchmarkFailed, match="smaller --scale"):
        run_mlperf(MlperfOptions(vast, "posix"), Target(str(tmp_path / "x"), None), show)
    assert list(tmp_path.iterdir()) == []


def test_the_clients_named_are_those_that_there_are() -> None:
    assert tuple(FOLDER_CLIENT_MAKERS) == FOLDER_CLIENTS
    assert tuple(S3_CLIENT_MAKERS) == S3_CLIENTS
    assert MAKERS.keys() == CONTENDERS.keys()


def test_the_summary_has_the_reference_names(tmp_path: Path) -> None:
    with quiet() as show, folder_target(tmp_path) as target:
        result = run_mlperf(MlperfOptions(TINY, "posix", writes=1, reads=1, pause_s=0, verify=False), target, show)
    path = tmp_path / "summary.json"
    write_json(result, path)
    summary = json.loads(path.read_bytes())
    assert {"start", "end", "num_accelerators", "num_hosts", "hostname", "metric"} <= summary.keys()
    assert summary["metric"].keys() == {
        f"{verb}_checkpoint_{what}"
        for verb in ("save", "load")
        for what in ("io_mean_GB_per_second", "io_stdev_GB_per_second", "duration_mean_seconds", "duration_stdev_seconds")
    } | {"checkpoint_size_GB"}
    page = render_page(compare_report_of(["mine"], load_results([path])))
    assert "OpenLake" in page and "3.56" in page and "mine" in page


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"kind": "s3"}')
    with pytest.raises(BenchmarkFailed, match=r"x\.json is not a result"):
        load_results([tmp_path / "x.json"])


@pytest.mark.parametrize("size_bytes", [1 << 20, 64 << 20, 1 << 30, 4 << 30])
def test_states_have_about_the_size_asked_for(size_bytes: int) -> None:
    total = sum(4 * (shape[0] if len(shape) == 1 else shape[0] * shape[1]) for shape in state_shapes(size_bytes).values())
    assert total == pytest.approx(size_bytes, rel=0.12)


def test_checkpoint_libraries_to_folder_and_store(store: Store, tmp_path: Path) -> None:
    options = CheckpointOptions([2 << 20], ["forebay-jax", "tensorstore"], repeats=1)
    with quiet() as show, bucket_for_run(store.endpoint, None) as bucket:
        result = run_checkpoint(options, tmp_path, store, bucket, show)
    assert [(trial.place, trial.contender) for trial in result.trials] == [
        (place, name) for place in ("folder", "store") for name in options.contenders
    ]
    for trial in result.trials:
        assert not trial.failure
        [done] = trial.rounds
        assert 0 < done.saved.blocked_s <= done.saved.durable_s
        assert done.stored_bytes >= done.saved.state_bytes * 0.8
        assert done.objects >= 1 and done.restored.restore_s > 0
        assert (done.server_cpu_s is None) == (trial.place == "folder")
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "checkpoint.json"
    write_json(result, path)
    assert read_json(path, CheckpointResult) == result
    assert "tensorstore" in render_page(checkpoint_report_of(result))


def test_a_library_that_fails_is_left_out_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tensorstore.py").write_text("raise ImportError('no such library today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    (tmp_path / "saves").mkdir()
    with quiet() as show:
        result = run_checkpoint(CheckpointOptions([1 << 20], ["tensorstore"], repeats=2), tmp_path / "saves", None, "", show)
    [trial] = result.trials
    assert "no such library today" in trial.failure and trial.rounds == []
    assert any("tensorstore" in note for note in result.notes)
    assert "did not run" in render_page(checkpoint_report_of(result))


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


def test_the_documents_are_stable() -> None:
    """Whoever changes one of these changes `result.SCHEMA` too, if older readers would be misled."""
    assert fields(S3Result) == {"head", "store", "measurements", "limits", "notes", "schema", "kind"}
    assert fields(Measurement) == {
        *("operation", "size_bytes", "objects", "connections", "processes", "payload_check", "readings", "limit_bytes_per_s"),
    }
    assert fields(Reading) == {
        *("operations_per_s", "bytes_per_s", "operations", "bytes", "latency_p50_s", "latency_p90_s", "latency_p99_s"),
        *("latency_max_s", "verified_share", "client_cpu_s", "server_cpu_s", "timeline_bytes_per_s"),
    }
    assert {"write", "read", "limits", "settings", "notes", "generation_bytes_per_s", "is_comparable"} <= fields(MlperfResult)
    assert fields(CheckpointResult) == {"head", "trials", "store", "store_write_factor", "limits", "notes", "schema", "kind"}


@pytest.mark.parametrize("command", ["s3", "mlperf", "checkpoint", "compare"])
def test_help_shows_how(command: str) -> None:
    answer = RUNNER.invoke(app, [command, "--help"])
    assert answer.exit_code == 0
    assert command == "compare" or "forebay bench" in answer.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s3", "--sizes", "4X", "--drives", "1"], "not a size"),
        (["s3", "--list-keys", "many", "--drives", "1"], "not a number"),
        (["mlperf", "--scale", "2"], "no scale"),
        (["checkpoint", "--to", "tape"], "folder"),
        (["s3"], "--drives 4"),
        (["s3", "--endpoint", "https://x"], "plain HTTP"),
        (["s3", "--endpoint", "http://127.0.0.1:1"], "nothing answers"),
        (["mlperf", "--target", "/no/such/folder"], "is not a folder"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    answer = RUNNER.invoke(app, arguments)
    assert answer.exit_code in (1, 2)
    assert words in " ".join(answer.output.split())
    assert "Traceback" not in answer.output


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_neither_server_nor_folders(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forebay.cli", "bench", "s3", "--drives", "2", "--dir", str(tmp_path), "--ops", "put"]
    process = subprocess.Popen([*command, "--seconds", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not list(tmp_path.glob("*/drive1/forebay.json")):
            assert process.poll() is None, "it ended before its store was there"
            time.sleep(0.05)
        servers = tree_of({process.pid}) - {process.pid}
        process.send_signal(number)
        assert process.wait(timeout=60) != 0
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []
    assert servers and not any(map(is_running, servers))


def test_endpoints_are_asked_with_given_keys(store: Store) -> None:
    wrong = endpoint_of(store.endpoint.url, "nobody", "nothing", "us-east-1")
    assert running_store(wrong, None, None).geometry is None  # it answers, but does not tell strangers


def test_the_environment_is_left_alone() -> None:
    assert "FOREBAY_ROOT_PASSWORD" not in os.environ
