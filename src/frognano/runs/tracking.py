"""The process of one tracker: python -m frognano.runs.tracking NAME FOLDER, with settings and then rows as JSON lines on stdin.

FOLDER/NAME.earlier holds the rows that the run logged before. The process ends when its input does, with all that it was given
written. FOLDER/NAME.sent has a line for every row that the tracker took: such a row is skipped.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol

Values = Mapping[str, float]


class Backend(Protocol):
    def log(self, series: str, step: int, values: Values) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """One scalar `series/name` at its step."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder / "tensorboard"))

    def log(self, series: str, step: int, values: Values) -> None:
        found = [self._summary.Value(tag=f"{series}/{name}", simple_value=x) for name, x in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=found)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Each series has its own steps: `series/step` is the axis of all its names. Offline where no key is known."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        known = "WANDB_MODE" in os.environ or wandb.login(prompt=False)
        self._axes: set[str] = set()
        self._run = wandb.init(
            project=settings["project"],
            name=settings["name"],
            id=settings["id"],
            config=settings["config"],
            dir=folder,
            mode=None if known else "offline",
            resume="allow",
            settings=wandb.Settings(console="off", x_disable_stats=True, disable_git=True, save_code=False),
        )

    def log(self, series: str, step: int, values: Values) -> None:
        if series not in self._axes:
            self._axes.add(series)
            self._run.define_metric(f"{series}/step")
            self._run.define_metric(f"{series}/*", step_metric=f"{series}/step")
        self._run.log({f"{series}/step": step, **{f"{series}/{name}": x for name, x in values.items()}})

    def close(self) -> None:
        self._run.finish()


BACKENDS: dict[str, type[TensorBoard] | type[WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}


def messages(lines: BinaryIO) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.endswith(b"\n"):  # else the run was killed while it wrote
            yield json.loads(line)


def main(name: str, folder: Path) -> None:
    with (folder / f"{name}.sent").open("a+b") as sent:
        fcntl.flock(sent, fcntl.LOCK_EX)  # the process of a run that was killed may still be ending
        sent.seek(0)
        known = set(sent.read().split(b"\n"))
        coming = messages(sys.stdin.buffer)
        if (settings := next(coming, None)) is None:
            return
        with (folder / f"{name}.earlier").open("rb") as file:
            earlier = list(messages(file))
        backend: Backend | None = None
        for row in chain(earlier, coming):
            series, step = row["series"], row["step"]
            key = f"{series} {step}".encode()
            values = {n: float(x) for n, x in row["values"].items() if x is not None and math.isfinite(x)}
            if key in known or not values:
                continue
            backend = backend or BACKENDS[name](folder, settings)
            backend.log(series, step, values)
            known.add(key)
            sent.write(key + b"\n")
            sent.flush()
        if backend is not None:
            backend.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
