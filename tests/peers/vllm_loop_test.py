"""The loop with vLLM's server as its sampler, from the command line to trained updates, killed on the way."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frognano.models.pocket import ensure_pocket_model
from frognano.runs import RunStore
from loop.toys import write_pool, write_recipe

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(1800)]

RECIPE = """
[engine]
kind = "vllm"
python = "{python}"
arguments = ["--enforce-eager"]
[rollouts]
rows = 16
[pilot]
screen_n = 2
confirm_n = 4
max_refinements = 0
target = 1
rollout_budget = 80
batch_rollouts = 24
pool = 12
[train]
iterations = 1
updates = 2
groups = 1
group_size = 4
checkpoint_every = 1
valid_every = 2
[eval]
heldout_tasks = 2
valid_tasks = 2
"""


def test_the_loop_does_not_run_on_it(vllm_python: Path, tmp_path: Path) -> None:
    """From the command line, killed once on the way; q of the engine and p of the trainer agree in every update."""
    settings = {"model": ensure_pocket_model(), "layers": 4, "temperature": 0.7, "tokens": 44, "turns": 1}
    recipe = write_recipe(tmp_path / "vllm.toml", RECIPE, pool=write_pool(tmp_path), python=vllm_python, **settings)
    command = [sys.executable, "-m", "frognano.cli", "loop", str(recipe), "--out", str(tmp_path / "run")]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert first.stdout
    for line in first.stdout:
        if "pilot" in line:
            break
    first.send_signal(signal.SIGKILL)
    first.wait()
    deadline = time.monotonic() + 60
    while servers() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not servers(), "the server of a killed run goes on"
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not servers()
    with RunStore.open(tmp_path / "run") as store:
        rows = [values for _, values in store.metrics("train")]
        profile = [values for _, values in store.metrics("profile")]
    assert rows, "no update: nothing of the engine was trained on"
    assert all(row["mean_abs_diff"] < 0.01 for row in rows if row["stepped"]), rows
    assert all(p["sampling_cpu"] > 0 for p in profile)


def servers() -> list[str]:
    """Command lines of what runs a server on the socket of a run."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_text().replace("\0", " ")
        except OSError:
            continue
        if "vllm.entrypoints.openai.api_server" in text and re.search(r"/frognano-\d+-\d+-\w+/vllm/vllm.sock", text):
            found.append(text)
    return found
