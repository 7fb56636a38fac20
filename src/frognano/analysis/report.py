"""The report of a run: one self-contained HTML file, no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from html import escape
from itertools import pairwise
from pathlib import Path

from frognano.analysis.alarms import TITLES
from frognano.analysis.charts import Bar, Line, bar_chart, histogram, line_chart, stacked_bars
from frognano.analysis.data import ReportData, load
from frognano.analysis.facts import duration
from frognano.analysis.page import cards, page, section, table
from frognano.analysis.profile import HEAD, STAGES
from frognano.analysis.profile import table as profile_rows
from frognano.analysis.reading import readable
from frognano.runs import RunStore
from frognano.runs.files import write_atomically


def write_report(store: RunStore, out: Path | None = None) -> Path:
    """Write ``report.html`` into the run folder, or to ``out``; gives back where."""
    target = out or store.path / "report.html"
    write_atomically(target, render(load(store)).encode())
    return target


def render(data: ReportData) -> str:
    sections = (
        _header,
        _alarms,
        _heldout,
        _learning,
        _groups,
        _calibration,
        _tasks,
        _endings,
        _reading,
        _time,
        _profile,
    )
    return page(data.title, "".join(part(data) for part in sections))


def _header(data: ReportData) -> str:
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in data.facts)
    return (
        f'<h1>{escape(data.title)}</h1><p class="result">{escape(data.result)}</p><dl class="facts card">{facts}</dl>'
    )


def _alarms(data: ReportData) -> str:
    """Nothing where there was none."""
    if not data.alarms:
        return ""
    parts = []
    for alarm in data.alarms:
        until = f"until update {alarm.until}" if alarm.until is not None else "and still"
        parts.append(
            f'<div class="card alarm{"" if alarm.until is None else " over"}"><b>{escape(TITLES[alarm.name])}</b>: '
            f"{alarm.value:.3g} at worst, limit {alarm.limit:.3g}, since update {alarm.since} {until}."
            f"<p>{escape(alarm.do)}</p></div>"
        )
    return section("Alarms", *parts, note="What in the numbers says that the run went wrong, and what to do about it.")


def _heldout(data: ReportData) -> str:
    bars = [Bar(rate.policy, rate.interval.estimate, rate.interval.low, rate.interval.high) for rate in data.at_top]
    policies = list(dict.fromkeys(rate.policy for rate in data.heldout))
    lines = [
        Line(
            f"rung {rung}",
            [(policies.index(r.policy), r.interval.estimate) for r in data.heldout if r.rung == rung],
            dots=True,
        )
        for rung in sorted({r.rung for r in data.heldout}, reverse=True)
    ]
    rows = [
        (
            r.policy,
            r.rung,
            f"{r.interval:%}",
            r.trials,
            r.tasks,
            r.functions,
            f"{100 * r.valid_edits:.0f} %",
            r.left_out,
        )
        for r in data.heldout
    ]
    rung = f"rung {data.top_rung}" if data.heldout else "the highest rung"
    head = ("policy", "rung", "solved (95 %)", "trials", "tasks", "functions", "valid edits", "left out")
    return section(
        "Held-out tasks",
        cards(
            [
                (f"Solve rate at {rung}, the most localising one", bar_chart(bars, label="held-out")),
                ("Solve rate at every rung, policy by policy", line_chart(lines, percent=True, label="held-out rungs")),
            ]
        ),
        "<br>",
        table(head, rows, numbers=frozenset({1, 3, 4, 5, 6, 7})),
        note="Repositories that were never trained on. Intervals are cluster bootstraps over functions. "
        "Infrastructure errors are left out and counted.",
    )


def _curve(data: ReportData, names: Iterable[tuple[str, str]], *, percent: bool = False, label: str) -> str:
    lines = [
        Line(title, [(step, values[name]) for step, values in data.train if name in values]) for name, title in names
    ]
    return line_chart(lines, percent=percent, breaks=_breaks(data), label=label)


def _breaks(data: ReportData) -> list[float]:
    iterations = [(step, values.get("iteration", 0)) for step, values in data.train]
    return [(before + after) / 2 for (before, i), (after, j) in pairwise(iterations) if i != j]


def _learning(data: ReportData) -> str:
    solved = [
        Line("train", [(step, v["solve_rate"]) for step, v in data.train if "solve_rate" in v]),
        Line("validation", [(step, v["solve_rate"]) for step, v in data.valid if "solve_rate" in v], dots=True),
    ]
    figures = [
        ("Solve rate", line_chart(solved, percent=True, breaks=_breaks(data), label="solve rate")),
        ("Valid edits", _curve(data, [("valid_edit", "valid edits")], percent=True, label="valid edits")),
        ("Entropy (nats a token)", _curve(data, [("entropy", "entropy")], label="entropy")),
        ("mean |p − q|", _curve(data, [("mean_abs_diff", "mean |p − q|")], label="mean |p − q|")),
        ("max |p − q|", _curve(data, [("max_abs_diff", "max |p − q|")], label="max |p − q|")),
        ("max ρ = p / q", _curve(data, [("max_rho", "max ρ")], label="max ρ")),
        ("Gradient norm", _curve(data, [("grad_norm", "gradient norm")], label="gradient norm")),
        ("Reward", _curve(data, [("reward", "reward")], label="reward")),
    ]
    note = (
        "One point an update; dashed lines part the iterations. Training tasks get harder as the policy gets better, so "
        "a level training curve can hide a rising policy."
    )
    return section("Learning", cards(figures), note=note)


def _groups(data: ReportData) -> str:
    groups = [("groups_kept", "kept"), ("groups_all0", "dropped, all failed"), ("groups_all1", "dropped, all solved")]
    figures = [
        ("Groups", _curve(data, groups, label="groups")),
        (
            "Tokens masked by DPPO, by sign of A",
            _curve(data, [("masked_pos", "A > 0"), ("masked_neg", "A ≤ 0")], percent=True, label="masked tokens"),
        ),
        ("Generated tokens a trajectory", _curve(data, [("length", "tokens")], label="length")),
        ("Turns", _curve(data, [("turns", "turns")], label="turns")),
        (
            "Truncated, and tool errors",
            _curve(data, [("truncated", "truncated"), ("tool_errors", "tool errors")], percent=True, label="truncated"),
        ),
        (
            "Seconds an update",
            _curve(
                data,
                [("sample_seconds", "sampling"), ("grade_seconds", "grading"), ("train_seconds", "training")],
                label="seconds",
            ),
        ),
    ]
    return section("Groups, masks and lengths", cards(figures))


def _calibration(data: ReportData) -> str:
    if not data.calibrations:
        return ""
    figures = [
        (
            f"Iteration {c.iteration}: {len(c.before)} tasks measured, {len(c.after)} admitted",
            histogram(c.before, c.after, label=f"pass rates of iteration {c.iteration}"),
        )
        for c in data.calibrations
    ]
    note = (
        "Pass rates p̂ of the policy that the tasks were made for: at the first rung tried, and of the admitted tasks at "
        "the rung they were admitted at. The outer bins are exactly 0 and 1."
    )
    return section("Calibration", cards(figures), note=note)


def _tasks(data: ReportData) -> str:
    rows = [
        (
            line.purpose,
            line.task.origin.name,
            line.task.lineage.function or line.task.lineage.file,
            line.task.lineage.operator or line.task.lineage.generator,
            line.task.rung,
            f"{line.k / line.n:.2f}" if line.n else "–",
            line.n,
            line.action or "–",
            line.reason or "–",
        )
        for line in data.tasks
    ]
    head = ("set", "repository", "function", "operator", "rung", "p̂", "N", "decision", "why")
    rejected = table(("reason", "candidates", "an example"), data.rejected, numbers=frozenset({1}))
    return section(
        f"Tasks ({len(rows)})",
        table(head, rows, numbers=frozenset({4, 5, 6}), tall=True),
        f"<h2>Rejected candidates ({sum(count for _, count, _ in data.rejected)})</h2>{rejected}",
    )


def _endings(data: ReportData) -> str:
    def counted(counts: dict[str, Counter[str]]) -> str:
        names = sorted({name for counter in counts.values() for name in counter})
        rows = [(where, counter.total(), *(counter[name] or "" for name in names)) for where, counter in counts.items()]
        return table(("rollouts for", "all", *names), rows, numbers=frozenset(range(1, len(names) + 2)))

    return section(
        "How rollouts ended",
        "<h3>Exit reason</h3>",
        counted(data.exits),
        "<br><h3>Verdict</h3>",
        counted(data.statuses),
    )


def _reading(data: ReportData) -> str:
    if not data.shown:
        return ""
    note = "A few resolved and failed rollouts a policy; the run folder holds them all."
    return section("Trajectories", *(readable(shown) for shown in data.shown), note=note)


def _time(data: ReportData) -> str:
    spent: dict[str, float] = defaultdict(float)
    for name, seconds in data.phases:
        spent[name] += seconds
    for name in ("sample", "grade", "train"):
        within = sum(values.get(f"{name}_seconds", 0.0) for _, values in data.train)
        if within:
            spent[f"updates: {name}"] = within
    if not spent:
        return ""
    most = max(spent.values()) or 1.0
    rows = "".join(
        f'<b>{escape(name)}</b><div style="width:{100 * seconds / most:.1f}%"></div><span>{duration(seconds)}</span>'
        for name, seconds in spent.items()
    )
    return section("Where the time went", f'<div class="card time">{rows}</div>')


def _profile(data: ReportData) -> str:
    if not data.profile:
        return ""
    bars = [(f"{part.name} (mean of {part.count})", [part.cpu(s) for s in STAGES]) for part in data.profile]
    note = (
        "CPU seconds of all stages add up to cores times wall seconds. Wall seconds do not: stages overlap, and a stage's wall "
        "is the time in which any piece of it was at work. An update of rollouts that the pilot made samples nothing itself."
    )
    figure = stacked_bars(bars, list(STAGES), label="what used the cores")
    rows = table(HEAD, profile_rows(data.profile), numbers=frozenset({1, 3, 4, 5}), tall=True)
    return section("What used the cores", f'<div class="card">{figure}</div><br>', rows, note=note)
