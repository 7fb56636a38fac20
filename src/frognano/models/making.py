"""Making: the folder in which a model is made before it goes to its place. What a killed process leaves of it is cleared."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX, _LOCK = ".making-", "lock"
_UNLOCKED = 3600.0
"""Seconds after which a folder without a lock file is nobody's: it was made before there were such files."""


@contextmanager
def making(parent: Path) -> Iterator[Path]:
    """A fresh folder in `parent` for as long as the block lasts. A lock tells others that somebody is at work in it; the
    kernel drops it with the process."""
    with _alone(parent):
        _clear(parent)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        held = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def clear_left(parent: Path) -> None:
    """Remove what killed processes left in `parent`. Nothing happens where there is nothing, or it cannot be written."""
    if os.access(parent, os.W_OK | os.X_OK) and any(parent.glob(f"{_PREFIX}*/")):
        with _alone(parent):
            _clear(parent)


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """No other process makes or clears folders of `parent` meanwhile: one that has no lock yet is not taken for left."""
    guard = os.open(parent / ".making.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def _clear(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*/"):
        with contextlib.suppress(FileNotFoundError):  # its maker has just removed it
            if not path.is_symlink() and path.stat().st_uid == os.getuid() and _is_left(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path) -> bool:
    if not (path / _LOCK).exists():
        return time.time() - path.stat().st_mtime > _UNLOCKED
    held = os.open(path / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # somebody is at work in it
        return False
    finally:
        os.close(held)
    return True
