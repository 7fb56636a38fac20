"""The trackers for real, each with its own package in a venv of its own: what they hold is what the run logged, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]

RUN = """
import json, os, signal, sys
from pathlib import Path
from frognano.runs import RunStore
from frognano.runs.trackers import TrackConfig, Trackers
folder, config, first, last, how = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
with RunStore.create(folder, {"run": {"name": "tried"}, "track": config}) as store:
    rows = store.all_metrics()
    trackers = Trackers(TrackConfig(**config), folder, store.config, "a secret", lambda text: print(text, flush=True), rows)
    store.watcher = trackers.log
    for step in range(first, last + 1):
        store.log("train", step, {"entropy": 1 / step, "loss": float("nan") if step == 2 else 0.5})
        store.log("cost", first, {"cpu_seconds": float(step)})
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    trackers.close()
"""
"""A run that logs some updates, and ends or is killed."""


@pytest.fixture(scope="module")
def python() -> str:
    """One with both trackers."""
    env = {**os.environ, "VENV": os.environ.get("VENV", str(Path(sys.prefix)))}
    made = subprocess.run([ROOT / "scripts" / "trackers_env.sh"], capture_output=True, text=True, env=env)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def run(python: str, folder: Path, config: dict[str, Any], first: int, last: int, how: str = "end", **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    clean |= {"PYTHONPATH": str(ROOT / "src"), "HOME": str(folder.parent), **env}
    command = [python, "-c", RUN, str(folder), json.dumps(config), str(first), str(last), how]
    done = subprocess.run(command, capture_output=True, text=True, env=clean)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    return done.stdout


def read(python: str, code: str, *arguments: object) -> Any:
    done = subprocess.run([python, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
held = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
print(json.dumps({t: [(e.step, e.value) for e in held.Scalars(t)] for t in held.Tags()["scalars"]}))
"""
WANDB = """
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    # The log format of LevelDB: blocks of 32 KiB, parts with a header of crc, length and kind (whole, first, middle, last).
    at, held = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if not kind:
            break
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(held)
            held = b""

rows, ids = [], set()
for file in sorted(Path(sys.argv[1]).rglob("*.wandb")):
    for record in records(file.read_bytes()):
        if record.HasField("run"):
            ids.add(record.run.run_id)
        if record.HasField("history"):
            rows.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item})
print(json.dumps({"rows": rows, "ids": sorted(ids)}))
"""


def test_a_resumed_run_writes_steps_twice_in_tensorboard(python: str, tmp_path: Path):
    config = {"tensorboard": True}
    assert run(python, tmp_path / "run", config, 1, 3, "kill") == ""
    assert run(python, tmp_path / "run", config, 4, 5) == ""
    held = read(python, TENSORBOARD, tmp_path / "run" / "track" / "tensorboard")
    assert held["train/entropy"] == [[s, pytest.approx(1 / s)] for s in range(1, 6)]
    assert [step for step, _ in held["train/loss"]] == [1, 3, 4, 5]
    assert held["cost/cpu_seconds"] == [[1, 3.0], [4, 5.0]]
    assert run(python, tmp_path / "run", config, 6, 5) == ""
    assert read(python, TENSORBOARD, tmp_path / "run" / "track" / "tensorboard") == held


def test_wandb_needs_a_key_or_a_network(python: str, tmp_path: Path):
    """Offline by itself; a killed run and its second process are one W&B run, and no step is there twice."""
    config = {"wandb": "frogs"}
    assert run(python, tmp_path / "run", config, 1, 3, "kill") == ""
    assert run(python, tmp_path / "run", config, 4, 5) == ""
    held = read(python, WANDB, tmp_path / "run" / "track")
    assert len(held["ids"]) == 1
    train = [row for row in held["rows"] if "train/step" in row]
    assert [row["train/step"] for row in train] == [1, 2, 3, 4, 5]
    assert [row["train/entropy"] for row in train] == [pytest.approx(1 / s) for s in range(1, 6)]
    assert [row["cost/cpu_seconds"] for row in held["rows"] if "cost/step" in row] == [3.0, 5.0]


def test_wandb_without_a_server_stops_the_run(python: str, tmp_path: Path):
    """Online with a key and no server there: it is said once, and the run ends well with everything in its own file."""
    key = "0" * 40
    gone = {"WANDB_API_KEY": key, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "5"}
    said = run(python, tmp_path / "run", {"wandb": "frogs"}, 1, 3, **gone)
    assert len(said.splitlines()) == 1, said
    assert "wandb" in said
    assert "the run goes on" in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count('"train"') == 3
