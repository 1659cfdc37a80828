"""`forebay drive …`: the drives of the store."""

from __future__ import annotations

import difflib
import os
from typing import Annotated, Any

import typer

from forebay.cli.admin import Session, asks_server
from forebay.cli.exits import NO, WrongUsage
from forebay.cli.show import print_pairs, print_table, shown_bytes, state_text

app = typer.Typer(help="The drives of the store: list, info, replace.", no_args_is_help=True)

DriveArgument = Annotated[str, typer.Argument(metavar="DRIVE", help="Its path, its id, or SET:POSITION as the list shows them.")]


def print_drives(drives: list[dict[str, Any]]) -> None:
    """One line for each drive."""
    rows = [
        (
            f"{drive['set']}:{drive['position']}",
            state_text(drive["state"]),
            _used_percent(drive),
            shown_bytes(drive["free_bytes"]) if drive["total_bytes"] else "-",
            "?" if drive["is_filling"] else drive["missing_shards"],
            drive["path"],
            drive["reason"],
        )
        for drive in drives
    ]
    columns = ["drive", "state", "used", "free", "to heal", "path", "why"]
    if not any(drive["reason"] for drive in drives):
        columns.pop()
    print_table(columns, [row[: len(columns)] for row in rows], numbers=("used", "free", "to heal"))


def _used_percent(drive: dict[str, Any]) -> str:
    if not drive["total_bytes"]:
        return "-"
    return f"{100 * (1 - drive['free_bytes'] / drive['total_bytes']):.0f}%"


@app.command("list")
@asks_server
def list_drives(session: Session) -> None:
    """List all drives: position, state, space, shards to heal, path.

    States: current (in service), syncing (catching up), stale (came back, not yet caught up), offline (missing or failed).
    Exit code 1 if any drive is not current.
    """
    document = session.server.ask("drives")
    session.show(document, lambda shown: print_drives(shown["drives"]))
    if any(drive["state"] != "current" for drive in document["drives"]):
        raise typer.Exit(NO)


@app.command()
@asks_server
def info(session: Session, drive: DriveArgument) -> None:
    """Print all that is known of one drive. Exit code 1 if it is not current.

    For example: forebay drive info 0:2
    """
    found = _find(session.server.ask("drives")["drives"], drive)
    session.show(found, _print_drive)
    if found["state"] != "current":
        raise typer.Exit(NO)


@app.command()
@asks_server
def replace(
    session: Session,
    drive: DriveArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Declare that the folder at a drive's path is a new, empty drive, and refill it from the others.

    A new disk at the same path is usually recognised and refilled by itself. This is for when the server cannot be sure: it waits
    when the folder is on another filesystem than before, as that may be a disk that is not mounted. The drive must be out of service
    and its folder empty. For example, after mounting a new disk at /mnt/d3:

        forebay drive replace /mnt/d3
    """
    found = _find(session.server.ask("drives")["drives"], drive)
    if not yes and not session.as_json:
        typer.confirm(f"Make {found['path']} (now {found['state']}) a new, empty drive and refill it?", abort=True)
    session.show(session.server.act("drives/replace", set=found["set"], position=found["position"]), _print_drive)


def _print_drive(drive: dict[str, Any]) -> None:
    shown = dict(drive)
    shown["state"] = state_text(shown["state"])
    for name in [name for name in shown if name.endswith("_bytes")]:
        shown[name.removesuffix("_bytes")] = shown_bytes(shown.pop(name))
    print_pairs(shown)


def _find(drives: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    """The drive that a path, an id or SET:POSITION names. Raises WrongUsage with the nearest path."""
    for drive in drives:
        names = (drive["path"], drive.get("drive_id"), f"{drive['set']}:{drive['position']}", drive["path"].rstrip("/"))
        if wanted in names or wanted.rstrip("/") in names or os.path.realpath(wanted) == os.path.realpath(drive["path"]):
            return drive
    close = difflib.get_close_matches(wanted, [drive["path"] for drive in drives], n=1, cutoff=0.4)
    raise WrongUsage(f"no drive {wanted!r} here" + (f"; did you mean {close[0]}?" if close else "; `forebay drive list` shows them"))
