"""Charts as inline SVG: lines with a legend, bars with whiskers, histograms. The page's CSS gives the colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 520, 220
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 24, 30


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


class Bar(NamedTuple):
    name: str
    value: float
    low: float
    high: float


def line_chart(lines: Sequence[Line], *, percent: bool = False, breaks: Sequence[float] = (), label: str) -> str:
    """``breaks`` are where an iteration ends. What is not finite leaves a gap."""
    lines = [line for line in lines if any(math.isfinite(y) for _, y in line.points)]
    if not lines:
        return '<p class="none">Nothing measured yet.</p>'
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points if math.isfinite(y)]
    low, high, ticks = _axis(min(0.0, *ys), max(ys), percent)
    x0, x1 = min(xs), max(max(xs), min(xs) + 1)

    def px(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(ticks, py, percent)]
    parts += [
        f'<line class="break" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for x in breaks
    ]
    parts += [
        f'<text class="tick" x="{px(x):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{x:g}</text>'
        for x in (range(round(x0), round(x1) + 1) if x1 - x0 <= 6 else (round(x0), round((x0 + x1) / 2), round(x1)))
    ]
    for number, line in enumerate(lines):
        path, pen = "", "M"
        for x, y in line.points:
            if math.isfinite(y):
                path += f"{pen}{px(x):.1f} {py(y):.1f}"
                pen = "L"
            else:
                pen = "M"
        if not line.dots or len(line.points) > 1:
            parts.append(f'<path class="line c{number}" d="{path}"/>')
        if line.dots or len(line.points) == 1:
            parts += [
                f'<circle class="dot c{number}" cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.5">'
                f"<title>{x:g}: {y:.3g}</title></circle>"
                for x, y in line.points
                if math.isfinite(y)
            ]
    legend = ""
    if len(lines) > 1:
        legend = "".join(
            f'<span class="key"><i class="c{n}"></i>{escape(line.name)}</span>' for n, line in enumerate(lines)
        )
        legend = f'<div class="legend">{legend}</div>'
    return f"{legend}{_svg(parts, label)}"


def bar_chart(bars: Sequence[Bar], *, label: str) -> str:
    """Shares with whiskers, one bar a policy."""
    if not bars:
        return '<p class="none">Nothing measured yet.</p>'
    low, high, ticks = _axis(0.0, max(bar.high for bar in bars), True)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    step = (WIDTH - LEFT - RIGHT) / len(bars)
    wide = min(64.0, step * 0.6)
    parts = [_grid(ticks, py, True)]
    for n, bar in enumerate(bars):
        middle = LEFT + step * (n + 0.5)
        value = f"{100 * bar.value:.1f} %"
        parts.append(
            f'<rect class="bar" x="{middle - wide / 2:.1f}" y="{py(bar.value):.1f}" width="{wide:.1f}" '
            f'height="{HEIGHT - BOTTOM - py(bar.value):.1f}" rx="2"><title>{escape(bar.name)}: {value}</title></rect>'
            f'<path class="whisker" d="M{middle:.1f} {py(bar.low):.1f}V{py(bar.high):.1f}'
            f'M{middle - 7:.1f} {py(bar.low):.1f}h14M{middle - 7:.1f} {py(bar.high):.1f}h14"/>'
            f'<text class="value" x="{middle:.1f}" y="{py(bar.high) - 7:.1f}" text-anchor="middle">{value}</text>'
            f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(bar.name)}</text>'
        )
    return _svg(parts, label)


def stacked_bars(rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], *, label: str) -> str:
    """A bar a row, parted as the row's values are of their sum; `names` are those of the parts, in the order of the values.
    Plain HTML: words keep their size on a phone."""
    shown = [n for n in range(len(names)) if any(values[n] > 0 for _, values in rows)]
    parts = []
    for name, values in rows:
        whole = sum(max(0.0, x) for x in values) or 1.0
        inner = "".join(
            f'<i class="s{n}" style="width:{100 * values[n] / whole:.2f}%" '
            f'title="{escape(names[n])}: {100 * values[n] / whole:.0f} %"></i>'
            for n in shown
            if values[n] > 0
        )
        parts.append(f'<b>{escape(name)}</b><div class="stack">{inner}</div>')
    keys = "".join(f'<span class="key"><i class="s{n}"></i>{escape(names[n])}</span>' for n in shown)
    legend = f'<div class="legend">{keys}</div>'
    return f'{legend}<div class="stacks" role="img" aria-label="{escape(label)}">{"".join(parts)}</div>'


def histogram(before: Sequence[float], after: Sequence[float], *, label: str, bins: int = 9) -> str:
    """Two histograms of p̂ in [0, 1], side by side in each bin; 0 and 1 themselves have bins of their own."""

    def binned(values: Sequence[float]) -> list[int]:
        counts = [0] * bins
        for value in values:
            inner = 1 + min(bins - 3, int(value * (bins - 2)))
            counts[0 if value <= 0 else bins - 1 if value >= 1 else inner] += 1
        return counts

    groups = [binned(before), binned(after)]
    low, high, ticks = _axis(0.0, max(1, *groups[0], *groups[1]), False)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    step = (WIDTH - LEFT - RIGHT) / bins
    parts = [_grid(ticks, py, False)]
    for n in range(bins):
        for side, counts in enumerate(groups):
            x = LEFT + step * (n + 0.1 + 0.4 * side)
            parts.append(
                f'<rect class="fill c{side}" x="{x:.1f}" y="{py(counts[n]):.1f}" width="{step * 0.38:.1f}" '
                f'height="{HEIGHT - BOTTOM - py(counts[n]):.1f}"><title>{counts[n]} tasks</title></rect>'
            )
        name = "0" if n == 0 else "1" if n == bins - 1 else f"{(n - 0.5) / (bins - 2):.2f}"
        parts.append(
            f'<text class="tick" x="{LEFT + step * (n + 0.5):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{name}</text>'
        )
    legend = '<div class="legend"><span class="key"><i class="c0"></i>first measured</span>'
    legend += '<span class="key"><i class="c1"></i>as admitted</span></div>'
    return f"{legend}{_svg(parts, label)}"


def _svg(parts: Sequence[str], label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _axis(low: float, high: float, percent: bool) -> tuple[float, float, list[float]]:
    """Round ticks that cover the data."""
    if high - low < 1e-9:
        high = low + (0.1 if percent else max(abs(low), 1e-3))
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if (high - low) / (step * m) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if percent:
        last = min(last, math.ceil(1 / step - 1e-9))
    return first * step, last * step, [n * step for n in range(first, last + 1)]


def _grid(ticks: Sequence[float], py: object, percent: bool) -> str:
    assert callable(py)
    parts = []
    for tick in ticks:
        y = py(tick)
        text = f"{100 * tick:.3g} %" if percent else f"{tick:.3g}"
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'
        )
    return "".join(parts)
