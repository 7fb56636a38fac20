"""One writer a run. A POSIX record lock: the kernel drops it with the process, and forked workers never inherit it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import ClassVar, Self

from frognano.runs.files import StoreError, disk_errors


class RunLock:
    """Held from construction to ``release``. A record lock does not guard a process against itself, ``_held`` does."""

    _held: ClassVar[set[Path]] = set()

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        if self.path in RunLock._held:
            raise StoreError(f"the run in {path.parent} is already open in this process ({os.getpid()})")
        with disk_errors(path.parent):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"the run in {path.parent} is in use by process {pid}: wait for it to end or stop it, then try again"
            ) from error
        RunLock._held.add(self.path)
        with disk_errors(path.parent):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self.path in RunLock._held:
            RunLock._held.discard(self.path)
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
