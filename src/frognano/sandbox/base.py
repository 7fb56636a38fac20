"""Sandbox: where commands run. One box per rollout or grade; nothing survives it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

REPO = "/repo"
"""Where the workspace is mounted in every box."""


class Limits(BaseModel):
    """What one box may use. Time limits count CPU seconds; the wall limit is generous, since machines are busy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_mb: int = Field(2048, gt=0)
    pids: int = Field(128, gt=0)
    disk_mb: int = Field(256, gt=0)
    cpu_seconds: float = Field(60.0, gt=0)
    wall_seconds: float = Field(300.0, gt=0)
    output_bytes: int = Field(1_000_000, gt=0)


@dataclass(frozen=True)
class BoxSpec:
    """What a box is made of. The box gets a copy-on-write view of ``workspace`` at ``/repo``; the original never changes."""

    workspace: Path
    environment: Path | None = None
    """A virtual environment, bound read-only at its own path; its ``bin`` comes first in PATH."""
    limits: Limits = field(default_factory=Limits)
    read_only: Mapping[str, Path] = field(default_factory=dict)
    """Further host paths bound read-only: path in the box to path on the host."""
    purpose: Literal["tools", "grading", "validation"] = "validation"
    """Under which stage of the run's profile its time is booked."""


@dataclass(frozen=True)
class ExecResult:
    """``exit_code`` is None when the command was killed for time. Output keeps head and tail when it was cut."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    seconds: float = 0.0


class SandboxError(RuntimeError):
    """The box could not be made or has died through no fault of what ran in it: an infrastructure error."""


class HostKilled(SandboxError):
    """A program that works for us on the host was killed from outside, as the kernel does when memory runs out. What it
    broke is done again, as with a failing box."""


_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a program does not get for what it was fed: a crash (SIGSEGV, SIGABRT) is no infrastructure error."""


def require_not_killed(program: str, returncode: int) -> None:
    """HostKilled where a program that has ended was killed from outside; ``returncode`` as subprocess gives it."""
    if -returncode in _OUTSIDE:
        raise HostKilled(
            f"{program} on the host was killed by {signal.Signals(-returncode).name}, as happens when memory runs out: "
            "close other programs or lift the limit, and run the same command again; nothing is lost"
        )


class BoxKilled(RuntimeError):
    """What ran in the box exhausted or killed it (memory, disk, kill -1). A failed run, not an infrastructure error."""


ATTEMPTS = 3
"""Tries of what a failing sandbox breaks."""
T = TypeVar("T")


async def persistently(work: Callable[[], Awaitable[T]]) -> T:
    """`work`, begun again when its box fails through no fault of its own. The last SandboxError goes to the caller."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SandboxError):
            return await work()
    return await work()


class Sandbox(Protocol):
    """An open box; an async context manager that leaves nothing behind."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = REPO,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
    ) -> ExecResult:
        """Run a command to its end (or the box's limits) and return what it printed."""
        ...

    async def prefork(
        self, name: str, argv: Sequence[str], *, cwd: str = REPO, env: Mapping[str, str] | None = None
    ) -> None:
        """Start a process that `fork` copies, unless there is one of that name; see `toolbox/zygote.py` for what it must do."""
        ...

    async def fork(self, name: str, *, stdin: bytes = b"", timeout: float | None = None) -> ExecResult:
        """As `exec`, of a copy of the process ``name``. An OSError when that is gone."""
        ...

    async def reset(self, path: str, data: bytes) -> str:
        """Make a box that has preforked ready for another use: the one file ``path`` gets ``data``, temporary files go.
        Empty when all is as at the start; else why it is not, and the box must be closed."""
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        """Run one Leaf tool (Read, Write, Edit, Glob, Bash) inside the box: (succeeded, text for the model)."""
        ...

    async def read_bytes(self, path: str) -> bytes: ...
    async def write_bytes(self, path: str, data: bytes) -> None: ...

    async def diff(self) -> bytes:
        """The workspace against its start as a binary-safe git patch, computed with a git dir the box cannot see."""
        ...


class Sandboxes(Protocol):
    """Makes boxes of one kind. ``tier`` names how strong they are on this machine."""

    tier: str

    def open(self, spec: BoxSpec) -> Sandbox: ...
