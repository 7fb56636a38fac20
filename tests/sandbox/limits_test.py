"""A box that takes more than its share must not hurt the machine, nor be scored as an infrastructure error."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxKilled, BoxSpec, Limits, SandboxError
from frognano.sandbox.bubblewrap import BubblewrapSandbox, BubblewrapSandboxes
from frognano.sandbox.resident import tree


async def test_one_process_takes_all_memory(box: BubblewrapSandbox) -> None:
    done = await box.exec(["python3", "-I", "-c", "x = b'x' * (400 << 20)"])
    assert b"MemoryError" in done.stderr


async def test_many_processes_take_all_memory_together(box: BubblewrapSandbox) -> None:
    hog = "for i in 1 2 3; do python3 -I -c 'import time; x = b\"x\" * (120 << 20); time.sleep(20)' & done; wait"
    with pytest.raises(BoxKilled, match="256 MB of memory"):
        await box.exec(["bash", "-c", hog])
    with pytest.raises(BoxKilled, match="256 MB of memory"):  # and stays killed
        await box.diff()


async def test_processes_left_behind_take_memory_while_the_box_waits_for_its_model(
    box: BubblewrapSandbox,
) -> None:
    """Boxes at rest are looked at less often, never not at all."""
    hog = "import time; time.sleep(1); x = b'x' * (120 << 20); time.sleep(60)"
    left = f'for i in 1 2 3; do setsid nohup python3 -I -c "{hog}" > /dev/null 2>&1 & done'
    await box.exec(["bash", "-c", left])
    resident = box._resident
    assert resident is not None
    for _ in range(100):
        alive = sum(b"time.sleep(60)" in _command(pid) for pid in tree(resident.process.pid))
        if resident.killed or not alive:  # killed for its memory, or ended with the command that left them
            return
        await asyncio.sleep(0.1)
    pytest.fail("the box holds more than its limit for ten seconds")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_fork_bomb_takes_the_machine_or_the_box(box: BubblewrapSandbox) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    done = await box.exec(["python3", "-I", "-c", bomb], timeout=1)
    assert done.timed_out
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_a_fork_bomb_left_behind_blocks_the_next_command(box: BubblewrapSandbox) -> None:
    bomb = "import os, time\ntry:\n  while os.fork(): pass\nexcept OSError: os._exit(0)\nos.setsid(); time.sleep(60)"
    await box.exec(["python3", "-I", "-c", bomb])
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_a_spinning_command_spends_more_cpu_than_allowed(
    sandboxes: BubblewrapSandboxes, workspace: Path, small: Limits
) -> None:
    limits = small.model_copy(update={"cpu_seconds": 0.5})
    async with sandboxes.open(BoxSpec(workspace, limits=limits)) as box:
        # by children that each stay below the limit
        done = await box.exec(["bash", "-c", "while true; do timeout 0.2 bash -c 'while true; do :; done'; done"])
        assert done.timed_out
        assert done.exit_code is None


async def test_a_timeout_loses_the_output_or_leaves_children(box: BubblewrapSandbox) -> None:
    started = time.monotonic()
    done = await box.exec(
        ["bash", "-c", "trap '' TERM; echo before; setsid sleep 71 & (sleep 72 &) ; sleep 73"], timeout=0.5
    )
    assert time.monotonic() - started < 10
    assert (done.timed_out, done.exit_code, done.stdout) == (True, None, b"before\n")
    assert (await box.exec(["pgrep", "sleep"])).stdout == b""


async def test_endless_output_fills_memory(box: BubblewrapSandbox) -> None:
    done = await box.exec(["bash", "-c", "echo first; yes | head -c 30000000; echo last >&2; echo last"])
    assert done.stdout.startswith(b"first\n")
    assert done.stdout.endswith(b"last\n")
    assert b"bytes cut" in done.stdout
    assert len(done.stdout) < 21_000
    assert done.stderr == b"last\n"


@pytest.mark.parametrize("place", ["/repo", "/tmp", "/dev/shm", "/tmp/home"])
async def test_the_disk_fills(box: BubblewrapSandbox, place: str) -> None:
    done = await box.exec(
        ["sh", "-c", f"for i in 1 2 3; do head -c 15M /dev/zero > {place}/big$i; done; rm {place}/big*"]
    )
    assert b"No space left" in done.stderr
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_a_workspace_that_does_not_fit_is_scored(
    sandboxes: BubblewrapSandboxes, workspace: Path, small: Limits
) -> None:
    (workspace / "big").write_bytes(b"x" * (3 << 20))
    with pytest.raises(SandboxError, match="does not fit"):
        async with sandboxes.open(BoxSpec(workspace, limits=small.model_copy(update={"disk_mb": 2}))):
            pass


async def test_a_huge_sparse_file_fills_the_host(box: BubblewrapSandbox) -> None:
    done = await box.exec(["bash", "-c", "ulimit -f unlimited; truncate -s 1T huge"])
    assert done.exit_code != 0
    await box.exec(["truncate", "-s", "23M", "huge1"])
    await box.exec(["truncate", "-s", "23M", "huge2"])
    with pytest.raises(BoxKilled, match="larger than"):
        await box.diff()


async def test_a_cancelled_command_loses_the_box(box: BubblewrapSandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await box.exec(["sh", "-c", "echo changed > README.md; sleep 60"])
    assert b"+changed" in await box.diff()
    assert (await box.exec(["pgrep", "sleep"])).stdout == b""


async def test_concurrent_calls_mix_their_answers(box: BubblewrapSandbox) -> None:
    done = await asyncio.gather(*(box.exec(["echo", str(i)]) for i in range(10)))
    assert [d.stdout for d in done] == [b"%d\n" % i for i in range(10)]
