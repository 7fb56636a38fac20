"""Task table: what became of each task and each candidate of a run, and how p̂ lay before and after calibration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frognano.analysis.rates import policies_of
from frognano.records import Task
from frognano.runs import RolloutRow, RunStore

TRAIN = "train"
"""Purpose of the candidates that the pilot was offered."""


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


def calibrations(rows: list[RolloutRow], by_purpose: Mapping[str, list[Task]]) -> list[Calibration]:
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


def task_lines(store: RunStore, rows: list[RolloutRow], by_purpose: Mapping[str, list[Task]]) -> list[TaskLine]:
    """Outcomes are those of one policy: the fresh rollouts that confirmed a training task, a candidate's last screen, π0's of
    the fixed sets."""
    base = next(iter(policies_of(rows)), "")
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


def rejected(store: RunStore) -> list[tuple[str, int, str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for rejection in store.rejections():
        groups[rejection.reason].append(f"{rejection.candidate_id} {_text(rejection.detail)}".strip())
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(reason, len(examples), examples[0][:200]) for reason, examples in ordered]
