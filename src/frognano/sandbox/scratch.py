"""Scratch space: one directory per process, removed at its end, and collected by the next one if it died."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"frognano-(\d+)-(\d+)-\w+")
_SHM = Path("/dev/shm")


def scratch_root() -> Path:
    """Memory if there is some: deleting many files on a disk can take seconds."""
    return _SHM if os.access(_SHM, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def make_scratch(root: Path) -> Path:
    """A fresh directory whose name says which process owns it. Others may pass through it but not list it."""
    me = os.getpid()
    path = _owned(root)
    path.chmod(0o711)

    def remove() -> None:
        if os.getpid() == me:  # not in a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


@contextlib.contextmanager
def temporary(root: Path | None = None) -> Iterator[Path]:
    """A fresh directory in ``root`` (else where temporary files go) for as long as the block lasts. What kill -9 leaves
    there goes when the next one is made."""
    path = _owned(root or Path(tempfile.gettempdir()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _owned(root: Path) -> Path:
    collect(root)
    me = os.getpid()
    return Path(tempfile.mkdtemp(prefix=f"frognano-{me}-{_start_time(me)}-", dir=root))


def collect(root: Path) -> list[Path]:
    """Remove what dead processes of this user left."""
    removed = []
    for path in root.glob("frognano-*"):
        owner = _NAME.fullmatch(path.name)
        if owner is None:
            continue
        with contextlib.suppress(FileNotFoundError):
            mine = path.stat(follow_symlinks=False).st_uid == os.getuid()
            if mine and _start_time(int(owner[1])) != int(owner[2]):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
    return removed


def _start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot: with the pid it names the process; 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0
