"""The command line of the benchmarks, mounted by the main one as `forebay bench`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from forebay.bench.checkpoint import CheckpointOptions, run_checkpoint
from forebay.bench.checkpoint_plan import CONTENDERS
from forebay.bench.checkpoint_result import report_of as checkpoint_report_of
from forebay.bench.compare import load_results
from forebay.bench.compare import report_of as compare_report_of
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import parse_size
from forebay.bench.mlperf import MlperfOptions, folder_target, run_mlperf, store_target
from forebay.bench.mlperf_plan import CHECKPOINTS, Workload, workload_of
from forebay.bench.mlperf_result import report_of as mlperf_report_of
from forebay.bench.page import render_page
from forebay.bench.report import Report
from forebay.bench.result import write_json
from forebay.bench.s3 import S3Options, run_s3
from forebay.bench.s3_result import report_of as s3_report_of
from forebay.bench.store import Geometry, Store, bucket_for_run, running_store, temporary_store
from forebay.bench.terminal import Show, output_console, print_report
from forebay.bench.wire import endpoint_of

app = typer.Typer(
    name="bench",
    help="Measure a store, a checkpoint library, or both, against the limits of this machine.",
    no_args_is_help=True,
)

EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        envvar="AWS_ENDPOINT_URL",
        help="A store that runs already, http://HOST:PORT. Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
]
RegionOption = Annotated[str, typer.Option(envvar="AWS_REGION", help="The region that requests are signed for.")]
BucketOption = Annotated[str | None, typer.Option(help="A bucket that exists, to work in. By default a new one is made and removed.")]
DrivesOption = Annotated[
    int | None, typer.Option(min=1, help="Start a store over so many new folders for this run, instead of --endpoint.")
]
ParityOption = Annotated[int | None, typer.Option(min=0, help="Parity of the store that --drives starts.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Worker processes of the store that --drives starts.")]
FolderOption = Annotated[Path, typer.Option("--dir", help="Where --drives puts its folders: on the disk to be measured, not in memory.")]
LimitOption = Annotated[
    Path | None,
    typer.Option("--limit-dir", help="A folder on the filesystem of the store's drives, to measure the limits of. Known with --drives."),
]
GeometryOption = Annotated[
    str | None, typer.Option(help="Erasure geometry of the store at --endpoint, such as 3+1, for the limit of writes.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write the report with plots to this file: one page, no other files.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@app.command()
def s3(
    endpoint: EndpointOption = None,
    drives: DrivesOption = None,
    parity: ParityOption = None,
    workers: WorkersOption = None,
    folder: FolderOption = Path(),
    bucket: BucketOption = None,
    region: RegionOption = "us-east-1",
    geometry: GeometryOption = None,
    limit_dir: LimitOption = None,
    ops: Annotated[str, typer.Option(help="What to measure, in this order: put, get, mixed, list.")] = "put,get,mixed,list",
    sizes: Annotated[str, typer.Option(help="Object sizes.")] = "4KiB,64MiB",
    concurrency: Annotated[int | None, typer.Option(min=1, help="Connections at once. Default: 32 up to 256 KiB, 4 above.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Client processes. Default: half the cores up to 256 KiB, all above.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of one timed stretch.")] = 5.0,
    warmup: Annotated[float, typer.Option(min=0, help="Seconds of each operation before the clock counts.")] = 1.0,
    repeat: Annotated[int, typer.Option(min=1, help="Timed stretches of each operation; the median is reported.")] = 3,
    objects: Annotated[
        int | None, typer.Option(min=1, help="Objects that are read. Default: 10,000 small ones, 1 GiB of large ones.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(help="How bodies are protected: sha256 (default up to 256 KiB), crc64nvme (default above), none.")
    ] = None,
    mixed_get_share: Annotated[float, typer.Option(min=0, max=1, help="The share of reads in the mix.")] = 0.7,
    list_keys: Annotated[str, typer.Option(help="Keys of the buckets of which pages are listed.")] = "2000,20000",
    unix: Annotated[bool, typer.Option("--unix", help="Connect by the UNIX socket of a store on this host.")] = False,
    json: JsonOption = None,
    html: HtmlOption = None,
    quiet: QuietOption = False,
) -> None:
    """Puts, gets, a mix of them, and listings over the wire, signed and verified.

    Clients are processes of their own. Everything is compared with what the machine can do at best, measured between the readings of
    the same run: direct disk writes and reads without any store in the way.

    One command for a first look, with a store over four folders that it starts and removes:

        forebay bench s3 --drives 4 --html report.html

    The listing test of a large bucket takes minutes to fill it: --ops list --list-keys 2000,1000000
    """
    options = S3Options(
        operations=_names(ops),
        sizes_bytes=[_size(text) for text in _names(sizes)],
        connections=concurrency,
        processes=processes,
        seconds=seconds,
        warmup_s=warmup,
        repeats=repeat,
        objects=objects,
        payload_check=payload,
        mixed_get_share=mixed_get_share,
        list_keys=[_count(text) for text in _names(list_keys)],
    )
    where = _store(endpoint, drives, parity, workers, folder, region, geometry, limit_dir)
    with _reported_failures(), Show(quiet=quiet) as show, where as store:
        endpoint_used = msgspec.structs.replace(store.endpoint, by_unix_socket=unix)
        result = run_s3(options, msgspec.structs.replace(store, endpoint=endpoint_used), bucket, show)
    _deliver(result, s3_report_of(result), json, html)


@app.command()
def mlperf(
    target: Annotated[
        str, typer.Option(help="s3://BUCKET or s3://BUCKET/PREFIX on the store, or /a/folder. Default: a bucket of its own.")
    ] = "",
    model: Annotated[str, typer.Option(help="8b, 70b, 405b or 1t: Llama 3.1 as the rules size it.")] = "8b",
    processes: Annotated[int | None, typer.Option(min=1, help="Writing processes. Default: as the rules say (8, 64, 512, 1024).")] = None,
    scale: Annotated[str, typer.Option(help="1, or 1/N for objects N times smaller; then not comparable with published results.")] = "1",
    client: Annotated[str, typer.Option(help="forebay, wire, boto3, s3torchconnector, s3dlio; for a folder: forebay, posix.")] = "forebay",
    writes: Annotated[int, typer.Option(min=1, help="Checkpoints written.")] = CHECKPOINTS,
    reads: Annotated[int, typer.Option(min=0, help="Checkpoints read afterwards.")] = CHECKPOINTS,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints, not timed.")] = 5.0,
    drop_caches: Annotated[bool, typer.Option(help="Drop this host's page cache before the reads (as root).")] = True,
    verify: Annotated[bool, typer.Option(help="After the timed reads, read one checkpoint again and compare every byte.")] = True,
    endpoint: EndpointOption = None,
    drives: DrivesOption = None,
    parity: ParityOption = None,
    workers: WorkersOption = None,
    folder: FolderOption = Path(),
    region: RegionOption = "us-east-1",
    geometry: GeometryOption = None,
    limit_dir: LimitOption = None,
    json: JsonOption = None,
    html: HtmlOption = None,
    quiet: QuietOption = False,
) -> None:
    """MLPerf Storage's checkpointing workload: exact bytes, order, processes and barriers.

    Ten checkpoints are written, then ten read. The result has the names of the reference harness's summary.json and, beside them, the
    real average, the first against the second half, part latencies, and what the machine could do at best.

        forebay bench mlperf --drives 4 --scale 1/64 --json summary.json

        forebay bench mlperf --endpoint http://10.0.0.5:9000 --target s3://bench --client s3torchconnector
    """
    options = MlperfOptions(
        workload=_workload(model, processes, scale),
        client=client,
        writes=writes,
        reads=reads,
        pause_s=pause,
        drop_caches=drop_caches,
        verify=verify,
    )
    with _reported_failures(), Show(quiet=quiet) as show, ExitStack() as stack:
        if target and not target.startswith("s3://"):
            place = stack.enter_context(folder_target(Path(target)))
        else:
            store = stack.enter_context(_store(endpoint, drives, parity, workers, folder, region, geometry, limit_dir))
            place = stack.enter_context(store_target(store, *_bucket_and_prefix(target)))
        result = run_mlperf(options, place, show)
    _deliver(result, mlperf_report_of(result), json, html)


@app.command()
def checkpoint(
    to: Annotated[str, typer.Option(help="folder, store, or both: folder,store.")] = "folder",
    sizes: Annotated[str, typer.Option(help="Sizes of the state, float32, shaped like a language model.")] = "1GiB",
    contenders: Annotated[str, typer.Option(help=f"Which libraries: {', '.join(CONTENDERS)}.")] = ",".join(CONTENDERS),
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; each goes through all libraries in turn, the median is reported.")] = 3,
    endpoint: EndpointOption = None,
    drives: DrivesOption = None,
    parity: ParityOption = None,
    workers: WorkersOption = None,
    folder: Annotated[Path, typer.Option("--dir", help="The folder to save to, and where --drives puts its own.")] = Path(),
    region: RegionOption = "us-east-1",
    geometry: GeometryOption = None,
    json: JsonOption = None,
    html: HtmlOption = None,
    quiet: QuietOption = False,
) -> None:
    """Forebay beside torch.save, DCP, safetensors, Orbax and TensorStore: saves and restores of the same state.

    How long training is blocked, how long until the checkpoint is durable (fsynced, for all alike), how long a restore from cold
    takes, extra memory, CPU, and the number of objects, beside what the disk can do. Every restored bit is compared.

        forebay bench checkpoint --dir /mnt/nvme --sizes 1GiB,4GiB --html report.html

        forebay bench checkpoint --to store --drives 4 --dir /mnt/nvme
    """
    places = _names(to)
    if not places or not set(places) <= {"folder", "store"}:
        raise typer.BadParameter(f"{to!r}: write folder, store, or folder,store", param_hint="--to")
    options = CheckpointOptions([_size(text) for text in _names(sizes)], _names(contenders), repeat)
    with _reported_failures(), Show(quiet=quiet) as show, ExitStack() as stack:
        place, bucket = folder.resolve() if "folder" in places else None, ""
        store = None
        if "store" in places:
            store = stack.enter_context(_store(endpoint, drives, parity, workers, folder, region, geometry, None))
            bucket = stack.enter_context(bucket_for_run(store.endpoint, None, keep=store.started_here))
        result = run_checkpoint(options, place, store, bucket, show)
    _deliver(result, checkpoint_report_of(result), json, html)


@app.command()
def compare(
    results: Annotated[list[Path], typer.Argument(help="JSON files that `forebay bench mlperf --json` wrote.", exists=True)],
    html: HtmlOption = None,
) -> None:
    """Runs of `bench mlperf` side by side, with the published v3.0 rows and what each row was measured under."""
    with _reported_failures():
        report = compare_report_of([path.stem for path in results], load_results(results))
    print_report(report, output_console())
    if html is not None:
        html.write_text(render_page(report), encoding="utf-8")


def _workload(model: str, processes: int | None, scale: str) -> Workload:
    try:
        return workload_of(model, processes, scale)
    except BenchmarkFailed as error:
        raise typer.BadParameter(str(error)) from error


def _bucket_and_prefix(target: str) -> tuple[str, str]:
    if not target:
        return "forebay-bench-mlperf", ""
    bucket, _, prefix = target.removeprefix("s3://").partition("/")
    if not bucket:
        raise typer.BadParameter(f"{target!r} names no bucket: write s3://BUCKET/PREFIX", param_hint="--target")
    return bucket, prefix


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sizes") from error


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise typer.BadParameter(f"{text!r} is not a number of keys", param_hint="--list-keys")
    return int(text)


def _geometry(text: str | None) -> Geometry | None:
    if text is None:
        return None
    data, plus, parity = text.partition("+")
    if not plus or not data.isdigit() or not parity.isdigit() or not int(data):
        raise typer.BadParameter(f"{text!r} is no geometry: write data+parity, such as 3+1", param_hint="--geometry")
    return Geometry(data=int(data), parity=int(parity))


@contextmanager
def _store(
    endpoint: str | None,
    drives: int | None,
    parity: int | None,
    workers: int | None,
    folder: Path,
    region: str,
    geometry: str | None,
    limit_dir: Path | None,
) -> Iterator[Store]:
    """The store that the options ask for."""
    if drives is not None:
        with temporary_store(folder, drives, parity, workers) as store:
            yield store
        return
    if endpoint is None:
        raise BenchmarkFailed("say which store: --endpoint http://HOST:PORT, or --drives 4 to start one for this run")
    access_key, secret_key = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        raise BenchmarkFailed("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to the keys of the store")
    yield running_store(endpoint_of(endpoint, access_key, secret_key, region), _geometry(geometry), limit_dir)


@contextmanager
def _reported_failures() -> Iterator[None]:
    """A failed benchmark is one clear message and exit code 1, not a traceback.

    SIGTERM unwinds like an interrupt, so that a store that was started for the run ends and its folders go.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    except BenchmarkFailed as error:
        Console(stderr=True).print(Text("benchmark failed: ", style="bold red").append(str(error), style="default"), soft_wrap=True)
        raise typer.Exit(1) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _deliver(result: msgspec.Struct, report: Report, json: Path | None, html: Path | None) -> None:
    if json is not None:  # the files first: nothing that happens to the terminal may lose a long run
        write_json(result, json)
    if html is not None:
        html.write_text(render_page(report), encoding="utf-8")
    print_report(report, output_console())
