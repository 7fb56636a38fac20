"""A run of more than an hour throws old solver trees away; one that is taken at that moment must not vanish under it."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from frognano.tasks.trees import Trees
from tasks.conftest import World


async def test_a_tree_goes_while_it_is_taken(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Trees(world.trees.tasks, world.cache, tmp_path, keep=0)
    place = await held.solver(world.task)
    os.utime(place, (0, 0))
    thrower = Thread(target=held._evict)
    touch = Path.touch

    def slow(path: Path) -> None:
        thrower.start()
        thrower.join(0.5)
        touch(path)

    monkeypatch.setattr(Path, "touch", slow)
    assert await held.solver(world.task) == place
    thrower.join()
    assert (place / "calc.py").is_file()
