"""`forebay scrub …`: reading everything and checking it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forebay.cli.admin import Session, asks_server
from forebay.cli.exits import NO
from forebay.cli.progress import follow
from forebay.cli.show import print_pairs, print_verdict, shown_bytes, shown_time

app = typer.Typer(help="Read every record and every block, and check them. It happens by itself every two weeks.", no_args_is_help=True)


@app.command()
@asks_server
def status(session: Session) -> None:
    """Show the running scrub, or what the last one found.

    Exit code 0: no damage was found. 1: some was; it is healed from the other drives, see `forebay heal status`.
    """
    _finish(session, session.server.ask("scrub"))


@app.command()
@asks_server
def start(
    session: Session, wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done, with a progress bar.")] = False
) -> None:
    """Begin a scrub now, unless one is running.

    It reads at a bounded rate, so that clients do not suffer. With --wait the exit code is that of `scrub status` at the end.
    """
    found = session.server.act("scrub")
    if wait:
        for found in follow("scrubbing", lambda: session.server.ask("scrub"), "bytes_checked", "bytes_total"):
            if not found["running"]:
                break
        _finish(session, found)
    session.show(found, _print)


def _is_clean(found: dict[str, Any]) -> bool:
    return not found["records_bad"] and not found["blocks_bad"]


def _finish(session: Session, found: dict[str, Any]) -> None:
    session.show(found, _print)
    raise typer.Exit(0 if _is_clean(found) else NO)


def _sentence(found: dict[str, Any]) -> str:
    damage = f"{found['records_bad']} records and {found['blocks_bad']} blocks are damaged or missing"
    if found["running"]:
        return "scrubbing; " + ("no damage so far" if _is_clean(found) else f"so far {damage}")
    if not found["started_s"]:
        return "no scrub has run since the server started"
    return "no damage" if _is_clean(found) else damage


def _print(found: dict[str, Any]) -> None:
    print_verdict(_is_clean(found), _sentence(found))
    print_pairs(
        {
            "records": f"{found['records_checked']} checked, {found['records_bad']} bad",
            "blocks": f"{found['blocks_checked']} checked, {found['blocks_bad']} bad",
            "bytes": f"{shown_bytes(found['bytes_checked'])} of {shown_bytes(found['bytes_total'])}",
            "started": shown_time(found["started_s"]),
            "finished": shown_time(found["finished_s"]),
            "next": shown_time(found["next_s"]),
        }
    )
