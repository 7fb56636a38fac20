"""Writes docs/recipe.md, the reference of all recipe keys, from the pydantic models: python scripts/recipe_reference.py"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frognano.loop.recipe import RecipeConfig

PAGE = Path(__file__).parents[1] / "docs" / "recipe.md"
INTRO = """\
# Recipe reference

<!-- Made by scripts/recipe_reference.py from the code. Do not edit: change the models and run the script again. -->

A recipe is one TOML file. A section is a TOML table, a key with a dot in it is a table inside that (`[pilot.rule]`).
Only `run`, `model` and `repositories` must be there, and in them only the keys marked *required*. All else has a default.
The defaults are those of the reference at scale, not those of the pocket model: `recipes/pocket.toml` sets what it needs.
An unknown key is refused, with the key that was probably meant. Any key can be set on the command line too, after the
recipe: `--section.key VALUE`. What a run really used stands in its folder as `recipe.json`.
"""
SIGNS = {annotated_types.Gt: "gt >", annotated_types.Ge: "ge ≥", annotated_types.Lt: "lt <", annotated_types.Le: "le ≤"}

LIMITS = {
    "memory_mb": "Memory of all processes of a box together.",
    "pids": "Processes of a box.",
    "disk_mb": "Size of `/repo` and of `/tmp`, each.",
    "cpu_seconds": "CPU time of one command.",
    "wall_seconds": "Wall time of one command, generous: a busy machine must not decide.",
    "output_bytes": "Output kept of a command: its head and its tail.",
}
WORDS = {
    "run.seed": "Of the order of candidates, the draws of batches and, with task ids, which are new in each run, the sampling.",
    "repositories.train": "Names of the repositories that bugs for training and validation are put in.",
    "repositories.heldout": "Names of those that only measure.",
    "sampling.temperature": "Of training; the trainer computes p at the same temperature.",
    "sampling.max_tokens_per_turn": "A longer reply is cut, and ends the run.",
    "budget.max_turns": "Replies in one run.",
    "budget.max_context_tokens": "Prompt, replies and results together; the model's own context if that is smaller.",
    "budget.max_seconds": "Wall time of one run.",
    "mutation.operators": "Kinds of mistakes, all 17 by default.",
    "mutation.max_function_lines": "Longer functions get no bug.",
    "mutation.max_per_function": "Bugs offered of one function.",
    "validation.wall_seconds": "Wall time of one run of tests.",
    "grading.wall_seconds": "Wall time of each run.",
    "pilot.screen_n": "Rollouts of a first look at a task.",
    "pilot.confirm_n": "Fresh rollouts that decide whether it is admitted.",
    "pilot.max_refinements": "Moves up or down the ladder; then the task is dropped.",
    "pilot.rule.low": "p̂ must lie above it.",
    "pilot.rule.high": "p̂ must not lie above it; p̂ = 1 is never admitted.",
    "pilot.rollout_budget": "Rollouts that one call of the pilot may ask for.",
    "pilot.seed": "Of the draws that say which tasks are looked at first.",
    "train.iterations": "Each makes its own tasks and resets the optimizer.",
    "train.checkpoint_every": "Updates between two checkpoints: what a kill costs at most, in computing.",
    "train.valid_every": "Updates between two looks at the validation set; the best one is selected.",
    "optimizer.learning_rate": "Of Adam.",
    "optimizer.betas": "Of Adam.",
    "optimizer.weight_decay": "Decoupled from the gradient.",
    "reward.alpha": "Slope of the efficiency reward: R = 1 − α ln(n/N) beyond N tokens.",
    "reward.floor": "The least that a completed success earns.",
    "eval.heldout_tasks": "Tasks of the held-out repositories, fixed before training.",
    "eval.valid_tasks": "Validation tasks from functions of the training repositories that are never trained on.",
    "eval.valid_samples": "Rollouts per validation task.",
    **{f"box.{key}": words for key, words in LIMITS.items()},
    **{f"{section}.limits.{key}": words for section in ("validation", "grading") for key, words in LIMITS.items()},
}
"""Meanings of the keys whose models say none."""


def page() -> str:
    parts = [INTRO]
    for name, field in RecipeConfig.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        said = (model.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        own = said if model.__doc__ and "__doc__" in vars(model) else ""
        source = "src/" + model.__module__.replace(".", "/") + ".py"
        rows = "\n".join(_rows(name, model, default, ""))
        head = "| key | type | default | meaning |\n| --- | --- | --- | --- |"
        text = re.sub(r"\s+", " ", own)
        parts.append(f"## `[{name}]`\n\n{text + ' ' if text else ''}(`{source}`)\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def _rows(section: str, model: type[BaseModel], given: BaseModel | None, prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        value = getattr(given, name) if given is not None else _default(field)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _rows(section, inner, value, f"{prefix}{name}.")
            continue
        shown = "*required*" if given is None and field.is_required() else _toml(value)
        cells = (
            f"`{prefix}{name}`",
            _type(field),
            shown,
            field.description or WORDS.get(f"{section}.{prefix}{name}", ""),
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _type(field: FieldInfo) -> str:
    bounds = []
    for meta in field.metadata:
        for kind, sign in SIGNS.items():
            if isinstance(meta, kind):
                attribute, symbol = sign.split()
                bounds.append(f"{symbol} {getattr(meta, attribute)}")
    return ", ".join([_name(field.annotation), *bounds])


def _name(annotation: Any) -> str:
    """A type in words that are the same in every Python."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "none"
    if annotation is Path:
        return "path"
    if origin is Annotated:
        return _name(inner[0])
    if origin is Literal:
        return " or ".join(_toml(choice) for choice in inner)
    if origin in (Union, UnionType):
        return " or ".join(map(_name, inner))
    if origin is tuple:
        return f"list of {_name(inner[0])}" if inner[-1] is ... else f"[{', '.join(map(_name, inner))}]"
    return {"str": "text", "AdmissionRule": "table as `[pilot.rule]`"}.get(annotation.__name__, annotation.__name__)


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`[{', '.join(_toml(v).strip('`') for v in value)}]`"
    return f"`{value}`"


def unexplained() -> list[str]:
    """Keys without a meaning."""
    return [line.split("`")[1] for line in page().splitlines() if line.startswith("| `") and line.endswith("|  |")]


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
