"""A wrong recipe is named in one line: the file, the key, what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from frognano.errors import ConfigError
from frognano.runs.recipe import load_recipe, parse_overrides, toml_value


class RL(BaseModel):
    lr: float = Field(4e-5, gt=0)
    mask: Literal["tv", "kl"] = "tv"
    layers: int = 15


class Source(BaseModel):
    name: str


class Recipe(BaseModel):
    seed: int
    rl: RL = RL()
    sources: list[Source] = []
    tags: tuple[str, ...] = ()


@pytest.fixture
def recipe(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "pocket.toml"
        path.write_text(text)
        return path

    return write


def refused(path: Path, **overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, Recipe, {name.replace("__", "."): value for name, value in overrides.items()})
    return str(caught.value)


def test_a_recipe_with_overrides_becomes_a_config(recipe):
    path = recipe('seed = 1\n[rl]\nlr = 1e-5\n[[sources]]\nname = "mutation"\n')
    config = load_recipe(path, Recipe, {"rl.lr": "2e-5", "rl.mask": "kl", "tags": '["a", "b"]', "seed": "7"})
    assert config == Recipe(seed=7, rl=RL(lr=2e-5, mask="kl"), sources=[Source(name="mutation")], tags=("a", "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1\n[rl]\nlrr = 1", "unknown key `rl.lrr`, did you mean `rl.lr`?"),
        ("seed = 1\nlayers = 1", "unknown key `layers`, did you mean `rl.layers`?"),
        ("seed = 1\n[rl]\nzzzz = 1", "unknown key `rl.zzzz`; known here: layers, lr, mask"),
        ("seed = 1\n[[sources]]\nname = 'a'\nnam = 'b'", "unknown key `sources.0.nam`, did you mean `sources.0.name`?"),
        ("seed = 1\n[rl]\nmask = 'l2'", "`rl.mask` = 'l2': input should be 'tv' or 'kl'"),
        ("seed = 1\n[rl]\nlr = 0", "`rl.lr` = 0: input should be greater than 0"),
        ("[rl]\nlr = 1", "the key `seed` is missing"),
        ("seed = 1\nrl = 3", "`rl` = 3"),
        ("seed = 1\n[rl]\nlr = ", "line 3: not valid TOML: Invalid value, at `lr =`"),
        ("seed = 1\nseed = 2\nx = 1", "line 2: not valid TOML"),
        ("seed = [1,", "line 1: not valid TOML"),
        ("", "the key `seed` is missing"),
    ],
)
def test_what_is_wrong_is_named(recipe, text: str, message: str):
    path = recipe(text)
    error = refused(path)
    assert error.startswith(str(path))
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_wrong_override_is_named_by_its_option(recipe):
    path = recipe("seed = 1\n")
    assert refused(path, rl__lr="fast").startswith("--rl.lr: `rl.lr` = 'fast'")
    assert refused(path, rl__mas="kl").startswith("--rl.mas: unknown key `rl.mas`, did you mean `rl.mask`?")
    assert refused(path, seed__x="1") == "--seed.x: seed is a value, not a section"


def test_a_recipe_that_is_not_there_names_those_that_are(recipe):
    path = recipe("seed = 1\n")
    assert "holds pocket.toml" in refused(path.with_name("pockt.toml"))
    assert "no such recipe" in refused(path.parent / "nowhere" / "x.toml")


def test_bytes_that_are_not_text(tmp_path: Path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-5", 1e-5),
        ("true", True),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("kl", "kl"),
        ("1\nb = 2", "1\nb = 2"),
    ],
)
def test_values_are_toml_or_text(text: str, value: object):
    assert toml_value(text) == value


def test_overrides_on_the_command_line():
    assert parse_overrides(["--rl.lr", "1e-5", "--seed=3", "--x.y", "-1"]) == {
        "rl.lr": "1e-5",
        "seed": "3",
        "x.y": "-1",
    }
    for wrong in (["rl.lr", "1"], ["--rl.lr"], ["--rl.lr", "--seed", "1"], ["--a", "1", "--a", "2"], ["--a b", "1"]):
        with pytest.raises(ConfigError):
            parse_overrides(wrong)


def test_a_run_made_before_a_key_cannot_be_resumed(tmp_path: Path):
    """Keys that its recipe.json lacks count at their defaults; another value for one is refused by its name."""
    import json

    from frognano.loop.recipe import RecipeConfig, filled
    from frognano.runs import RunStore, StoreError

    least = {"run": {"name": "old"}, "model": {"path": "pocket"}, "repositories": {"train": ["a"], "heldout": ["b"]}}
    now = RecipeConfig.model_validate(least).model_dump(mode="json")
    old = {section: values for section, values in now.items() if section not in ("alarms", "track")}
    del old["optimizer"]["warmup"]
    RunStore.create(tmp_path / "run", old).close()
    assert "alarms" not in json.loads((tmp_path / "run" / "recipe.json").read_text())
    now = RecipeConfig.model_validate(least).model_dump(mode="json")
    RunStore.create(tmp_path / "run", now, filled).close()
    other = RecipeConfig.model_validate({**least, "alarms": {"patience": 5}}).model_dump(mode="json")
    with pytest.raises(StoreError, match=r"alarms.patience \(2 → 5\)"):
        RunStore.create(tmp_path / "run", other, filled)
    with pytest.raises(StoreError, match=r"optimizer\.learning_rate"):
        RunStore.create(tmp_path / "run", {**now, "optimizer": {**now["optimizer"], "learning_rate": 1.0}}, filled)


def test_alarms_or_trackers_tie_a_run_to_its_recipe(tmp_path: Path):
    """They change no result: a resumed run takes them over, in its recipe.json too, and everything else stays as it was."""
    import json

    from frognano.loop.recipe import RecipeConfig, open_run
    from frognano.runs import RunStore, StoreError

    least = {"run": {"name": "old"}, "model": {"path": "pocket"}, "repositories": {"train": ["a"], "heldout": ["b"]}}
    told = {"alarms": {"patience": 5, "masked": False}, "track": {"tensorboard": True}}
    run, stored = tmp_path / "run", tmp_path / "run" / "recipe.json"
    old = RecipeConfig.model_validate(least).model_dump(mode="json")
    del old["optimizer"]["warmup"]  # as an earlier version wrote it
    RunStore.create(run, old).close()
    before = stored.read_bytes()
    open_run(run, RecipeConfig.model_validate(least)).close()
    assert stored.read_bytes() == before
    with open_run(run, RecipeConfig.model_validate({**least, **told})) as store:
        assert (store.config["alarms"]["patience"], store.config["track"]["tensorboard"]) == (5, True)
    now = json.loads(stored.read_text())
    changed = {section for section in old if now[section] != old[section]}
    assert (changed, set(now)) == ({"alarms", "track"}, set(old))
    after = stored.read_bytes()
    other = RecipeConfig.model_validate({**least, "alarms": {"patience": 9}, "train": {"updates": 7}})
    with pytest.raises(StoreError, match=r"recipe: train.updates \(200 → 7\)\. "):
        open_run(run, other)
    assert stored.read_bytes() == after
    open_run(run, RecipeConfig.model_validate(least)).close()
    assert stored.read_bytes() == before
