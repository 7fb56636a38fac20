"""The kernel kills a git of ours on the host for want of memory: it is done again, or one sentence says what to do. No patch is
judged by it, and nothing half made stays in the way. Nor by a full disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from frognano.cli.app import expected
from frognano.records import Status
from frognano.runs.files import StoreError
from frognano.sandbox import workspace
from frognano.sandbox.base import ATTEMPTS, BoxSpec, HostKilled, persistently
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.tasks import environment
from frognano.tasks.errors import TaskError
from frognano.tasks.git import apply_patch, git, init, make_patch
from frognano.tasks.grading import Grader
from frognano.tasks.repository import RepositoryConfig
from frognano.tasks.snapshot import fetch_snapshot
from frognano.tasks.trees import Trees

from .conftest import World

Doomed = Callable[..., Path]


@pytest.fixture
def doomed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doomed:
    """(command, times) -> log. From then on the first so many `git <command>` are killed by a real SIGKILL, the others run."""
    real = shutil.which("git")
    assert real

    def put(command: str, times: int, signal: str = "KILL") -> Path:
        folder, log = tmp_path / "bin", tmp_path / "killed"
        folder.mkdir()
        log.touch()
        shim = folder / "git"
        shim.write_text(
            f'#!/bin/sh\nfor word; do\n  if [ "$word" = {command} ] && [ $(wc -l < {log}) -lt {times} ]; then\n'
            f'    echo {command} >> {log}; kill -{signal} $$\n  fi\ndone\nexec {real} "$@"\n'
        )
        shim.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setitem(workspace._ENV, "PATH", f"{folder}{os.pathsep}{os.defpath}")
        return log

    return put


def test_the_error_says_nothing(tmp_path: Path, doomed: Doomed) -> None:
    doomed("rev-list", 1)
    init(tmp_path / ".git")
    with pytest.raises(HostKilled) as caught:
        git("rev-list", "--all", cwd=tmp_path)
    error = expected(caught.value)
    assert error is not None
    said = str(error)
    assert "git rev-list" in said
    assert "SIGKILL" in said
    assert "memory" in said
    assert "run the same command again" in said
    assert git("rev-list", "--all", cwd=tmp_path) == b""


def test_a_crash_passes_for_a_kill(tmp_path: Path, doomed: Doomed) -> None:
    """A patch that crashed git would never be judged."""
    doomed("apply", 1, "SEGV")
    root = tmp_path / "tree"
    root.mkdir()
    with pytest.raises(TaskError, match="git apply failed"):
        apply_patch(b"x", root)


async def test_a_right_patch_is_judged_as_one_that_does_not_fit(world: World, grader: Grader, doomed: Doomed) -> None:
    await world.trees.solver(world.task)
    log = doomed("apply", 1)
    verdict = await grader.grade(world.task, world.task.gold_patch)
    assert log.read_text() == "apply\n"
    assert verdict.status is Status.RESOLVED, verdict.evidence


async def test_a_patch_whose_every_judge_was_killed_is_scored(world: World, grader: Grader, doomed: Doomed) -> None:
    await world.trees.solver(world.task)
    doomed("apply", 99)
    verdict = await grader.grade(world.task, world.task.gold_patch)
    assert verdict.status is Status.INFRASTRUCTURE_ERROR
    assert not verdict.counts
    assert "SIGKILL" in verdict.evidence


def test_a_full_disk_passes_for_a_patch_that_does_not_fit(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        root = small / "tree"
        root.mkdir()
        (root / "a.py").write_bytes(b"x\n")
        (root / "filler").write_bytes(b"x" * 900_000)
        patch = make_patch("a.py", b"x\n", b"y = 1  # long\n" * 20_000)
        with pytest.raises(StoreError, match=f"no space left in {root}.*run the same command again"):
            apply_patch(patch, root)
        (root / "filler").unlink()
        (root / "a.py").write_bytes(b"x\n")
        apply_patch(patch, root)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


FULL = "error: x: No space left on device"


@pytest.mark.parametrize(
    "patch",
    [
        f"--- a/{FULL}\n+++ b/{FULL}\n@@ -1 +1 @@\n-x\n+y\n",
        f"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-{FULL}\n-x\n+y\n+z\n",
        f'--- "a/a.py\\n{FULL}"\n+++ "b/a.py\\n{FULL}"\n@@ -1 +1 @@\n-x\n+y\n',
        f"{FULL}\n",
        f"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n{FULL}\n",
        # git says: invalid mode on line 2: error: x: No space left on device
        f"diff --git a/a.py b/a.py\nold mode {FULL}\nnew mode 100755\nGIT binary patch\n{FULL}\n",
    ],
)
def test_a_patch_stops_the_run_by_saying_that_the_disk_is_full(tmp_path: Path, patch: str) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a.py").write_bytes(b"q\n")
    with pytest.raises(TaskError, match="git apply failed"):
        apply_patch(patch.encode(), root)


@pytest.mark.parametrize("command", ["add", "commit"])
async def test_a_half_made_tree_stays(world: World, tmp_path: Path, doomed: Doomed, command: str) -> None:
    (tmp_path / "s").mkdir()
    trees = Trees(world.cache / "tasks", world.cache, tmp_path / "s")
    doomed(command, 1)
    with pytest.raises(HostKilled, match=f"git {command}"):
        await trees.solver(world.task)
    assert (await trees.solver(world.task) / "calc.py").is_file()
    assert [p.name for p in (tmp_path / "s" / "solver").iterdir()] == [world.task.base]


async def test_a_box_is_never_had_again(tmp_path: Path, doomed: Doomed) -> None:
    """Its base was half made when git was killed; the next box makes it anew."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    (root / ".gitignore").write_text("*.log\n")
    boxes, killed = BubblewrapSandboxes(), doomed("fast-import", ATTEMPTS - 1)

    async def change() -> bytes:
        async with boxes.open(BoxSpec(root)) as box:
            await box.write_bytes("/repo/a.txt", b"two\n")
            return await box.diff()

    patch = await persistently(change)
    assert killed.read_text().count("fast-import") == ATTEMPTS - 1
    assert b"-one\n+two\n" in patch


@pytest.mark.parametrize("command", ["check-ignore", "diff-tree"])
async def test_a_patch_loses_a_part(tmp_path: Path, doomed: Doomed, command: str) -> None:
    """What a killed git did not say is not left out: the patch is asked for again."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / ".gitignore").write_text("*.log\n")
    doomed(command, 1)
    async with BubblewrapSandboxes().open(BoxSpec(root)) as box:
        await box.write_bytes("/repo/new.py", b"x\n")
        await box.write_bytes("/repo/new.log", b"x\n")
        with pytest.raises(HostKilled, match=f"git {command}"):
            await box.diff()
        patch = await box.diff()
    assert b"new.py" in patch
    assert b"new.log" not in patch


def test_a_patch_is_made_of_nothing(doomed: Doomed) -> None:
    doomed("diff", 1)
    with pytest.raises(HostKilled, match="git diff"):
        make_patch("a.py", b"x\n", b"y\n")


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A program that dies at once."""
    file = tmp_path / "shim"
    file.write_text("#!/bin/sh\nkill -KILL $$\n")
    file.chmod(0o755)
    return file


def test_a_killed_uv_says_nothing(tmp_path: Path, shim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *given, **named: str(shim))
    with pytest.raises(HostKilled, match=r"uv venv .*SIGKILL.*run the same command again"):
        environment._uv(tmp_path, "venv")


def test_a_killed_pip_passes_for_a_release_that_is_not_there(
    tmp_path: Path, shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(shim))
    config = RepositoryConfig(name="x", version="1", sha256="0" * 64, tests=("tests",))
    with pytest.raises(HostKilled, match=r"pip download .*SIGKILL.*run the same command again"):
        asyncio.run(fetch_snapshot(config, tmp_path))
