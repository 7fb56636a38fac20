"""A session stays on one engine, a task's rollouts share their prompt, and none of the engines idles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frognano.models.sessions import Generation
from frognano.models.shards import ShardedEngine


class Recorder:
    """Where sessions went; the sampling itself is tested with real engines."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released: list[str] = []
        self.refreshed = self.closed = 0
        self.generated = 7
        self.beside: list[Recorder] = []

    async def generate(self, session: str, ids: list[int], **_: Any) -> Generation:
        self.asked.append(session)
        return Generation(ids, [0.0], "stop")

    def release(self, session: str) -> None:
        self.released.append(session)

    def ask_refresh(self) -> Callable[[], None]:
        self.asked.append("refresh")

        def wait() -> None:
            # Were one waited for before the next is asked, a core would idle.
            assert all("refresh" in engine.asked for engine in self.beside)
            self.refreshed += 1

        return wait

    def close(self) -> None:
        self.closed += 1


def sharded(n: int = 2) -> tuple[ShardedEngine, list[Any]]:
    engines: list[Any] = [Recorder() for _ in range(n)]
    for engine in engines:
        engine.beside = engines
    return ShardedEngine(engines), engines


async def ask(engine: ShardedEngine, session: str, ids: list[int]) -> None:
    await engine.generate(session, ids, temperature=1.0, limit=1, seed=0)


async def test_later_turn_goes_to_another_engine() -> None:
    engine, parts = sharded()
    for i in range(6):
        await ask(engine, f"s{i}", [i])
    for i in range(6):
        await ask(engine, f"s{i}", [i, 9, 9])
    for part in parts:
        assert len(part.asked) == 6
        assert part.asked[:3] == part.asked[3:]


async def test_rollouts_of_a_task_are_scattered() -> None:
    engine, parts = sharded()
    for task in range(2):
        for i in range(8):
            await ask(engine, f"t{task}.{i}", [task])
    assert [sorted({s.split(".")[0] for s in p.asked}) for p in parts] == [["t0"], ["t1"]]


async def test_one_engine_has_all_rollouts_of_one_task_while_the_other_idles() -> None:
    engine, parts = sharded()
    for i in range(64):
        await ask(engine, f"s{i}", [1])
    assert max(len(p.asked) for p in parts) <= 36


async def test_released_session_still_counts() -> None:
    engine, parts = sharded()
    for i in range(10):
        await ask(engine, f"s{i}", [i])
        engine.release(f"s{i}")
        engine.release(f"s{i}")
    assert [p.asked for p in parts] == [p.released for p in parts]
    assert len(parts[0].asked) == 10
    await ask(engine, "s0", [0])
    assert parts[0].asked[-1] == "s0"


async def test_part_is_forgotten_at_refresh_or_close() -> None:
    engine, parts = sharded(3)
    engine.refresh()
    engine.close()
    assert [(p.refreshed, p.closed) for p in parts] == [(1, 1)] * 3
    assert engine.generated == 21
