"""One grade for one patch, no score for a broken machine, no rollout twice, no answer of another policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frognano.harness.base import Budget, Prompt
from frognano.models.base import Completion, Conversation, Sampling
from frognano.records import ExitReason, Status, Task, Trajectory, Verdict
from frognano.rollouts.pool import RolloutPool, Wanted
from frognano.rollouts.rollout import Judge, Setting, rollout
from frognano.runs import RolloutKey, RunStore
from frognano.sandbox.base import ATTEMPTS, BoxSpec, Limits, SandboxError
from frognano.tasks.grading import Grader
from frognano.tasks.trees import Trees
from runs import made


class Place(Trees):
    """Tasks need no files here."""

    def __init__(self) -> None: ...

    async def solver(self, task: Task) -> Path:
        return Path("/nowhere")

    async def environment(self, task: Task) -> Path:
        return Path("/nowhere")


class Boxes:
    """Opens, or fails on purpose the first `failures` times."""

    tier = "none"

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.opened = failures, 0

    def open(self, spec: BoxSpec) -> Any:
        return self

    async def __aenter__(self) -> Any:
        self.opened += 1
        if self.opened <= self.failures:
            raise SandboxError("no space for a box")
        return self

    async def __aexit__(self, *exc: object) -> None: ...


class Worker:
    """A harness that hands in the same patch every time."""

    name = "worker"

    def __init__(self, reasons: list[ExitReason] | None = None) -> None:
        self.runs, self.reasons = 0, reasons or []

    async def run(self, prompt: Prompt, sandbox: Any, model: Any, sampling: Sampling, budget: Budget) -> Trajectory:
        self.runs += 1
        name = f"run{self.runs}-{prompt.task_id}-{id(self)}"
        await asyncio.sleep(0.001)
        reason = self.reasons.pop(0) if self.reasons else ExitReason.AGENT
        run = made.trajectory(name, prompt.task_id, model.policy)
        return run.model_copy(update={"exit_reason": reason, "error": "the server is gone"})


class Mute:
    """A model that only says whose answers these would be."""

    def __init__(self, policy: str = "pi0") -> None:
        self.policy, self.closed = policy, 0

    async def complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        raise AssertionError("the worker asks nothing")

    def close(self) -> None:
        self.closed += 1


class Counting(Grader):
    """Says what it is told to, after a while."""

    def __init__(self, *verdicts: Verdict | Exception) -> None:
        self.verdicts, self.grades = list(verdicts), 0

    async def grade(self, task: Task, patch: bytes) -> Verdict:
        self.grades += 1
        await asyncio.sleep(0.02)
        verdict = self.verdicts.pop(0) if self.verdicts else made.verdict()
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


BROKEN = Verdict(status=Status.INFRASTRUCTURE_ERROR, evidence="the disk is gone")
TASK = made.task()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create(tmp_path / "run", {}) as store:
        yield store


def pool(
    store: RunStore, *, worker: Worker | None = None, boxes: Boxes | None = None, grader: Any = None
) -> RolloutPool:
    setting = Setting(worker or Worker(), Sampling(), Budget(), Limits())
    judge = Judge(grader or Counting(), store)
    return RolloutPool(store, setting, boxes or Boxes(), Place(), judge, concurrency=4, seed=1)


def wanted(*indices: int) -> list[Wanted]:
    return [Wanted(TASK, "train", i) for i in indices]


async def test_same_patch_is_graded_again(store: RunStore) -> None:
    """At the same time, later, and by another judge on the same store; another task or patch is another grade."""
    grader = Counting()
    judge = Judge(grader, store)
    verdicts = await asyncio.gather(*(judge.grade(TASK, b"+a") for _ in range(8)))
    assert len(set(map(id, verdicts))) == 1
    assert (await judge.grade(TASK, b"+a")) == verdicts[0]
    assert (await Judge(grader, store).grade(TASK, b"+a")) == verdicts[0]
    assert grader.grades == 1
    await judge.grade(TASK, b"+b")
    await judge.grade(made.task("task0002"), b"+a")
    assert grader.grades == 3


async def test_infrastructure_error_is_remembered_as_a_grade(store: RunStore) -> None:
    grader = Counting(BROKEN)
    judge = Judge(grader, store)
    assert not (await judge.grade(TASK, b"+a")).counts
    assert (await judge.grade(TASK, b"+a")).resolved
    assert grader.grades == 2


async def test_failing_grader_leaves_waiters_waiting(store: RunStore) -> None:
    judge = Judge(Counting(RuntimeError("bug")), store)
    asked = [judge.grade(TASK, b"+a") for _ in range(3)]
    outs = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)
    assert [str(o) for o in outs] == ["bug"] * 3
    assert (await judge.grade(TASK, b"+a")).resolved


async def test_cancelled_rollout_takes_the_grade_of_others_along(store: RunStore) -> None:
    judge = Judge(Counting(), store)
    first, second, third = (asyncio.create_task(judge.grade(TASK, b"+a")) for _ in range(3))
    await asyncio.sleep(0.005)
    first.cancel()
    assert (await asyncio.wait_for(second, 5)).resolved
    assert (await asyncio.wait_for(third, 5)).resolved
    assert first.cancelled()
    fourth, fifth = (asyncio.create_task(judge.grade(TASK, b"+z")) for _ in range(2))
    await asyncio.sleep(0.005)
    fifth.cancel()  # one who waits may go too
    assert (await asyncio.wait_for(fourth, 5)).resolved
    await asyncio.wait([fifth])
    assert fifth.cancelled()


async def test_broken_sandbox_becomes_a_score(store: RunStore) -> None:
    """Two failures are repeated; a third ends it: left out, counted, and written down with the reason."""
    p = pool(store, boxes=Boxes(failures=ATTEMPTS - 1))
    (row,) = await p.run(wanted(0), "pi0", lambda name, seed: Mute())
    assert row is not None
    assert row.resolved
    assert p.lost == 0
    p = pool(store, boxes=Boxes(failures=ATTEMPTS))
    assert await p.run(wanted(1), "pi0", lambda name, seed: Mute()) == [None]
    assert p.lost == 1
    assert store.get(RolloutKey(TASK.id, TASK.rung, "pi0", "train", 1)) is None
    (rejected,) = store.rejections()
    assert (rejected.reason, rejected.detail) == ("infrastructure_error", "no space for a box")


@pytest.mark.parametrize(
    "reason", [ExitReason.LLM_QUERY_ERROR, ExitReason.INFRASTRUCTURE_ERROR, ExitReason.TOOL_ERROR, ExitReason.CANCELLED]
)
async def test_engine_error_becomes_a_score(store: RunStore, reason: ExitReason) -> None:
    worker, grader = Worker([reason]), Counting()
    p = pool(store, worker=worker, grader=grader)
    (row,) = await p.run(wanted(0), "pi0", lambda name, seed: Mute())
    assert row is not None
    assert row.exit_reason is ExitReason.AGENT
    assert (worker.runs, grader.grades) == (2, 1)


async def test_a_machine_without_boxes_empties_the_run(store: RunStore) -> None:
    """Every rollout would be given up, one after the other, and the run would end with rates of nothing."""
    boxes = Boxes(failures=10**6)
    with pytest.raises(ExceptionGroup) as raised:
        await pool(store, boxes=boxes).run(wanted(0, 1, 2), "pi0", lambda name, seed: Mute())
    assert raised.group_contains(
        SandboxError, match="no box can be opened any more: no space for a box.*nothing is lost"
    )
    assert store.rejections() == []
    boxes.failures = 0
    assert all(await pool(store, boxes=boxes).run(wanted(0, 1, 2), "pi0", lambda name, seed: Mute()))


async def test_grader_without_a_box_becomes_a_score(store: RunStore) -> None:
    p = pool(store, grader=Counting(*[BROKEN] * ATTEMPTS))
    assert await p.run(wanted(0), "pi0", lambda name, seed: Mute()) == [None]
    assert p.lost == 1


@pytest.mark.parametrize("reason", [r for r in ExitReason if r.truncated] + [ExitReason.EMPTY])
async def test_run_that_its_policy_wasted_is_repeated(store: RunStore, reason: ExitReason) -> None:
    worker = Worker([reason])
    (row,) = await pool(store, worker=worker).run(wanted(0), "pi0", lambda name, seed: Mute())
    assert row is not None
    assert row.exit_reason is reason
    assert worker.runs == 1


async def test_answer_of_another_policy_is_recorded(store: RunStore) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await pool(store).run(wanted(0), "pi1", lambda name, seed: Mute("pi0"))
    assert raised.group_contains(RuntimeError, match="asked for rollouts of pi1, the engine answered with pi0")
    assert store.get(RolloutKey(TASK.id, TASK.rung, "pi1", "train", 0)) is None


async def test_recorded_rollout_is_run_again(store: RunStore) -> None:
    worker = Worker()
    first = await pool(store, worker=worker).run(wanted(0, 1, 2), "pi0", lambda name, seed: Mute())
    seen: list[int] = []
    again = await pool(store, worker=worker).run(wanted(0, 1, 2, 3), "pi0", lambda name, seed: Mute(), seen.append)
    assert again[:3] == first
    assert worker.runs == 4
    assert seen == [1, 2, 3, 4]
    p = pool(store)
    read = p.read([*again, None])
    assert [t.id for t, _ in read] == [r.trajectory_id for r in again if r]


async def test_rollouts_draw_the_same_tokens(store: RunStore) -> None:
    """Each rollout and each attempt has its own seed and session; the same ones in a run that is done again."""
    drawn: dict[str, int] = {}

    def model(name: str, seed: int) -> Mute:
        assert drawn.setdefault(name, seed) == seed
        return Mute()

    await pool(store, boxes=Boxes(failures=2)).run(wanted(*range(6)), "pi0", model)
    assert len(set(drawn.values())) == len(drawn) == 8


@pytest.mark.parametrize("failures", [0, 1])
async def test_row_of_the_sampler_is_never_given_back(store: RunStore, failures: int) -> None:
    model = Mute()
    setting = Setting(Worker(), Sampling(), Budget(), Limits())
    await rollout(TASK, setting, model, Boxes(failures), Place(), Judge(Counting(), store))
    assert model.closed == 1
