"""Ledger: every decision on a task and every refused candidate, in order. The run store implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Decision:
    """``detail`` is JSON-like and bears ``scope``: one pilot run of one iteration."""

    task_id: str
    action: str
    detail: Mapping[str, Any]


class Ledger(Protocol):
    """Each call is durable when it returns, and one call is written whole or not at all."""

    def decide(self, task_id: str, action: str, detail: Mapping[str, Any]) -> None: ...

    def reject(self, candidate: str, reason: str, detail: str) -> None: ...

    def decisions(self) -> Sequence[Decision]: ...


@dataclass(slots=True)
class MemoryLedger:
    entries: list[Decision] = field(default_factory=list)
    rejects: dict[str, tuple[str, str]] = field(default_factory=dict)

    def decide(self, task_id: str, action: str, detail: Mapping[str, Any]) -> None:
        self.entries.append(Decision(task_id, action, dict(detail)))

    def reject(self, candidate: str, reason: str, detail: str) -> None:
        """Once for a candidate: a restart may offer it again."""
        self.rejects.setdefault(candidate, (reason, detail))

    def decisions(self) -> Sequence[Decision]:
        return tuple(self.entries)
