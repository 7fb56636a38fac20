"""Total memory of each box. Limits of the kernel hold for one process; a box has many."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path

from frognano.sandbox.resident import Resident, tree

PERIOD = 0.1
IDLE = 8
"""A box that waits for its model is looked at in every so many periods: sixty of them would take a fifth of a core."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watchdog:
    """One thread that looks at every box at work ten times a second, and kills those above their limit."""

    def __init__(self) -> None:
        self._limits: dict[Resident, int] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, resident: Resident, memory_mb: int) -> None:
        with self._lock:
            self._limits[resident] = memory_mb << 20
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="box-watchdog", daemon=True)
                self._thread.start()
        self._wake.set()

    def forget(self, resident: Resident) -> None:
        with self._lock:
            self._limits.pop(resident, None)

    def _run(self) -> None:
        for turn in itertools.count():
            with self._lock:
                boxes = list(self._limits.items())
            if not boxes:
                self._wake.clear()
                self._wake.wait(timeout=5)
                continue
            for resident, limit in boxes:
                if not resident.busy and turn % IDLE:
                    continue
                if not resident.killed and memory(resident.process.pid, limit) > limit:
                    resident.killed = f"the box used more than {limit >> 20} MB of memory"
                    resident.kill()
            time.sleep(PERIOD)


def memory(pid: int, enough: int) -> int:
    """Bytes of private memory of a process tree. Pages shared after a fork count once, when we may look that close."""
    pids = tree(pid)
    total = sum(map(_anonymous, pids))
    return total if total <= enough else sum(map(_proportional, pids))


def _anonymous(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return (resident - shared) * _PAGE
    return 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        pass
    return _anonymous(pid)
