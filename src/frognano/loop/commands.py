"""What the command line calls: the loop, or one part of it alone, on the files that the others wrote."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from frognano.errors import FrogNanoError
from frognano.loop.evaluate import evaluate_heldout
from frognano.loop.iterate import HELDOUT, fixed_sets, no_task, run_iterations
from frognano.loop.pilot import Repositories, calibrated
from frognano.loop.recipe import RecipeConfig, open_run
from frognano.loop.session import BASE, Session, cache_folder, check_recipe
from frognano.loop.train import IterationTrainer
from frognano.runs.files import no_space
from frognano.runs.fork import FORK
from frognano.runs.recipe import load_recipe
from frognano.runs.store import RunStore
from frognano.runs.trackers import Trackers, require_trackers
from frognano.sandbox.scratch import scratch_root
from frognano.taskpilot.pilot import PilotResult

Overrides = Mapping[str, str]


@contextmanager
def _session(
    recipe_file: Path, out: Path | None, overrides: Overrides, check: Callable[[RunStore, RecipeConfig], object]
) -> Iterator[Session]:
    """`check` refuses a run before the model is loaded."""
    from frognano.analysis.live import Live

    recipe = load_recipe(recipe_file, RecipeConfig, overrides)
    require_trackers(recipe.track)
    check_recipe(recipe)  # before there is a run folder, which would hold on to what was wrong
    folder = (out or Path("runs") / recipe.run.name).absolute()  # git and boxes are started in other folders
    known = (folder / "index.sqlite").exists()
    with _full_disk(folder):
        store = open_run(folder, recipe)
        try:
            check(store, recipe)
            with Live() as live:
                live.say(f"{'going on with' if known else 'a new run in'} {folder}; loading the model")
                with Session(recipe, store, live) as session, _trackers(session):
                    yield session
        finally:
            store.close()


@contextmanager
def _trackers(session: Session) -> Iterator[None]:
    """What is logged goes to the trackers of the recipe too, what an earlier process logged first."""
    store, config = session.store, session.recipe.track
    trackers = Trackers(
        config,
        store.path,
        store.config,
        f"{session.secret()}{store.done(FORK) or ''}",  # arms that are like another have its secret
        session.live.say,
        store.all_metrics() if config.chosen else (),
    )
    store.watcher = trackers.log
    try:
        yield
    finally:
        store.watcher = None
        trackers.close()


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """Name the disk that is full. A failed write does not say where it was, and SQLite calls it an I/O error when there is no
    room for the memory that it shares between processes."""
    try:
        yield
    except Exception as error:  # git and uv say it in words of their own
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or "disk I/O error" in str(error) or "No space left" in str(error):
            for place in (folder, cache_folder(), scratch_root(), Path(tempfile.gettempdir())):
                if place.exists() and shutil.disk_usage(place).free < 1 << 20:
                    raise no_space(place) from error
        raise


def _run(
    work: Callable[[Session], Awaitable[None]],
    recipe: Path,
    out: Path | None,
    overrides: Overrides,
    check: Callable[[RunStore, RecipeConfig], object] = lambda store, recipe: None,
) -> Path:
    with _session(recipe, out, overrides, check) as session:
        asyncio.run(_whole(work, session))
        return session.store.path


async def _whole(work: Callable[[Session], Awaitable[None]], session: Session) -> None:
    try:
        await work(session)
    except BaseExceptionGroup as group:
        # A task group wraps what its first failing member raised; people want that, not the wrapping.
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


def run_loop(recipe: Path, out: Path | None, overrides: Overrides) -> None:
    """Everything, to the report."""

    async def work(session: Session) -> None:
        await run_iterations(session)

    folder = _run(work, recipe, out, overrides)
    _report(folder)


def run_pilot(recipe: Path, out: Path | None, overrides: Overrides) -> None:
    """The fixed sets, and the tasks of the next iteration that is not trained yet."""

    async def work(session: Session) -> None:
        repositories = Repositories(session)
        await fixed_sets(session, repositories)
        iteration, start = _next(session.store, session.recipe)
        await session.use(start)
        result = await calibrated(session, repositories, iteration)
        for admitted in result.admitted:
            session.store.put_task(admitted.task, f"iter{iteration}")
        session.live.say(_pilot_said(session, iteration, start, result))

    _run(work, recipe, out, overrides, _next)


def _pilot_said(session: Session, iteration: int, policy: str, result: PilotResult) -> str:
    """What came of a pilot, and what to do where that is nothing."""
    reasons = Counter(result.dropped.values())
    dropped = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in reasons.most_common())
    said = f"iteration {iteration}: {len(result.admitted)} tasks admitted for {policy} after {result.rollouts_used} rollouts"
    said += f"; dropped: {dropped}" if dropped else ""
    if result.admitted:
        return f"{said}; the admitted ones are in {session.store.path / 'tasks'}"
    budget = session.recipe.pilot_for(iteration).rollout_budget
    if result.exhausted == "budget":
        left = budget - result.rollouts_used
        rest = f"{left} are left, too few for a screen and its confirmation" if left else "The budget is spent"
        return f"{said}. {rest}: raise pilot.rollout_budget (now {budget}), in another run folder (--out)"
    return f"{said}. No candidate is left: name more repositories, or widen [mutation], in another run folder (--out)"


def run_train(recipe: Path, out: Path | None, overrides: Overrides) -> None:
    """One more iteration: pilot (what it did already is taken), updates, selection."""

    async def work(session: Session) -> None:
        repositories = Repositories(session)
        _, valid = await fixed_sets(session, repositories)
        iteration, start = _next(session.store, session.recipe)
        trainer = IterationTrainer(session, repositories, iteration, start, valid)
        version = await trainer.run()
        session.store.finish(f"policies/{iteration}", version)
        where = "" if version == BASE else f"; weights in {session.checkpoint(version)}"
        session.live.say(f"iteration {iteration}: {start} -> {version}{where}")
        if trainer.nothing_to_learn:
            session.live.say(no_task(session, iteration, version))

    _run(work, recipe, out, overrides, _next)


def run_eval(recipe: Path, out: Path | None, overrides: Overrides) -> None:
    """The held-out solve rate of π0 and of every policy that was selected so far."""

    async def work(session: Session) -> None:
        repositories = Repositories(session)
        versions = [BASE, *session.store.steps("policies/").values()]
        if versions == [BASE]:
            session.live.say(f"{session.store.path} has no trained policy: the untrained one alone is measured")
        heldout, _ = await fixed_sets(session, repositories)
        for version in dict.fromkeys(versions):
            edge = version in (versions[0], versions[-1])
            rate = await evaluate_heldout(session, heldout, version, session.recipe.eval.rungs if edge else ())
            session.live.say(f"{HELDOUT} {version}: {rate:.1%} of {len(heldout)} tasks")

    _run(work, recipe, out, overrides)


def _next(store: RunStore, recipe: RecipeConfig) -> tuple[int, str]:
    """(iteration to do next, the policy it starts from); FrogNanoError when there is none left."""
    done = list(store.steps("policies/").values())
    if len(done) >= recipe.train.iterations:
        raise FrogNanoError(
            f"{store.path}: all {len(done)} iterations of the recipe are done; "
            "start a new run with more iterations, or measure this one with frognano eval"
        )
    return len(done) + 1, str(done[-1]) if done else BASE


def _report(folder: Path) -> None:
    from frognano.analysis.report import write_report

    with RunStore.open(folder, read_only=True) as store:
        file = write_report(store)
    print(f"report: {file}")
