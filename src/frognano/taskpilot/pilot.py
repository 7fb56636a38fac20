"""The pilot: from a stream of validated candidates to tasks that the current policy can learn from.

The run is a deterministic function of the order in which candidates arrived and of the outcomes of rollouts. Both are
written to the ledger before they are used: a restart replays the same run from the ledger and goes on where it
stopped, nothing is measured twice, nothing is admitted twice, and the admitted ids are those of a run that was never
killed.

Two batches are in flight, so that the sampler has work while the last rollouts of one are graded and while candidates are
validated. A batch is chosen without the outcomes of the one before it; they are learned from in the order they were asked in,
whichever ends first, and only then written down, or run and ledger would depend on the machine's speed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from frognano.records import PolicyEvaluation, Task
from frognano.taskpilot.allocation import ClassBook, Waiting, allocate
from frognano.taskpilot.arrivals import Arrivals, NextValidated
from frognano.taskpilot.calibration import (
    Admit,
    Binding,
    Calibration,
    CalibrationConfig,
    Confirm,
    Drop,
    Move,
    calibrate,
)
from frognano.taskpilot.dedupe import task_key
from frognano.taskpilot.ledger import Decision, Ledger

Stage = Literal["screen", "confirm"]

IN_FLIGHT = 2
"""Batches asked for and not learned from."""


class PilotConfig(CalibrationConfig):
    target: int = Field(32, ge=1, description="Tasks to admit; what is confirmed by then is admitted too.")
    rollout_budget: int = Field(2000, ge=1)
    batch_rollouts: int = Field(64, ge=1, description="Rollouts in flight, asked for in two halves.")
    pool: int = Field(64, ge=1, description="Tasks that wait for rollouts; more give the allocation more choice.")
    max_lost: int = Field(3, ge=1, description="Requests of a task that may come back without any outcome.")
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Run ``task`` (at its rung) ``n`` times. Rollouts are numbered from ``start``; no number is asked for twice."""

    task: Task
    n: int
    stage: Stage
    start: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The task at its admitted rung with all its evaluations, and the requests whose rollouts confirmed it."""

    task: Task
    k: int
    n: int
    confirmed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PilotResult:
    admitted: tuple[Admitted, ...]
    dropped: dict[str, str]
    rollouts_used: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    exhausted: Literal["target", "budget", "candidates"]


Measure = Callable[[Sequence[Request]], Awaitable[Sequence[Sequence[bool]]]]


@dataclass(slots=True)
class _Held:
    """A task in calibration."""

    task: Task
    key: str
    evaluations: list[PolicyEvaluation] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)
    confirmed: list[tuple[int, int, int]] = field(default_factory=list)
    lost: int = 0
    moves_told: int = 0
    in_flight: Stage | None = None


async def run_pilot(
    next_validated: NextValidated,
    measure: Measure,
    ledger: Ledger,
    binding: Binding,
    config: PilotConfig,
    seen: Collection[str] = (),
    again: Collection[str] = (),
) -> PilotResult:
    """``seen`` holds bug keys that other iterations admitted; those that this ledger knows are added. ``again`` names
    the tasks that come back on purpose (saturated in training): they are calibrated anew though their bug was seen."""
    return await _Pilot(next_validated, measure, ledger, binding, config, seen, again).run()


class _Pilot:
    def __init__(
        self,
        next_validated: NextValidated,
        measure: Measure,
        ledger: Ledger,
        binding: Binding,
        config: PilotConfig,
        seen: Collection[str],
        again: Collection[str],
    ) -> None:
        self.measure, self.ledger = measure, ledger
        self.binding, self.config = binding, config
        self.scope = f"{binding.policy}|{binding.harness}|{binding.budget}"
        self.known: dict[tuple[str, str, int], Decision] = {}
        arrived: list[str] = []
        self.seen = set(seen)
        self.again = set(again)
        for d in ledger.decisions():
            if d.detail["scope"] != self.scope:
                if d.action == "admit":
                    self.seen.add(str(d.detail["bug"]))
            elif d.action == "arrive":
                arrived.append(d.task_id)
            else:
                self.known[d.task_id, d.action, int(d.detail["step"])] = d
        self.arrivals = Arrivals(next_validated, ledger, self.scope, arrived)
        self.held: dict[str, _Held] = {}
        self.admitted: list[Admitted] = []
        self.dropped: dict[str, str] = {}
        self.book = ClassBook()
        self.used = 0
        self.more = True
        """Whether further candidates may come."""
        self.rates: dict[str, list[float]] = {}

    async def run(self) -> PilotResult:
        flights: deque[tuple[list[Request], asyncio.Task[list[list[bool]]]]] = deque()
        try:
            while True:
                while len(flights) < IN_FLIGHT and (requests := await self._launch()):
                    flights.append((requests, asyncio.create_task(self._outcomes(requests))))
                if not flights:
                    break
                requests, measuring = flights.popleft()
                self._land(requests, await measuring)
        finally:
            for _, measuring in flights:
                measuring.cancel()
            await asyncio.gather(*(m for _, m in flights), return_exceptions=True)
        exhausted: Literal["target", "budget", "candidates"] = "target"
        if len(self.admitted) < self.config.target:
            exhausted = "budget" if self.held else "candidates"
        before = tuple(r[0] for r in self.rates.values() if r)
        after = tuple(r[-1] for r in self.rates.values() if r)
        return PilotResult(tuple(self.admitted), dict(self.dropped), self.used, before, after, exhausted)

    async def _take(self) -> bool:
        """Hold the next candidate, in the order that the ledger knows. False when there is no more."""
        while True:
            task = await self.arrivals.next()
            if task is None:
                return False
            key = task_key(task)
            if key in self.seen and task.id not in self.again:
                self.ledger.reject(task.id, "duplicate_bug", key)
                continue
            self.seen.add(key)
            self.held[task.id] = _Held(task, key)
            return True

    def _calibration(self, held: _Held) -> Calibration:
        rungs = [s.rung for s in held.task.statements]
        start = held.task.rung if self.config.start_rung is None else self.config.start_rung
        return calibrate(held.evaluations, rungs, start, self.binding, self.config)

    async def _launch(self) -> list[Request]:
        """The next batch of rollouts; empty when enough is admitted or the budget pays for none."""
        if len(self.admitted) >= self.config.target:
            return []
        while self.more and sum(not held.in_flight for held in self.held.values()) < self.config.pool:
            self.more = await self._take()
        states = {task_id: self._calibration(held) for task_id, held in self.held.items() if not held.in_flight}
        waiting = [Waiting(t, self._class(t, s.rung), s.action) for t, s in states.items()]
        c = self.config
        left = c.rollout_budget - self.used
        budget = min(left, max(c.batch_rollouts // IN_FLIGHT, c.screen_n, c.confirm_n))
        screening = sum(held.in_flight == "screen" for held in self.held.values())
        unpromised = left - screening * self.book.share * c.confirm_n
        requests: list[Request] = []
        for task_id, n in allocate(waiting, self.book, budget, c.seed, unpromised, c.confirm_n):
            held, rung = self.held[task_id], states[task_id].rung
            stage: Stage = "confirm" if isinstance(states[task_id].action, Confirm) else "screen"
            requests.append(Request(held.task.at_rung(rung), n, stage, held.asked.get(rung, 0)))
            held.in_flight = stage
            self.used += n
        return requests

    def _land(self, requests: Sequence[Request], outcomes: Sequence[list[bool]]) -> None:
        for request, found in zip(requests, outcomes, strict=True):
            self.held[request.task.id].in_flight = None
            self._learn(request, found)
        for request in requests:
            self._conclude(request.task.id)

    def _class(self, task_id: str, rung: int) -> tuple[str, int]:
        return self.held[task_id].task.lineage.operator, rung

    async def _outcomes(self, requests: Sequence[Request]) -> list[list[bool]]:
        """Of each request: from the ledger where it was measured before, else measured now."""
        fresh = [r for r in requests if (r.task.id, "measure", self._step(r)) not in self.known]
        measured = iter(await self.measure(fresh)) if fresh else iter(())
        out: list[list[bool]] = []
        for request in requests:
            known = self.known.get((request.task.id, "measure", self._step(request)))
            outcomes = [bool(x) for x in (known.detail["outcomes"] if known else next(measured))]
            if len(outcomes) > request.n:
                raise ValueError(f"task {request.task.id}: {len(outcomes)} outcomes for {request.n} rollouts")
            out.append(outcomes)
        return out

    def _step(self, request: Request) -> int:
        return request.task.rung * 100_000 + request.start

    def _write(self, task_id: str, action: str, step: int, detail: dict[str, object]) -> None:
        if (task_id, action, step) in self.known:
            return
        full = {"scope": self.scope, "step": step, **detail}
        self.ledger.decide(task_id, action, full)
        self.known[task_id, action, step] = Decision(task_id, action, full)

    def _learn(self, request: Request, outcomes: list[bool]) -> None:
        held, rung = self.held[request.task.id], request.task.rung
        detail = {"rung": rung, "stage": request.stage, "start": request.start, "asked": request.n}
        self._write(request.task.id, "measure", self._step(request), {**detail, "outcomes": outcomes})
        held.asked[rung] = request.start + request.n
        held.lost = 0 if outcomes else held.lost + 1
        if not outcomes:
            return
        k, n = sum(outcomes), len(outcomes)
        if request.stage == "confirm":
            held.confirmed.append((rung, request.start, request.n))
        held.evaluations.append(
            PolicyEvaluation(
                policy=self.binding.policy,
                harness=self.binding.harness,
                budget=self.binding.budget,
                rung=rung,
                n=n,
                k=k,
                stage=request.stage,
            )
        )
        screened = [e for e in held.evaluations if e.rung == rung and e.stage == "screen"]
        total_k, total_n = sum(e.k for e in screened), sum(e.n for e in screened)
        if request.stage == "screen" and total_n >= self.config.screen_n:
            self.book.add((held.task.lineage.operator, rung), total_k, total_n)

    def _conclude(self, task_id: str) -> None:
        held = self.held[task_id]
        state = self._calibration(held)
        for i, move in enumerate(state.moves[held.moves_told :], held.moves_told):
            self._tell_move(task_id, i, move)
        held.moves_told = len(state.moves)
        if isinstance(state.action, Admit):  # beyond the target too: its rollouts are paid, and train
            k, n = state.action.k, state.action.n
            task = Task.model_validate(
                {
                    **held.task.model_dump(),
                    "rung": state.rung,
                    "evaluations": (*held.task.evaluations, *held.evaluations),
                }
            )
            confirmed = tuple((start, count) for rung, start, count in held.confirmed if rung == state.rung)
            self._write(task_id, "admit", 0, {"bug": held.key, "rung": state.rung, "k": k, "n": n})
            self.admitted.append(Admitted(task, k, n, confirmed))
            self._close(held)
        elif isinstance(state.action, Drop) or held.lost >= self.config.max_lost:
            reason = state.action.reason if isinstance(state.action, Drop) else "infrastructure"
            self._write(task_id, "drop", 0, {"reason": reason, "rung": state.rung})
            self.dropped[task_id] = reason
            self._close(held)

    def _tell_move(self, task_id: str, i: int, move: Move) -> None:
        detail: dict[str, object] = {"from": move.source, "to": move.rung, "k": move.k, "n": move.n}
        self._write(task_id, "move", i, detail)

    def _close(self, held: _Held) -> None:
        rates: dict[int, tuple[int, int]] = {}
        for e in held.evaluations:
            k, n = rates.get(e.rung, (0, 0))
            rates[e.rung] = (k + e.k, n + e.n)
        self.rates[held.task.id] = [k / n for k, n in rates.values()]
        del self.held[held.task.id]
