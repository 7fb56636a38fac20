"""Rates: the held-out solve rate of each policy at each rung, and what training gained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frognano.analysis.intervals import Interval, Trial, cluster_difference, cluster_rate
from frognano.records import Task
from frognano.runs import RolloutRow


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


def policies_of(rows: Iterable[RolloutRow]) -> list[str]:
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


def rates_of(rows: list[RolloutRow], tasks: Mapping[str, Task]) -> list[Rate]:
    rates = []
    for policy in policies_of(rows):
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


def gain_of(rows: list[RolloutRow], tasks: Mapping[str, Task]) -> Interval | None:
    policies = policies_of(rows)
    if len(policies) < 2:
        return None
    first, last = (
        _trials([row for row in rows if row.key.policy == policy], tasks) for policy in (policies[0], policies[-1])
    )
    both = {t.task_id for t in first} & {t.task_id for t in last}
    if not both:
        return None
    return cluster_difference([t for t in first if t.task_id in both], [t for t in last if t.task_id in both])
