"""The report as one HTML page that needs nothing else: no script, no font, no request; light and dark as the reader's system is."""

from __future__ import annotations

from html import escape

from forebay.bench.plots import bars_svg, lines_svg
from forebay.bench.report import Bars, Lines, Report, Section, Table, Tile

_STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1d2329; --dim: #5d6873; --rule: #dfe3e6;
  --bar: #2f74b5; --limit: #c2410c; --good: #15803d; --bad: #b91c1c; --warn: #fff4db; --warn-ink: #6b4600;
  --s0: #2f74b5; --s1: #c2410c; --s2: #15803d; --s3: #7c3aed; --s4: #b45309; --s5: #0e7490; }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --card: #1b2127; --ink: #e4e8ec; --dim: #98a4af; --rule: #323b44;
  --bar: #5aa2e0; --limit: #fb923c; --good: #4ade80; --bad: #f87171; --warn: #3a2f14; --warn-ink: #f6d98a;
  --s0: #5aa2e0; --s1: #fb923c; --s2: #4ade80; --s3: #b794f6; --s4: #fbbf24; --s5: #22d3ee; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { margin: 0; font-size: 28px; } h2 { margin: 44px 0 8px; font-size: 20px; } h3 { margin: 0 0 6px; font-size: 14px; }
.subtitle, p { color: var(--dim); margin: 4px 0 14px; max-width: 80ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 12px; margin: 24px 0; }
.tile, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px; margin: 0; }
.tile b { display: block; font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: 13px; display: block; }
.good b { color: var(--good); } .bad b { color: var(--bad); }
.warnings { background: var(--warn); color: var(--warn-ink); border-radius: 8px; padding: 10px 16px 10px 34px; margin: 16px 0; }
.scroll { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; background: var(--card); border: 1px solid var(--rule); }
th, td { padding: 6px 12px; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { color: var(--dim); font-weight: 600; } .word { text-align: left; } td.word { white-space: normal; overflow-wrap: anywhere; }
td.word:first-child { white-space: nowrap; } caption { caption-side: bottom; color: var(--dim); text-align: left; padding: 6px 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 12px; margin: 12px 0; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); }
.wide { grid-column: 1 / -1; } .bar { fill: var(--bar); } .whisker { stroke: var(--ink); stroke-width: 1.5; }
.grid { stroke: var(--rule); } svg .tick { fill: var(--dim); } svg .value { font-weight: 600; }
.limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 5 4; } svg .limit-label { fill: var(--limit); }
.series { fill: none; stroke-width: 2; stroke-linejoin: round; }
.s0 { stroke: var(--s0); background: var(--s0); } .s1 { stroke: var(--s1); background: var(--s1); }
.s2 { stroke: var(--s2); background: var(--s2); } .s3 { stroke: var(--s3); background: var(--s3); }
.s4 { stroke: var(--s4); background: var(--s4); } .s5 { stroke: var(--s5); background: var(--s5); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 0; font-size: 13px; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle; }
"""


def render_page(report: Report) -> str:
    """The page, complete from doctype to end tag."""
    warnings = "".join(f"<li>{escape(warning)}</li>" for warning in report.warnings)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(report.title)}</h1><p class="subtitle">{escape(report.subtitle)}</p>'
        + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")
        + f'<div class="tiles">{"".join(map(_tile, report.tiles))}</div>'
        + "".join(map(_section, report.sections))
        + "</main></body></html>\n"
    )


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile {tile.level}"><span>{escape(tile.label)}</span><b>{escape(tile.value)}</b><span>{escape(tile.note)}</span></div>'
    )


def _section(section: Section) -> str:
    paragraphs = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in section.paragraphs)
    tables = "".join(_table(item) for item in section.items if isinstance(item, Table))
    charts = "".join(_figure(item) for item in section.items if not isinstance(item, Table))
    return f"<section><h2>{escape(section.title)}</h2>{paragraphs}{tables}" + (
        f'<div class="charts">{charts}</div></section>' if charts else "</section>"
    )


def _figure(chart: Bars | Lines) -> str:
    if isinstance(chart, Bars):
        return f'<figure class="wide"><h3>{escape(chart.title)}</h3>{bars_svg(chart)}</figure>'
    return f"<figure><h3>{escape(chart.title)}</h3>{lines_svg(chart)}</figure>"


def _table(table: Table) -> str:
    def kind(index: int) -> str:
        return ' class="word"' if index < table.text_columns else ""

    head = "".join(f"<th{kind(i)}>{escape(name)}</th>" for i, name in enumerate(table.columns))
    rows = "".join("<tr>" + "".join(f"<td{kind(i)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>" for row in table.rows)
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    return f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
