"""Who killed the box? The kernel (out of memory) is no fault of what ran in it: an infrastructure error, never a score."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from frognano.sandbox.base import ATTEMPTS, BoxKilled, BoxSpec, SandboxError, persistently
from frognano.sandbox.bubblewrap import BubblewrapSandbox, BubblewrapSandboxes
from frognano.sandbox.resident import tree


def pids(box: BubblewrapSandbox) -> list[int]:
    assert box._resident is not None
    return tree(box._resident.process.pid)


@pytest.mark.parametrize(
    "victims",
    [
        lambda box: [next(p for p in pids(box) if Path(f"/proc/{p}/comm").read_text() != "bwrap\n")],
        lambda box: pids(box)[::-1],
    ],
    ids=["the resident", "its whole tree"],
)
async def test_a_kill_from_outside_is_scored(
    box: BubblewrapSandbox, victims: Callable[[BubblewrapSandbox], list[int]]
) -> None:
    running = asyncio.create_task(box.exec(["sleep", "30"]))
    await asyncio.sleep(0.5)
    chosen = victims(box)
    for signum in (signal.SIGSTOP, signal.SIGKILL):  # all at once: a resident that outlives its command reports it
        for pid in chosen:
            os.kill(pid, signum)
    with pytest.raises(SandboxError, match=r"killed from outside.*memory"):
        await running
    with pytest.raises(SandboxError, match="killed from outside"):  # and it stays so
        await box.diff()


async def test_a_box_that_rests_is_killed_from_outside(box: BubblewrapSandbox) -> None:
    for pid in pids(box)[::-1]:
        with contextlib.suppress(ProcessLookupError):  # the others do not outlive the first for long
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="killed from outside"):
        await box.exec(["true"])


async def test_what_runs_in_the_box_passes_for_the_host(box: BubblewrapSandbox) -> None:
    """It cannot kill the resident; taking all memory is its own doing."""
    for command in ("kill -9 1", "kill -9 -1", "prlimit --pid 1 --cpu=1:1", "prlimit --pid 1 --data=1:1"):
        await box.exec(["bash", "-c", f"{command}; :"])
        assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"
    done = await box.exec(["prlimit", "--pid", "1", "--nofile=1:1"])
    assert done.exit_code != 0
    assert (await box.exec(["bash", "-c", "ulimit -n 64; ulimit -n"])).stdout == b"64\n"  # its own it may
    hog = "for i in 1 2 3; do python3 -I -c 'import time; x = b\"x\" * (120 << 20); time.sleep(20)' & done; wait"
    with pytest.raises(BoxKilled, match="256 MB of memory"):
        await box.exec(["bash", "-c", hog])


async def test_work_in_a_box_that_the_host_kills_is_not_begun_again(
    sandboxes: BubblewrapSandboxes, workspace: Path
) -> None:
    tries = 0

    async def work() -> bytes:
        nonlocal tries
        tries += 1
        async with sandboxes.open(BoxSpec(workspace)) as box:
            if tries < kills + 1:
                for pid in pids(box)[::-1]:
                    os.kill(pid, signal.SIGKILL)
            return (await box.exec(["echo", "done"])).stdout

    kills = ATTEMPTS - 1
    assert await persistently(work) == b"done\n"
    assert tries == ATTEMPTS
    tries, kills = 0, ATTEMPTS
    with pytest.raises(SandboxError, match="killed from outside"):
        await persistently(work)
    assert tries == ATTEMPTS
