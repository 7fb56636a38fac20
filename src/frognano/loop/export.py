"""A policy of a run as a transformers folder, for any other engine or as the start of another run."""

from __future__ import annotations

import shutil
from pathlib import Path

from frognano.errors import FrogNanoError
from frognano.loop.recipe import RecipeConfig
from frognano.runs.rows import BASE
from frognano.runs.store import RunStore


def export_policy(run: Path, folder: Path, version: str | None = None) -> str:
    """Write the policy that a run ended with, or the named one, into a folder that is not there yet; which one it was.

    The weights have the dtype that the run computed with, so they are the ones that were sampled from and measured.
    """
    if folder.exists():
        raise FrogNanoError(f"{folder} is there already: name another folder")
    with RunStore.open(run, read_only=True) as store:
        recipe = RecipeConfig.model_validate(store.config)
        selected = [BASE, *map(str, store.steps("policies/").values())]
    from frognano.loop.session import open_policy  # a run that is not there must not wait for torch
    from frognano.rl.checkpoint import STATE, load_weights

    version = version or selected[-1]
    checkpoint = run / "checkpoints" / version
    if version != BASE and not (checkpoint / STATE).is_file():
        kept = sorted({v for v in selected if v == BASE or (run / "checkpoints" / v / STATE).is_file()})
        raise FrogNanoError(f"{run} has no weights of {version}: it keeps {', '.join(kept)}")
    policy = open_policy(recipe.model)
    if version != BASE:
        policy.restore(load_weights(checkpoint))
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.part")  # a kill leaves no folder that looks whole
    shutil.rmtree(building, ignore_errors=True)
    try:
        policy.save_pretrained(building)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return version
