"""The command line of the benchmarks, mounted by the main one as `forebay bench`."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="bench",
    help="Measure a store, a checkpoint library, or both, against the limits of this machine.",
    no_args_is_help=True,
)
