"""Experiment: the runs of all arms and seeds (`loop/arms.py`), by one command that goes on where it was stopped.

An arm that is `like` another begins with what that one made and measured before training (held-out and validation tasks, π0's
rollouts, validated candidates), so that they differ in what the arm is about alone; with `equal_tokens` it may generate as many
tokens for calibration and training together as that one did.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frognano.errors import FrogNanoError
from frognano.loop.arms import ExperimentConfig, check_arms, texts
from frognano.loop.pilot import spent_tokens
from frognano.loop.recipe import RecipeConfig, open_run
from frognano.loop.session import BASE
from frognano.runs.fork import fork_run
from frognano.runs.lock import RunLock
from frognano.runs.recipe import load_recipe
from frognano.runs.store import RunStore
from frognano.tasks.harbor import update_task

SHARED_STEPS = ("secret", "fixed/", "candidate/")
SHARED_TASKS = ("heldout", "valid", "train")
SHARED_ROLLOUTS = (("heldout", BASE), ("valid", BASE))
DONE = "experiment/done"
GRACE_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """One run: an arm with one seed."""

    arm: str
    seed: int
    folder: Path
    like: Path | None

    @property
    def name(self) -> str:
        return f"{self.arm}/seed-{self.seed}"


def jobs_of(config: ExperimentConfig, root: Path) -> list[Job]:
    """Seed by seed; an arm that others are like comes before them."""
    arms = sorted(config.arm, key=lambda name: config.arm[name].like is not None)
    seeds = dict.fromkeys((*config.seeds, *(s for arm in arms for s in config.seeds_of(arm))))
    jobs = []
    for seed in seeds:
        for arm in arms:
            if seed in config.seeds_of(arm):
                like = config.arm[arm].like
                place = root / arm / f"seed-{seed}"
                jobs.append(Job(arm, seed, place, root / like / f"seed-{seed}" if like else None))
    return jobs


def overrides_of(config: ExperimentConfig, job: Job) -> dict[str, Any]:
    chosen = config.overrides(job.arm, job.seed)
    if config.arm[job.arm].equal_tokens and job.like is not None:
        with RunStore.open(job.like, read_only=True) as store:
            chosen["train.max_tokens"] = spent_tokens(store)
    return chosen


def is_done(job: Job) -> bool:
    if not (job.folder / "index.sqlite").exists():
        return False
    with RunStore.open(job.folder, read_only=True) as store:
        return store.done(DONE) is not None


class Queue:
    """Jobs for several workers: a job waits for the one that it is like, and after one that failed none is begun."""

    def __init__(self, jobs: Iterable[Job], done: Iterable[Path]) -> None:
        self.failed: list[Job] = []
        self._waiting = sorted(jobs, key=lambda job: job.like is not None)  # arms that others are like come first
        self._done = set(done)
        self._changed = threading.Condition()

    def take(self) -> Job | None:
        """The next job that may begin, as soon as there is one; None when there will be none."""
        with self._changed:
            while self._waiting and not self.failed:
                for job in self._waiting:
                    if job.like is None or job.like in self._done:
                        self._waiting.remove(job)
                        return job
                self._changed.wait()
            return None

    def end(self, job: Job, ok: bool) -> None:
        with self._changed:
            if ok:
                self._done.add(job.folder)
            else:
                self.failed.append(job)
            self._changed.notify_all()

    def close(self) -> None:
        """None is begun any more."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()


class Runner:
    """Runs jobs as processes of their own, `jobs` at a time."""

    def __init__(self, file: Path, config: ExperimentConfig, root: Path) -> None:
        self.config, self.root = config, root
        self.recipe = (file.parent / config.recipe).resolve()
        self.jobs = jobs_of(config, root)
        self._children: set[subprocess.Popen[bytes]] = set()
        self._starting = threading.Lock()
        self._stopped = False
        check_arms(config, self.recipe)

    def run(self) -> None:
        """Until all are done. FrogNanoError names the log of one that failed; the others end first."""
        self.root.mkdir(parents=True, exist_ok=True)
        with RunLock(self.root / "lock"):  # two would build the same runs
            self._run()

    def _run(self) -> None:
        done = {job.folder for job in self.jobs if is_done(job)}
        for job in self.jobs:
            self._check(job, done)
        for job in self.jobs:
            print(f"{job.name}: {'done' if job.folder in done else 'to do'}", file=sys.stderr)
        queue = Queue((job for job in self.jobs if job.folder not in done), done)
        with ThreadPoolExecutor(self.config.jobs) as pool:
            try:
                workers = [pool.submit(self._work, queue) for _ in range(self.config.jobs)]
                wait(workers)
                for worker in workers:
                    worker.result()
            except BaseException:
                queue.close()
                self._stop()
                raise
        if queue.failed:
            logs = ", ".join(str(_log(job)) for job in queue.failed)
            raise FrogNanoError(
                f"{', '.join(j.name for j in queue.failed)} failed: see {logs}; then run the same command again"
            )

    def _check(self, job: Job, done: Collection[Path]) -> None:
        """A run that is there must be one of the experiment as its file is now: one that is done is not looked at again."""
        if not (job.folder / "index.sqlite").exists():
            return
        if job.like is not None and job.like not in done:
            raise FrogNanoError(
                f"{job.folder} was begun from {job.like}, which is not done any more: put that back, or remove both"
            )
        open_run(job.folder, self._resolved(job)).close()

    def _resolved(self, job: Job) -> RecipeConfig:
        return load_recipe(self.recipe, RecipeConfig, texts(overrides_of(self.config, job)))

    def _work(self, queue: Queue) -> None:
        while (job := queue.take()) is not None:
            ok = False
            try:
                ok = self._one(job)
            finally:
                queue.end(job, ok)

    def _one(self, job: Job) -> bool:
        chosen = texts(overrides_of(self.config, job))
        recipe = load_recipe(self.recipe, RecipeConfig, chosen)
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        if job.like is not None:
            fork_run(
                job.like,
                job.folder,
                recipe.model_dump(mode="json"),
                steps=SHARED_STEPS,
                tasks=SHARED_TASKS,
                rollouts=SHARED_ROLLOUTS,
                renew=update_task,
            )
        command = [sys.executable, "-m", "frognano.cli", "loop", str(self.recipe), "--out", str(job.folder)]
        for key, value in chosen.items():
            command += [f"--{key}", value]
        print(f"{time.strftime('%H:%M:%S')} {job.name}: started, log in {_log(job)}", file=sys.stderr)
        with _log(job).open("ab") as log:
            with self._starting:
                if self._stopped:
                    return False
                child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_quiet())
                self._children.add(child)
            code = child.wait()
            self._children.discard(child)
        print(f"{time.strftime('%H:%M:%S')} {job.name}: {'done' if code == 0 else ended(code)}", file=sys.stderr)
        if code == 0:
            with RunStore.open(job.folder) as store:
                store.finish(DONE)
        return code == 0

    def _stop(self) -> None:
        with self._starting:  # one that starts now would go on without us
            self._stopped = True
            children = list(self._children)
        end = time.monotonic() + GRACE_SECONDS
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()


def ended(code: int) -> str:
    """How a run ended that is not done. The log of one that the kernel killed says nothing of it."""
    if code == -signal.SIGKILL:
        return "killed by signal 9; if nobody did that, memory ran out: lower `jobs`, or model.trainable_layers"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _log(job: Job) -> Path:
    return job.folder.with_name(f"{job.folder.name}.log")


def _quiet() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}
