"""``frognano loop | pilot | train | eval``: a recipe, where the run lives, and overrides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from frognano.errors import ConfigError

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file, e.g. recipes/pocket.toml.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="The run folder. Naming one that exists goes on with it. [default: runs/NAME]"
    ),
]
_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
_EPILOG = "Any key of the recipe can be set after it: --section.key VALUE. A run that was stopped goes on from there."


def register(app: typer.Typer) -> None:
    for command in (loop, pilot, train, eval_):
        app.command(command.__name__.rstrip("_"), context_settings=_SETTINGS, epilog=_EPILOG)(command)


def _share_cores() -> None:
    """Compute threads that wait must sleep, not spin: boxes need the cores. A sampler multiplies in its own thread alone.
    Read by OpenMP when torch is first imported, by OpenBLAS when numpy is."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def loop(context: typer.Context, recipe: Recipe, out: Out = None) -> None:
    """Run it all: make tasks, train on them, repeat, evaluate, report."""
    overrides = _overrides(context, recipe)
    _share_cores()
    from frognano.loop.commands import run_loop

    run_loop(recipe, out, overrides)


def pilot(context: typer.Context, recipe: Recipe, out: Out = None) -> None:
    """Make tasks that are calibrated to the current policy."""
    overrides = _overrides(context, recipe)
    _share_cores()
    from frognano.loop.commands import run_pilot

    run_pilot(recipe, out, overrides)


def train(context: typer.Context, recipe: Recipe, out: Out = None) -> None:
    """Train the policy on the tasks that pilot made."""
    overrides = _overrides(context, recipe)
    _share_cores()
    from frognano.loop.commands import run_train

    run_train(recipe, out, overrides)


def eval_(context: typer.Context, recipe: Recipe, out: Out = None) -> None:
    """Measure the policies of a run on the held-out tasks."""
    overrides = _overrides(context, recipe)
    _share_cores()
    from frognano.loop.commands import run_eval

    run_eval(recipe, out, overrides)


def _overrides(context: typer.Context, recipe: Path) -> dict[str, str]:
    from frognano.loop.recipe import RecipeConfig
    from frognano.runs.recipe import load_recipe, parse_overrides, read_toml

    if str(recipe).startswith("--"):
        raise ConfigError(f"`{recipe}` stands where the recipe should: give the recipe first, then the overrides")
    overrides = parse_overrides(context.args)
    if {"recipe", "arm"} <= read_toml(recipe).keys():
        raise ConfigError(f"{recipe} is an experiment, not a recipe: frognano experiment {recipe}")
    load_recipe(recipe, RecipeConfig, overrides)  # what is wrong in it must not wait for torch
    return overrides
