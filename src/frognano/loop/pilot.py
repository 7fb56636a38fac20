"""Making tasks: the fixed held-out and validation sets, and each iteration's calibrated training tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from frognano.errors import FrogNanoError
from frognano.loop.ledger import StoreLedger
from frognano.loop.phases import phase
from frognano.loop.session import Session
from frognano.records import Task
from frognano.rollouts.pool import Wanted
from frognano.runs.store import RunStore
from frognano.taskpilot.arrivals import fresh_first
from frognano.taskpilot.calibration import Binding
from frognano.taskpilot.pilot import PilotResult, Request, run_pilot
from frognano.taskpilot.stream import CandidateStream
from frognano.taskpilot.workshop import Part, Prepared
from frognano.tasks.snapshot import Snapshot, fetch_snapshot


class Repositories:
    """Repositories prepared once a process; what is expensive about them is cached on disk."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._prepared: dict[str, Prepared] = {}
        self._snapshots: dict[str, Snapshot] = {}

    async def all(self, names: Sequence[str]) -> list[Prepared]:
        missing = [n for n in names if n not in self._prepared]
        with phase(self.session, "repositories", total=len(missing)) as progress:
            if missing:
                await self._each([n for n in self.session.repositories if n not in self._snapshots], self._fetch)

            async def prepare(name: str) -> None:
                self._prepared[name] = await self.session.workshop.prepare(self._snapshots[name])
                progress.advance()

            await self._each(missing, prepare)
        return [self._prepared[n] for n in names]

    async def _fetch(self, name: str) -> None:
        """Of all repositories before the first one is built: a wrong path in the pool must not wait for the held-out set."""
        self._snapshots[name] = await fetch_snapshot(self.session.repositories[name], self.session.workshop.cache)

    async def _each(self, names: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
        slots = asyncio.Semaphore(self.session.recipe.repositories.workers)

        async def one(name: str) -> None:
            async with slots:
                await work(name)

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(one(name))


@asynccontextmanager
async def candidates(
    session: Session, repositories: Repositories, purpose: str, names: Sequence[str], part: Part
) -> AsyncIterator[CandidateStream]:
    recipe = session.recipe
    prepared = await repositories.all(names)
    proposals = session.workshop.proposals(
        prepared, part, recipe.repositories.valid_share, recipe.run.seed, recipe.mutation
    )
    stream = CandidateStream(
        session.store,
        session.workshop,
        proposals,
        purpose=purpose,
        rung=10**6,
        workers=recipe.repositories.workers,
    )
    try:
        yield stream
    finally:
        await stream.close()


async def fixed_set(
    session: Session, repositories: Repositories, purpose: str, names: Sequence[str], part: Part, count: int
) -> list[Task]:
    """The first `count` valid tasks of a stream, chosen without looking at any policy, at the most localising rung."""
    step = f"fixed/{purpose}"
    if (held := session.store.done(step)) is not None:
        by_id = {t.id: t for t in session.store.tasks(purpose)}
        return [by_id[i] for i in held]
    tasks: list[Task] = []
    async with candidates(session, repositories, purpose, names, part) as stream:
        with phase(session, f"tasks/{purpose}", total=count) as progress:
            while len(tasks) < count:
                candidate = await stream.next()
                if candidate is None:
                    break
                if isinstance(candidate, Task):
                    tasks.append(candidate)
                    progress.advance()
    if len(tasks) < count:
        share = "raise repositories.valid_share, " if part == "valid" else ""
        raise FrogNanoError(
            f"only {len(tasks)} of {count} {purpose} tasks could be made from {', '.join(names)}: "
            f"name more repositories, {share}or lower eval.{purpose}_tasks, in another run folder (--out)"
        )
    session.store.finish(step, [t.id for t in tasks])
    return tasks


async def calibrated(session: Session, repositories: Repositories, iteration: int) -> PilotResult:
    """Tasks for the policy that the engine holds now. What earlier pilots of the run admitted does not come twice."""
    recipe, pool = session.recipe, session.rollouts()
    config = recipe.pilot_for(iteration)
    if recipe.train.max_tokens is not None:
        budget = min(config.rollout_budget, affordable_rollouts(session, iteration, recipe.train.max_tokens))
        config = config.model_copy(update={"rollout_budget": budget})
    binding = Binding(session.version, session.harness.name, recipe.budget.name)
    ledger = StoreLedger(session.store, iteration)
    scope = f"{binding.policy}|{binding.harness}|{binding.budget}"
    earlier = [d for d in ledger.decisions() if d.detail["scope"] != scope and d.action in ("admit", "drop")]
    taken = {d.task_id for d in earlier if d.detail.get("reason") != "too_hard"}
    hard = {d.task_id for d in earlier} - taken

    async def measure(requests: Sequence[Request]) -> list[list[bool]]:
        wanted = [Wanted(r.task, f"iter{iteration}/{r.stage}", r.start + i) for r in requests for i in range(r.n)]
        rows = iter(await pool.run(wanted, session.version, session.model()))
        found = [[next(rows) for _ in range(r.n)] for r in requests]
        progress.advance(len(wanted))
        return [[row.resolved for row in rows_of_one if row is not None] for rows_of_one in found]

    async with candidates(session, repositories, "train", recipe.repositories.train, "train") as stream:
        with phase(session, f"iter{iteration}/pilot") as progress:
            return await run_pilot(
                fresh_first(stream.next, taken, hard),
                measure,
                ledger,
                binding,
                config,
            )


def affordable_rollouts(session: Session, iteration: int, max_tokens: int) -> int:
    """How many rollouts of the mean length so far the tokens that are left would pay. Kept, so that a pilot that is gone on
    with after a kill has the budget that it began with."""
    step = f"iter{iteration}/affordable_rollouts/{session.version}"
    if (held := session.store.done(step)) is None:
        rows = session.store.rollouts()
        mean = sum(r.generated_tokens for r in rows) / max(1, len(rows)) or session.recipe.sampling.max_tokens_per_turn
        held = max(1, int((max_tokens - spent_tokens(session.store)) / mean))
        session.store.finish(step, held)
    return int(held)


def spent_tokens(store: RunStore) -> int:
    """Generated for calibration and training so far; measuring policies is not counted."""
    return sum(r.generated_tokens for r in store.rollouts() if r.key.purpose.startswith("iter"))


async def uncalibrated(session: Session, repositories: Repositories, iteration: int, count: int) -> list[Task]:
    """The next `count` candidates that no earlier iteration had, without asking any policy: the ablation of the pilot."""
    purpose = f"iter{iteration}"
    had = {t.id for i in range(1, iteration) for t in session.store.tasks(f"iter{i}")}
    tasks: list[Task] = []
    async with candidates(session, repositories, "train", session.recipe.repositories.train, "train") as stream:
        with phase(session, f"{purpose}/tasks", total=count) as progress:
            while len(tasks) < count and (candidate := await stream.next()) is not None:
                if isinstance(candidate, Task) and candidate.id not in had:
                    tasks.append(candidate)
                    progress.advance()
    for task in tasks:
        session.store.put_task(task, purpose)
    return tasks
