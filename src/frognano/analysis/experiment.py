"""The tables of an experiment, as Markdown and as the numbers behind it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from frognano.analysis.intervals import student_t
from frognano.analysis.picture import picture
from frognano.analysis.pooled import Measured, Run, counted, gain, parts, rate, read_run, recalled
from frognano.errors import FrogNanoError
from frognano.runs import RolloutRow, RunStore


def write_summary(root: Path, folders: Mapping[str, Path], command: str, unfinished: Collection[str] = ()) -> Path:
    """`results.md`, `.json` and `.svg` in the experiment's folder, from the runs (named `<arm>/seed-<n>`) that are there.
    `unfinished` names those that have not ended: their last policy is not yet their last one. Raises FrogNanoError where
    there is no such folder."""
    if not root.is_dir():
        raise FrogNanoError(f"{root} is not there: name the folder of the experiment (--out), or run it first")
    runs: list[Run] = []
    for name, folder in folders.items():
        if (folder / "index.sqlite").exists():
            with RunStore.open(folder, read_only=True) as store:
                runs.append(read_run(store, name))
    arms: dict[str, list[Run]] = {}
    for run in runs:
        if len(run.policies) > 1:
            arms.setdefault(run.name.split("/")[0], []).append(run)
    page = [f"# {root.name}\n", f"Command: `frognano experiment {command}`."]
    shown = {r.name for its_runs in arms.values() for r in its_runs}
    if missing := [n for n in folders if n not in shown]:
        page.append(f"\n**Not all runs are done**; without a trained policy yet: {', '.join(missing)}.")
    if begun := [n for n in folders if n in shown and n in unfinished]:
        page.append(f"\n**Shown as far as they came**: {', '.join(begun)}.")
    for arm, its_runs in arms.items():
        page += _arm(arm, its_runs)
    if len(arms) > 1:
        page += _comparison(arms)
    file = root / "results.md"
    file.write_text("\n".join(page) + "\n")
    (root / "results.svg").write_text(picture(arms))
    numbers = {arm: [_numbers(run) for run in its_runs] for arm, its_runs in arms.items()}
    (root / "results.json").write_text(_lines({"command": command, "columns": COLUMNS, "arms": numbers}) + "\n")
    return file


def _ends(runs: Sequence[Run], rung: int | None = None) -> tuple[list[Measured], list[Measured]]:
    first = [m for run in runs for m in run.at(run.policies[0], rung)]
    return first, [m for run in runs for m in run.at(run.last, rung)]


def _arm(arm: str, runs: Sequence[Run]) -> list[str]:
    out = [f"\n## {arm}\n"]
    out += ["| seed | π0 | last | gain in points | times |", "| --- | --- | --- | --- | --- |"]
    for run in runs:
        out.append(_result(run.name.split("/seed-")[-1], *_ends([run])))
    if len(runs) > 1:
        out.append(_result("**pooled**", *_ends(runs)))
        out.append(_result("pooled, clustered by repository", *_ends(runs), by_repository=True))
    out += ["\nSolved of the held-out tasks at the most localising rung by policy:\n"]
    steps = max(len(run.policies) for run in runs)
    out += [f"| seed | {' | '.join(f'π{i}' for i in range(steps))} |", f"| --- |{' --- |' * steps}"]
    for run in runs:
        cells = [_of(run.at(policy)) for policy in run.policies]
        out.append(f"| {run.name.split('/seed-')[-1]} | {' | '.join(cells + ['—'] * (steps - len(cells)))} |")
    before, after = _ends(runs)
    p = parts(before, after)
    out += ["\n| format and skill, pooled | π0 | last |", "| --- | --- | --- |"]
    for title, (a, b) in (
        ("made a call", p.called),
        ("made a valid call", p.valid_call),
        ("made a valid edit", p.valid_edit),
        ("solved, given a valid edit", p.solved_given_edit),
    ):
        out.append(f"| {title} | {100 * a:.0f} % | {100 * b:.0f} % |")
    out.append(
        f"\nOf the gain, {100 * p.format:+.1f} points are format (more valid edits), {100 * p.skill:+.1f} skill "
        "(more of them right)."
    )
    for title, key in (("bug family", lambda m: m.task.lineage.operator), ("repository", lambda m: m.task.origin.name)):
        k0, k1 = counted(before, key), counted(after, key)
        out += [f"\n| {title}, pooled | π0 | last |", "| --- | --- | --- |"]
        out += [
            f"| {name} | {_share(k0.get(name))} | {_share(k1.get(name))} |" for name in sorted(k0.keys() | k1.keys())
        ]
    out += ["\n| rung, pooled | π0 | last |", "| --- | --- | --- |"]
    for rung in sorted({m.row.key.rung for run in runs for m in run.heldout}):
        first, last = _ends(runs, rung)
        out.append(f"| {rung} | {_of(first)} | {_of(last)} |")
    if recall := recalled(runs):
        out += ["\nTasks of each iteration, at the rung they were trained at:\n"]
        out += ["| iteration | π0 | the policy that they made | last |", "| --- | --- | --- | --- |"]
        for iteration, roles in recall.items():
            out.append(f"| {iteration} | {' | '.join(_of(roles.get(r, [])) for r in ('π0', 'own', 'last'))} |")
    return out


def _comparison(arms: Mapping[str, Sequence[Run]]) -> list[str]:
    out = ["\n## The arms beside each other\n"]
    out += [
        "| arm | last, pooled | against the first arm, same seeds | seed by seed, in points | tokens "
        "| rollouts: screen / confirm / train | updates | groups with signal | per 100 rollouts |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    reference = next(iter(arms.values()))
    for arm, runs in arms.items():
        seeds = {_seed(run) for run in runs}
        same = [run for run in reference if _seed(run) in seeds]
        last = _ends(runs)[1]
        against = "—" if runs is reference else _gain(_ends(same)[1], last)
        stages = " / ".join(str(sum(run.training[s][0] for run in runs)) for s in ("screen", "confirm", "train"))
        rollouts, kept = sum(run.rollouts for run in runs), sum(run.groups_kept for run in runs)
        tokens = ", ".join(f"{run.tokens:,}" for run in runs)
        updates = sum(run.updates for run in runs)
        out.append(
            f"| {arm} | {_of(last)} | {against} | {_by_seed(reference, runs)} | {tokens} | {stages} | {updates} | {kept} "
            f"| {100 * kept / max(1, rollouts):.1f} |"
        )
    return out


def _by_seed(reference: Sequence[Run], runs: Sequence[Run]) -> str:
    """Each seed's last policy, or its difference from the first arm's. Of these comes a mean with the interval that holds what
    training again would bring, by Student's t: wide for few seeds."""
    if runs is reference:
        return ", ".join(f"{100 * rate(run.at(run.last)).by_function.estimate:.1f}" for run in runs)
    beside = {_seed(run): run.at(run.last) for run in reference}
    gains = [gain(beside[_seed(run)], run.at(run.last)).estimate for run in runs if _seed(run) in beside]
    found = [100 * x for x in gains if not math.isnan(x)]
    told = ", ".join(f"{x:+.1f}" for x in found)
    if len(found) < 2:
        return told or "—"
    half = student_t(0.95, len(found) - 1) * statistics.stdev(found) / math.sqrt(len(found))
    return f"{told}: {statistics.mean(found):+.1f} ± {half:.1f}"


def _seed(run: Run) -> str:
    return run.name.split("/")[-1]


def _result(name: str, before: Sequence[Measured], after: Sequence[Measured], by_repository: bool = False) -> str:
    if not before or not after:
        return f"| {name} | {_of(before)} | {_of(after)} | — | — |"
    a, b = rate(before), rate(after)
    first, last = (a.by_repository, b.by_repository) if by_repository else (a.by_function, b.by_function)
    times = f"{last.estimate / first.estimate:.1f}" if first.estimate else "from none"
    points = _gain(before, after, by_repository)
    return f"| {name} | {a.solved}/{a.trials} = {first:%} | {b.solved}/{b.trials} = {last:%} | {points} | {times} |"


def _of(measured: Sequence[Measured]) -> str:
    if not measured:
        return "—"
    found = rate(measured)
    return f"{found.solved}/{found.trials} = {found.by_function:%}"


def _share(k_n: tuple[int, int] | None) -> str:
    return "—" if k_n is None else f"{k_n[0]}/{k_n[1]}"


def _gain(before: Sequence[Measured], after: Sequence[Measured], by_repository: bool = False) -> str:
    """In points; none where no task was tried by both, as in arms that are not like each other."""
    x = gain(before, after, by_repository)
    if math.isnan(x.estimate):
        return "—"
    return f"{100 * x.estimate:+.1f} ({100 * x.low:+.1f} to {100 * x.high:+.1f})"


def _numbers(run: Run) -> dict[str, Any]:
    """Everything that the tables were made of: the tasks, and a line of `COLUMNS` a rollout on held-out or earlier tasks."""
    tasks = {m.task.id: m.task for m in (*run.heldout, *run.recall)}
    return {
        "run": run.name,
        "policies": run.policies,
        "tokens": run.tokens,
        "training": {
            stage: dict(zip(("rollouts", "solved", "tokens"), held, strict=True))
            for stage, held in run.training.items()
        },
        "updates": run.updates,
        "groups": run.groups,
        "groups_kept": run.groups_kept,
        "admitted": run.admitted,
        "metrics": {series: [[step, _told(values)] for step, values in rows] for series, rows in run.metrics.items()},
        "tasks": {
            t.id: {"repository": t.origin.name, "function": t.group, "family": t.lineage.operator}
            for t in tasks.values()
        },
        "rollouts": [_row(m.row) for m in (*run.heldout, *run.recall)],
    }


def _told(values: Mapping[str, float]) -> dict[str, float]:
    """What a series says, short; JSON has no word for what is not a number."""
    return {name: float(f"{x:.6g}") for name, x in values.items() if math.isfinite(x)}


COLUMNS = ("task", "rung", "policy", "purpose", "resolved", "valid_edit", "calls", "failed_calls")


def _row(row: RolloutRow) -> list[Any]:
    key, calls = row.key, row.fresh
    held = (row.resolved, row.valid_edit, calls["calls"], calls["failed_calls"])
    return [key.task_id, key.rung, key.policy, key.purpose, *map(int, held)]


def _lines(value: Any, depth: int = 0) -> str:
    """JSON with an inner list or a dict of plain values on one line: a rollout is a line of the file."""
    items = list(value.values() if isinstance(value, dict) else value) if isinstance(value, (dict, list, tuple)) else []
    if not any(isinstance(item, (dict, list, tuple)) for item in items):
        return json.dumps(value, ensure_ascii=False)
    inner, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        held = [f"{json.dumps(k, ensure_ascii=False)}: {_lines(v, depth + 1)}" for k, v in value.items()]
        return "{" + inner + f",{inner}".join(held) + end + "}"
    return "[" + inner + f",{inner}".join(_lines(item, depth + 1) for item in value) + end + "]"
