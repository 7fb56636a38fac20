"""Kills, full disks and resumes: the old checkpoint or the new one, whole, and the same run after it."""

from __future__ import annotations

import errno
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from frognano.models.policy import LlamaPolicy
from frognano.rl.checkpoint import load_trainer, load_weights, save_checkpoint
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.groups import Group
from frognano.rl.trainer import Trainer
from models.tiny import random_ids, sample, save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), "qwen2")


def trainer(model: Path, dtype: torch.dtype = torch.float32, layers: int = 2) -> Trainer:
    config = OptimizerConfig(learning_rate=1e-3, warmup=5)
    return Trainer(LlamaPolicy(model, layers, dtype), config, DppoConfig())


def update(t: Trainer, seed: int) -> None:
    rng = random.Random(seed)
    prompt = random_ids(rng, 5)
    samples = [
        sample(prompt, random_ids(rng, 9), [1] * 9, trajectory=f"t{i}", raw=i % 2, logprobs=[-2.0] * 9)
        for i in range(4)
    ]
    t.update([Group("g", tuple(samples))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_run_is_another_run(model: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    whole = trainer(model, dtype)
    for i in range(3):
        update(whole, i)
    save_checkpoint(tmp_path / "c", whole)
    resumed = trainer(model, dtype)
    load_trainer(tmp_path / "c", resumed)
    assert resumed.step == 3
    for i in range(3, 7):
        update(whole, i)
        update(resumed, i)
    for name, tensor in whole.policy.masters.items():
        assert torch.equal(tensor, resumed.policy.masters[name])
    a, b = whole.policy, resumed.policy
    assert isinstance(a, LlamaPolicy)
    assert isinstance(b, LlamaPolicy)
    assert all(torch.equal(v, b.weights.layers[2][k]) for k, v in a.weights.layers[2].items())


def test_loading_shares_memory_with_the_next_save(model: Path, tmp_path: Path) -> None:
    t = trainer(model)
    save_checkpoint(tmp_path / "c", t)
    before = load_weights(tmp_path / "c")
    update(t, 1)
    save_checkpoint(tmp_path / "c", t)
    after = load_weights(tmp_path / "c")
    assert any(not torch.equal(before[k], after[k]) for k in before)
    assert all(torch.equal(after[k], v) for k, v in t.policy.masters.items())


KILLED = """
import os, signal, sys, time, torch
from pathlib import Path
from types import SimpleNamespace
from frognano.rl.checkpoint import STATE, save_checkpoint

folder = Path(sys.argv[1])

def save(step):
    policy = SimpleNamespace(masters={"w": torch.full((1 << 19,), float(step))})
    optimizer = SimpleNamespace(state_dict=lambda: {"of": step})
    save_checkpoint(folder, SimpleNamespace(policy=policy, optimizer=optimizer, step=step))

torch.set_num_threads(1)  # threads do not survive a fork
save(1)
interrupted = 0
for attempt in range(6):
    if (child := os.fork()) == 0:
        step = 1
        while True:
            step += 1
            save(step)
    time.sleep(0.05 + 0.012 * attempt)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    interrupted += any(f.name != STATE for f in folder.iterdir())
    state = torch.load(folder / STATE, weights_only=True)
    assert state["step"] == state["optimizer"]["of"], state
    assert state["masters"]["w"].unique().tolist() == [state["step"]]
assert state["step"] > 1
print(interrupted)
"""


def test_kill_in_the_middle_of_a_save_loses_both(tmp_path: Path) -> None:
    """Killed at six moments while one folder is written over and over: there is always a whole one, of one step."""
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "c")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 1  # some of the kills hit a file half written


def test_killed_saves_fill_the_disk(model: Path, tmp_path: Path) -> None:
    t = trainer(model)
    save_checkpoint(tmp_path / "c", t)
    (tmp_path / "c" / ".state.pt.12345").write_bytes(b"half")
    save_checkpoint(tmp_path / "c", t)
    assert [f.name for f in (tmp_path / "c").iterdir()] == ["state.pt"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond 64 KiB: the write fails as on a full disk."""
    old_signal, old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, old_signal)


def test_full_disk_destroys_the_old_checkpoint(model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    t = trainer(model)
    save_checkpoint(tmp_path / "c", t)
    old = (tmp_path / "c" / "state.pt").read_bytes()
    update(t, 1)
    request.getfixturevalue("small_disk")
    with pytest.raises(OSError) as error:
        save_checkpoint(tmp_path / "c", t)
    assert error.value.errno == errno.EFBIG
    assert [f.name for f in (tmp_path / "c").iterdir()] == ["state.pt"]
    assert (tmp_path / "c" / "state.pt").read_bytes() == old


def test_half_a_checkpoint_is_taken_for_one(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".state.pt.77").write_bytes(b"half")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_trainer(tmp_path / "c", trainer(model))


def test_checkpoint_of_another_shape_is_loaded_in_part(model: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", trainer(model, layers=1))
    t = trainer(model, layers=2)
    before = {k: v.detach().clone() for k, v in t.policy.masters.items()}
    with pytest.raises(ValueError, match="other tensors"):
        load_trainer(tmp_path / "c", t)
    assert all(torch.equal(v, before[k]) for k, v in t.policy.masters.items())
