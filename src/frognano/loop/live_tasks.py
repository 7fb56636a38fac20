"""Live tasks: what an iteration trains on now. The pilot fills them, the outcomes of their groups move or retire them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from frognano.loop.pilot import Repositories, calibrated, uncalibrated
from frognano.loop.session import Session
from frognano.loop.versions import Versions
from frognano.records import Task
from frognano.runs.rows import RolloutKey, RolloutRow
from frognano.taskpilot.allocation import next_rung, saturated, step_weight
from frognano.tasks.harbor import update_task


@dataclass
class LiveTask:
    """A training task of this iteration: its rung now, and what its groups at that rung scored."""

    task: Task
    k: int
    n: int
    groups: list[list[bool]] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return step_weight(self.k, self.n)

    def saw(self, outcomes: Sequence[bool], patience: int) -> bool:
        """Take in a training group; False when the task has nothing left to teach and retires."""
        if outcomes:
            self.k, self.n = sum(outcomes), len(outcomes)
            self.groups.append(list(outcomes))
        direction = saturated(self.groups, patience)
        if direction == 0:
            return True
        rung = next_rung([s.rung for s in self.task.statements], self.task.rung, direction)
        if rung is None:
            return False
        self.task, self.groups, self.k, self.n = self.task.at_rung(rung), [], 0, 0
        return True


class LiveTasks:
    """`by_id` holds the tasks; `confirming` the rollouts that confirmed them and were not trained on yet, a batch an update."""

    def __init__(self, session: Session, repositories: Repositories, versions: Versions) -> None:
        self.session, self.repositories, self.versions = session, repositories, versions
        self.by_id: dict[str, LiveTask] = {}
        self.confirming: list[list[RolloutKey]] = []

    def __len__(self) -> int:
        return len(self.by_id)

    async def admit(self, update: int) -> None:
        """Run the pilot under the policy of now; the fresh rollouts that confirmed the tasks are the next batches.

        More than `groups` of them make several updates: the mask of DPPO is made for the later ones, whose samples are of
        a policy some steps ago. What the pilot admitted is in the journal, so that a resumed run has the same tasks without
        asking the policy again.
        """
        s, iteration = self.session, self.versions.iteration
        step = f"iter{iteration}/pilot/{update}"
        if (held := s.store.done(step)) is None:
            held = await (self._calibrated(update) if s.recipe.train.calibrate else self._as_they_come())
            s.store.finish(step, held)
        by_id = {t.id: t for t in s.store.tasks(f"iter{iteration}")}
        policy = self.versions.after(update - 1)
        groups: list[list[RolloutKey]] = []
        for task_id, rung, k, n, confirmed in held:
            task = by_id[task_id].at_rung(rung)
            self.by_id[task_id] = LiveTask(task, k, n)
            fresh = [i for start, count in confirmed for i in range(start, start + count)]
            if not fresh:
                continue
            purpose = f"iter{iteration}/confirm"
            groups.append([RolloutKey(task.id, rung, policy, purpose, i) for i in fresh])
        size = s.recipe.train.groups
        self.confirming += [[k for g in groups[i : i + size] for k in g] for i in range(0, len(groups), size)]

    async def _calibrated(self, update: int) -> list[Any]:
        s, iteration = self.session, self.versions.iteration
        result = await calibrated(s, self.repositories, iteration)
        for a in result.admitted:
            await asyncio.to_thread(update_task, s.store.path / "tasks", a.task)
            s.store.put_task(a.task, f"iter{iteration}")
        told = {"admitted": len(result.admitted), "dropped": len(result.dropped), "rollouts": result.rollouts_used}
        s.store.log("pilot", self.versions.step(update), {k: float(v) for k, v in told.items()})
        return [[a.task.id, a.task.rung, a.k, a.n, a.confirmed] for a in result.admitted]

    async def _as_they_come(self) -> list[Any]:
        c = self.session.recipe.train
        tasks = await uncalibrated(self.session, self.repositories, self.versions.iteration, c.updates * c.groups)
        return [[t.id, t.rung, 0, 0, []] for t in tasks]

    def take_in(self, rows: Sequence[RolloutRow]) -> None:
        """What an update's rollouts scored: a task that is saturated moves to another rung, or retires."""
        if not self.session.recipe.train.calibrate:
            return
        by_task: dict[str, list[bool]] = {}
        for row in rows:
            by_task.setdefault(row.key.task_id, []).append(row.resolved)
        patience = self.session.recipe.train.saturated_after
        for task_id, outcomes in by_task.items():
            if task_id in self.by_id and not self.by_id[task_id].saw(outcomes, patience):
                del self.by_id[task_id]
