"""Measuring policies: on the fixed validation set while training, on the held-out repositories for the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from frognano.analysis.live import Phase
from frognano.loop.phases import phase
from frognano.loop.session import Session
from frognano.models.base import Sampling
from frognano.records import Task
from frognano.rollouts.pool import Wanted
from frognano.runs.rows import RolloutKey


def _sampling(session: Session) -> Sampling:
    temperature = session.recipe.eval.temperature
    base = session.recipe.sampling
    return base if temperature is None else base.model_copy(update={"temperature": temperature})


async def _ready(session: Session, wanted: Sequence[Wanted], version: str) -> None:
    """Take the weights of a version, unless all that it is asked for is in the store: then it needs none."""
    keys = (RolloutKey(w.task.id, w.task.rung, version, w.purpose, w.index) for w in wanted)
    if any(session.store.get(key) is None for key in keys):
        await session.use(version)


async def validate_policy(session: Session, tasks: Sequence[Task], version: str) -> tuple[float, int]:
    """(solve rate, trials) of a policy on the validation set."""
    wanted = [Wanted(t, "valid", i) for t in tasks for i in range(session.recipe.eval.valid_samples)]
    await _ready(session, wanted, version)
    rows = [r for r in await session.rollouts(_sampling(session)).run(wanted, version, session.model()) if r]
    return (sum(r.resolved for r in rows) / len(rows) if rows else 0.0), len(rows)


async def evaluate_heldout(session: Session, tasks: Sequence[Task], version: str, rungs: Sequence[int]) -> float:
    """Solve rate of a policy on the held-out tasks at their own rung; further rungs are recorded beside it."""
    some = tasks[: session.recipe.eval.rung_tasks]
    others = [t.at_rung(s.rung) for rung in rungs for t in some for s in t.statements if s.rung == rung != t.rung]
    wanted = [Wanted(t, "heldout", i) for t in (*tasks, *others) for i in range(session.recipe.eval.samples)]
    await _ready(session, wanted, version)
    with phase(session, f"heldout/{version}", total=len(wanted)) as progress:
        rows = await session.rollouts(_sampling(session)).run(
            wanted, version, session.model(), progress=lambda _: progress.advance()
        )
    top = {(t.id, t.rung) for t in tasks}
    counted = [r for r in rows if r and (r.key.task_id, r.key.rung) in top]
    return sum(r.resolved for r in counted) / max(1, len(counted))


async def evaluate_recall(session: Session, selected: Sequence[str]) -> None:
    """Whether earlier iterations' tasks are forgotten: each iteration's own tasks under π0, under the policy that they made
    and under the last one. `selected` is π0, π1, …"""
    samples = session.recipe.eval.recall_samples
    if not samples:
        return
    by_policy: dict[str, list[Wanted]] = {}
    for iteration in range(1, len(selected)):
        for task in session.store.tasks(f"iter{iteration}"):
            for version in dict.fromkeys((selected[0], selected[iteration], selected[-1])):
                wanted = [Wanted(task, f"recall/{iteration}", i) for i in range(samples)]
                by_policy.setdefault(version, []).extend(wanted)
    for version, wanted in by_policy.items():
        await _ready(session, wanted, version)
        with phase(session, f"recall/{version}", total=len(wanted)) as progress:
            pool = session.rollouts(_sampling(session))
            await pool.run(wanted, version, session.model(), progress=partial(_advance, progress))


def _advance(progress: Phase, _: int) -> None:
    progress.advance()
