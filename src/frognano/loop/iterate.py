"""The loop: π0 → πn. Each iteration makes its tasks with the policy that the one before selected, trains on them alone, and is
measured on held-out repositories."""

from __future__ import annotations

from frognano.loop.evaluate import evaluate_heldout, evaluate_recall
from frognano.loop.pilot import Repositories, fixed_set, spent_tokens
from frognano.loop.session import BASE, Session
from frognano.loop.train import IterationTrainer
from frognano.records import Task

HELDOUT, VALID = "heldout", "valid"


async def fixed_sets(session: Session, repositories: Repositories) -> tuple[list[Task], list[Task]]:
    """(held-out tasks, validation tasks), both chosen before anything is trained."""
    r, e = session.recipe.repositories, session.recipe.eval
    heldout = await fixed_set(session, repositories, HELDOUT, r.heldout, "all", e.heldout_tasks)
    valid = await fixed_set(session, repositories, VALID, r.train, "valid", e.valid_tasks)
    return heldout, valid


async def run_iterations(session: Session) -> list[str]:
    """The whole run; returns the selected version of every iteration, π0 first."""
    repositories = Repositories(session)
    heldout, valid = await fixed_sets(session, repositories)
    iterations, rungs = session.recipe.train.iterations, session.recipe.eval.rungs
    selected = [BASE]
    await evaluate_heldout(session, heldout, BASE, rungs)
    for iteration in range(1, iterations + 1):
        trainer = IterationTrainer(session, repositories, iteration, selected[-1], valid)
        selected.append(await trainer.run())
        last = iteration == iterations or trainer.nothing_to_learn or not tokens_left(session)
        await evaluate_heldout(session, heldout, selected[-1], rungs if last else ())
        session.store.finish(f"policies/{iteration}", selected[-1])
        if trainer.nothing_to_learn:
            session.live.say(no_task(session, iteration, selected[-1]))
            break
        if last:
            break
    await evaluate_recall(session, selected)
    return selected


def tokens_left(session: Session) -> bool:
    limit = session.recipe.train.max_tokens
    return limit is None or spent_tokens(session.store) < limit


def no_task(session: Session, iteration: int, policy: str) -> str:
    """What to say where an iteration has nothing to train on: the next one would calibrate the same policy anew."""
    paid = session.store.done(f"iter{iteration}/affordable_rollouts/{policy}")
    budget = session.recipe.pilot_for(iteration).rollout_budget
    if paid is not None and paid < budget:
        return (
            f"iteration {iteration}: what was left of train.max_tokens paid {paid} rollouts, in which no task was "
            f"found for {policy}: nothing was trained, and the run ends here"
        )
    return (
        f"iteration {iteration}: no task was found that {policy} solves sometimes but not always, so nothing was trained "
        f"and the run ends here. Raise pilot.rollout_budget (now {budget}), "
        "widen pilot.rule, or name more repositories, in another run folder (--out)"
    )
