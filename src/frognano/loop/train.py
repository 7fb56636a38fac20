"""One iteration of training: updates on this iteration's tasks only, resumable at every one of them.

What happened is a function of the recorded rollouts: after a kill the last checkpoint is taken, and the updates after it are
computed again from the batches in the store, without sampling anything twice.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frognano.analysis.alarms import TITLES, changes
from frognano.loop.evaluate import validate_policy
from frognano.loop.phases import phase
from frognano.loop.pilot import Repositories, calibrated, spent_tokens, uncalibrated
from frognano.loop.profile import Used, between, read, shares
from frognano.loop.selection import select
from frognano.loop.session import Session
from frognano.records import ExitReason, Task, Trajectory, Verdict
from frognano.rl.checkpoint import STATE, save_checkpoint
from frognano.rl.groups import Group
from frognano.rl.samples import make_group
from frognano.rollouts.pool import Wanted
from frognano.runs.rows import RolloutKey, RolloutRow
from frognano.taskpilot.allocation import next_rung, pick, saturated, step_weight
from frognano.tasks.harbor import update_task


@dataclass
class Live:
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


def version_name(iteration: int, update: int) -> str:
    return f"i{iteration}u{update}"


def has_checkpoint(folder: Path) -> bool:
    return (folder / STATE).is_file()


class IterationTrainer:
    def __init__(
        self, session: Session, repositories: Repositories, iteration: int, start: str, valid: Sequence[Task]
    ) -> None:
        self.session, self.repositories, self.iteration = session, repositories, iteration
        self.start, self.valid = start, valid
        self.live: dict[str, Live] = {}
        self._confirming: list[list[RolloutKey]] = []
        """Rollouts that confirmed tasks and were not trained on yet, a batch an update."""
        self._started = self._graded = 0.0
        self._before: Used = {}

    @property
    def nothing_to_learn(self) -> bool:
        """The iteration's first pilot found no task between 0 and 1, so nothing was trained."""
        return self.session.store.done(f"iter{self.iteration}/pilot/1") == []

    @property
    def offset(self) -> int:
        """Updates of the iterations before this one."""
        return (self.iteration - 1) * self.session.recipe.train.updates

    async def run(self) -> str:
        """Train, and return the version that validation selects."""
        s, c = self.session, self.session.recipe.train
        selected_step = f"iter{self.iteration}/selected"
        if (held := s.store.done(selected_step)) is not None:
            self._forget_checkpoints(keep=str(held))
            return str(held)
        s.trainer.reset()
        scores = {self.start: await self._score(0, self.start)}
        await s.use(self.start)
        finished = len(s.store.steps(f"iter{self.iteration}/update/"))
        if computed := self._last_checkpoint(finished):
            await s.resume(version_name(self.iteration, computed))
        threshold = self._threshold()
        last = self.start
        with phase(s, f"iter{self.iteration}/train", total=c.updates) as progress:
            for update in range(1, c.updates + 1):
                if not self._affordable(update):
                    break
                rows = await self._batch(update, sample=update > finished)
                if not rows:
                    break
                last = version_name(self.iteration, update)
                if update > computed:
                    await self._update(update, last, rows, threshold, again=update <= finished)
                self._take_in(rows)
                if update % c.valid_every == 0 or update == c.updates:
                    scores[last] = await self._score(update, last)
                progress.advance(numbers=self._numbers(rows))
            if last not in scores:  # nothing was left to learn before the next validation was due
                if not has_checkpoint(s.checkpoint(last)):
                    await s.on_compute(save_checkpoint, s.checkpoint(last), s.trainer)
                scores[last] = await self._score(update - 1, last)
        selected = select(list(scores.items()), len(self.valid) * s.recipe.eval.valid_samples)
        s.store.finish(selected_step, selected)
        self._forget_checkpoints(keep=selected)
        return selected

    async def _update(
        self, update: int, version: str, rows: Sequence[RolloutRow], threshold: int | None, again: bool
    ) -> None:
        """One optimizer step. What is written last says that it happened; a kill before that computes it again.

        `again`: it happened, but its weights went with a killed process. Its numbers stand as they were written.
        """
        s, c = self.session, self.session.recipe.train
        groups = self._groups(rows, update, threshold)
        metrics = await s.on_compute(s.trainer.update, groups)
        await s.publish(version)
        if update % c.checkpoint_every == 0 or update == c.updates or update % c.valid_every == 0:
            await s.on_compute(save_checkpoint, s.checkpoint(version), s.trainer)
        if again:
            return
        self._log(update, metrics, rows, groups)
        s.store.finish(f"iter{self.iteration}/update/{update}", {"policy": version, "rollouts": len(rows)})

    # -- tasks --------------------------------------------------------------------------------------------------

    async def _admit(self, update: int, policy: str) -> None:
        """Run the pilot under the policy of now; the fresh rollouts that confirmed the tasks are the next batches.

        More than `groups` of them make several updates: the mask of DPPO is made for the later ones, whose samples are of
        a policy some steps ago. What the pilot admitted is in the journal, so that a resumed run has the same tasks without
        asking the policy again.
        """
        s = self.session
        step = f"iter{self.iteration}/pilot/{update}"
        if (held := s.store.done(step)) is None:
            held = await (self._calibrated(update) if s.recipe.train.calibrate else self._as_they_come())
            s.store.finish(step, held)
        by_id = {t.id: t for t in s.store.tasks(f"iter{self.iteration}")}
        groups: list[list[RolloutKey]] = []
        for task_id, rung, k, n, confirmed in held:
            task = by_id[task_id].at_rung(rung)
            self.live[task_id] = Live(task, k, n)
            fresh = [i for start, count in confirmed for i in range(start, start + count)]
            if not fresh:
                continue
            purpose = f"iter{self.iteration}/confirm"
            groups.append([RolloutKey(task.id, rung, policy, purpose, i) for i in fresh])
        size = s.recipe.train.groups
        self._confirming += [[k for g in groups[i : i + size] for k in g] for i in range(0, len(groups), size)]

    async def _calibrated(self, update: int) -> list[Any]:
        s = self.session
        result = await calibrated(s, self.repositories, self.iteration)
        for a in result.admitted:
            await asyncio.to_thread(update_task, s.store.path / "tasks", a.task)
            s.store.put_task(a.task, f"iter{self.iteration}")
        told = {"admitted": len(result.admitted), "dropped": len(result.dropped), "rollouts": result.rollouts_used}
        s.store.log("pilot", self.offset + update, {k: float(v) for k, v in told.items()})
        return [[a.task.id, a.task.rung, a.k, a.n, a.confirmed] for a in result.admitted]

    async def _as_they_come(self) -> list[Any]:
        c = self.session.recipe.train
        tasks = await uncalibrated(self.session, self.repositories, self.iteration, c.updates * c.groups)
        return [[t.id, t.rung, 0, 0, []] for t in tasks]

    def _affordable(self, update: int) -> bool:
        """Whether tokens are left for an update; what confirmed tasks was paid for already. The answer is kept, since after a
        kill more of this update's rollouts may be there than when it was given."""
        s = self.session
        if s.recipe.train.max_tokens is None or (update > 1 and self._confirming):
            return True
        step = f"iter{self.iteration}/affordable/{update}"
        if (held := s.store.done(step)) is None:
            held = spent_tokens(s.store) < s.recipe.train.max_tokens
            s.store.finish(step, held)
        return bool(held)

    def _take_in(self, rows: Sequence[RolloutRow]) -> None:
        if not self.session.recipe.train.calibrate:
            return
        by_task: dict[str, list[bool]] = {}
        for row in rows:
            by_task.setdefault(row.key.task_id, []).append(row.resolved)
        patience = self.session.recipe.train.saturated_after
        for task_id, outcomes in by_task.items():
            if task_id in self.live and not self.live[task_id].saw(outcomes, patience):
                del self.live[task_id]

    # -- batches ------------------------------------------------------------------------------------------------

    async def _batch(self, update: int, sample: bool) -> list[RolloutRow]:
        """Rows of one update: a draw of the live tasks, or what confirmed new ones. Empty when nothing is left to learn."""
        s, c = self.session, self.session.recipe.train
        policy = self.start if update == 1 else version_name(self.iteration, update - 1)
        self._started, self._graded = time.monotonic(), s.judge.seconds
        if update == 1 or (not self._confirming and len(self.live) < c.replenish_below):
            await self._admit(update, policy)
        self._before = read(s)
        if self._confirming:
            # One that infrastructure lost is left out, as p̂ left it out: its policy may be some updates back by now, and a
            # group stands without it. There is always something, since only outcomes of both kinds admit a task.
            return [r for r in map(s.store.get, self._confirming.pop(0)) if r is not None]
        step = f"iter{self.iteration}/batch/{update}"
        if (chosen := s.store.done(step)) is None:
            weights = {t: live.weight for t, live in self.live.items()}
            seed = s.recipe.run.seed * 1_000_003 + self.offset + update
            drawn = (
                pick(weights, c.groups, seed) if c.calibrate else list(weights)[(update - 1) * c.groups :][: c.groups]
            )
            chosen = [[t, self.live[t].task.rung] for t in drawn]
            s.store.finish(step, chosen)
        tasks = [self.live[t].task.at_rung(rung) for t, rung in chosen]
        wanted = [Wanted(t, f"iter{self.iteration}/train/{update}", i) for t in tasks for i in range(c.group_size)]
        if sample:
            rows = await s.rollouts().run(wanted, policy, s.model())
        else:
            keys = [RolloutKey(w.task.id, w.task.rung, policy, w.purpose, w.index) for w in wanted]
            rows = [s.store.get(key) for key in keys]
        return [r for r in rows if r is not None]

    def _groups(self, rows: Sequence[RolloutRow], update: int, threshold: int | None) -> list[Group]:
        by_group: dict[str, list[tuple[Trajectory, Verdict]]] = {}
        for row in rows:
            group = f"{row.key.task_id}@{row.key.rung}/{self.iteration}/{update}"
            pair = (self.session.store.trajectory(row.trajectory_id), self.session.store.verdict(row.trajectory_id))
            by_group.setdefault(group, []).append(pair)
        reward = self.session.recipe.reward
        return [make_group(g, pairs, reward, self.iteration, threshold) for g, pairs in by_group.items()]

    def _threshold(self) -> int | None:
        """N of the efficiency reward: as the recipe says, else the median length of the successes so far."""
        s = self.session
        if s.recipe.reward.threshold is not None:
            return s.recipe.reward.threshold
        step = f"iter{self.iteration}/threshold"
        if (held := s.store.done(step)) is None:
            lengths = [
                r.generated_tokens
                for i in range(1, self.iteration)
                for r in s.store.rollouts(purpose=f"iter{i}/")
                if r.resolved
            ]
            held = int(statistics.median(lengths)) if lengths else 0
            s.store.finish(step, held)
        return int(held) or None

    # -- checkpoints, validation, words -------------------------------------------------------------------------

    def _last_checkpoint(self, finished: int) -> int:
        """The last of the finished updates whose weights are on disk; 0 for none."""
        kept = (
            has_checkpoint(self.session.checkpoint(version_name(self.iteration, u))) for u in range(finished, 0, -1)
        )
        return next((finished - i for i, there in enumerate(kept) if there), 0)

    def _forget_checkpoints(self, keep: str) -> None:
        for folder in (self.session.store.path / "checkpoints").glob(f"i{self.iteration}u*"):
            if folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)

    async def _score(self, update: int, version: str) -> float:
        step = f"iter{self.iteration}/valid/{update}"
        if (held := self.session.store.done(step)) is not None:
            return float(held)
        rate, n = await validate_policy(self.session, self.valid, version)
        # The first score of a later iteration is that of the policy selected before it, at a step that is taken.
        if update or self.iteration == 1:
            said = {"solve_rate": rate, "n": n, "iteration": self.iteration}
            self.session.store.log("valid", self.offset + update, said)
        self.session.store.finish(step, rate)
        return rate

    def _log(self, update: int, metrics: dict[str, float], rows: Sequence[RolloutRow], groups: Sequence[Group]) -> None:
        s, n = self.session, max(1, len(rows))
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
            "sample_seconds": time.monotonic() - self._started - metrics["train_seconds"],
            "grade_seconds": s.judge.seconds - self._graded,
        }
        said = {"iteration": self.iteration, "update": update, "rollouts": len(rows), "live": len(self.live)}
        said["confirmed"] = sum(r.key.purpose.endswith("/confirm") for r in rows)
        said["lag"] = max((self._lag(update, r.key.policy) for r in rows), default=0)
        s.store.log("train", self.offset + update, {**metrics, **mean, **spent, **said})
        s.store.log("profile", self.offset + update, shares(between(self._before, read(s))))
        self._tell_alarms(self.offset + update)

    def _lag(self, update: int, policy: str) -> int:
        """Updates that the policy of a rollout is behind the one that the update moves."""
        sampled = 0 if policy == self.start else int(policy.rpartition("u")[2])
        return update - 1 - sampled

    def _tell_alarms(self, step: int) -> None:
        """One line when an alarm begins and one when it is over; said and recorded once, whatever is computed again."""
        s = self.session
        begun, over = changes(s.store.metrics("train"), s.recipe.alarms)
        if (not begun and not over) or step in dict(s.store.metrics("alarms")):
            return
        s.store.log("alarms", step, {**{a.name: 0.0 for a in over}, **{a.name: 1.0 for a in begun}})
        for alarm in over:
            s.live.say(f"over since update {alarm.until}: {TITLES[alarm.name]}")
        for alarm in begun:
            s.live.say(alarm.said)

    def _numbers(self, rows: Sequence[RolloutRow]) -> dict[str, float]:
        logged = self.session.store.metrics("train")
        kept = logged[-1][1]["groups_kept"] if logged else 0.0
        solved = sum(r.resolved for r in rows) / max(1, len(rows))
        return {"solved": solved, "groups with signal": kept, "live tasks": len(self.live)}
