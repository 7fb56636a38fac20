"""The pilot's ledger, kept in the run store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frognano.runs.store import RunStore
from frognano.taskpilot.ledger import Decision


class StoreLedger:
    """One key per decision, so that a restart which repeats one changes nothing."""

    def __init__(self, store: RunStore) -> None:
        self.store = store

    def decide(self, task_id: str, action: str, detail: Mapping[str, Any]) -> None:
        key = f"{detail['scope']}/{task_id}/{action}/{detail.get('step', 0)}"
        self.store.decide(key, task_id, action, dict(detail))

    def reject(self, candidate: str, reason: str, detail: str) -> None:
        self.store.reject(candidate, reason, detail)

    def decisions(self) -> Sequence[Decision]:
        return [Decision(d.task_id, d.action, d.detail) for d in self.store.decisions()]
