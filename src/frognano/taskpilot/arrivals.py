"""Arrivals: validated candidates in one fixed order, whatever order validation finishes in after a restart."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from frognano.errors import FrogNanoError
from frognano.records import Task
from frognano.taskpilot.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that validation refused, with its reason code."""

    candidate: str
    reason: str
    detail: str = ""


NextValidated = Callable[[], Awaitable[Task | Rejected | None]]


def fresh_first(next_validated: NextValidated, taken: Collection[str], hard: Collection[str]) -> NextValidated:
    """The same candidates without the tasks in `taken`, and those in `hard` after all others.

    What was too hard for an earlier policy may suit this one, but seldom: tried in their old order, before what no policy
    has seen, such tasks used up an iteration's whole budget of rollouts.
    """
    later: deque[Task] = deque()

    async def following() -> Task | Rejected | None:
        while (candidate := await next_validated()) is not None:
            if isinstance(candidate, Rejected):
                return candidate
            if candidate.id in hard:
                later.append(candidate)
            elif candidate.id not in taken:
                return candidate
        return later.popleft() if later else None

    return following


class Arrivals:
    """Gives tasks first in the order that the ledger holds, then as they come; each is written down before it is given."""

    def __init__(self, next_validated: NextValidated, ledger: Ledger, scope: str, known: Iterable[str]) -> None:
        self.next_validated, self.ledger, self.scope = next_validated, ledger, scope
        self.known = list(known)
        self.given = 0
        self.early: dict[str, Task] = {}

    async def next(self) -> Task | None:
        """None when there is no more."""
        task = await self._expected() if self.given < len(self.known) else await self._any()
        if task is not None:
            if self.given >= len(self.known):
                self.ledger.decide(task.id, "arrive", {"scope": self.scope})
                self.known.append(task.id)
            self.given += 1
        return task

    async def _expected(self) -> Task:
        expected = self.known[self.given]
        while expected not in self.early:
            task = await self._pull()
            if task is None:
                raise FrogNanoError(
                    f"task {expected} is in the ledger but was not offered again: "
                    "resume with the same candidates, or start a new run"
                )
            self.early[task.id] = task
        return self.early.pop(expected)

    async def _any(self) -> Task | None:
        return self.early.pop(next(iter(self.early))) if self.early else await self._pull()

    async def _pull(self) -> Task | None:
        while isinstance(candidate := await self.next_validated(), Rejected):
            self.ledger.reject(candidate.candidate, candidate.reason, candidate.detail)
        return candidate
