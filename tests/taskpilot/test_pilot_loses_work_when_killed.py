"""The pilot killed at every write and every measurement, and the same bug offered twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from frognano.records import Environment, Lineage, Origin, Statement, Task, Validation
from frognano.taskpilot.arrivals import Rejected, fresh_first
from frognano.taskpilot.calibration import Binding
from frognano.taskpilot.dedupe import bug_key, gold_lines, task_key
from frognano.taskpilot.ledger import MemoryLedger
from frognano.taskpilot.pilot import PilotConfig, PilotResult, Request, run_pilot

PI0 = Binding("pi0", "leaf", "2x60")
CONFIG = PilotConfig.model_validate(
    {"target": 5, "rollout_budget": 400, "batch_rollouts": 24, "pool": 8, "confirm_n": 4, "start_rung": 3}
)


def make_task(i: int, function: str = "", line: str = "return a + 1") -> Task:
    return Task(
        id=f"task-{i:04d}",
        origin=Origin(name="repo", version="1", source="sdist", tree="t"),
        environment=Environment(key="k", python="3.11", lock=()),
        base="b",
        statements=tuple(Statement(rung=r, name=f"r{r}", text=f"text {r}") for r in range(6)),
        rung=3,
        gold_patch=f"diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-return a\n+{line}\n".encode(),
        f2p=("tests/t.py::t",),
        lineage=Lineage(generator="mutation", operator=f"op{i % 3}", file="m.py", function=function or f"f{i}"),
        validation=Validation(bug_runs=3, gold_runs=1, noop_resolved=False),
    )


class Killed(BaseException):
    pass


@dataclass
class World:
    """Outcomes fixed by (task, rung, index), what was ever run, and a fuse that kills at the n-th event."""

    fuse: int = 10**9
    ran: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    rollouts: dict[tuple[str, int, int], bool | None] = field(default_factory=dict)
    shuffle: int = 0
    speed: random.Random | None = None
    """Decides how long a batch takes; none: no batch is waited for."""
    at_once: int = 0
    most_at_once: int = 0

    def tick(self) -> None:
        self.fuse -= 1
        if self.fuse < 0:
            raise Killed

    def outcome(self, task: str, rung: int, index: int) -> bool | None:
        rng = random.Random(f"{task}:{rung}:{index}")
        if rng.random() < 0.05:
            return None  # lost to infrastructure
        hardness = random.Random(task).random() * 2 - 0.6
        return rng.random() < hardness + (rung - 3) * 0.25

    async def measure(self, requests: Sequence[Request]) -> list[list[bool]]:
        self.tick()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(self.speed.randrange(12) if self.speed else 0):
            await asyncio.sleep(0)
        self.at_once -= 1
        out: list[list[bool]] = []
        for request in requests:
            row: list[bool] = []
            for index in range(request.start, request.start + request.n):
                key = (request.task.id, request.task.rung, index)
                if key not in self.rollouts:
                    self.ran[key] += 1
                    self.rollouts[key] = self.outcome(*key)
                found = self.rollouts[key]
                if found is not None:
                    row.append(found)
            out.append(row)
        self.tick()
        return out


class FusedLedger(MemoryLedger):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def decide(self, task_id: str, action: str, detail: Mapping[str, Any]) -> None:
        self.world.tick()
        super().decide(task_id, action, detail)
        self.world.tick()


async def run(world: World, ledger: MemoryLedger, config: PilotConfig = CONFIG, **more: Any) -> PilotResult:
    offered: list[Task | Rejected] = [make_task(i) for i in range(40)]
    if world.shuffle:  # after a restart, what had arrived comes in another order and between what had not
        held = {d.task_id for d in ledger.entries if d.action == "arrive"}
        random.Random(world.shuffle).shuffle(offered)
        rest = iter(sorted((t for t in offered if isinstance(t, Task) and t.id not in held), key=lambda t: t.id))
        offered = [t if isinstance(t, Task) and t.id in held else next(rest) for t in offered]
    offered.insert(2, Rejected("cand-x", "f2p_empty", "no test fails"))
    stream = iter(offered)

    async def next_validated() -> Task | Rejected | None:
        return next(stream, None)

    return await run_pilot(next_validated, world.measure, ledger, PI0, config, **more)


def ids(result: PilotResult) -> list[tuple[str, int, int, int]]:
    return [(a.task.id, a.task.rung, a.k, a.n) for a in result.admitted]


async def test_a_kill_at_any_event_changes_nothing() -> None:
    whole_world = World()
    whole_ledger = FusedLedger(whole_world)
    whole = await run(whole_world, whole_ledger)
    events = 10**9 - whole_world.fuse
    assert len(whole.admitted) >= 5
    assert whole.exhausted == "target"
    for fuse in [*range(60), *range(60, events, 3), events - 1]:
        world = World(fuse=fuse)
        ledger = FusedLedger(world)
        with pytest.raises(Killed):
            await run(world, ledger)
        world.fuse, world.shuffle, world.speed = 10**9, fuse, random.Random(fuse)
        again = await run(world, ledger)
        assert ids(again) == ids(whole)
        assert (again.dropped, again.rollouts_used) == (whole.dropped, whole.rollouts_used)
        assert max(world.ran.values()) == 1
        if fuse % 7 == 0:
            assert len(ledger.entries) == len({(d.task_id, d.action, d.detail.get("step")) for d in ledger.entries})


async def test_the_faster_of_two_batches_decides() -> None:
    """What is asked next may not depend on which batch ended first."""
    still, written = World(), MemoryLedger()
    wanted = await run(still, written)
    for seed in range(12):
        world, ledger = World(speed=random.Random(seed)), MemoryLedger()
        result = await run(world, ledger)
        assert ledger.entries == written.entries
        assert (ids(result), result.dropped) == (ids(wanted), wanted.dropped)
        assert world.ran == still.ran


async def test_the_sampler_waits_for_the_slowest_rollout_of_a_batch() -> None:
    world = World(speed=random.Random(0))
    result = await run(world, MemoryLedger())
    assert world.most_at_once == 2
    assert result.rollouts_used == sum(world.ran.values())


async def test_a_batch_goes_on_when_the_other_has_failed() -> None:
    """Its rollouts would write into a store that is closed."""
    began, ended, calls = asyncio.Event(), asyncio.Event(), 0

    async def measure(requests: Sequence[Request]) -> list[list[bool]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await began.wait()
            raise ValueError("the disk is full")
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return []

    stream = iter([make_task(i) for i in range(40)])

    async def offer() -> Task | None:
        return next(stream, None)

    pilot = run_pilot(offer, measure, MemoryLedger(), PI0, CONFIG)
    with pytest.raises(ValueError, match="the disk is full"):
        await asyncio.wait_for(pilot, 30)
    assert ended.is_set()
    assert len(asyncio.all_tasks()) == 1


async def test_a_finished_pilot_runs_nothing_again() -> None:
    world, ledger = World(), MemoryLedger()
    first = await run(world, ledger)
    told, ran = len(ledger.entries), sum(world.ran.values())
    world.measure = None  # type: ignore[assignment,method-assign]
    second = await run(world, ledger)
    assert ids(first) == ids(second)
    assert (len(ledger.entries), sum(world.ran.values())) == (told, ran)


async def test_admission_rests_on_fresh_rollouts_only() -> None:
    world = World()
    result = await run(world, MemoryLedger())
    for a in result.admitted:
        screened = [e for e in a.task.evaluations if e.rung == a.task.rung and e.stage == "screen"]
        indices = {i for start, n in a.confirmed for i in range(start, start + n)}
        assert min(indices) >= sum(e.n for e in screened) > 0
        kept = [world.rollouts[a.task.id, a.task.rung, i] for i in indices]
        assert (sum(x is True for x in kept), sum(x is not None for x in kept)) == (a.k, a.n)
        assert 0 < a.k < a.n


async def test_the_budget_is_never_exceeded() -> None:
    config = CONFIG.model_copy(update={"rollout_budget": 50, "target": 40})
    result = await run(World(), MemoryLedger(), config)
    assert result.exhausted == "budget"
    assert result.rollouts_used <= 50


async def test_rejects_are_told_and_the_stream_may_end() -> None:
    ledger = MemoryLedger()
    config = CONFIG.model_copy(update={"rollout_budget": 9999, "target": 40})
    result = await run(World(), ledger, config)
    assert ledger.rejects == {"cand-x": ("f2p_empty", "no test fails")}
    assert result.exhausted == "candidates"
    assert len(result.admitted) + len(result.dropped) == 40
    assert len(result.before) == len(result.after) == 40


async def test_the_same_bug_is_not_admitted_in_the_next_iteration() -> None:
    world, ledger = World(), MemoryLedger()
    first = await run(world, ledger)

    async def next_iteration(**more: Any) -> PilotResult:
        stream = iter([make_task(i) for i in range(40)])

        async def offer() -> Task | None:
            return next(stream, None)

        return await run_pilot(offer, world.measure, ledger, Binding("pi1", "leaf", "2x60"), CONFIG, **more)

    names = {a.task.id for a in first.admitted}
    second = await next_iteration()
    assert second.admitted
    assert not names & {a.task.id for a in second.admitted}
    assert set(ledger.rejects) >= names
    back = sorted(names)[0]
    ledger = MemoryLedger([d for d in ledger.entries if "pi0" in d.detail["scope"]])
    third = await next_iteration(again={back})
    assert back not in ledger.rejects
    assert not (names - {back}) & {a.task.id for a in third.admitted}


async def test_a_task_whose_rollouts_are_always_lost_is_dropped() -> None:
    async def nothing(requests: Sequence[Request]) -> list[list[bool]]:
        return [[] for _ in requests]

    stream = iter([make_task(0)])

    async def offer() -> Task | None:
        return next(stream, None)

    result = await run_pilot(offer, nothing, MemoryLedger(), PI0, CONFIG)
    assert result.dropped == {"task-0000": "infrastructure"}


def test_the_same_bug_has_one_key_whatever_its_names_and_blanks() -> None:
    a = bug_key(["    x = foo(y)"], ["x = foo(z)"], "r:m.py:f", ["t::a", "t::b"])
    assert a == bug_key(["p  = bar( q )"], ["  p = bar(w)"], "r:m.py:f", ["t::b", "t::a"])
    assert a != bug_key(["x = foo(y)"], ["x = foo(x)"], "r:m.py:f", ["t::a", "t::b"])
    assert a != bug_key(["x = foo(y)"], ["x = foo(z)"], "r:m.py:g", ["t::a", "t::b"])
    assert a != bug_key(["x = foo(y)"], ["x = foo(z)"], "r:m.py:f", ["t::a"])
    assert bug_key(["return min(x)"], ["return max(x)"], "f", []) != bug_key(
        ["return max(x)"], ["return min(x)"], "f", []
    )


def test_gold_lines_are_read_from_hunks_only() -> None:
    assert gold_lines(make_task(0).gold_patch) == (["return a"], ["return a + 1"])
    assert task_key(make_task(1, "f")) == task_key(make_task(2, "f"))
    assert task_key(make_task(1, "f")) != task_key(make_task(1, "f", "return a - 1"))


async def test_what_was_too_hard_before_is_tried_before_what_is_new() -> None:
    tasks = [make_task(i) for i in range(6)]
    queue: list[Task | Rejected | None] = [*tasks[:3], Rejected("cand-x", "survived"), *tasks[3:], None, None, None]

    async def offer() -> Task | Rejected | None:
        return queue.pop(0)

    following = fresh_first(offer, taken={tasks[0].id}, hard={tasks[1].id, tasks[4].id})
    got = [await following() for _ in range(7)]
    assert got == [tasks[2], Rejected("cand-x", "survived"), tasks[3], tasks[5], tasks[1], tasks[4], None]


async def test_a_budget_goes_to_screens_alone() -> None:
    """Two batches in flight would take the whole of it before a task that looks learnable can be confirmed."""
    config = CONFIG.model_copy(update={"rollout_budget": 40, "batch_rollouts": 40, "pool": 20, "screen_n": 4})
    result = await run(World(), MemoryLedger(), config)
    assert result.admitted
    assert result.rollouts_used <= 40
