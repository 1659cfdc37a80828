"""How answers look: JSON for programs, tables for people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

STATE_STYLES = {"current": "green", "syncing": "yellow", "stale": "yellow", "offline": "bold red"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_json(document: Any) -> None:
    """One JSON document, indented, keys as the server gave them."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Name and value, one pair a line, aligned."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        grid.add_row(Text(name, style="dim"), value if isinstance(value, Text) else Text(str(value)))
    Console().print(grid)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> None:
    """A table; columns named in `numbers` are aligned to the right. No cell is cut short when the output is no terminal."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    console.print(table, crop=False)


def print_verdict(good: bool, sentence: str) -> None:
    """The line that says yes or no."""
    Console().print(Text("● ", style="green" if good else "bold red").append(sentence, style="bold"), soft_wrap=True)


def state_text(state: str) -> Text:
    """A drive's state in its colour."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def shown_bytes(size_bytes: float) -> str:
    """`1.5 GiB`: three significant digits and a binary unit."""
    power = 0
    while abs(size_bytes) >= 1000 and power < len(_UNITS) - 1:
        size_bytes /= 1024
        power += 1
    return f"{size_bytes:.0f} {_UNITS[0]}" if power == 0 else f"{size_bytes:.3g} {_UNITS[power]}"


def shown_seconds(seconds: float) -> str:
    """`2 d 3 h`, `4 min 5 s`, `1.2 s`: the two largest units."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    for length_s, unit, below_s, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= length_s:
            return f"{int(seconds // length_s)} {unit} {int(seconds % length_s // below_s)} {below}"
    raise AssertionError(seconds)


def shown_time(unix_s: float) -> str:
    """`2026-05-01 12:00:00` in local time, or a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else "-"
