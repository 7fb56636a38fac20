"""Updates: one optimizer step of an iteration, and what is written of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from frognano.analysis.alarms import TITLES, changes
from frognano.loop.batches import Batch
from frognano.loop.live_tasks import LiveTasks
from frognano.loop.profile import between, read, shares
from frognano.loop.session import Session
from frognano.loop.versions import Versions
from frognano.records import ExitReason, Trajectory, Verdict
from frognano.rl.checkpoint import save_checkpoint
from frognano.rl.groups import Group
from frognano.rl.samples import make_group
from frognano.runs.rows import RolloutRow


class Updates:
    def __init__(self, session: Session, versions: Versions, live: LiveTasks) -> None:
        self.session, self.versions, self.live = session, versions, live
        self.threshold = length_threshold(session, versions.iteration)

    async def make(self, update: int, batch: Batch, again: bool) -> None:
        """One optimizer step. What is written last says that it happened; a kill before that computes it again.

        `again`: it happened, but its weights went with a killed process. Its numbers stand as they were written.
        """
        s, c, version = self.session, self.session.recipe.train, self.versions.after(update)
        groups = self._groups(batch.rows, update)
        metrics = await s.on_compute(s.trainer.update, groups)
        await s.publish(version)
        if update % c.checkpoint_every == 0 or update == c.updates or update % c.valid_every == 0:
            await self.save(version)
        if again:
            return
        self._log(update, metrics, batch, groups)
        done = {"policy": version, "rollouts": len(batch.rows)}
        s.store.finish(f"iter{self.versions.iteration}/update/{update}", done)

    async def save(self, version: str) -> None:
        """Write the checkpoint of the policy of now."""
        await self.session.on_compute(save_checkpoint, self.session.checkpoint(version), self.session.trainer)

    def _groups(self, rows: Sequence[RolloutRow], update: int) -> list[Group]:
        iteration = self.versions.iteration
        by_group: dict[str, list[tuple[Trajectory, Verdict]]] = {}
        for row in rows:
            group = f"{row.key.task_id}@{row.key.rung}/{iteration}/{update}"
            pair = (self.session.store.trajectory(row.trajectory_id), self.session.store.verdict(row.trajectory_id))
            by_group.setdefault(group, []).append(pair)
        reward = self.session.recipe.reward
        return [make_group(g, pairs, reward, iteration, self.threshold) for g, pairs in by_group.items()]

    def _log(self, update: int, metrics: dict[str, float], batch: Batch, groups: Sequence[Group]) -> None:
        s, rows, step = self.session, batch.rows, self.versions.step(update)
        n = max(1, len(rows))
        rewards = [shaped for g in groups for _, shaped in g.rewards().values()]
        calls = sum(r.fresh["calls"] for r in rows)
        mean = {
            "solve_rate": sum(r.resolved for r in rows) / n,
            "valid_edit": sum(r.valid_edit for r in rows) / n,
            "truncated": sum(r.exit_reason.truncated for r in rows) / n,
            "reward": sum(rewards) / max(1, len(rewards)),
            "tool_errors": sum(r.fresh["failed_calls"] for r in rows) / max(1, calls),
            "stuck": sum(r.exit_reason is ExitReason.STUCK for r in rows) / n,
            "turns": sum(r.turns for r in rows) / n,
            "length": sum(r.generated_tokens for r in rows) / n,
        }
        spent = {
            "sample_seconds": time.monotonic() - batch.started - metrics["train_seconds"],
            "grade_seconds": s.judge.seconds - batch.graded,
        }
        said = {
            "iteration": self.versions.iteration,
            "update": update,
            "rollouts": len(rows),
            "live": len(self.live),
            "confirmed": sum(r.key.purpose.endswith("/confirm") for r in rows),
            "lag": max((self.versions.lag(update, r.key.policy) for r in rows), default=0),
        }
        s.store.log("train", step, {**metrics, **mean, **spent, **said})
        s.store.log("profile", step, shares(between(batch.used, read(s))))
        self._tell_alarms(step)

    def _tell_alarms(self, step: int) -> None:
        """One line when an alarm begins and one when it is over; said and recorded once, whatever is computed again."""
        s = self.session
        begun, over = changes(s.store.metrics("train"), s.recipe.alarms.within(s.recipe.budget.max_turns))
        if (not begun and not over) or step in dict(s.store.metrics("alarms")):
            return
        s.store.log("alarms", step, {**{a.name: 0.0 for a in over}, **{a.name: 1.0 for a in begun}})
        for alarm in over:
            s.live.say(f"over since update {alarm.until}: {TITLES[alarm.name]}")
        for alarm in begun:
            s.live.say(alarm.said)


def length_threshold(session: Session, iteration: int) -> int | None:
    """N of the efficiency reward, in tokens: as the recipe says, else the median length of the successes of the iterations
    before; None where there is none."""
    if session.recipe.reward.threshold is not None:
        return session.recipe.reward.threshold
    step = f"iter{iteration}/threshold"
    if (held := session.store.done(step)) is None:
        lengths = [
            r.generated_tokens
            for i in range(1, iteration)
            for r in session.store.rollouts(purpose=f"iter{i}/")
            if r.resolved
        ]
        held = int(statistics.median(lengths)) if lengths else 0
        session.store.finish(step, held)
    return int(held) or None
