"""Write docs/results/<name>.{md,json,svg} from a finished run: the table, the raw numbers, the picture.

python benchmarks/results.py runs/pocket docs/results/pocket --machine "2 cores, x86-64, AVX2"
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from frognano.analysis.data import HELDOUT, load
from frognano.analysis.intervals import Trial, cluster_difference, cluster_rate
from frognano.analysis.picture import COLOURS, INK, MUTED, rate_lines
from frognano.loop.session import BASE
from frognano.records import Task
from frognano.runs import RolloutRow, RunStore

BAR = COLOURS[0]


def _trials(rows: list[RolloutRow], tasks: dict[str, Task]) -> list[Trial]:
    return [Trial(r.key.task_id, tasks[r.key.task_id].group, r.resolved) for r in rows if r.counts]


def _line(rows: list[RolloutRow], tasks: dict[str, Task]) -> dict[str, float]:
    trials = _trials(rows, tasks)
    edits = [r for r in rows if r.counts and r.valid_edit]
    rate = cluster_rate(trials)
    return {
        "solved": sum(t.resolved for t in trials),
        "tasks": len(trials),
        "functions": len({t.cluster for t in trials}),
        "rate": rate.estimate,
        "low": rate.low,
        "high": rate.high,
        "valid_edits": len(edits) / max(1, len(trials)),
        "solved_given_valid_edit": sum(r.resolved for r in edits) / max(1, len(edits)),
    }


def summarise(store: RunStore) -> dict[str, object]:
    """Everything that the page shows, as numbers."""
    tasks = {t.id: t for t in store.tasks(HELDOUT)}
    rows = store.rollouts(purpose=HELDOUT)
    top = max(r.key.rung for r in rows)
    versions = [BASE, *store.steps("policies/").values()]
    at = {v: [r for r in rows if r.key.policy == v and r.key.rung == top] for v in versions}
    first, last = at[BASE], at[versions[-1]]
    both = {r.key.task_id for r in first if r.counts} & {r.key.task_id for r in last if r.counts}
    gain = cluster_difference(*(_trials([r for r in x if r.key.task_id in both], tasks) for x in (first, last)))
    families: dict[str, dict[str, list[int]]] = defaultdict(dict)
    repositories: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for name, chosen in (("first", first), ("last", last)):
        for table, key in ((families, "operator"), (repositories, "repository")):
            for r in chosen:
                task = tasks[r.key.task_id]
                held = table[task.lineage.operator if key == "operator" else task.origin.name]
                k_n = held.setdefault(name, [0, 0])
                k_n[0] += r.resolved
                k_n[1] += 1
    rungs = {}
    for rung in sorted({r.key.rung for r in rows}):
        measured = {v: [r for r in rows if r.key.policy == v and r.key.rung == rung] for v in (BASE, versions[-1])}
        rungs[rung] = {v: _line(chosen, tasks) for v, chosen in measured.items() if chosen}
    return {
        "config": store.config,
        "policies": {f"π{i} ({v})": _line(at[v], tasks) for i, v in enumerate(versions)},
        "gain_points": [100 * x for x in gain],
        "rungs": rungs,
        "names": {s.rung: s.name for t in tasks.values() for s in t.statements},
        "operators": families,
        "repositories": repositories,
        "train": store.metrics("train"),
        "valid": store.metrics("valid"),
        "pilot": store.metrics("pilot"),
        "phases": load(store).phases,
        "cost": [values for _, values in store.metrics("cost")],
        "rollouts": len(store.rollouts()),
    }


def page(s: dict, command: str, machine: str) -> str:
    """The Markdown page."""
    cost = s["cost"]
    wall, cpu = sum(c["wall_seconds"] for c in cost) / 60, sum(c["cpu_seconds"] for c in cost) / 60
    out = [
        "# The pocket run\n",
        f"Command: `{command}`. Machine: {machine}. One seed ({s['config']['run']['seed']}).",
        f"The run itself took {wall:.0f} minutes of wall time ({cpu:.0f} CPU-minutes in the main process and what it",
        f"started), at most {max(c['peak_gb'] for c in cost):.1f} GB in the main process, {s['rollouts']} rollouts.",
        "\n## Held-out repositories, most localising rung\n",
        "| policy | solved | rate (95 %, clustered by function) | valid edits | solved given a valid edit |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, p in s["policies"].items():
        out.append(
            f"| {name} | {p['solved']}/{p['tasks']} | {100 * p['rate']:.1f} % ({100 * p['low']:.1f}–{100 * p['high']:.1f}) "
            f"| {100 * p['valid_edits']:.0f} % | {100 * p['solved_given_valid_edit']:.0f} % |"
        )
    gain = s["gain_points"]
    out.append(f"\nLast against first, paired by task: **{gain[0]:+.1f} points** ({gain[1]:+.1f} to {gain[2]:+.1f}).")
    out += ["\n## Other rungs\n", "| rung | π0 | last |", "| --- | --- | --- |"]
    for rung, by_policy in s["rungs"].items():
        cells = [
            f"{p['solved']}/{p['tasks']} = {100 * p['rate']:.1f} % ({100 * p['low']:.1f}–{100 * p['high']:.1f})"
            for p in by_policy.values()
        ]
        out.append(f"| {rung} {s['names'][rung]} | {' | '.join(cells)} |")
    for title, table in (("bug family", s["operators"]), ("repository", s["repositories"])):
        out += [f"\n## By {title}\n", f"| {title} | π0 | last |", "| --- | --- | --- |"]
        for name, held in sorted(table.items()):
            out.append(f"| {name} | {'/'.join(map(str, held['first']))} | {'/'.join(map(str, held['last']))} |")
    out += ["\n## Where the time went\n", "| phase | seconds |", "| --- | --- |"]
    out += [f"| {name} | {seconds:.0f} |" for name, seconds in s["phases"]]
    return "\n".join(out) + "\n"


def picture(s: dict) -> str:
    """Bars with intervals, one per policy."""
    bars = list(s["policies"].items())
    top = max(0.1, *(p["high"] for _, p in bars)) * 1.1
    width, height, left, base = 130 + 110 * len(bars), 300, 60, 240
    y = lambda rate: base - 190 * rate / top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img" '
        f'aria-label="Held-out solve rate by policy"><rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="26" font-size="15" fill="{INK}">Held-out solve rate, repositories never trained on</text>',
    ]
    parts += rate_lines(top, y, left, width - 20)
    for i, (name, p) in enumerate(bars):
        x = left + 25 + 110 * i
        parts.append(
            f'<rect x="{x}" y="{y(p["rate"]):.1f}" width="60" height="{base - y(p["rate"]):.1f}" rx="3" fill="{BAR}"/>'
            f'<path d="M{x + 30} {y(p["low"]):.1f}V{y(p["high"]):.1f}M{x + 24} {y(p["low"]):.1f}h12M{x + 24} '
            f'{y(p["high"]):.1f}h12" stroke="{INK}" fill="none"/>'
            f'<text x="{x + 30}" y="{base + 20}" font-size="14" text-anchor="middle" fill="{INK}">{name.split(" ")[0]}</text>'
            f'<text x="{x + 30}" y="{base + 38}" font-size="12" text-anchor="middle" fill="{MUTED}">'
            f"{100 * p['rate']:.1f} %</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path, help="without an ending, e.g. docs/results/pocket")
    parser.add_argument("--machine", default="not said")
    parser.add_argument("--command", default="make demo")
    given = parser.parse_args()
    with RunStore.open(given.run, read_only=True) as store:
        summary = summarise(store)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    summary |= {"machine": given.machine, "command": given.command}
    given.out.with_suffix(".json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    given.out.with_suffix(".md").write_text(page(summary, given.command, given.machine))
    given.out.with_suffix(".svg").write_text(picture(summary))
    print(given.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
