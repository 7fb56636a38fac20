"""Batches: the rollouts that each update of an iteration learns from, the same ones again after a kill."""

from __future__ import annotations

import time
from dataclasses import dataclass

from frognano.loop.live_tasks import LiveTasks
from frognano.loop.pilot import spent_tokens
from frognano.loop.profile import Used, read
from frognano.loop.session import Session
from frognano.loop.versions import Versions
from frognano.rollouts.pool import Wanted
from frognano.runs.rows import RolloutKey, RolloutRow
from frognano.taskpilot.allocation import pick


@dataclass(frozen=True, slots=True)
class Batch:
    """`rows` are empty when nothing is left to learn."""

    rows: list[RolloutRow]
    started: float
    """When it was asked for, by the monotonic clock."""
    graded: float
    """Seconds of grading until then."""
    used: Used
    """By the process until its rollouts began, the pilot's work included."""


class Batches:
    def __init__(self, session: Session, versions: Versions, live: LiveTasks) -> None:
        self.session, self.versions, self.live = session, versions, live

    def affordable(self, update: int) -> bool:
        """Whether tokens are left for an update; what confirmed tasks was paid for already. The answer is kept, since after a
        kill more of this update's rollouts may be there than when it was given."""
        s = self.session
        if s.recipe.train.max_tokens is None or (update > 1 and self.live.confirming):
            return True
        step = f"iter{self.versions.iteration}/affordable/{update}"
        if (held := s.store.done(step)) is None:
            held = spent_tokens(s.store) < s.recipe.train.max_tokens
            s.store.finish(step, held)
        return bool(held)

    async def of(self, update: int, sample: bool) -> Batch:
        """That of one update: a draw of the live tasks, or what confirmed new ones. Only with `sample` is anything sampled."""
        s = self.session
        started, graded = time.monotonic(), s.judge.seconds
        if update == 1 or (not self.live.confirming and len(self.live) < s.recipe.train.replenish_below):
            await self.live.admit(update)
        used = read(s)
        if self.live.confirming:
            # One that infrastructure lost is left out, as p̂ left it out: its policy may be some updates back by now, and a
            # group stands without it. There is always something, since only outcomes of both kinds admit a task.
            rows = [s.store.get(key) for key in self.live.confirming.pop(0)]
        else:
            rows = await self._drawn(update, sample)
        return Batch([r for r in rows if r is not None], started, graded, used)

    async def _drawn(self, update: int, sample: bool) -> list[RolloutRow | None]:
        s, c, live = self.session, self.session.recipe.train, self.live.by_id
        iteration, policy = self.versions.iteration, self.versions.after(update - 1)
        step = f"iter{iteration}/batch/{update}"
        if (chosen := s.store.done(step)) is None:
            weights = {t: task.weight for t, task in live.items()}
            seed = s.recipe.run.seed * 1_000_003 + self.versions.step(update)
            drawn = (
                pick(weights, c.groups, seed) if c.calibrate else list(weights)[(update - 1) * c.groups :][: c.groups]
            )
            chosen = [[t, live[t].task.rung] for t in drawn]
            s.store.finish(step, chosen)
        tasks = [live[t].task.at_rung(rung) for t, rung in chosen]
        wanted = [Wanted(t, f"iter{iteration}/train/{update}", i) for t in tasks for i in range(c.group_size)]
        if sample:
            return await s.rollouts().run(wanted, policy, s.model())
        return [s.store.get(RolloutKey(w.task.id, w.task.rung, policy, w.purpose, w.index)) for w in wanted]
