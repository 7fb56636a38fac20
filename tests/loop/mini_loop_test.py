"""A miniature loop with the real pocket model, from the command line to the report: nothing is left out, nothing is done
twice, nothing that must stay apart meets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from frognano.loop.recipe import RecipeConfig
from frognano.models.pocket import ensure_pocket_model
from frognano.runs import RunStore
from frognano.runs.recipe import load_recipe
from frognano.taskpilot.dedupe import gold_lines
from frognano.taskpilot.ladder import leaks
from frognano.taskpilot.workshop import part_of
from frognano.tasks.harbor import read_task
from loop.toys import write_pool, write_recipe

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(900)]

RECIPE = """
[pilot]
screen_n = 4
confirm_n = 6
max_refinements = 0
target = 2
rollout_budget = 64
batch_rollouts = 14
pool = 6
[train]
iterations = 2
updates = 2
groups = 2
group_size = 4
checkpoint_every = 1
valid_every = 2
[optimizer]
learning_rate = 4e-5
[eval]
heldout_tasks = 3
valid_tasks = 2
"""
"""About 100 rollouts: 2 x 35 to calibrate (64 at most), 2 x 8 to train on, 6 x 2 to validate, 3 x 3 held out."""


def frognano(*arguments: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "frognano.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def learned(store: RunStore) -> list[int]:
    """Iterations that found something to train on. The second may not, with so few rollouts; the first always did."""
    return sorted({int(values["iteration"]) for _, values in store.metrics("train")})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mini")


@pytest.fixture(scope="module")
def recipe(home: Path) -> Path:
    settings = {"model": ensure_pocket_model(), "layers": 4, "temperature": 0.7, "tokens": 44, "turns": 1}
    return write_recipe(home / "mini.toml", RECIPE, pool=write_pool(home), **settings)


@pytest.fixture(scope="module")
def run(home: Path, recipe: Path) -> Path:
    """The run's secret names its tasks, and the names draw the tokens: with a fixed one the run is (but for rounding) the same
    every time. Whether so small a model shows signal in so few rollouts is luck all the same, so it has a second try."""
    config = load_recipe(recipe, RecipeConfig).model_dump(mode="json")
    for secret in ("5e98a0f3e8dee2db", "0123456789abcdef"):
        out = home / secret
        with RunStore.create(out, config) as store:
            store.finish("secret", secret)
        done = frognano("loop", recipe, "--out", out)
        assert done.returncode == 0, done.stderr
        assert "report.html" in done.stdout
        with RunStore.open(out, read_only=True) as store:
            if learned(store) == [1, 2]:
                break
    return out


@pytest.fixture
def store(run: Path) -> Iterator[RunStore]:
    with RunStore.open(run, read_only=True) as opened:
        yield opened


def test_signal_was_found_and_learned_from(store: RunStore):
    """Else most of what follows would hold of an empty run."""
    trained = store.metrics("train")
    assert sum(values["stepped"] for _, values in trained) >= 1
    assert learned(store) in ([1], [1, 2])
    assert [step for step, _ in trained] == sorted({step for step, _ in trained})


def test_the_report_is_one_file_that_loads_nothing(run: Path):
    text = (run / "report.html").read_text()
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert not re.findall(r"@import|url\((?!['\"]?(?:#|data:))", text)


def test_every_rollout_is_there_once_and_echoes_its_version(store: RunStore):
    rows = store.rollouts()
    keys = Counter((r.key.task_id, r.key.rung, r.key.policy, r.key.purpose, r.key.index) for r in rows)
    assert max(keys.values()) == 1
    for row in rows:
        held = store.trajectory(row.trajectory_id)
        assert (held.policy, held.task_id, held.rung) == (row.key.policy, row.key.task_id, row.key.rung)
        assert held.segments
        assert all(len(s.ids) == len(s.logprobs) for s in held.segments)


def test_every_selected_policy_is_measured_on_the_same_heldout_tasks(store: RunStore):
    selected = list(store.steps("policies/").values())
    assert selected == [store.done(f"iter{n}/selected") for n in (1, 2)[: len(selected)]]
    assert len(selected) == 2 or learned(store) == [1]
    wanted = {t.id for t in store.tasks("heldout")}
    assert len(wanted) == 3
    for version in {"base", *selected}:
        rows = store.rollouts(purpose="heldout", policy=version)
        assert {r.key.task_id for r in rows} == wanted
        assert len({r.key.rung for r in rows}) == 1
    for version in set(selected) - {"base"}:
        assert (store.path / "checkpoints" / version / "state.pt").is_file()


def test_training_validation_and_heldout_never_meet(store: RunStore):
    heldout, valid = store.tasks("heldout"), store.tasks("valid")
    trained = [t for n in (1, 2) for t in store.tasks(f"iter{n}")]
    assert trained
    assert {t.origin.name for t in heldout} == {"stranger"}
    assert {t.origin.name for t in (*trained, *valid)} == {"trainee"}
    assert not {t.group for t in trained} & {t.group for t in valid}
    assert {part_of(t.group, 0.315) for t in store.tasks("train")} == {"train"}
    measured = {r.key.task_id for r in store.rollouts(purpose="iter1/") + store.rollouts(purpose="iter2/")}
    assert not measured & {t.id for t in (*heldout, *valid)}


def test_no_task_is_admitted_twice(store: RunStore):
    admitted = Counter(d.task_id for d in store.decisions() if d.action == "admit")
    assert admitted
    assert max(admitted.values()) == 1


def test_rollouts_that_confirmed_are_the_first_batches(store: RunStore):
    """Two groups of six an update; what was confirmed beyond the target makes the second one."""
    for iteration in learned(store):
        start = "base" if iteration == 1 else store.done("iter1/selected")
        confirmed = store.rollouts(purpose=f"iter{iteration}/confirm", policy=str(start))
        admitted = {t.id for t in store.tasks(f"iter{iteration}")}
        left = sum(r.key.task_id in admitted for r in confirmed)
        assert left
        for update in (1, 2):
            batch = min(left, 12)
            if batch:
                assert store.done(f"iter{iteration}/update/{update}")["rollouts"] == batch
                assert not store.rollouts(purpose=f"iter{iteration}/train/{update}")
            left -= batch


def test_tasks_are_harbor_directories_as_the_store_holds_them(run: Path, store: RunStore):
    folders = list((run / "tasks").iterdir())
    assert {f.name for f in folders} >= {t.id for t in store.tasks()}
    for folder in folders:
        assert read_task(folder).id == folder.name
    for iteration in (1, 2):
        for task in store.tasks(f"iter{iteration}"):
            held = read_task(run / "tasks" / task.id)
            assert (held.rung, held.evaluations) == (task.rung, task.evaluations)
            assert {e.stage for e in held.evaluations} == {"screen", "confirm"}


def test_no_statement_holds_the_fix(store: RunStore):
    for task in store.tasks():
        gold = [line for line in gold_lines(task.gold_patch)[1] if line.strip()]
        assert gold
        assert not any(leaks(s.text, gold) for s in task.statements)
        assert len(task.statements) >= 5


def test_a_finished_run_does_nothing_again(recipe: Path, run: Path):
    with RunStore.open(run, read_only=True) as store:
        before = len(store.rollouts())
    done = frognano("loop", recipe, "--out", run)
    assert done.returncode == 0, done.stderr
    with RunStore.open(run, read_only=True) as store:
        assert len(store.rollouts()) == before


def test_an_iteration_without_a_learnable_task_says_so_and_ends(home: Path, recipe: Path):
    """With replies of one token nothing is ever solved."""
    out = home / "hopeless"
    cut = ["--sampling.max_tokens_per_turn", "1", "--eval.heldout_tasks", "2", "--eval.valid_tasks", "1"]
    done = frognano("loop", recipe, "--out", out, *cut, "--pilot.rollout_budget", "12", "--pilot.pool", "3")
    assert done.returncode == 0, done.stderr
    assert "nothing was trained" in done.stderr
    assert "pilot.rollout_budget" in done.stderr
    assert (out / "report.html").is_file()
    with RunStore.open(out, read_only=True) as store:
        assert store.steps("policies/") == {"policies/1": "base"}
        assert store.metrics("train") == []
        assert not store.tasks("iter1")
        assert list((out / "checkpoints").iterdir()) == []
