"""The profile of a run as it is shown: one update, and the phases around the updates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frognano.runs import RunStore

STAGES = {
    "sampling": "the sampler's threads",
    "tools": "boxes of rollouts: starting, tool calls, taking the patch, ending",
    "grading": "boxes that run the tests of a patch",
    "validation": "boxes that check candidates and measure clean suites",
    "forward": "log p of the batch, and the loss",
    "backward": "gradients",
    "optimizer": "clipping and Adam",
    "publication": "new weights into the tensors that compute; the sampler forgets its keys",
    "other": "the rest of the main process: event loop, tokenizing, packing, store, checkpoints",
    "programs": "other programs of this machine",
    "idle": "cores that nobody used",
}
"""Stage to what it holds."""


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one kind of phase, or of updates, `count` of them together."""

    name: str
    count: int
    values: Mapping[str, float]

    @property
    def capacity(self) -> float:
        """cores · wall, in seconds: what the CPU seconds of all stages add up to."""
        return sum(self.cpu(stage) for stage in STAGES)

    def cpu(self, stage: str) -> float:
        return self.values.get(f"{stage}_cpu", 0.0)

    def wall(self, stage: str) -> float | None:
        """None for a stage whose wall time is not told."""
        return self.values.get(f"{stage}_wall")


def profile(store: RunStore, iteration: int | None = None) -> list[Part]:
    """Updates first, then phases by kind (``iter1/pilot`` and ``iter2/pilot`` together); of one iteration alone, its held-out
    measurement included, when it is named. Empty for a run that told none."""
    wanted = re.compile(".*" if iteration is None else rf"phase/(iter{iteration}/|heldout/i{iteration}u).*")
    parts = [("update", values) for _, values in updates(store, iteration)]
    for name, value in store.steps("phase/").items():
        if wanted.fullmatch(name) and isinstance(value, dict) and isinstance(value.get("profile"), dict):
            parts.append((kind(name), value["profile"]))
    names = dict.fromkeys(name for name, _ in parts)
    return [_sum(name, [values for n, values in parts if n == name]) for name in names]


def updates(store: RunStore, iteration: int | None = None) -> list[tuple[int, dict[str, float]]]:
    """(update, its seconds by stage), of all or of one iteration."""
    of_step = {step: values.get("iteration") for step, values in store.metrics("train")}
    return [(step, v) for step, v in store.metrics("profile") if iteration in (None, of_step.get(step))]


def kind(step: str) -> str:
    """``phase/iter2/pilot#0`` is a ``pilot``, ``phase/heldout/i2u4#1`` is ``heldout``."""
    name = step.removeprefix("phase/").split("#")[0]
    if found := re.fullmatch(r"iter\d+/(.*)", name):
        return "training, updates included" if found[1] == "train" else found[1]
    return "heldout" if name.startswith("heldout/") else name


def _sum(name: str, rows: list[Mapping[str, float]]) -> Part:
    keys = dict.fromkeys(k for row in rows for k in row)
    return Part(name, len(rows), {k: sum(row.get(k, 0.0) for row in rows) for k in keys})


def table(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """Rows of stage, wall and CPU seconds, share of the cores, for the mean of each part."""
    rows: list[tuple[str, ...]] = []
    for part in parts:
        for stage in STAGES:
            wall, cpu = part.wall(stage), part.cpu(stage)
            if not wall and round(cpu / part.count, 2) == 0:
                continue
            told = f"{wall / part.count:.1f}" if wall is not None else "–"
            share = 100 * cpu / part.capacity if part.capacity else 0.0
            rows.append((part.name, str(part.count), stage, told, f"{cpu / part.count:.1f}", f"{share:.0f} %"))
        whole = part.values.get("wall", 0.0) / part.count
        rows.append((part.name, str(part.count), "all", f"{whole:.1f}", f"{part.capacity / part.count:.1f}", "100 %"))
    return rows


HEAD = ("part", "how many", "stage", "wall s, mean", "CPU s, mean", "of the cores")
