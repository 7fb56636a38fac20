"""Many rollouts at a time, each recorded once. Asking again for what is in the store costs nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frognano.records import Task, Trajectory, Verdict
from frognano.rollouts.rollout import Judge, ModelFactory, Setting, rollout
from frognano.runs.rows import RolloutKey, RolloutRow
from frognano.runs.store import RunStore
from frognano.sandbox.base import ATTEMPTS, BoxSpec, SandboxError, Sandboxes
from frognano.sandbox.scratch import temporary
from frognano.tasks.trees import Trees


@dataclass(frozen=True)
class Wanted:
    """`index` tells the samples of one (task, rung, policy, purpose) apart."""

    task: Task
    purpose: str
    index: int


class RolloutPool:
    """`model` makes the model of one rollout under the current policy, named `policy`."""

    def __init__(
        self,
        store: RunStore,
        setting: Setting,
        sandboxes: Sandboxes,
        trees: Trees,
        judge: Judge,
        *,
        concurrency: int,
        seed: int,
    ) -> None:
        self.store, self.setting, self.sandboxes, self.trees, self.judge = store, setting, sandboxes, trees, judge
        self.seed, self._slots = seed, asyncio.Semaphore(concurrency)
        self.lost = 0
        """Rollouts given up for infrastructure reasons."""

    async def run(
        self, wanted: Sequence[Wanted], policy: str, model: ModelFactory, progress: Callable[[int], None] | None = None
    ) -> list[RolloutRow | None]:
        """A row for each, in order; None for one that infrastructure broke `ATTEMPTS` times. What was recorded is not rerun."""
        done = 0

        async def one(w: Wanted) -> RolloutRow | None:
            nonlocal done
            row = await self._one(w, policy, model)
            done += 1
            if progress:
                progress(done)
            return row

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(w)) for w in wanted]
        return [r.result() for r in running]

    async def _one(self, wanted: Wanted, policy: str, model: ModelFactory) -> RolloutRow | None:
        key = RolloutKey(wanted.task.id, wanted.task.rung, policy, wanted.purpose, wanted.index)
        if (row := self.store.get(key)) is not None:
            return row
        async with self._slots:
            for attempt in range(ATTEMPTS):
                name = f"{key}/{attempt}"
                drawn = int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:6], "big")
                trajectory, verdict = await rollout(
                    wanted.task, self.setting, model(name, drawn), self.sandboxes, self.trees, self.judge
                )
                if trajectory is not None and verdict.counts:
                    self._check(trajectory, policy)
                    self.store.put_rollout(key, trajectory, verdict, _calls(trajectory))
                    return self.store.get(key)
        await self._require_boxes()
        self.lost += 1
        self.store.reject(f"{key}", "infrastructure_error", verdict.evidence)
        return None

    async def _require_boxes(self) -> None:
        """A SandboxError where no box can be had at all: then no rollout is given up, and the run stops, since every other
        one would be given up after it. Whatever was recorded stays, so that the run goes on once boxes can be had."""
        with temporary() as empty:
            try:
                async with self.sandboxes.open(BoxSpec(empty, None, self.setting.limits)):
                    return
            except SandboxError as error:
                raise SandboxError(
                    f"no box can be opened any more: {error}; when one can, run the same command again: nothing is lost"
                ) from error

    @staticmethod
    def _check(trajectory: Trajectory, policy: str) -> None:
        if trajectory.policy != policy:
            raise RuntimeError(f"asked for rollouts of {policy}, the engine answered with {trajectory.policy}")

    def read(self, rows: Sequence[RolloutRow | None]) -> list[tuple[Trajectory, Verdict]]:
        """The full records of rows, those that were left out are skipped."""
        return [(self.store.trajectory(r.trajectory_id), self.store.verdict(r.trajectory_id)) for r in rows if r]


def _calls(trajectory: Trajectory) -> dict[str, int]:
    """How many tool calls there were and how many failed: told by the row, without opening the file."""
    results = [r for t in trajectory.turns for r in t.results]
    return {"calls": len(results), "failed_calls": sum(not r.ok for r in results)}
