"""An experiment's file must not pool what is no seed, compare what was not measured alike, or go on with another recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frognano.errors import FrogNanoError
from frognano.loop.arms import ExperimentConfig, load_experiment, texts
from frognano.loop.experiment import DONE, Runner, ended
from frognano.loop.recipe import RecipeConfig, open_run
from frognano.runs.lock import RunLock
from frognano.runs.recipe import load_recipe, toml_value

RECIPE = Path(__file__).parents[2] / "recipes" / "pocket.toml"
TWO = '[arm.a]\n[arm.b]\nlike = "a"\n'


def experiment(folder: Path, arms: str) -> ExperimentConfig:
    recipe = folder / "pocket.toml"
    recipe.write_text(RECIPE.read_text())
    file = folder / "x.toml"
    file.write_text(f'name = "x"\nrecipe = "pocket.toml"\nseeds = [0, 1]\n{arms}')
    return load_experiment(file)


def runner(folder: Path, arms: str = TWO) -> Runner:
    return Runner(folder / "x.toml", experiment(folder, arms), folder / "out")


def ready(runner: Runner, *done: str) -> None:
    """The folders of these runs as they are when the experiment has carried them to their end."""
    for job in runner.jobs:
        if job.name in done:
            with open_run(job.folder, runner._resolved(job)) as store:
                store.finish(DONE)


@pytest.mark.parametrize("name", ["a/b", "..", "", "a|b"])
def test_arms_that_share_the_first_part_of_their_names_are_pooled_as_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(FrogNanoError, match="a name has letters"):
        experiment(tmp_path, f'[arm."{name}"]')


@pytest.mark.parametrize("where", ["[set]\n{}\n[arm.a]", "[arm.a]\n[arm.a.set]\n{}"])
@pytest.mark.parametrize("key", ['"run.seed" = 5', "run.seed = 5"])
def test_all_seeds_are_one_and_the_same(tmp_path: Path, where: str, key: str) -> None:
    with pytest.raises(FrogNanoError, match="name them in `seeds`"):
        experiment(tmp_path, where.format(key))


def test_an_arm_without_seeds_ends_in_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(FrogNanoError, match=r"arm\.a\.seeds"):
        experiment(tmp_path, "[arm.a]\nseeds = []")


def test_a_limit_of_tokens_is_silently_replaced(tmp_path: Path) -> None:
    with pytest.raises(FrogNanoError, match=r"equal_tokens sets train\.max_tokens"):
        experiment(tmp_path, f'{TWO}equal_tokens = true\nset = {{ "train.max_tokens" = 9 }}')


def test_a_key_without_quotes_is_not_understood(tmp_path: Path) -> None:
    config = experiment(tmp_path, "[set]\nmodel.threads = 1\n[arm.a.set.train]\ngroups = 3")
    assert config.overrides("a", 7) == {"run.seed": 7, "model.threads": 1, "train.groups": 3}


@pytest.mark.parametrize("value", [True, 3, 1e-6, [0, 3], 'C:\\"x"', [{"low": 0.1, "high": 0.9}]])
def test_a_value_of_the_file_is_another_one_on_the_command_line(value: object) -> None:
    assert toml_value(texts({"k": value})["k"]) == value


@pytest.mark.parametrize("key", ['"sampling.temperature" = 0.9', '"eval.heldout_tasks" = 3', '"budget.max_turns" = 9'])
def test_an_arm_takes_measurements_that_were_made_otherwise(tmp_path: Path, key: str) -> None:
    with pytest.raises(FrogNanoError, match=f"arm b is like a, but sets {key.split(chr(34))[1]} otherwise"):
        runner(tmp_path, f"{TWO}set = {{ {key} }}")
    runner(tmp_path, f"[set]\n{key}\n{TWO}")
    runner(tmp_path, f"[arm.a]\n[arm.b]\nset = {{ {key} }}")


def test_what_is_measured_at_one_temperature_may_be_trained_at_another(tmp_path: Path) -> None:
    runner(tmp_path, f'[set]\n"eval.temperature" = 0.5\n{TWO}set = {{ "sampling.temperature" = 0.9 }}')


def test_the_recipe_was_changed_after_a_run_was_done(tmp_path: Path) -> None:
    one = runner(tmp_path, "[arm.a]\nseeds = [0]")
    ready(one, "a/seed-0")
    one.run()  # nothing is left to do
    (tmp_path / "pocket.toml").write_text(RECIPE.read_text().replace("learning_rate = 4e-5", "learning_rate = 3e-5"))
    with pytest.raises(FrogNanoError, match=r"another recipe: optimizer\.learning_rate \(4e-05 → 3e-05\)"):
        Runner(tmp_path / "x.toml", one.config, one.root).run()


def test_the_run_that_another_was_begun_from_is_made_anew(tmp_path: Path) -> None:
    one = runner(tmp_path)
    ready(one, "b/seed-0")
    with pytest.raises(FrogNanoError, match=r"b/seed-0 was begun from .*a/seed-0, which is not done"):
        one.run()


def test_two_commands_build_one_experiment(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.root.mkdir()
    with RunLock(one.root / "lock"), pytest.raises(FrogNanoError, match="already open"):
        one.run()


def test_a_run_that_the_kernel_killed_says_nothing() -> None:
    killed = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert "memory ran out: lower `jobs`" in ended(killed.returncode)
    assert ended(2) == "exit code 2"


def test_the_experiment_that_comes_with_frognano_is_refused() -> None:
    file = RECIPE.with_name("pocket-experiment.toml")
    config = load_experiment(file)
    Runner(file, config, file.parent / "nowhere")
    assert load_recipe(RECIPE, RecipeConfig, texts(config.overrides("shuffled", 1))).reward.shuffle
