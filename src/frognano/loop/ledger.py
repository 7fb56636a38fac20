"""The pilot's ledger, kept in the run store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frognano.runs.store import RunStore
from frognano.taskpilot.ledger import Decision


class StoreLedger:
    """One key per decision, so that a restart which repeats one changes nothing.

    Scopes are those of one iteration: where two iterations start from the same policy, the second must not take the first
    one's decisions for its own, or it would admit the same tasks again.
    """

    def __init__(self, store: RunStore, iteration: int) -> None:
        self.store, self.prefix = store, f"iter{iteration}/"

    def decide(self, task_id: str, action: str, detail: Mapping[str, Any]) -> None:
        scope = f"{self.prefix}{detail['scope']}"
        key = f"{scope}/{task_id}/{action}/{detail.get('step', 0)}"
        self.store.decide(key, task_id, action, {**detail, "scope": scope})

    def reject(self, candidate: str, reason: str, detail: str) -> None:
        self.store.reject(candidate, reason, detail)

    def decisions(self) -> Sequence[Decision]:
        """This iteration's under the scope they were decided in, those of others under one that is never asked for."""
        return [
            Decision(d.task_id, d.action, {**d.detail, "scope": str(d.detail["scope"]).removeprefix(self.prefix)})
            for d in self.store.decisions()
        ]
