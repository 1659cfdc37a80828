"""A report as data.

What the terminal and the HTML page both show. Benchmarks build it from their results, and only from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Tile:
    """One headline: a large value with its label and a sentence on what it is relative to."""

    label: str
    value: str
    note: str = ""
    level: Literal["good", "plain", "bad"] = "plain"


@dataclass(frozen=True)
class Table:
    """Rows of text under column names; the first `text_columns` columns are words, the rest numbers (aligned right)."""

    columns: list[str]
    rows: list[list[str]]
    text_columns: int = 1
    caption: str = ""


@dataclass(frozen=True)
class Bar:
    """One horizontal bar: a value, the range that repeats of it spanned, and how to write it."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bars:
    """A bar chart. `limit` is drawn as a line across it."""

    title: str
    bars: list[Bar]
    limit: float | None = None
    limit_label: str = ""


@dataclass(frozen=True)
class Series:
    """One line of a chart: points in order of x."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Lines:
    """A line chart. `limit` is drawn as a line across it, in the unit of y."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    limit: float | None = None
    limit_label: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, then tables and charts (the terminal leaves charts out)."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    items: Sequence[Table | Bars | Lines] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """A whole report. `warnings` stand at the top: what makes the figures less than they seem."""

    title: str
    subtitle: str
    tiles: list[Tile]
    sections: list[Section]
    warnings: list[str] = field(default_factory=list)
