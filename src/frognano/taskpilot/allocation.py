"""Allocation: whom the next rollouts go to. Signal is scarce, so classes that never gave a learnable task cost little.

A class is (operator, rung). The share of its screened tasks that looked learnable has a Beta posterior
around the share over all classes; each waiting screen draws once from its class (Thompson sampling) and the highest
draws are served. Tasks that have passed their screen come first, those nearest to the target rate before the others: they
are the likeliest to be admitted. A screen is not begun where the budget would not pay for the confirmations that screens are
expected to ask for: it would teach nothing. Deterministic for a seed.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from frognano.taskpilot.calibration import Action, Confirm, Screen, looks_learnable

Class = tuple[str, int]

PRIOR_STRENGTH = 4.0  # screened tasks that the share over all classes counts for in one class


@dataclass(slots=True)
class ClassBook:
    """What was measured so far: screened tasks of each class, and how many were learnable."""

    screened: Counter[Class] = field(default_factory=Counter)
    learnable: Counter[Class] = field(default_factory=Counter)

    def add(self, cls: Class, k: int, n: int) -> None:
        if n > 0:
            self.screened[cls] += 1
            self.learnable[cls] += looks_learnable(k, n)

    @property
    def share(self) -> float:
        """Of learnable tasks over all classes."""
        return (sum(self.learnable.values()) + 1.0) / (sum(self.screened.values()) + 4.0)

    def beta(self, cls: Class) -> tuple[float, float]:
        """Beta parameters of the share of learnable tasks in the class."""
        share = self.share
        hits, misses = self.learnable[cls], self.screened[cls] - self.learnable[cls]
        return hits + PRIOR_STRENGTH * share, misses + PRIOR_STRENGTH * (1.0 - share)


@dataclass(frozen=True, slots=True)
class Waiting:
    task_id: str
    cls: Class
    action: Action


def allocate(
    waiting: Sequence[Waiting],
    book: ClassBook,
    budget: int,
    seed: int,
    left: float = math.inf,
    confirm_n: int = 0,
) -> list[tuple[str, int]]:
    """(task, rollouts) for at most ``budget`` rollouts; confirmations by distance to the target, then screens by their draw.

    ``left`` rollouts are there for these screens and for what will confirm them, ``confirm_n`` for each learnable task.
    """
    passed = [
        (w.action.off_target, i, w.task_id, w.action.n) for i, w in enumerate(waiting) if isinstance(w.action, Confirm)
    ]
    out: list[tuple[str, int]] = []
    for _, _, task_id, n in sorted(passed):
        left -= n
        if n <= budget:
            out.append((task_id, n))
            budget -= n
    drawn: list[tuple[float, int, str, int]] = []
    for i, w in enumerate(waiting):
        if isinstance(w.action, Screen):
            rng = random.Random(f"{seed}:{w.task_id}:{w.cls}:{sum(book.screened.values())}")
            drawn.append((-rng.betavariate(*book.beta(w.cls)), i, w.task_id, w.action.n))
    for _, _, task_id, n in sorted(drawn):
        whole = n + book.share * confirm_n
        if n <= budget and whole <= left:
            out.append((task_id, n))
            budget, left = budget - n, left - whole
    return out


def saturated(outcomes: Iterable[Sequence[bool]], streak: int) -> int:
    """+1 if the last ``streak`` training groups (oldest first) were all solved, −1 if none of them ever was, else 0.

    +1 asks for a less specific rung, −1 for a more specific one. Empty groups (infrastructure) are no evidence.
    """
    groups = [g for g in outcomes if g]
    last = groups[-streak:]
    if len(last) < streak:
        return 0
    if all(all(g) for g in last):
        return 1
    return -1 if not any(any(g) for g in last) else 0


def next_rung(rungs: Sequence[int], rung: int, saturation: int) -> int | None:
    """Where a saturated task goes: the neighbouring rung, or None when it is to be retired."""
    if saturation == 0:
        return rung
    beyond = [r for r in rungs if (r < rung if saturation > 0 else r > rung)]
    if not beyond:
        return None
    return max(beyond) if saturation > 0 else min(beyond)


def step_weight(k: int, n: int) -> float:
    """Weight in the draw of a training batch: learnable 1, unseen 0.5, never solved 0.15, always solved 0.05."""
    if n == 0:
        return 0.5
    return 0.15 if k == 0 else 0.05 if k == n else 1.0


def pick(weights: Mapping[str, float], size: int, seed: int) -> list[str]:
    """``size`` tasks without replacement, each draw in proportion to the weights that are left."""
    rng = random.Random(seed)
    keys = {task: math.log(1.0 - rng.random()) / w for task, w in sorted(weights.items()) if w > 0}
    return sorted(keys, key=lambda t: -keys[t])[:size]
