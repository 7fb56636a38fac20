"""Live progress: the phase, how far, how fast, how long still, and the latest numbers.

A terminal gets bars that are redrawn; a file, a pipe or CI gets a plain line now and then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

EVERY = 15.0
"""Seconds between two plain lines of one phase."""


class Phase:
    """One bar. Threads may advance it."""

    def __init__(self, name: str, total: int | None, done: int, show: Callable[[Phase], None]) -> None:
        self.name = name
        self.total = total
        self.done = done
        self.numbers: dict[str, float] = {}
        self.began = time.monotonic()
        self.finished = False
        self.stopped = False
        """Finished before its end: interrupted, or failed."""
        self._resumed_at = done
        self._show = show
        self._lock = Lock()

    def advance(self, count: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        with self._lock:
            self.done += count
            self.numbers |= numbers or {}
        self._show(self)

    def finish(self) -> None:
        self.finished = True
        self._show(self)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Per second, of what this process did itself: a resumed phase does not look fast."""
        return (self.done - self._resumed_at) / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds still to go, once something can be said."""
        if self.total is None or self.done <= self._resumed_at or self.finished:
            return None
        return max(0, self.total - self.done) / self.rate

    @property
    def pace(self) -> str:
        """``1.3/s, 2:05 left``."""
        rate = f"{self.rate:.1f}/s" if self.rate >= 1 else f"{60 * self.rate:.1f}/min"
        parts = [rate] if self.done > self._resumed_at else []
        return ", ".join(parts + ([f"{clock(self.eta)} left"] if self.eta is not None else []))

    @property
    def latest(self) -> str:
        return "  ".join(f"{name} {value:.3g}" for name, value in self.numbers.items())


class Live:
    """``with Live() as live, live.phase("calibrate", 300) as phase: phase.advance(numbers={"p̂": 0.4})``."""

    def __init__(self, stream: TextIO | None = None, *, plain: bool | None = None) -> None:
        stream = stream or sys.stderr
        in_ci = os.environ.get("CI", "") not in ("", "0", "false")
        self.plain = (in_ci or not stream.isatty()) if plain is None else plain
        self._stream = stream
        self._said: dict[int, float] = {}
        self._bars: dict[int, TaskID] = {}
        self._lock = Lock()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[cyan]{task.fields[pace]}"),
            TextColumn("[dim]{task.fields[latest]}"),
            console=Console(file=stream),
            refresh_per_second=4,
        )

    def __enter__(self) -> Self:
        if not self.plain:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.plain:
            self._progress.stop()

    @contextmanager
    def phase(self, name: str, total: int | None = None, *, done: int = 0) -> Iterator[Phase]:
        """``done`` is what an earlier process had finished already."""
        phase = Phase(name, total, done, self._show)
        self._show(phase)
        try:
            yield phase
        except BaseException:
            phase.stopped = True
            raise
        finally:
            phase.finish()

    def say(self, text: str) -> None:
        """A line that stays, above the bars."""
        if self.plain:
            with self._lock:
                print(text, file=self._stream, flush=True)
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    def _show(self, phase: Phase) -> None:
        if self.plain:
            self._line(phase)
            return
        with self._lock:
            if id(phase) not in self._bars:
                self._bars[id(phase)] = self._progress.add_task(phase.name, total=phase.total, pace="", latest="")
        self._progress.update(
            self._bars[id(phase)], completed=phase.done, total=phase.total, pace=phase.pace, latest=phase.latest
        )
        if phase.finished:
            self._progress.stop_task(self._bars[id(phase)])

    def _line(self, phase: Phase) -> None:
        now = time.monotonic()
        with self._lock:
            first = id(phase) not in self._said
            if not (first or phase.finished or now - self._said[id(phase)] >= EVERY):
                return
            self._said[id(phase)] = now
            far = f"{phase.done}/{phase.total}" if phase.total is not None else f"{phase.done}"
            end = "stopped after " if phase.stopped else "done in "
            state = end + clock(phase.seconds) if phase.finished else phase.pace
            parts = [f"{phase.name}: {far}", state, phase.latest]
            print(" · ".join(part for part in parts if part), file=self._stream, flush=True)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
