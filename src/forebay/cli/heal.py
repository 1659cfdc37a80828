"""`forebay heal …`: putting back what a drive lacks."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from forebay.cli.admin import Session, asks_server
from forebay.cli.exits import NO
from forebay.cli.progress import follow
from forebay.cli.show import print_pairs, print_verdict, shown_bytes, shown_time

app = typer.Typer(help="Put back what a drive lacks. It happens by itself; these commands show it and hasten it.", no_args_is_help=True)

IDLE_S_MAX = 10.0  # without work begun while shards are missing: nothing more will happen by itself


@app.command()
@asks_server
def status(session: Session) -> None:
    """Show how healing goes.

    Exit code 0: nothing is left to heal. 1: healing runs, waits for a drive, or could not rebuild something. So a script waits:

        until forebay heal status > /dev/null; do sleep 5; done
    """
    _finish(session, _status(session))


@app.command()
@asks_server
def start(
    session: Session, wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done, with a progress bar.")] = False
) -> None:
    """Look at once for something to heal, instead of at the next round.

    With --wait the exit code is that of `heal status` at the end.
    """
    session.server.act("heal")
    found = _status(session)
    if wait:
        found = _wait(session)
    elif not session.as_json:
        _print(found)
    if wait or session.as_json:
        _finish(session, found)


def _status(session: Session) -> dict[str, Any]:
    """The status with what the drives are known to lack."""
    drives = session.server.ask("drives")["drives"]
    return session.server.ask("heal") | {
        "missing_shards": sum(drive["missing_shards"] for drive in drives),
        "drives_filling": sum(drive["is_filling"] for drive in drives),
        "drives_out": sum(drive["state"] != "current" for drive in drives),
    }


def _is_well(found: dict[str, Any]) -> bool:
    return not any(found[name] for name in ("running", "drives_waiting", "failed", "missing_shards", "drives_filling", "drives_out"))


def _wait(session: Session) -> dict[str, Any]:
    idle_since_s = time.monotonic()
    for found in follow("healing", lambda: _status(session), "bytes_done", "bytes_total"):
        if found["running"]:
            idle_since_s = time.monotonic()
        elif _is_well(found) or time.monotonic() - idle_since_s > IDLE_S_MAX:
            return found
    raise AssertionError("follow never ends by itself")


def _finish(session: Session, found: dict[str, Any]) -> None:
    session.show(found, _print)
    raise typer.Exit(0 if _is_well(found) else NO)


def _sentence(found: dict[str, Any]) -> str:
    if found["running"]:
        return "healing"
    if found["failed"]:
        return f"{found['failed']} blobs could not be rebuilt: too few good shards are left; bring missing drives back"
    if found["drives_out"]:
        return "waiting for drives that are out: bring them back, or `forebay drive replace` them; `forebay drive list` says why"
    return "nothing is left to heal" if _is_well(found) else "something is left to heal"


def _print(found: dict[str, Any]) -> None:
    print_verdict(_is_well(found), _sentence(found))
    print_pairs(
        {
            "shards missing": found["missing_shards"],
            "drives being filled": found["drives_filling"],
            "drives out": found["drives_out"],
            "blobs": f"{found['blobs_done']} of {found['blobs_total']}",
            "bytes": f"{shown_bytes(found['bytes_done'])} of {shown_bytes(found['bytes_total'])}",
            "not rebuilt": found["failed"],
            "started": shown_time(found["started_s"]),
            "finished": shown_time(found["finished_s"]),
        }
    )
