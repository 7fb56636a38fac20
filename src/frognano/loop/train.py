"""One iteration of training: updates on this iteration's tasks only, resumable at every one of them.

What happened is a function of the recorded rollouts: after a kill the last checkpoint is taken, and the updates after it are
computed again from the batches in the store, without sampling anything twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from frognano.loop.batches import Batches
from frognano.loop.evaluate import validate_policy
from frognano.loop.live_tasks import LiveTasks
from frognano.loop.phases import phase
from frognano.loop.pilot import Repositories
from frognano.loop.selection import select
from frognano.loop.session import Session
from frognano.loop.updates import Updates
from frognano.loop.versions import Versions
from frognano.records import Task
from frognano.runs.rows import RolloutRow


class IterationTrainer:
    def __init__(
        self, session: Session, repositories: Repositories, iteration: int, start: str, valid: Sequence[Task]
    ) -> None:
        self.session, self.iteration, self.start, self.valid = session, iteration, start, valid
        self.versions = Versions(session, iteration, start)
        self.live = LiveTasks(session, repositories, self.versions)
        self.batches = Batches(session, self.versions, self.live)

    @property
    def nothing_to_learn(self) -> bool:
        """The iteration's first pilot found no task between 0 and 1, so nothing was trained."""
        return self.session.store.done(f"iter{self.iteration}/pilot/1") == []

    async def run(self) -> str:
        """Train, and return the version that validation selects."""
        s, c = self.session, self.session.recipe.train
        selected_step = f"iter{self.iteration}/selected"
        if (held := s.store.done(selected_step)) is not None:
            self.versions.forget(keep=str(held))
            return str(held)
        s.trainer.reset()
        scores = {self.start: await self._score(0, self.start)}
        await s.use(self.start)
        finished = len(s.store.steps(f"iter{self.iteration}/update/"))
        if computed := self.versions.last_saved(finished):
            await s.resume(self.versions.after(computed))
        updates = Updates(s, self.versions, self.live)
        last = self.start
        with phase(s, f"iter{self.iteration}/train", total=c.updates) as progress:
            for update in range(1, c.updates + 1):
                if not self.batches.affordable(update):
                    break
                batch = await self.batches.of(update, sample=update > finished)
                if not batch.rows:
                    break
                last = self.versions.after(update)
                if update > computed:
                    await updates.make(update, batch, again=update <= finished)
                self.live.take_in(batch.rows)
                if update % c.valid_every == 0 or update == c.updates:
                    scores[last] = await self._score(update, last)
                progress.advance(numbers=self._numbers(batch.rows))
            if last not in scores:  # nothing was left to learn before the next validation was due
                if not self.versions.saved(last):
                    await updates.save(last)
                scores[last] = await self._score(update - 1, last)
        selected = select(list(scores.items()), len(self.valid) * s.recipe.eval.valid_samples)
        s.store.finish(selected_step, selected)
        self.versions.forget(keep=selected)
        return selected

    async def _score(self, update: int, version: str) -> float:
        """The solve rate of a version on the validation tasks, measured once."""
        step = f"iter{self.iteration}/valid/{update}"
        if (held := self.session.store.done(step)) is not None:
            return float(held)
        rate, n = await validate_policy(self.session, self.valid, version)
        # The first score of a later iteration is that of the policy selected before it, at a step that is taken.
        if update or self.iteration == 1:
            said = {"solve_rate": rate, "n": n, "iteration": self.iteration}
            self.session.store.log("valid", self.versions.step(update), said)
        self.session.store.finish(step, rate)
        return rate

    def _numbers(self, rows: Sequence[RolloutRow]) -> dict[str, float]:
        """What the person who waits sees of an update."""
        logged = self.session.store.metrics("train")
        kept = logged[-1][1]["groups_kept"] if logged else 0.0
        solved = sum(r.resolved for r in rows) / max(1, len(rows))
        return {"solved": solved, "groups with signal": kept, "live tasks": len(self.live)}
