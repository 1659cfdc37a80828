"""The page: valid, complete in itself, and safe with any text."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from forebay.bench.page import render_page
from forebay.bench.plots import bars_svg, lines_svg
from forebay.bench.report import Bar, Bars, Lines, Report, Section, Series, Table, Tile
from forebay.bench.terminal import print_report

NASTY = "<script>alert('&\"')</script>"
REPORT = Report(
    title=NASTY,
    subtitle="sub",
    tiles=[Tile("put", "97% of the limit", NASTY, "good")],
    warnings=[NASTY],
    sections=[
        Section(
            NASTY,
            [NASTY],
            [
                Table(["name", NASTY], [[NASTY, "1.0"]], caption=NASTY),
                Bars(NASTY, [Bar(NASTY, 1.0, "1.0", 0.5, 1.5), Bar("zero", 0.0, "0")], limit=2.0, limit_label=NASTY),
                Lines(NASTY, "s", "GiB/s", [Series("a", [(0, 1), (1, 2)]), Series("b", [(0, 2), (1, 0)])], 1.5, "limit"),
            ],
        )
    ],
)
VOID = {"meta", "br", "img", "hr", "input", "link"}


class Balance(HTMLParser):
    """Fails on a tag that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def test_the_page_is_balanced_and_asks_for_nothing() -> None:
    page = render_page(REPORT)
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    tags = [tag for tag, _ in parser.seen]
    assert tags[0] == "html" and {"svg", "table", "style", "title"} <= set(tags)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(tags)
    for _, attributes in parser.seen:
        assert not {"src", "href", "xlink:href", "onload", "style"} & set(attributes)
    assert not re.search(r"url\(|@import|https?://", page)


def test_text_is_never_markup() -> None:
    page = render_page(REPORT)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8


def test_dark_and_light_are_both_there() -> None:
    assert "prefers-color-scheme: dark" in render_page(REPORT)


@pytest.mark.parametrize("limit", [None, 0.5, 100.0])
def test_charts_are_xml_and_stay_inside(limit: float | None) -> None:
    bars = Bars("b", [Bar("a", 3.0, "3", 1.0, 9.0), Bar("b & c", 0.0, "0")], limit, "limit")
    lines = Lines("l", "x", "y", [Series("a", [(0.0, 0.0), (7.3, 11.0)])], limit, "limit")
    for svg in (bars_svg(bars), lines_svg(lines)):
        root = ElementTree.fromstring(svg)
        width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            for name in ("x", "x1", "x2", "cx"):
                assert 0 <= float(element.attrib.get(name, 0)) <= width
            for name in ("y", "y1", "y2"):
                assert 0 <= float(element.attrib.get(name, 0)) <= height
            for point in element.attrib.get("points", "").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width and 0 <= y <= height


def test_a_chart_of_nothing_is_drawn() -> None:
    ElementTree.fromstring(lines_svg(Lines("l", "x", "y", [Series("a", [])])))
    ElementTree.fromstring(bars_svg(Bars("b", [Bar("a", 0.0, "0")])))


def test_the_terminal_shows_the_same_tables() -> None:
    console = Console(width=120, file=io.StringIO())
    print_report(REPORT, console)
    text = console.file.getvalue()
    assert "97% of the limit" in text and NASTY in text
