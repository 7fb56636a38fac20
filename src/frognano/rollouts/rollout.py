"""One rollout: a task, a harness, a box and a model make a trajectory; the judge puts a verdict on its patch."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from frognano.harness.base import Budget, Harness, Prompt
from frognano.models.base import Model, Sampling
from frognano.records import ExitReason, Status, Task, Trajectory, Verdict
from frognano.runs.store import RunStore
from frognano.sandbox.base import BoxSpec, Limits, SandboxError, Sandboxes
from frognano.tasks.grading import Grader
from frognano.tasks.trees import Trees


class SessionModel(Model, Protocol):
    """A model that holds something for the rollout (a row of the sampler) until it is closed."""

    def close(self) -> None: ...


ModelFactory = Callable[[str, int], SessionModel]
"""(session name, seed) -> the model of one rollout."""


@dataclass(frozen=True)
class Setting:
    """All that a pass rate depends on beside task, rung and policy."""

    harness: Harness
    sampling: Sampling
    budget: Budget
    limits: Limits


class Judge:
    """Grades patches; the same patch of the same task is run once, also when two rollouts bring it at the same time."""

    def __init__(self, grader: Grader, store: RunStore) -> None:
        self.grader, self.store = grader, store
        self._running: dict[tuple[str, str], asyncio.Future[Verdict]] = {}
        self.seconds = 0.0

    async def grade(self, task: Task, patch: bytes) -> Verdict:
        key = (task.id, hashlib.sha256(patch).hexdigest())
        if (known := self.store.grade(*key)) is not None:
            return known
        while (running := self._running.get(key)) is not None:
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                asker = asyncio.current_task()
                if not running.cancelled() or (asker and asker.cancelling()):
                    raise  # else only the one who graded was cancelled: take over
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._running[key] = future
        try:
            verdict = await self.grader.grade(task, patch)
            self.seconds += verdict.seconds
            if verdict.counts:
                self.store.put_grade(*key, verdict)
            future.set_result(verdict)
            return verdict
        except asyncio.CancelledError:
            future.cancel()
            raise
        except BaseException as error:
            future.set_exception(error)
            future.exception()  # it is raised here; whoever waits gets it too
            raise
        finally:
            del self._running[key]


async def rollout(
    task: Task, setting: Setting, model: SessionModel, sandboxes: Sandboxes, trees: Trees, judge: Judge
) -> tuple[Trajectory | None, Verdict]:
    """Once through. A box that cannot be had or an engine that fails gives an infrastructure error, never a score."""
    try:
        tree, environment = await trees.solver(task), await trees.environment(task)
        async with sandboxes.open(BoxSpec(tree, environment, setting.limits, purpose="tools")) as box:
            prompt = Prompt(task.id, task.rung, task.statement.text)
            trajectory = await setting.harness.run(prompt, box, model, setting.sampling, setting.budget)
    except SandboxError as error:
        return None, Verdict(status=Status.INFRASTRUCTURE_ERROR, evidence=str(error))
    finally:
        model.close()
    if trajectory.exit_reason.retriable or trajectory.exit_reason is ExitReason.CANCELLED:
        return trajectory, Verdict(status=Status.INFRASTRUCTURE_ERROR, evidence=trajectory.error)
    return trajectory, await judge.grade(task, trajectory.patch)
