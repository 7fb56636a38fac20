"""Stream: the order in which candidates are offered, kept in the run's journal so that a restart offers the same ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from frognano.errors import FrogNanoError
from frognano.records import Task
from frognano.runs.store import RunStore
from frognano.taskpilot.arrivals import Rejected
from frognano.taskpilot.dedupe import task_key
from frognano.taskpilot.workshop import Proposal, Workshop


class CandidateStream:
    """Validates proposals ahead, `workers` at a time, and hands them out in order. A bug is offered once a run.

    `purpose` names the stream in the store: `tasks(purpose)` are its valid tasks, steps `candidate/<purpose>/<n>` its journal.
    """

    def __init__(
        self,
        store: RunStore,
        workshop: Workshop,
        proposals: Iterator[Proposal],
        *,
        purpose: str,
        rung: int,
        workers: int,
    ) -> None:
        self.store, self.workshop, self.purpose, self.rung, self.workers = store, workshop, purpose, rung, workers
        self._proposals = enumerate(proposals)
        self._tasks = {t.id: t for t in store.tasks(purpose)}
        self._journal = store.steps(f"candidate/{purpose}/")
        self._ahead: deque[tuple[int, Proposal, asyncio.Task[Task | Rejected] | None]] = deque()
        self._bugs: set[str] = set()
        self.tried = 0

    async def next(self) -> Task | Rejected | None:
        """The next candidate, or None when there is none left."""
        self._fill()
        if not self._ahead:
            return None
        number, proposal, making = self._ahead.popleft()
        step = f"candidate/{self.purpose}/{number}"
        self.tried += 1
        if making is None:
            held = self._journal[step]
            if held["task"] != proposal.id:
                raise FrogNanoError(
                    f"candidate {number} of `{self.purpose}` was {held['task']} when the run began, now it is {proposal.id}: "
                    "a repository, its clean runs or FrogNano have changed; put them back, or start another run (--out)"
                )
            if held["reason"]:
                return Rejected(proposal.id, held["reason"], held["detail"])
            task = self._tasks[held["task"]]
            self._bugs.add(task_key(task))
            return task
        result = await making
        if isinstance(result, Task):
            key = task_key(result)
            if key in self._bugs:
                result = Rejected(proposal.id, "duplicate_bug", key)
            else:
                self._bugs.add(key)
                self.store.put_task(result, self.purpose)
        if isinstance(result, Rejected):
            self.store.reject(result.candidate, result.reason, result.detail)
        reason, detail = (result.reason, result.detail) if isinstance(result, Rejected) else ("", "")
        self.store.finish(step, {"task": proposal.id, "reason": reason, "detail": detail})
        return result

    def _fill(self) -> None:
        while len(self._ahead) < self.workers:
            following = next(self._proposals, None)
            if following is None:
                return
            number, proposal = following
            done = f"candidate/{self.purpose}/{number}" in self._journal
            making = None if done else asyncio.create_task(self.workshop.make(proposal, self.rung))
            self._ahead.append((number, proposal, making))

    async def close(self) -> None:
        """Stop what was being made ahead; it is made again when it is asked for."""
        making = [m for _, _, m in self._ahead if m is not None]
        for m in making:
            m.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        self._ahead.clear()
        await self.workshop.close()
