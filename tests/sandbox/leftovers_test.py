"""However a box ends, nothing of it may stay: no process, no mount, no file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxSpec, SandboxError
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.sandbox.scratch import collect, make_scratch, temporary


def running(mark: str) -> list[str]:
    """Command lines of live processes with this mark: a sleep of an odd length."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if line.startswith(f"sleep {mark}"):
            found.append(line)
    return found


def gone(mark: str) -> bool:
    for _ in range(100):
        if not running(mark):
            return True
        time.sleep(0.05)
    return False


async def test_after_a_normal_end(sandboxes: BubblewrapSandboxes, workspace: Path) -> None:
    mark = "7001.5"
    async with sandboxes.open(BoxSpec(workspace)) as box:
        await box.exec(["sh", "-c", f"setsid sleep {mark} & sleep 0.1"])
        assert running(mark)
    assert gone(mark)
    assert str(sandboxes.scratch) not in Path("/proc/self/mountinfo").read_text()
    with pytest.raises(SandboxError, match="not open"):
        await box.exec(["true"])


async def test_after_an_error_and_a_cancellation(sandboxes: BubblewrapSandboxes, workspace: Path) -> None:
    mark = "7002.5"
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with sandboxes.open(BoxSpec(workspace)) as box:
            await box.exec(["sh", "-c", f"sleep {mark} &"])
            raise ZeroDivisionError

    async def hang() -> None:
        async with sandboxes.open(BoxSpec(workspace)) as box:
            await box.exec(["sleep", mark])

    task = asyncio.create_task(hang())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(mark)


PARENT = """
import asyncio, sys
from pathlib import Path
from frognano.sandbox.base import BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandboxes

async def main():
    sandboxes = BubblewrapSandboxes(Path(sys.argv[1]))
    async with sandboxes.open(BoxSpec(Path(sys.argv[2]))) as box:
        await box.exec(["sh", "-c", "setsid sleep 7003.5 & sleep 0.2"])
        print("ready", flush=True)
        await box.exec(["sleep", "7003.5"])

asyncio.run(main())
"""


def test_after_kill_9_of_the_parent(workspace: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, scratch, workspace], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    assert running("7003.5")
    assert not collect(scratch)  # its owner lives
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone("7003.5")
    (left,) = scratch.iterdir()
    assert make_scratch(scratch) != left
    assert not left.exists()


KILLED = """
import os, sys
from pathlib import Path
from frognano.sandbox.scratch import temporary

with temporary(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("made")
    os.kill(os.getpid(), 9)
"""


def test_a_temporary_folder_after_kill_9(tmp_path: Path) -> None:
    """A half-made environment of hundreds of megabytes stayed in the cache for ever."""
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert (left / "half").exists()
    with temporary(tmp_path) as one, temporary(tmp_path) as two:
        assert set(tmp_path.iterdir()) == {one, two}
    assert not list(tmp_path.iterdir())


async def test_32_boxes_at_once_disturb_each_other(sandboxes: BubblewrapSandboxes, workspace: Path) -> None:
    async def one(i: int) -> bytes:
        async with sandboxes.open(BoxSpec(workspace)) as box:
            await box.write_bytes("who", b"%d" % i)
            done = await box.exec(["sh", "-c", "cat who; sleep 7004.5 & ls /proc | grep -c '^[0-9]'"])
            assert int(done.stdout.split()[-1][-1:]) <= 6
            return await box.diff()

    patches = await asyncio.gather(*(one(i) for i in range(32)))
    for i, patch in enumerate(patches):
        assert b"+%d\n" % i in patch
    assert gone("7004.5")
    assert not list(sandboxes.scratch.rglob("diff-*"))
