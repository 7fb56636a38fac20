"""Arms: what an experiment compares. An arm is a set of overrides of one recipe; the file that names them is checked whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from frognano.errors import ConfigError
from frognano.loop.recipe import RecipeConfig
from frognano.runs.recipe import load_recipe

NAME = r"[\w-][\w.-]*"
"""A folder, and the first part of a run's name."""
BEFORE_TRAINING = ("repositories", "harness", "budget", "box", "mutation", "validation", "grading")
"""Sections that what an arm takes from another one was made and measured with; single keys are in `before_training`."""


def _flat(given: object) -> object:
    return dict(_dotted(given)) if isinstance(given, dict) else given


Overrides = Annotated[dict[str, Any], BeforeValidator(_flat)]
"""`section.key` to value, however the file nests them."""


class ArmConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    like: str | None = Field(None, description="The arm whose tasks and π0 measurements it shares.")
    equal_tokens: bool = Field(
        False, description="Ends when it has generated as many tokens as the arm that it is like."
    )
    seeds: tuple[int, ...] | None = Field(None, min_length=1, description="none: those of the experiment.")
    set: Overrides = Field(default_factory=dict, description="Overrides of the recipe, `section.key` to value.")

    @model_validator(mode="after")
    def _tokens_are_counted(self) -> Self:
        if self.equal_tokens and "train.max_tokens" in self.set:
            raise ValueError("equal_tokens sets train.max_tokens: take one of them out")
        return self


class ExperimentConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, pattern=rf"^{NAME}$")
    recipe: Path = Field(description="Relative to the experiment's file.")
    seeds: tuple[int, ...] = Field(min_length=1)
    jobs: int = Field(1, ge=1, description="Runs at a time; share the cores with model.threads in `set`.")
    set: Overrides = Field(default_factory=dict, description="Overrides for every arm.")
    arm: dict[str, ArmConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _arms_are_known(self) -> Self:
        for name, arm in self.arm.items():
            if not re.fullmatch(NAME, name):  # the tables would pool `a/b` and `a/c` as seeds of one arm
                raise ValueError(f"arm `{name}`: a name has letters, digits, `_`, `-` and, not in front, dots")
            if "run.seed" in {**self.set, **arm.set}:
                raise ValueError(f"arm {name} sets run.seed, so all its runs would be one: name them in `seeds`")
            if arm.like is None and not arm.equal_tokens:
                continue
            if arm.like not in self.arm or self.arm[arm.like].like is not None:
                raise ValueError(f"arm {name} is like {arm.like}: name an arm that is like no other")
            if missing := set(self.seeds_of(name)) - set(self.seeds_of(arm.like)):
                raise ValueError(f"arm {name} has seeds that {arm.like} lacks: {sorted(missing)}")
        return self

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        chosen = self.arm[arm].seeds
        return self.seeds if chosen is None else chosen

    def overrides(self, arm: str, seed: int) -> dict[str, Any]:
        """Of one run; `equal_tokens` comes to them when the run that it is like is done."""
        return {"run.seed": seed, **self.set, **self.arm[arm].set}


def load_experiment(file: Path) -> ExperimentConfig:
    return load_recipe(file, ExperimentConfig)


def check_arms(config: ExperimentConfig, recipe: Path) -> None:
    """Raises ConfigError for a typo, which must show now and not after the hours of the arms before it, and for an arm that
    changes what it takes from the one that it is like."""
    recipes = {
        arm: load_recipe(recipe, RecipeConfig, texts(config.overrides(arm, config.seeds_of(arm)[0])))
        for arm in config.arm
    }
    for arm, chosen in config.arm.items():
        if chosen.like is None:
            continue
        mine, other = before_training(recipes[arm]), before_training(recipes[chosen.like])
        if keys := sorted(k for k in mine.keys() | other.keys() if mine.get(k) != other.get(k)):
            raise ConfigError(
                f"arm {arm} is like {chosen.like}, but sets {', '.join(keys)} otherwise: its tasks and π0's measurements were "
                f"made with those of {chosen.like}. Set it for all arms ([set]), or take `like` out"
            )


def before_training(recipe: RecipeConfig) -> dict[str, Any]:
    """What a run's held-out and validation tasks, its candidates and π0's outcomes depend on, by dotted keys."""
    whole = recipe.model_dump(mode="json")
    kept = {section: whole[section] for section in BEFORE_TRAINING}
    kept["model"] = {key: whole["model"][key] for key in ("path", "dtype")}
    kept["eval"] = {key: whole["eval"][key] for key in ("heldout_tasks", "valid_tasks", "temperature")}
    kept["sampling"] = {"max_tokens_per_turn": recipe.sampling.max_tokens_per_turn}
    if recipe.eval.temperature is None:
        kept["sampling"]["temperature"] = recipe.sampling.temperature
    return dict(_dotted(kept))


def texts(overrides: Mapping[str, Any]) -> dict[str, str]:
    """As they stand on a command line: TOML values."""
    return {key: _text(value) for key, value in overrides.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):  # within a list
        return f"{{{', '.join(f'{json.dumps(key)} = {_text(below)}' for key, below in value.items())}}}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`model.threads = 1` without quotes is a table in TOML: the same key."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
