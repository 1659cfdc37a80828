"""`forebay node …`: the machine that serves."""

from __future__ import annotations

from typing import Any

import typer

from forebay.cli.admin import Session, asks_server
from forebay.cli.show import print_pairs, shown_bytes, shown_seconds

app = typer.Typer(help="The machine that serves the store.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `node` a group although it has one command."""


@app.command()
@asks_server
def info(session: Session) -> None:
    """Print address, processes, memory and software of the node.

    The `pid` is the supervisor's: SIGTERM to it ends the server gracefully.
    """
    session.show(session.server.ask("node"), _print_node)


def _print_node(node: dict[str, Any]) -> None:
    shown = dict(node)
    shown["up for"] = shown_seconds(shown.pop("uptime_s"))
    shown["buffers"] = shown_bytes(shown.pop("buffer_bytes"))
    print_pairs(shown)
