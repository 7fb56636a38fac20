"""Picture: what the arms of an experiment solve of held-out repositories, by the tokens that they generated to learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from frognano.analysis.intervals import Interval
from frognano.analysis.pooled import Run, rate

INK, MUTED, GRID = "#1f2933", "#616e7c", "#d9dfe5"
COLOURS = ("#2f7d5b", "#b4552d", "#4363a8", "#8a6d1c", "#7a4a8c")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BASE = 760, 360, 60, 150, 54, 300


Scale = Callable[[float], float]


class Point(NamedTuple):
    tokens: float
    """Generated for calibration and training so far, mean over the seeds."""
    rate: Interval


def line(runs: Sequence[Run]) -> list[Point]:
    """The pooled rate of π0, π1, … as far as every seed came, and then of the last policy of each."""
    points = []
    for i in (*range(min(len(run.policies) for run in runs) - 1), -1):
        measured = [m for run in runs for m in run.at(run.policies[i])]
        if measured:
            tokens = sum(run.tokens_before[i] for run in runs) / len(runs)
            points.append(Point(tokens, rate(measured).by_function))
    return points


def picture(arms: Mapping[str, Sequence[Run]]) -> str:
    """An SVG that stands alone: a line an arm with its 95 % intervals, and a thin one for each seed of it."""
    lines = {arm: line(runs) for arm, runs in arms.items()}
    seeds = {arm: [line([run]) for run in runs] if len(runs) > 1 else [] for arm, runs in arms.items()}
    thin_points = [p for each in seeds.values() for points in each for p in points]
    thick_points = [p for points in lines.values() for p in points]
    highest = max([0.1, *(p.rate.high for p in thick_points), *(p.rate.estimate for p in thin_points)])
    most = max([1.0, *(p.tokens for p in (*thick_points, *thin_points))])

    def x(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / most

    def y(share: float) -> float:
        return BASE - (BASE - TOP) * share / highest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img" '
        f'aria-label="Held-out solve rate by generated tokens"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="15" fill="{INK}">Held-out solve rate, repositories never trained on</text>',
        *_axes(highest, most, x, y),
    ]
    for number, (arm, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        for thin in seeds[arm]:
            parts.append(_path(thin, x, y, f'stroke="{colour}" stroke-width="1" opacity="0.35"'))
        parts.append(_path(points, x, y, f'stroke="{colour}" stroke-width="2.5"'))
        for p in points:
            at, low, high = x(p.tokens), y(p.rate.low), y(p.rate.high)
            bar = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 4:.1f} {low:.1f}h8M{at - 4:.1f} {high:.1f}h8"
            parts.append(f'<path d="{bar}" stroke="{colour}" fill="none"/>')
            parts.append(f'<circle cx="{at:.1f}" cy="{y(p.rate.estimate):.1f}" r="4" fill="{colour}"/>')
        if points:
            end, count = points[-1], len(arms[arm])
            label = f"{escape(arm)}: {100 * end.rate.estimate:.1f} %"
            number_of = f"{count} seed{'s' if count > 1 else ''}"
            # One below the other, whatever the ends are: labels must not lie on each other.
            parts.append(
                f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 34 * number + 8}" font-size="13" fill="{colour}">{label}</text>'
                f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 34 * number + 23}" font-size="11" fill="{MUTED}">{number_of}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def rate_lines(highest: float, y: Scale, left: float, right: float) -> list[str]:
    """Lines across the picture at round rates, each with its name."""
    out = []
    step = 0.1 if highest > 0.3 else 0.05
    for i in range(int(highest / step) + 1):
        at = y(i * step)
        out.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="{GRID}"/>')
        out.append(
            f'<text x="{left - 8}" y="{at + 4:.1f}" font-size="12" text-anchor="end" fill="{MUTED}">'
            f"{100 * i * step:.0f} %</text>"
        )
    return out


def _axes(highest: float, most: float, x: Scale, y: Scale) -> list[str]:
    out = rate_lines(highest, y, LEFT, WIDTH - RIGHT)
    for i in range(5):
        tokens = most * i / 4
        out.append(
            f'<text x="{x(tokens):.1f}" y="{BASE + 20}" font-size="12" text-anchor="middle" fill="{MUTED}">'
            f"{tokens / 1000:.0f}k</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(
        f'<text x="{middle}" y="{BASE + 42}" font-size="12" text-anchor="middle" fill="{MUTED}">'
        "tokens generated for calibration and training</text>"
    )
    return out


def _path(points: Sequence[Point], x: Scale, y: Scale, style: str) -> str:
    steps = " ".join(f"{x(p.tokens):.1f},{y(p.rate.estimate):.1f}" for p in points)
    return f'<polyline points="{steps}" fill="none" {style}/>'
