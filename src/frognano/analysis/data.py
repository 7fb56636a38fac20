"""What the report tells, read from the store once: plain data, no HTML.

Taken from the store: rollouts by purpose (``heldout``, ``valid``, ``iterN/screen``, ``iterN/confirm``, …), tasks by purpose,
the pilot's ledger, the metric series ``train`` and ``valid``, and steps whose name begins with ``phase/`` (a number of
seconds, or a table with ``seconds``).
"""

from __future__ import annotations

import json
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from frognano.analysis.alarms import Alarm, AlarmsConfig, alarms
from frognano.analysis.intervals import Interval, Trial, cluster_difference, cluster_rate
from frognano.analysis.profile import Part, profile
from frognano.records import ExitReason, Task, Trajectory, Verdict
from frognano.runs import RolloutRow, RunStore

Series = list[tuple[int, dict[str, float]]]
HELDOUT, TRAIN = "heldout", "train"
"""Purposes of tasks: the measured ones, and the candidates that the pilot was offered."""
SHOWN_PER_OUTCOME = 3


@dataclass(slots=True)
class Rate:
    """One policy at one rung of the held-out tasks."""

    policy: str
    rung: int
    interval: Interval
    trials: int
    tasks: int
    functions: int
    valid_edits: float
    left_out: int
    """Infrastructure errors: not trials."""


@dataclass(slots=True)
class Calibration:
    """p̂ of every task that an iteration's pilot looked at: when first measured, and of the admitted ones at the end."""

    iteration: int
    before: list[float]
    after: list[float]


@dataclass(slots=True)
class TaskLine:
    task: Task
    purpose: str
    k: int
    n: int
    action: str
    reason: str


@dataclass(slots=True)
class Shown:
    """A trajectory to read."""

    row: RolloutRow
    task: Task | None
    trajectory: Trajectory
    verdict: Verdict


@dataclass(slots=True)
class ReportData:
    title: str
    facts: list[tuple[str, str]]
    top_rung: int
    heldout: list[Rate]
    gain: Interval | None
    """The last policy against the first, on the tasks of the top rung that both were tried on."""
    train: Series
    valid: Series
    calibrations: list[Calibration]
    tasks: list[TaskLine]
    rejected: list[tuple[str, int, str]]
    """Reason, how many, one example."""
    exits: dict[str, Counter[str]]
    statuses: dict[str, Counter[str]]
    shown: list[Shown]
    phases: list[tuple[str, float]]
    config: dict[str, Any] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    profile: list[Part] = field(default_factory=list)

    @property
    def at_top(self) -> list[Rate]:
        return [rate for rate in self.heldout if rate.rung == self.top_rung]

    @property
    def result(self) -> str:
        """The run in one sentence."""
        rates = self.at_top
        if not rates:
            return "Nothing has been measured on the held-out tasks yet."
        first, last = rates[0], rates[-1]
        if len(rates) == 1:
            return f"{first.policy} solves {first.interval:%} of {first.tasks} held-out tasks."
        text = f"From {first.policy} to {last.policy} the held-out solve rate went from {first.interval:%}"
        text += f" to {last.interval:%}"
        if self.gain:
            points = [100 * x for x in self.gain]
            text += f", {points[0]:+.1f} points ({points[1]:+.1f} to {points[2]:+.1f}, paired by task)"
        return f"{text}, on {last.tasks} tasks of {last.functions} functions."


def load(store: RunStore) -> ReportData:
    everything = store.rollouts()
    purposes = store.task_purposes()
    by_purpose = {purpose: store.tasks(purpose) for purpose in purposes}
    tasks = {task.id: task for group in by_purpose.values() for task in group}
    heldout = [row for row in everything if row.key.purpose.split("/")[0] == HELDOUT]
    rungs = {row.key.rung for row in heldout}
    top = max(rungs, default=0)
    config = store.config
    phases = _phases(store.steps("phase/"))
    return ReportData(
        title=str(_find(config, "name") or store.path.name),
        facts=_facts(config, phases, everything, tasks),
        top_rung=top,
        heldout=_rates(heldout, tasks),
        gain=_gain([row for row in heldout if row.key.rung == top], tasks),
        train=store.metrics("train"),
        valid=store.metrics("valid"),
        calibrations=_calibrations(everything, by_purpose),
        tasks=_task_lines(store, everything, by_purpose),
        rejected=_rejected(store),
        exits=_counted(everything, lambda row: row.exit_reason.value),
        statuses=_counted(everything, lambda row: row.status.value),
        shown=list(_shown(store, heldout or everything, tasks)),
        phases=phases,
        config=config,
        alarms=alarms(store.metrics("train"), AlarmsConfig.model_validate(config.get("alarms", {}))),
        profile=profile(store),
    )


def _policies(rows: Iterable[RolloutRow]) -> list[str]:
    """π0, π1, …, π10 in order of their numbers."""
    names = {row.key.policy for row in rows}
    return sorted(names, key=lambda name: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)])


def _trials(rows: Iterable[RolloutRow], tasks: Mapping[str, Task]) -> list[Trial]:
    return [
        Trial(
            row.key.task_id, tasks[row.key.task_id].group if row.key.task_id in tasks else row.key.task_id, row.resolved
        )
        for row in rows
        if row.counts
    ]


def _rates(rows: list[RolloutRow], tasks: Mapping[str, Task]) -> list[Rate]:
    rates = []
    for policy in _policies(rows):
        for rung in sorted({row.key.rung for row in rows}, reverse=True):
            mine = [row for row in rows if (row.key.policy, row.key.rung) == (policy, rung)]
            trials = _trials(mine, tasks)
            if trials:
                rates.append(
                    Rate(
                        policy=policy,
                        rung=rung,
                        interval=cluster_rate(trials),
                        trials=len(trials),
                        tasks=len({trial.task_id for trial in trials}),
                        functions=len({trial.cluster for trial in trials}),
                        valid_edits=sum(row.valid_edit for row in mine if row.counts) / len(trials),
                        left_out=len(mine) - len(trials),
                    )
                )
    return rates


def _gain(rows: list[RolloutRow], tasks: Mapping[str, Task]) -> Interval | None:
    policies = _policies(rows)
    if len(policies) < 2:
        return None
    first, last = (
        _trials([row for row in rows if row.key.policy == policy], tasks) for policy in (policies[0], policies[-1])
    )
    both = {t.task_id for t in first} & {t.task_id for t in last}
    if not both:
        return None
    return cluster_difference([t for t in first if t.task_id in both], [t for t in last if t.task_id in both])


def _calibrations(rows: list[RolloutRow], by_purpose: Mapping[str, list[Task]]) -> list[Calibration]:
    seen: dict[int, dict[str, dict[int, list[bool]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        found = re.match(r"iter(\d+)/(screen|confirm|refine|calibrat)", row.key.purpose)
        if found and row.counts:
            seen[int(found[1])][row.key.task_id][row.key.rung].append(row.resolved)
    result = []
    for iteration, per_task in sorted(seen.items()):
        admitted = {task.id: task.rung for task in by_purpose.get(f"iter{iteration}", [])}
        before, after = [], []
        for task_id, per_rung in per_task.items():
            first = next(iter(per_rung.values()))  # rows come in the order of recording
            before.append(sum(first) / len(first))
            last = per_rung.get(admitted.get(task_id, -1), [])
            if last:
                after.append(sum(last) / len(last))
        result.append(Calibration(iteration, before, after))
    return result


def _task_lines(store: RunStore, rows: list[RolloutRow], by_purpose: Mapping[str, list[Task]]) -> list[TaskLine]:
    """Outcomes are those of one policy: the fresh rollouts that confirmed a training task, a candidate's last screen, π0's of
    the fixed sets."""
    base = next(iter(_policies(rows)), "")
    screener = {row.key.task_id: row.key.policy for row in rows if row.key.purpose.endswith("/screen")}
    tried: dict[tuple[str, str, int], list[bool]] = defaultdict(list)
    for row in rows:
        purpose, _, stage = row.key.purpose.partition("/")
        match stage:
            case "screen":
                purpose, policy = TRAIN, screener[row.key.task_id]
            case "confirm":
                policy = row.key.policy
            case "":
                policy = base
            case _:  # training
                continue
        if row.counts and row.key.policy == policy:
            tried[purpose, row.key.task_id, row.key.rung].append(row.resolved)
    last = {decision.task_id: decision for decision in store.decisions()}
    lines = []
    for purpose, tasks in sorted(by_purpose.items(), key=lambda item: not item[0].startswith("iter")):
        for task in tasks:
            decision = last.get(task.id)
            outcomes = tried[purpose, task.id, task.rung]
            action = _PLAIN.get(decision.action, decision.action) if decision else ""
            why = {k: v for k, v in decision.detail.items() if k not in _INNER} if decision else {}
            lines.append(TaskLine(task, purpose, sum(outcomes), len(outcomes), action, _text(why)))
    return lines


_PLAIN = {"arrive": "not tried", "measure": "undecided"}
"""What the ledger's last word on a task means, where that is not plain."""
_INNER = {"bug", "scope", "step", "start", "asked"}
"""Of a decision: what only a restart needs."""


def _text(detail: Any) -> str:
    if isinstance(detail, dict):
        return ", ".join(f"{name} {_text(value)}" for name, value in detail.items())
    return f"{detail:.3g}" if isinstance(detail, float) else str(detail)


def _rejected(store: RunStore) -> list[tuple[str, int, str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for rejection in store.rejections():
        groups[rejection.reason].append(f"{rejection.candidate_id} {_text(rejection.detail)}".strip())
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(reason, len(examples), examples[0][:200]) for reason, examples in ordered]


def _counted(rows: Iterable[RolloutRow], value: Any) -> dict[str, Counter[str]]:
    """By kind of purpose: ``iter1/train/7`` counts under ``iter1/train``."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        name = "/".join(row.key.purpose.split("/")[:2])
        counted[f"{name} · {row.key.policy}" if name in (HELDOUT, "valid") else name][value(row)] += 1
    return dict(counted)


def _shown(store: RunStore, rows: list[RolloutRow], tasks: Mapping[str, Task]) -> Iterable[Shown]:
    for policy in _policies(rows):
        mine = [row for row in rows if row.key.policy == policy and row.counts]
        # Failures that tried something tell more than empty ones.
        failed = sorted(
            (row for row in mine if not row.resolved), key=lambda row: (not row.valid_edit, row.trajectory_id)
        )
        for row in [*[row for row in mine if row.resolved][:SHOWN_PER_OUTCOME], *failed[:SHOWN_PER_OUTCOME]]:
            trajectory, verdict = store.trajectory(row.trajectory_id), store.verdict(row.trajectory_id)
            yield Shown(row, tasks.get(row.key.task_id), trajectory, verdict)


def _phases(steps: Mapping[str, Any]) -> list[tuple[str, float]]:
    phases: dict[str, float] = {}
    for name, value in steps.items():
        seconds = value.get("seconds") if isinstance(value, dict) else value
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
            phase = name.removeprefix("phase/").split("#")[0]  # parts of one phase, e.g. of a resumed run, add up
            phases[phase] = phases.get(phase, 0.0) + float(seconds)
    return list(phases.items())


def _find(config: Mapping[str, Any], *names: str) -> Any:
    """The first setting of one of these names, at the top or one section down."""
    for name in names:
        for table in (config, *(value for value in config.values() if isinstance(value, dict))):
            if name in table and not isinstance(table[name], (dict, list)):
                return table[name]
    return None


def _facts(
    config: Mapping[str, Any], phases: list[tuple[str, float]], rows: list[RolloutRow], tasks: Mapping[str, Task]
) -> list[tuple[str, str]]:
    model = config.get("model")
    named = model if isinstance(model, str) else _find(model, "name", "path") if isinstance(model, dict) else None
    errors = sum(row.exit_reason in (ExitReason.INFRASTRUCTURE_ERROR,) or not row.counts for row in rows)
    facts = [
        ("Model", str(named or _find(config, "model", "model_path") or "—")),
        ("Seed", json.dumps(_find(config, "seed"))),
        ("Wall time", duration(sum(seconds for _, seconds in phases)) if phases else "—"),
        ("Rollouts", f"{len(rows):,}" + (f", {errors} of them infrastructure errors, left out" if errors else "")),
        ("Tasks", f"{len(tasks):,} of {len({t.origin.name for t in tasks.values()})} repositories"),
        ("Generated tokens", f"{sum(row.generated_tokens for row in rows):,}"),
        ("This report made on", f"{platform.machine()}, Python {platform.python_version()}"),
    ]
    return [(name, value) for name, value in facts if value not in ("—", "null")]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
