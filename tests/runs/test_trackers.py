"""A tracker cannot stop or block a run, and its absence is said before there is one."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from frognano.errors import ConfigError
from frognano.runs import RunStore
from frognano.runs.trackers import TrackConfig, Tracker, Trackers, require_trackers

PROGRAMS = {
    "crashes": "import os, sys; sys.stdin.buffer.readline(); os.abort()",
    "hangs": "import time; time.sleep(600)",
    "fails at the end": "import sys; sys.stdin.buffer.read(); sys.exit(3)",
}


def fake_python(folder: Path, program: str) -> str:
    """An interpreter that runs this program whatever it is told to run: a real process that misbehaves."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\n{program}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("how", PROGRAMS)
def test_a_tracker_stops_the_run(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """More rows than a pipe holds; it is said once, and all of them are in the run's own file."""
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, PROGRAMS[how]))
    said: list[str] = []
    with RunStore.create(tmp_path / "run", {"run": {"name": "x"}}) as store:
        trackers = Trackers(TrackConfig(tensorboard=True), store.path, store.config, "s", said.append)
        store.watcher = trackers.log
        for step in range(300):
            store.log("train", step, {f"metric{n}": float(n) for n in range(200)})
        trackers.close(1.0)
    assert len(said) == 1, said
    assert "the run goes on" in said[0]
    assert str(tmp_path / "run" / "track" / "tensorboard.log") in said[0]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["series"] for line in lines) == {"train": 300}


def test_a_tracker_that_cannot_start_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    said: list[str] = []
    tracker = Tracker("wandb", tmp_path / "track", {}, said.append)
    tracker.send(("train", 1, {"x": 1.0}))
    tracker.close()
    assert len(said) == 1


@pytest.mark.parametrize(("config", "name"), [({"wandb": "p"}, "wandb"), ({"tensorboard": True}, "tensorboard")])
def test_a_missing_extra_is_found_out_in_the_middle(config: dict[str, object], name: str):
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed here")
    with pytest.raises(
        ConfigError, match=rf"track.{name} needs the extra `{name}`: .* -m pip install 'frognano\[{name}\]'"
    ):
        require_trackers(TrackConfig.model_validate(config))
    require_trackers(TrackConfig.model_validate({}))
