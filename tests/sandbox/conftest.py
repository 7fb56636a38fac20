"""Real boxes on a small repository."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxSpec, Limits
from frognano.sandbox.bubblewrap import BubblewrapSandbox, BubblewrapSandboxes

SMALL = Limits(memory_mb=256, pids=40, disk_mb=24, cpu_seconds=20, wall_seconds=60, output_bytes=20_000)


@pytest.fixture
def small() -> Limits:
    return SMALL


@pytest.fixture(scope="session")
def sandboxes() -> BubblewrapSandboxes:
    return BubblewrapSandboxes()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg/mod.py").write_text("def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 1\n")
    (root / "README.md").write_text("# A title\n\nSome text.\n")
    (root / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree")
    (root / "latin.txt").write_bytes(b"caf\xe9 ol\xe9\n")
    (root / "image.bin").write_bytes(bytes(range(256)))
    (root / "run.sh").write_text("echo run\n")
    (root / "run.sh").chmod(0o755)
    (root / "link.md").symlink_to("README.md")
    (root / ".gitignore").write_text("*.log\nbuild/\n")
    return root


@pytest.fixture
async def box(sandboxes: BubblewrapSandboxes, workspace: Path) -> AsyncIterator[BubblewrapSandbox]:
    async with sandboxes.open(BoxSpec(workspace, limits=SMALL)) as box:
        yield box


@pytest.fixture
def tool(box: BubblewrapSandbox) -> Callable[..., object]:
    async def call(name: str, **arguments: object) -> tuple[bool, str]:
        return await box.call_tool(name, arguments)

    return call
