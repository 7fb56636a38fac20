"""Reward: what a verdict is worth. Raw decides which groups learn, shaped decides how much (SPEC.md §5).

R = 0 for failures; 0.5 for a correct patch of a run that a budget cut; for a completed success
R = 1 if n ≤ N else max(floor, 1 − α ln(n/N)), with n the generated tokens, from a given iteration on.
"""

from __future__ import annotations

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frognano.records import Trajectory, Verdict

TRUNCATED = 0.5
"""What a truncated but correct run earns in training."""


class RewardConfig(BaseModel):
    """Success > truncated but correct > failure always holds: `floor` must lie above 0.5."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    efficiency_from_iteration: int = Field(3, ge=1, description="First iteration with the efficiency reward.")
    alpha: float = Field(0.1, ge=0)
    threshold: int | None = Field(
        None, gt=0, description="N in tokens; none: the median of the successes measured so far."
    )
    floor: float = Field(0.6, le=1)
    shuffle: bool = Field(
        False,
        description="A control: rewards are dealt out anew within each group, so that they say nothing about a run.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.floor <= TRUNCATED:
            raise ValueError(
                f"floor {self.floor} must lie above {TRUNCATED}, the reward of a truncated but correct run"
            )
        return self


def raw_reward(verdict: Verdict) -> float:
    """1 or 0. An infrastructure error has no reward: asking for one is a bug."""
    if not verdict.counts:
        raise ValueError("an infrastructure error has no reward: leave the trajectory out")
    return float(verdict.resolved)


def efficiency(n: int, threshold: int, alpha: float, floor: float) -> float:
    """Reward of a completed success that took n tokens; n ≤ N and n = 0 give 1."""
    return 1.0 if n <= threshold else max(floor, 1.0 - alpha * math.log(n / threshold))


def shaped_reward(
    trajectory: Trajectory, verdict: Verdict, config: RewardConfig, iteration: int, threshold: int | None
) -> float:
    """`threshold` is N; without one (no success measured yet) there is no length term."""
    raw = raw_reward(verdict)
    if raw == 0:
        return 0.0
    if trajectory.exit_reason.truncated:
        return TRUNCATED
    if iteration < config.efficiency_from_iteration or threshold is None:
        return 1.0
    return efficiency(trajectory.generated_tokens, threshold, config.alpha, config.floor)
