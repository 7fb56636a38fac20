"""Calibration: the decision process of one task against the current policy, as a pure function of its evaluations.

Screen with few rollouts; if the task looks learnable, confirm on fresh ones, and only those decide: samples that
triggered a refinement or a confirmation are selected and would flatter (the winner's curse). Too hard moves to a more
specific rung, too easy to a less specific one, no rung twice, a bounded number of moves. Evaluations made with
another policy, harness or budget are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from frognano.records import PolicyEvaluation
from frognano.taskpilot.posterior import AdmissionRule, Posterior, admits


class CalibrationConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    screen_n: int = Field(4, ge=1)
    confirm_n: int = Field(8, ge=2)
    max_refinements: int = Field(2, ge=0)
    start_rung: int | None = Field(None, ge=0, description="Or the nearest that a task has; none: the rung it bears.")
    rule: AdmissionRule = Field(default_factory=lambda: AdmissionRule.model_validate({}))


@dataclass(frozen=True, slots=True)
class Binding:
    """What an evaluation depends on beside the rung."""

    policy: str
    harness: str
    budget: str

    def holds(self, e: PolicyEvaluation) -> bool:
        return (e.policy, e.harness, e.budget) == (self.policy, self.harness, self.budget)


@dataclass(frozen=True, slots=True)
class Screen:
    n: int


@dataclass(frozen=True, slots=True)
class Confirm:
    n: int
    off_target: float = 0.0
    """How far the screen's posterior mean lies from the rule's target."""


@dataclass(frozen=True, slots=True)
class Admit:
    k: int
    n: int


@dataclass(frozen=True, slots=True)
class Drop:
    reason: Literal["too_hard", "too_easy", "between_rungs", "refinements_exhausted"]


Action = Screen | Confirm | Admit | Drop


@dataclass(frozen=True, slots=True)
class Move:
    """From one rung to another, and the pass rate that asked for it."""

    source: int
    rung: int
    k: int
    n: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Where a task stands: its rung, the moves so far and what to do next."""

    rung: int
    moves: tuple[Move, ...]
    action: Action


def calibrate(
    evaluations: Iterable[PolicyEvaluation],
    rungs: Sequence[int],
    start: int,
    binding: Binding,
    config: CalibrationConfig,
) -> Calibration:
    """Replays the bound evaluations; the next action follows from them alone, so it is the same after a restart."""
    counts: dict[tuple[int, str], tuple[int, int]] = {}
    for e in evaluations:
        if binding.holds(e):
            k, n = counts.get((e.rung, e.stage), (0, 0))
            counts[e.rung, e.stage] = (k + e.k, n + e.n)
    rung = min(rungs, key=lambda r: (abs(r - start), -r))
    moves: list[Move] = []
    tried = {rung}
    while True:
        action, step = _at_rung(counts, rung, config)
        if action is not None:
            return Calibration(rung, tuple(moves), action)
        k, n = counts[rung, "confirm"] if (rung, "confirm") in counts else counts[rung, "screen"]
        beyond = [r for r in rungs if (r > rung if step > 0 else r < rung)]
        if not beyond:
            return Calibration(rung, tuple(moves), Drop("too_hard" if step > 0 else "too_easy"))
        target = min(beyond) if step > 0 else max(beyond)
        if target in tried:
            return Calibration(rung, tuple(moves), Drop("between_rungs"))
        if len(moves) >= config.max_refinements:
            return Calibration(rung, tuple(moves), Drop("refinements_exhausted"))
        moves.append(Move(rung, target, k, n))
        tried.add(target)
        rung = target


def looks_learnable(k: int, n: int) -> bool:
    """Whether a screen asks for confirmation. One success alone does: it cannot tell an easy task from a learnable one."""
    return 0 < k < n or k == n == 1


def _at_rung(
    counts: dict[tuple[int, str], tuple[int, int]], rung: int, config: CalibrationConfig
) -> tuple[Action | None, int]:
    """The action at this rung, or None and the direction to move in: +1 more specific, −1 less specific."""
    k, n = counts.get((rung, "screen"), (0, 0))
    if n < config.screen_n:
        return Screen(config.screen_n - n), 0
    if not looks_learnable(k, n):
        return None, (+1 if k == 0 else -1)
    off_target = abs(Posterior.of(k, n, config.rule.prior).mean - config.rule.target)
    k, n = counts.get((rung, "confirm"), (0, 0))
    if n < config.confirm_n:
        return Confirm(config.confirm_n - n, off_target), 0
    if admits(k, n, config.rule):
        return Admit(k, n), 0
    return None, (-1 if config.rule.above(k, n) else +1)
