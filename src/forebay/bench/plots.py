"""Charts as inline SVG. Colours come from the page's style sheet, so that one drawing serves light and dark."""

from __future__ import annotations

import math
from html import escape

from forebay.bench.report import Bars, Lines, Series

_WIDTH = 760
_LINES_WIDTH = 480  # two stand side by side
_ROW = 30
_CHARACTER = 6.9  # average width of a letter at the font size of labels (12 px)
_SERIES_COLOURS = 6


def bars_svg(chart: Bars) -> str:
    """Horizontal bars, one a row, with whiskers for ranges and a dashed line for the limit."""
    top = 26 if chart.limit is not None else 8
    left = min(280.0, 16 + max(len(bar.label) for bar in chart.bars) * _CHARACTER)
    right = 20 + max(len(bar.text) for bar in chart.bars) * _CHARACTER
    high = max([*(bar.high if bar.high is not None else bar.value for bar in chart.bars), chart.limit or 0.0]) or 1.0
    scale = (_WIDTH - left - right) / high
    height = top + _ROW * len(chart.bars) + 8
    parts = []
    if chart.limit is not None:
        x = left + chart.limit * scale
        parts.append(_line(x, top - 6, x, height - 4, "limit") + _text(x, 14, chart.limit_label, "limit-label", "middle"))
    for index, bar in enumerate(chart.bars):
        y = top + _ROW * index
        middle = y + _ROW / 2
        parts.append(_text(left - 8, middle + 4, bar.label, "label", "end"))
        title = f"<title>{escape(bar.label)}: {escape(bar.text)}</title>"
        parts.append(
            f'<rect class="bar" x="{left:.1f}" y="{y + 6}" width="{max(1.0, bar.value * scale):.1f}" height="18" rx="3">{title}</rect>'
        )
        end = bar.value
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            parts.append(_whisker(left + bar.low * scale, left + bar.high * scale, middle))
            end = max(end, bar.high)
        parts.append(_text(left + end * scale + 8, middle + 4, bar.text, "value", "start"))
    return _svg(_WIDTH, height, chart.title, "".join(parts))


def lines_svg(chart: Lines) -> str:
    """Lines over a grid that starts at zero, with a dashed line for the limit and a legend for several."""
    width, height, left, right, top, bottom = _LINES_WIDTH, 220, 56, 16, 18, 36
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    x_ticks, y_ticks = _ticks(max(xs, default=1.0)), _ticks(max([*ys, chart.limit or 0.0]))
    x_scale, y_scale = (width - left - right) / max(x_ticks), (height - top - bottom) / max(y_ticks)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * x_scale, height - bottom - y * y_scale

    parts = []
    for tick in y_ticks:
        y = at(0, tick)[1]
        parts.append(_line(left, y, width - right, y, "grid") + _text(left - 6, y + 4, f"{tick:g}", "tick", "end"))
    for tick in x_ticks:
        parts.append(_text(at(tick, 0)[0], height - bottom + 16, f"{tick:g}", "tick", "middle"))
    parts.append(_text(width - right, height - 4, chart.x_label, "tick", "end") + _text(left - 6, 10, chart.y_label, "tick", "end"))
    if chart.limit is not None:
        y = at(0, chart.limit)[1]
        parts.append(_line(left, y, width - right, y, "limit") + _text(width - right, y - 4, chart.limit_label, "limit-label", "end"))
    parts += [_polyline(series, index, at) for index, series in enumerate(chart.series)]
    return _svg(width, height, chart.title, "".join(parts)) + _legend(chart.series)


def _polyline(series: Series, index: int, at: object) -> str:
    assert callable(at)
    points = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in series.points)
    return f'<polyline class="series s{index % _SERIES_COLOURS}" points="{points}"><title>{escape(series.name)}</title></polyline>'


def _legend(series: list[Series]) -> str:
    if len(series) < 2:
        return ""
    names = "".join(f'<span><i class="s{i % _SERIES_COLOURS}"></i>{escape(each.name)}</span>' for i, each in enumerate(series))
    return f'<p class="legend">{names}</p>'


def _ticks(high: float) -> list[float]:
    """Round numbers from zero to at least `high`, four to six of them."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]


def _whisker(low: float, high: float, y: float) -> str:
    return _line(low, y, high, y, "whisker") + _line(low, y - 4, low, y + 4, "whisker") + _line(high, y - 4, high, y + 4, "whisker")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, title: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{content}</svg>"
    )
