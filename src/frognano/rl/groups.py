"""Groups: the rollouts of one task under one policy, and their advantages.

A_ij = (R_ij − mean_i) / (std_i + 1e-6) on the shaped reward, std with n − 1. A trajectory counts once in its group, however
many samples it forked into. Groups whose *raw* rewards are all equal are dropped, all-success groups too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from frognano.records import Sample

EPS = 1e-6
SAME = 1e-9
"""Rewards closer than this are equal."""

Signal = Literal["kept", "all0", "all1", "too_small"]


@dataclass(frozen=True)
class Group:
    """Samples of one task; all samples of one trajectory stand together and bear the same rewards."""

    id: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        rewards: dict[str, tuple[float, float]] = {}
        for s in self.samples:
            if s.group_id != self.id:
                raise ValueError(f"sample of group {s.group_id} in group {self.id}")
            if rewards.setdefault(s.trajectory_id, (s.raw_reward, s.reward)) != (s.raw_reward, s.reward):
                raise ValueError(f"the samples of trajectory {s.trajectory_id} bear different rewards")

    def rewards(self) -> dict[str, tuple[float, float]]:
        """Trajectory id to (raw, shaped)."""
        return {s.trajectory_id: (s.raw_reward, s.reward) for s in self.samples}


def signal(group: Group) -> Signal:
    """Whether the group teaches anything, judged by raw rewards."""
    raw = [r for r, _ in group.rewards().values()]
    if len(raw) < 2:
        return "too_small"
    if max(raw) - min(raw) <= SAME:
        return "all1" if raw[0] > 0.5 else "all0"
    return "kept"


def advantages(group: Group) -> list[float]:
    """One advantage per sample, in the order of `group.samples`."""
    rewards = {t: shaped for t, (_, shaped) in group.rewards().items()}
    n = len(rewards)
    if n < 2:
        raise ValueError(f"group {group.id}: an advantage needs two trajectories, there are {n}")
    mean = sum(rewards.values()) / n
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards.values()) / (n - 1))
    return [(rewards[s.trajectory_id] - mean) / (std + EPS) for s in group.samples]


def split(groups: Sequence[Group]) -> dict[Signal, list[Group]]:
    """Groups by what they teach."""
    out: dict[Signal, list[Group]] = {"kept": [], "all0": [], "all1": [], "too_small": []}
    for group in groups:
        out[signal(group)].append(group)
    return out
