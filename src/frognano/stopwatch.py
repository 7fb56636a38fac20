"""Stopwatch: how long one kind of work was going on, and what it cost. For the profile of a run; any thread may use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock


class Stopwatch:
    """`wall` counts a second once however many work in it; `cpu` adds up what each of them used."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self._wall = 0.0
        self._working = 0
        self._since = 0.0
        self._lock = Lock()

    @property
    def wall(self) -> float:
        """Seconds in which at least one was at work, those of now included."""
        with self._lock:
            return self._wall + (time.monotonic() - self._since if self._working else 0.0)

    @contextmanager
    def running(self, clock: Callable[[], float] | None = None) -> Iterator[None]:
        """Work. `clock` tells CPU seconds: `time.thread_time` of this thread, `time.process_time` where no other works."""
        used = clock() if clock else 0.0
        with self._lock:
            if not self._working:
                self._since = time.monotonic()
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self._wall += time.monotonic() - self._since
                if clock:
                    self.cpu += clock() - used

    def spent(self, cpu: float) -> None:
        """CPU seconds of a process that has ended."""
        with self._lock:
            self.cpu += cpu
