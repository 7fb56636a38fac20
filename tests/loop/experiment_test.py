"""An experiment compares arms: what must be shared is shared, what differs differs, and nothing is run twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from frognano.errors import FrogNanoError
from frognano.loop.arms import load_experiment
from frognano.loop.experiment import Job, Queue, Runner, is_done, jobs_of
from frognano.loop.pilot import spent_tokens
from frognano.models.pocket import ensure_pocket_model
from frognano.runs import RunStore
from frognano.sandbox.resident import tree
from frognano.tasks.harbor import read_task
from loop.mini_loop_test import RECIPE, frognano
from loop.toys import write_pool, write_recipe

EXPERIMENT = """
name = "toy"
recipe = "mini.toml"
seeds = [3]
jobs = 2
[set]
"train.iterations" = 1
"eval.recall_samples" = 2
[arm.calibrated]
[arm.uncalibrated]
like = "calibrated"
equal_tokens = true
set = { "train.calibrate" = false, "train.updates" = 2, "train.iterations" = 3 }
[arm.shuffled]
like = "calibrated"
set = { "reward.shuffle" = true }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("experiment")
    settings = {"model": ensure_pocket_model(), "layers": 4, "temperature": 0.7, "tokens": 44, "turns": 1}
    write_recipe(home / "mini.toml", RECIPE, pool=write_pool(home), **settings)
    (home / "toy.toml").write_text(EXPERIMENT)
    return home / "toy.toml"


def test_an_arm_that_is_like_an_unknown_one_is_refused(file: Path, tmp_path: Path):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(EXPERIMENT.replace('like = "calibrated"', 'like = "calibated"'))
    with pytest.raises(FrogNanoError, match="calibated"):
        load_experiment(wrong)


def test_a_typo_in_the_last_arm_shows_before_the_first_one_runs(file: Path):
    config = load_experiment(file)
    arm = config.arm["shuffled"].model_copy(update={"set": {"reward.shufle": True}})
    with pytest.raises(FrogNanoError, match="shufle"):
        Runner(file, config.model_copy(update={"arm": {**config.arm, "shuffled": arm}}), file.parent / "out")


def names(queue: Queue, count: int) -> list[str]:
    taken = []
    for _ in range(count):
        job = queue.take()
        taken.append(job.name if job else "none")
    return taken


def begun(file: Path, root: Path) -> tuple[Queue, dict[str, Job]]:
    """Of three seeds, the first two of the arm that others are like."""
    config = load_experiment(file).model_copy(update={"seeds": (0, 1, 2)})
    jobs = {job.name: job for job in jobs_of(config, root)}
    queue = Queue(jobs.values(), ())
    assert names(queue, 2) == ["calibrated/seed-0", "calibrated/seed-1"]
    return queue, jobs


def test_a_core_stands_idle_while_a_seed_of_another_arm_could_run(file: Path, tmp_path: Path):
    queue, jobs = begun(file, tmp_path)
    queue.end(jobs["calibrated/seed-1"], ok=True)
    assert names(queue, 2) == ["calibrated/seed-2", "uncalibrated/seed-1"]
    with ThreadPoolExecutor(1) as pool:
        queue.end(jobs["uncalibrated/seed-1"], ok=True)
        assert names(queue, 1) == ["shuffled/seed-1"]
        waiting = pool.submit(queue.take)  # seed 0 is not done, and all else was begun
        assert not wait([waiting], timeout=0.2).done
        queue.end(jobs["calibrated/seed-0"], ok=True)
        assert waiting.result(5) == jobs["uncalibrated/seed-0"]


def test_hours_go_on_after_a_run_that_failed(file: Path, tmp_path: Path):
    queue, jobs = begun(file, tmp_path)
    queue.end(jobs["calibrated/seed-0"], ok=False)
    assert queue.take() is None
    assert queue.failed == [jobs["calibrated/seed-0"]]


def stop_it(file: Path, root: Path) -> None:
    """As `kill` does with a command that nohup began: no run of it goes on."""
    command = [sys.executable, "-m", "frognano.cli", "experiment", str(file), "--out", str(root)]
    ignoring = f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv({command[0]!r}, {command!r})"
    runner = subprocess.Popen([sys.executable, "-c", ignoring], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not (root / "calibrated" / "seed-3" / "lock").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    (run,) = tree(runner.pid)[1:2]
    runner.terminate()
    assert runner.wait(60) != 0
    assert not Path(f"/proc/{run}").exists()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_arms_share_what_was_made_before_training_and_nothing_after(file: Path):
    root = file.parent / "out"
    stop_it(file, root)
    done = frognano("experiment", file, "--out", root)
    assert done.returncode == 0, done.stderr
    config = load_experiment(file)
    jobs = {job.arm: job for job in jobs_of(config, root)}
    assert all(is_done(job) for job in jobs.values())
    stores = {arm: RunStore.open(job.folder, read_only=True) for arm, job in jobs.items()}
    try:
        first = stores["calibrated"]
        base = {r.trajectory_id for r in first.rollouts(purpose="heldout", policy="base")}
        budget = spent_tokens(first)
        assert base
        assert {r.key.purpose for r in first.rollouts(purpose="recall/")} <= {"recall/1"}
        for arm in ("uncalibrated", "shuffled"):
            held = stores[arm]
            assert {r.trajectory_id for r in held.rollouts(purpose="heldout", policy="base")} == base
            assert [t.id for t in held.tasks("heldout")] == [t.id for t in first.tasks("heldout")]
            mine = {r.trajectory_id for r in held.rollouts(purpose="iter1/")}
            assert mine
            assert not mine & {r.trajectory_id for r in first.rollouts()}
        plain = stores["uncalibrated"]
        told = [read_task(plain.path / "tasks" / t.id) for t in plain.tasks("train")]
        assert told
        assert not [t.id for t in told if t.evaluations], "the other arm's policies stand in the tasks"
        assert {r.key.purpose.split("/")[1] for r in plain.rollouts(purpose="iter1/")} == {"train"}
        assert plain.config["train"]["max_tokens"] == budget
        # Asked before each update: over by less than one update of 2 x 4 replies of 44 tokens.
        assert spent_tokens(plain) < budget + 2 * 4 * 44
        assert not [d for d in plain.decisions() if d.action == "admit"]
        counts = {arm: len(store.rollouts()) for arm, store in stores.items()}
    finally:
        for store in stores.values():
            store.close()
    results = json.loads((root / "results.json").read_text())
    assert results["arms"].keys() == jobs.keys()
    page = (root / "results.md").read_text()
    assert "format and skill" in page
    assert "groups with signal" in page
    again = frognano("experiment", file, "--out", root)
    assert again.returncode == 0, again.stderr
    for arm, job in jobs.items():
        with RunStore.open(job.folder, read_only=True) as store:
            assert len(store.rollouts()) == counts[arm]
