"""What the index tells without opening a trajectory file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from frognano.records import ExitReason, Status

BASE = "base"
"""Name of π0, the policy that nothing was trained into."""


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """Names one rollout of a run. ``purpose`` is a path such as ``iter1/screen``, ``iter1/train/7`` or ``heldout``."""

    task_id: str
    rung: int
    policy: str
    purpose: str
    index: int


@dataclass(frozen=True, slots=True)
class RolloutRow:
    key: RolloutKey
    trajectory_id: str
    status: Status
    exit_reason: ExitReason
    resolved: bool
    counts: bool
    generated_tokens: int
    turns: int
    valid_edit: bool
    seconds: float
    fresh: dict[str, Any] = field(default_factory=dict)
    """Whatever the caller knew at the moment of recording, e.g. sampling settings or timings."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the pilot's ledger."""

    key: str
    task_id: str
    action: str
    detail: Any
    at: float


@dataclass(frozen=True, slots=True)
class Rejection:
    candidate_id: str
    reason: str
    detail: Any
    at: float
