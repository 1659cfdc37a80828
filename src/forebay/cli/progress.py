"""A bar on standard error while the server works on something long; silent where that is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from forebay.cli.show import shown_bytes

POLL_S = 0.5


def follow(what: str, ask: Callable[[], dict[str, Any]], done_field: str, total_field: str) -> Iterator[dict[str, Any]]:
    """Yield what `ask` answers, again and again, while a bar shows its two fields of bytes; end it by leaving the loop."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None, amount="")
        while True:
            status = ask()
            done, total = status[done_field], status[total_field]
            amount = f"{shown_bytes(done)} of {shown_bytes(total)}" if total else ""
            progress.update(task, completed=done, total=max(done, total) or None, amount=amount)
            yield status
            time.sleep(POLL_S)
