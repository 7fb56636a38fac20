"""What a killed conversion leaves goes with the next use of the model; one that is at work is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frognano.models.making import making
from frognano.models.pocket import PocketModelError, ensure_pocket_model

MAKER = """
import sys, time
from pathlib import Path
from frognano.models.making import making
with making(Path(sys.argv[1])) as here:
    (here / "half").write_text("of a model")
    print(here, flush=True)
    time.sleep(600)
"""


class Maker:
    """A process that makes a model and does not come to an end by itself."""

    def __init__(self, models: Path) -> None:
        command = [sys.executable, "-c", MAKER, str(models)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.folder = Path(self.process.stdout.readline().strip())
        assert self.folder.parent == models

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A cache with a model in it."""
    (tmp_path / "models" / "pocket").mkdir(parents=True)
    (tmp_path / "models" / "pocket" / "model.safetensors").touch()
    return tmp_path / "models"


@pytest.fixture
def maker(models: Path) -> Iterator[Maker]:
    started = Maker(models)
    yield started
    started.kill()


def use(models: Path, missing: bool) -> None:
    """The model is there, or it is to be made and cannot be."""
    if missing:
        with pytest.raises(PocketModelError, match="no wheel"):
            ensure_pocket_model(models / "other", wheels=models / "pocket")
    else:
        assert ensure_pocket_model(models / "pocket") == models / "pocket"


@pytest.mark.parametrize("missing", [False, True])
def test_a_killed_conversion_is_kept_or_a_living_one_is_broken(models: Path, maker: Maker, missing: bool) -> None:
    use(models, missing)
    assert (maker.folder / "half").is_file()
    maker.kill()
    assert (maker.folder / "half").is_file()
    use(models, missing)
    assert [p.name for p in models.iterdir() if p.is_dir()] == ["pocket"]


def test_one_that_has_no_lock_is_cleared_too_early_or_never(models: Path) -> None:
    """Those of earlier versions: nobody can tell whether their process lives, so only age counts."""
    old, new = models / ".making-old", models / ".making-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").touch()
    os.utime(old, (time.time() - 7200,) * 2)
    use(models, missing=False)
    assert not old.exists()
    assert (new / "half").is_file()


def test_a_link_is_followed(models: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lock").touch()
    (models / ".making-x").symlink_to(tmp_path / "mine")
    use(models, missing=False)
    assert (tmp_path / "mine" / "lock").is_file()


def test_a_conversion_leaves_its_own_folder(models: Path) -> None:
    with making(models) as here:
        assert here.parent == models
    with pytest.raises(ValueError), making(models):
        raise ValueError
    assert not list(models.glob(".making-*"))
