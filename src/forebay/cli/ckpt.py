"""`forebay ckpt …`: checkpoints, seen from any machine, without accelerators and mostly without frameworks.

Locations are paths, `s3://`, `gs://` and `az://` URLs; only the bytes that a command needs are read.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from forebay.checkpoint import catalog
from forebay.checkpoint.compare import Difference, compare
from forebay.checkpoint.convert import FORMATS, SHARD_BYTES
from forebay.checkpoint.convert import convert as convert_checkpoint
from forebay.checkpoint.dtypes import itemsize_of
from forebay.checkpoint.group import SingleProcess
from forebay.checkpoint.handle import Checkpoint
from forebay.checkpoint.housekeeping import FACTS_KEY, Held, doomed
from forebay.checkpoint.manifest import MANIFEST_KEY, Array, ArrayEntry, Manifest, Value, path_text
from forebay.checkpoint.policy import Keep
from forebay.checkpoint.read import find_node, read_manifest, resolve_together
from forebay.checkpoint.transfer import copy_checkpoint
from forebay.checkpoint.verify import verify as verify_checkpoint
from forebay.cli.exits import NO, WrongUsage
from forebay.cli.show import print_json, print_pairs, print_table, print_verdict, shown_bytes, shown_seconds
from forebay.errors import CheckpointMissing
from forebay.locations import Location, open_location

app = typer.Typer(help="Checkpoints: look at them, check, compare, copy, convert, remove.", no_args_is_help=True)

Place = Annotated[str, typer.Argument(metavar="LOCATION", help="A checkpoint or a run: a path or an s3://, gs:// or az:// URL.")]
StepOption = Annotated[int | None, typer.Option("--step", help="The checkpoint of this step; the newest complete one by default.", min=0)]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# --- looking


@app.command("ls")
def list_run(location: Place, json: JsonOption = False) -> None:
    """List the checkpoints of a run: step, when, size, and whether it is complete and permanent.

    Exit code 1 if there is no complete one.
    """
    run = open_location(location)
    complete = {step.name: step for step in catalog.list_steps(run)}
    rows = [_row(run, number, name, complete.get(name)) for number, name in catalog.step_folders(run)]
    if json:
        print_json(rows)
    elif rows:
        columns = ("step", "state", "saved", "age", "size", "arrays", "why")
        print_table(columns, [_cells(row) for row in rows], numbers=("step", "size", "arrays"))
    else:
        Console(stderr=True).print(f"no checkpoints of Forebay's in {run.url}", soft_wrap=True)
    if not complete:
        raise typer.Exit(NO)


def _row(run: Location, number: int, name: str, step: catalog.Step | None) -> dict[str, Any]:
    row: dict[str, Any] = {"step": number, "name": name, "state": "unfinished"}
    if step is None:
        return row
    try:
        manifest, _ = read_manifest(run.child(name))
    except CheckpointMissing:
        return row
    said = manifest.metadata.get(FACTS_KEY)
    return {
        **row, "state": "temporary" if manifest.temporary else "complete", "created_s": manifest.created_s,
        "size_bytes": manifest.size_bytes, "arrays": len(manifest.arrays), "why": said.get("why", "") if isinstance(said, dict) else "",
    }  # fmt: skip


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    styles = {"complete": "green", "temporary": "yellow", "unfinished": "dim"}
    state = Text(row["state"], style=styles[row["state"]])
    if "created_s" not in row:
        return row["step"], state, "", "", "", "", ""
    when = datetime.datetime.fromtimestamp(row["created_s"]).strftime("%Y-%m-%d %H:%M:%S")
    age = shown_seconds(max(0.0, time.time() - row["created_s"]))
    return row["step"], state, when, age, shown_bytes(row["size_bytes"]), row["arrays"], row["why"]


@app.command()
def show(
    location: Place,
    step: StepOption = None,
    under: Annotated[str, typer.Option("--under", metavar="PATH", help="Only this part of the tree, such as model/layers.")] = "",
    json: JsonOption = False,
) -> None:
    """Print what a checkpoint holds: every array with its dtype, shape, size and sharding, every other value, and who wrote it.

    Also what Orbax, Levanter, torch DCP and safetensors wrote.
    """
    opened = _open(location, step)
    node = find_node(opened.manifest, under, opened.location.url)
    leaves = [_leaf(opened.manifest, path_text(path), leaf) for path, leaf in opened.manifest.leaves(node)]
    about = _about(opened)
    if json:
        print_json({**about, "leaves": leaves})
        return
    about["size"] = shown_bytes(about.pop("size_bytes"))
    print_pairs(about)
    rows = [(leaf["path"], leaf["type"], leaf.get("shape", ""), shown_bytes(leaf["size_bytes"]) if "size_bytes" in leaf else leaf["value"],
             leaf.get("sharding", "")) for leaf in leaves]  # fmt: skip
    print_table(("path", "type", "shape", "size or value", "sharding"), rows)


def _about(opened: Checkpoint) -> dict[str, Any]:
    manifest = opened.manifest
    about: dict[str, Any] = {"url": opened.location.url, "step": manifest.step, "writer": manifest.writer, "temporary": manifest.temporary}
    if manifest.created_s:
        about["created"] = datetime.datetime.fromtimestamp(manifest.created_s).isoformat(" ", "seconds")
    about |= {"files": len(manifest.files), "arrays": len(manifest.arrays)}
    about["size_bytes"] = sum(map(_size_of, manifest.arrays))
    return about | ({"metadata": manifest.metadata} if manifest.metadata else {})


def _size_of(entry: ArrayEntry) -> int:
    return math.prod(entry.shape) * itemsize_of(entry.dtype)


def _leaf(manifest: Manifest, path: str, leaf: Array | Value) -> dict[str, Any]:
    if isinstance(leaf, Value):
        return {"path": path, "type": leaf.kind, "value": leaf.text}
    entry = manifest.arrays[leaf.index]
    described = {"path": path, "type": entry.dtype, "shape": list(entry.shape), "size_bytes": _size_of(entry), "kind": leaf.kind}
    return {**described, "pieces": len(entry.pieces), "sharding": entry.sharding}


# --- checking and comparing


@app.command()
def verify(location: Place, step: StepOption = None, json: JsonOption = False) -> None:
    """Read a checkpoint whole and check every checksum. Exit code 1 if anything is damaged, with array, file and bytes."""
    opened = _open(location, step)
    with _bytes_bar("verifying", opened.manifest.size_bytes) as advance:
        verdict = verify_checkpoint(opened.location, opened.manifest, advance)
    if json:
        print_json({"url": opened.location.url, **dataclasses.asdict(verdict), "good": not verdict.damages})
    else:
        for damage in verdict.damages:
            array = f"array {damage.array!r}, " if damage.array else ""
            print(f"{array}{damage.file}, bytes {damage.first} to {damage.last}: {damage.what}")
        counted = f"{verdict.blocks} blocks in {verdict.files} files, {shown_bytes(verdict.size_bytes)}"
        state = f"{len(verdict.damages)} damaged of" if verdict.damages else "every checksum is right:"
        print_verdict(not verdict.damages, f"{opened.location.url}: {state} {counted}")
    if verdict.damages:
        raise typer.Exit(NO)


@app.command()
def diff(
    first: Place,
    second: Annotated[str, typer.Argument(metavar="LOCATION", help="The other one; of the same run: its step, as @2000.")],
    step: StepOption = None,
    every: Annotated[bool, typer.Option("--all", help="List what is equal too.")] = False,
    json: JsonOption = False,
) -> None:
    """Compare two checkpoints array by array: equal, changed and how much, other shape or dtype, only in one.

    Where checksums prove equality nothing is read. Exit code 1 if they differ.

    For example: forebay ckpt diff s3://bucket/run --step 1000 @2000
    """
    a = _open(first, step)
    b = _open(first, int(second[1:])) if second[:1] == "@" and second[1:].isdecimal() else _open(second, None)
    with _count_bar("comparing", sum(1 for _ in a.manifest.leaves())) as advance:
        differences = list(compare(a, b, lambda path: advance(1)))
    unequal = [d for d in differences if d.status != "equal"]
    if json:
        shown = differences if every else unequal
        print_json({"first": a.location.url, "second": b.location.url, "equal": len(differences) - len(unequal),
                    "differences": [dataclasses.asdict(d) for d in shown]})  # fmt: skip
    else:
        _print_differences(differences if every else unequal)
        count = len(differences)
        print_verdict(not unequal, f"{len(unequal)} of {count} leaves differ" if unequal else f"all {count} leaves are equal, bit for bit")
    if unequal:
        raise typer.Exit(NO)


def _print_differences(differences: list[Difference]) -> None:
    if not differences:
        return
    names = {"first": "only in the first", "second": "only in the second", "other": "another kind"}
    rows = []
    for d in differences:
        much = f"{d.changed_count} of {d.count} ({100 * d.changed_count / d.count:.3g}%)" if d.changed_count else ""
        largest = "" if d.max_difference is None else f"{d.max_difference:.6g}"
        rows.append((d.path, names.get(d.status, d.status), much, largest, d.detail))
    print_table(("path", "state", "changed", "largest difference", ""), rows)


# --- copying and converting


@app.command("cp")
def copy(
    source: Place,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The run to copy it into; with --exact, the checkpoint's own folder.")],
    step: StepOption = None,
    exact: Annotated[bool, typer.Option("--exact", help="TARGET is the checkpoint's own folder, not a run.")] = False,
    keep_temporary: Annotated[
        bool, typer.Option("--keep-temporary", help="Leave a temporary one temporary; else it becomes permanent.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy a checkpoint to another place, checking every byte on the way. It appears there whole, or not at all.

    For example: forebay ckpt cp s3://bucket/run-7 /data/run-7 --step 2000
    """
    opened = _open(source, step)
    place = open_location(target)
    if not exact and opened.step is not None:
        place = place.child(catalog.step_name(opened.step))
    with _bytes_bar("copying", opened.manifest.size_bytes) as advance:
        made = copy_checkpoint(opened.location, opened.manifest, place, keep_temporary=keep_temporary, copied=advance)
    _done(json, place.url, f"copied {shown_bytes(made.size_bytes)} to {place.url}", size_bytes=made.size_bytes)


@app.command()
def convert(
    source: Place,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="An empty folder or prefix. Orbax and DCP write to folders only.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")],
    step: StepOption = None,
    shard_bytes: Annotated[
        int, typer.Option("--shard-bytes", help="The most a safetensors file holds.", min=2**20, max=2**36)
    ] = SHARD_BYTES,
    json: JsonOption = False,
) -> None:
    """Write a checkpoint in another format, or one of another program's in ours.

    To safetensors and forebay it is streamed in bounded memory; to orbax and dcp it is held in memory whole, as their own
    writers want it. safetensors has room for tensors only: other values are named and left out.
    """
    opened = _open(source, step)
    total = sum(map(_size_of, opened.manifest.arrays))
    with _bytes_bar("converting", total) as advance:
        left_out = convert_checkpoint(opened, open_location(target), to, shard_bytes=shard_bytes, done=advance)
    if left_out and not json:
        print(f"left out, for {to} holds tensors only: {', '.join(left_out[:20])}{' …' if len(left_out) > 20 else ''}")
    _done(json, target, f"wrote {target} as {to}", left_out=left_out)


# --- removing


@app.command("rm")
def remove(
    location: Annotated[str, typer.Argument(metavar="RUN", help="A run, with --step or --all; or one checkpoint's own folder.")],
    step: Annotated[list[int] | None, typer.Option("--step", help="The step to remove. May be repeated.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All checkpoints of the run.")] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove checkpoints, manifest first, so that a half-removed one is never loaded."""
    run = open_location(location)
    names = _to_remove(run, step or [], every)
    what = f"{len(names)} checkpoint{'s' * (len(names) != 1)} of {run.url}: {', '.join(n or run.url for n in names[:10])}"
    if not yes and not typer.confirm(f"Remove {what}?", err=True):
        raise typer.Exit(NO)
    with _count_bar("removing", len(names)) as advance:
        for name in names:
            catalog.delete(run.child(name) if name else run)
            advance(1)
    _done(json, run.url, f"removed {what}", removed=names)


def _to_remove(run: Location, steps: list[int], every: bool) -> list[str]:
    """Folders below the run; an empty name is the location itself. Raises `WrongUsage`, `CheckpointMissing`."""
    folders = dict(catalog.step_folders(run))
    if every:
        return list(folders.values())
    missing = [step for step in steps if step not in folders]
    if missing:
        raise CheckpointMissing(f"{run.url} has no checkpoint of step {missing[0]}; it has {', '.join(map(str, folders)) or 'none'}")
    if steps:
        return [folders[step] for step in steps]
    if run.head(MANIFEST_KEY) is None:
        raise WrongUsage(f"{run.url} is a run: say which with --step, or --all")
    return [""]


@app.command()
def gc(
    location: Annotated[str, typer.Argument(metavar="RUN", help="A run.")],
    older_than_hours: Annotated[float, typer.Option("--older-than-hours", help="Leave alone what was written to since.", min=0.0)] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which temporary checkpoints would go.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove what nothing needs: unfinished saves and uploads that nobody has written to for a day, files of attempts that
    lost, and temporary checkpoints with a newer one beside them. A save that is going on is left alone.
    """
    run = open_location(location)
    before_s = time.time() - older_than_hours * 3600
    steps = {step.name: step for step in catalog.list_steps(run)}
    held = [Held.of(run, step, read_manifest(run.child(name))[0]) for name, step in steps.items()]
    gone = [row.name for row in doomed(held, Keep(), run.url) if steps[row.name].modified_s < before_s]
    if dry_run:
        _done(json, run.url, f"would remove {len(gone)} temporary checkpoints of {run.url}: {', '.join(gone)}", temporary=gone)
        return
    for name in gone:
        catalog.delete(run.child(name))
    swept = catalog.sweep(run, older_than_hours * 3600)
    text = f"removed {len(gone)} temporary checkpoints, and what unfinished saves had left in {len(swept)} folders, of {run.url}"
    _done(json, run.url, text, temporary=gone, swept=swept)


# --- common


def _open(location: str, step: int | None) -> Checkpoint:
    place, manifest = resolve_together(open_location(location), step, SingleProcess())
    return Checkpoint(place, manifest)


def _done(json: bool, url: str, sentence: str, **fields: Any) -> None:
    if json:
        print_json({"url": url, **fields})
    else:
        print_verdict(True, sentence)


@contextmanager
def _bytes_bar(what: str, total: int) -> Iterator[Any]:
    with _bar(what, total, DownloadColumn(binary_units=True), TransferSpeedColumn()) as advance:
        yield advance


@contextmanager
def _count_bar(what: str, total: int) -> Iterator[Any]:
    with _bar(what, total, MofNCompleteColumn()) as advance:
        yield advance


@contextmanager
def _bar(what: str, total: int, *columns: Any) -> Iterator[Any]:
    """A progress bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what), BarColumn(), *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)
