"""What the report tells, read from the store once: plain data, no HTML.

Taken from the store: rollouts by purpose (``heldout``, ``valid``, ``iterN/screen``, ``iterN/confirm``, …), tasks by purpose,
the pilot's ledger, the metric series ``train`` and ``valid``, and steps whose name begins with ``phase/`` (a number of
seconds, or a table with ``seconds``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from frognano.analysis.alarms import Alarm, AlarmsConfig, alarms
from frognano.analysis.facts import facts_of, find_setting, phases_of
from frognano.analysis.intervals import Interval
from frognano.analysis.profile import Part, profile
from frognano.analysis.rates import Rate, gain_of, policies_of, rates_of
from frognano.analysis.task_table import Calibration, TaskLine, calibrations, rejected, task_lines
from frognano.records import Task, Trajectory, Verdict
from frognano.runs import RolloutRow, RunStore

Series = list[tuple[int, dict[str, float]]]
HELDOUT = "heldout"
"""Purpose of the measured tasks."""
SHOWN_PER_OUTCOME = 3


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
    phases = phases_of(store.steps("phase/"))
    return ReportData(
        title=str(find_setting(config, "name") or store.path.name),
        facts=facts_of(config, phases, everything, tasks),
        top_rung=top,
        heldout=rates_of(heldout, tasks),
        gain=gain_of([row for row in heldout if row.key.rung == top], tasks),
        train=store.metrics("train"),
        valid=store.metrics("valid"),
        calibrations=calibrations(everything, by_purpose),
        tasks=task_lines(store, everything, by_purpose),
        rejected=rejected(store),
        exits=_counted(everything, lambda row: row.exit_reason.value),
        statuses=_counted(everything, lambda row: row.status.value),
        shown=list(_shown(store, heldout or everything, tasks)),
        phases=phases,
        config=config,
        alarms=alarms(store.metrics("train"), _limits(config)),
        profile=profile(store),
    )


def _limits(config: Mapping[str, Any]) -> AlarmsConfig:
    return AlarmsConfig.model_validate(config.get("alarms", {})).within(config.get("budget", {}).get("max_turns"))


def _counted(rows: Iterable[RolloutRow], value: Any) -> dict[str, Counter[str]]:
    """By kind of purpose: ``iter1/train/7`` counts under ``iter1/train``."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        name = "/".join(row.key.purpose.split("/")[:2])
        counted[f"{name} · {row.key.policy}" if name in (HELDOUT, "valid") else name][value(row)] += 1
    return dict(counted)


def _shown(store: RunStore, rows: list[RolloutRow], tasks: Mapping[str, Task]) -> Iterable[Shown]:
    for policy in policies_of(rows):
        mine = [row for row in rows if row.key.policy == policy and row.counts]
        # Failures that tried something tell more than empty ones.
        failed = sorted(
            (row for row in mine if not row.resolved), key=lambda row: (not row.valid_edit, row.trajectory_id)
        )
        for row in [*[row for row in mine if row.resolved][:SHOWN_PER_OUTCOME], *failed[:SHOWN_PER_OUTCOME]]:
            trajectory, verdict = store.trajectory(row.trajectory_id), store.verdict(row.trajectory_id)
            yield Shown(row, tasks.get(row.key.task_id), trajectory, verdict)
