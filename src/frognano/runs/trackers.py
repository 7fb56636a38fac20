"""Trackers: the metric series in Weights & Biases and in TensorBoard, beside the ``metrics.jsonl`` that is always written.

Each tracker is a process of its own (`frognano.runs.tracking`), fed through a pipe that is never waited for. Whatever happens
to it, a network that is down or a crash, the run says so once and goes on. What it took is remembered in
``track/<name>.sent``: a resumed run goes on in the same tracker run and sends nothing twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from frognano.errors import ConfigError

Row = tuple[str, int, Mapping[str, float]]
"""series, step, values"""
PIPE = 1 << 20
"""Bytes that may wait for a tracker; it is given up when they are not enough."""
CLOSING = 60.0
"""Seconds that a tracker has at the end to send what it holds."""
HELD = frozenset({"cost"})
"""Series whose rows are written anew while a process works: sent when it ends."""


class TrackConfig(BaseModel):
    """Where the metric series go besides `metrics.jsonl`; see docs/alarms.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wandb: str = Field(
        "", description="A Weights & Biases project (extra `wandb`), offline without a key; empty: none."
    )
    tensorboard: bool = Field(
        False, description="Event files in `track/tensorboard` of the run folder (extra of that name)."
    )

    @property
    def chosen(self) -> tuple[str, ...]:
        return (*(("wandb",) if self.wandb else ()), *(("tensorboard",) if self.tensorboard else ()))


def require_trackers(config: TrackConfig) -> None:
    """Before there is a run: what it is to be told to must be installed."""
    for name in config.chosen:
        if importlib.util.find_spec(name) is None:
            key = f"track.{name}"
            raise ConfigError(
                f"{key} needs the extra `{name}`: {sys.executable} -m pip install 'frognano[{name}]', "
                f"or take {key} out of the recipe"
            )


class Tracker:
    """Our end of one tracker. Never raises, never waits before `close`."""

    def __init__(
        self, name: str, folder: Path, settings: Mapping[str, Any], say: Callable[[str], None], rows: Iterable[Row] = ()
    ) -> None:
        """`rows` come before all that is sent. They go by a file: they may be more than a pipe holds."""
        self.name, self._say = name, say
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.earlier").open("wb") as earlier:
            earlier.writelines(map(_line, rows))
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", "frognano.runs.tracking", name, str(folder)]
        try:
            with self._log.open("ab") as log:
                # In a session of its own: Ctrl-C is for the run, which then closes it.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            self._give_up(str(error))
            return
        assert self._process.stdin
        self._pipe = self._process.stdin.fileno()
        with contextlib.suppress(OSError):  # an unprivileged user's limit: the usual 64 KB then
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE)
        os.set_blocking(self._pipe, False)
        self._write(json.dumps(settings).encode() + b"\n")

    def send(self, row: Row) -> None:
        self._write(_line(row))

    def _write(self, line: bytes) -> None:
        if self._process is None:
            return
        try:
            if os.write(self._pipe, line) != len(line):
                self._give_up("it does not keep up")
        except BlockingIOError:
            self._give_up("it does not keep up")
        except OSError:
            self._give_up("it has ended")

    def _give_up(self, why: str) -> None:
        """Once: the run goes on without it."""
        self._say(f"{self.name}: {why} (see {self._log}); the run goes on, metrics.jsonl holds everything")
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process = None

    def close(self, seconds: float = CLOSING) -> None:
        """Nothing more comes. What is still under way has its time; then it is left behind."""
        if self._process is None:
            return
        assert self._process.stdin
        self._process.stdin.close()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._give_up(f"it was not done after {seconds:g} s")
            return
        self._process, failed = None, code != 0
        if failed:
            self._give_up(f"it failed with exit code {code}")


class Trackers:
    """All trackers of a run; `log` takes each row that the store logs."""

    def __init__(
        self,
        config: TrackConfig,
        folder: Path,
        recipe: Mapping[str, Any],
        secret: str,
        say: Callable[[str], None],
        rows: Iterable[Row] = (),
    ) -> None:
        """`rows`: what the run logged before; a tracker leaves out what it has. `secret` names the run in W&B, without telling
        what it is."""
        self._held: dict[tuple[str, int], Row] = {}
        name = str(recipe.get("run", {}).get("name", folder.name))
        run_id = hashlib.sha256(f"tracker/{secret}".encode()).hexdigest()[:12]
        before = list(rows)
        settings = {"project": config.wandb, "name": name, "id": run_id, "config": dict(recipe)}
        self.trackers = [Tracker(tracker, folder / "track", settings, say, before) for tracker in config.chosen]

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        if series in HELD:
            self._held[series, step] = (series, step, values)
        else:
            self._send((series, step, values))

    def _send(self, row: Row) -> None:
        for tracker in self.trackers:
            tracker.send(row)

    def close(self, seconds: float = CLOSING) -> None:
        for row in self._held.values():
            self._send(row)
        self._held.clear()
        for tracker in self.trackers:
            tracker.close(seconds)


def _line(row: Row) -> bytes:
    series, step, values = row
    return json.dumps({"series": series, "step": step, "values": dict(values)}).encode() + b"\n"
