"""The terminal's side: a progress bar while a benchmark runs, and its report as tables afterwards."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from forebay.bench.figures import show_rate
from forebay.bench.report import Report, Table

_LEVEL_STYLE = {"good": "bold green", "plain": "bold", "bad": "bold red"}


_PLAIN_WIDTH = 120


class Show:
    """A progress bar on standard error.

    What is done now, for how long, and how fast. Silent when that is no terminal.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None, rate="")
        self._start_s = time.monotonic()

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove the bar."""
        self._progress.stop()

    def step(self, what: str, seconds: float) -> None:
        """A new step begins, that takes `seconds` (0: nobody knows)."""
        self._start_s = time.monotonic()
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=seconds or None, rate="")

    def moved(self, size_bytes: float) -> None:
        """So many bytes have moved since the step began."""
        elapsed_s = time.monotonic() - self._start_s
        self._progress.update(self._task, completed=elapsed_s, rate=show_rate(size_bytes / max(elapsed_s, 1e-3)))


def output_console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for every table when it is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def print_report(report: Report, console: Console) -> None:
    """Print headlines, warnings and tables; charts are for the page."""
    console.print()
    console.print(Text(report.title, style="bold underline"), Text(report.subtitle, style="dim"))
    for warning in report.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for tile in report.tiles:
        line = Text(f"  {tile.label}: ").append(tile.value, style=_LEVEL_STYLE[tile.level]).append(f"  {tile.note}", style="dim")
        console.print(line)
    for section in report.sections:
        tables = [item for item in section.items if isinstance(item, Table)]
        if not tables:
            continue
        console.print()
        console.print(Text(section.title, style="bold"))
        for table in tables:
            console.print(_rich_table(table))
        for paragraph in section.paragraphs:
            console.print(Text(paragraph, style="dim"))


def _rich_table(table: Table) -> RichTable:
    drawn = RichTable(caption=table.caption or None, caption_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(table.columns):
        is_text = index < table.text_columns
        drawn.add_column(Text(column), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
