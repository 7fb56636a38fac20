"""Errors, abandoned rollouts, closed engines and new weights: nobody waits for ever, no row is lost, no old key stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from frognano.models.engine import Generation, TorchEngine
from frognano.models.llama import LlamaWeights
from models.tiny import STOP, our_weights, tiny_model

PREFIX = [11, 12, 13]


@pytest.fixture
def weights() -> LlamaWeights:
    return our_weights(tiny_model("llama"))


@pytest.fixture
async def engine(weights: LlamaWeights) -> AsyncIterator[TorchEngine]:
    made = TorchEngine(weights, prefix=PREFIX, stop_ids=(STOP,), rows=2)
    yield made
    made.close()


async def ask(
    engine: TorchEngine, name: str, ids: list[int] | None = None, limit: int = 4, seed: int = 0
) -> Generation:
    asked = engine.generate(name, ids or [*PREFIX, 20], temperature=1.0, limit=limit, seed=seed)
    return await asyncio.wait_for(asked, 20)


async def test_engine_error_reaches_only_some_or_ends_the_engine(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are being answered, two wait for a row: all four are told, and then it works again, for old sessions too."""
    idle = await ask(engine, "idle", seed=1)
    monkeypatch.setattr("frognano.models.decoder.join", _broken)
    outs = await asyncio.gather(*(ask(engine, f"s{i}", limit=50) for i in range(4)), return_exceptions=True)
    assert [str(o) for o in outs] == ["memory is short"] * 4
    monkeypatch.undo()
    assert len((await ask(engine, "new")).ids) >= 1
    longer = [*PREFIX, 20, *idle.ids, 30]
    again = await ask(engine, "idle", longer, seed=9)
    engine.release("new")
    assert (await ask(engine, "fresh", longer, seed=9)).ids == again.ids


async def test_engine_that_cannot_start_anew_leaves_callers_waiting(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frognano.models.decoder.Decoder.set_prefix", _broken)
    with pytest.raises(RuntimeError, match="memory"):
        engine.refresh()
    with pytest.raises(RuntimeError, match="memory"):
        await ask(engine, "a")
    with pytest.raises(RuntimeError, match="memory"):
        await ask(engine, "a")
    monkeypatch.undo()
    assert (await ask(engine, "a")).ids


async def test_closed_engine_leaves_callers_waiting(weights: LlamaWeights) -> None:
    engine = TorchEngine(weights, prefix=[], stop_ids=(), rows=1)
    running = asyncio.create_task(ask(engine, "a", limit=100_000))
    waiting = asyncio.create_task(ask(engine, "b"))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(engine.close)
    for task in (running, waiting):
        with pytest.raises(RuntimeError, match="closed"):
            await task
    with pytest.raises(RuntimeError, match="closed"):
        await ask(engine, "c")
    with pytest.raises(RuntimeError, match="closed"):
        engine.refresh()


async def test_abandoned_request_keeps_a_row_for_ever(engine: TorchEngine) -> None:
    """Cancelled while it is answered, and cancelled while it waits for a row."""
    tasks = [asyncio.create_task(ask(engine, f"s{i}", limit=100_000)) for i in range(6)]
    await asyncio.sleep(0.05)
    for i, task in enumerate(tasks):
        task.cancel()
        engine.release(f"s{i}")
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len((await ask(engine, "next")).ids) >= 1
    engine.release("next")
    engine.refresh()  # nobody is live any more


def test_answer_to_a_closed_event_loop_kills_the_sampler(weights: LlamaWeights) -> None:
    engine = TorchEngine(weights, prefix=[], stop_ids=(), rows=4)

    async def leave() -> None:
        task = asyncio.create_task(ask(engine, "gone", limit=300))
        await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(leave())
    assert len(asyncio.run(ask(engine, "here", limit=500)).ids) == 500
    engine.close()


async def test_more_sessions_than_rows_never_end(engine: TorchEngine) -> None:
    async def rollout(i: int) -> None:
        ids = [*PREFIX, 20 + i]
        for _ in range(3):
            ids += [*(await ask(engine, f"s{i}", ids)).ids, 9]
            await asyncio.sleep(0)
        engine.release(f"s{i}")

    await asyncio.wait_for(asyncio.gather(*(rollout(i) for i in range(20))), 30)


async def test_core_burns_while_all_rows_wait_for_tools(engine: TorchEngine) -> None:
    for name in ("a", "b"):
        await ask(engine, name)
    waiting = asyncio.create_task(ask(engine, "c"))
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.2
    engine.release("a")
    await waiting


async def test_session_goes_on_from_ids_it_has_never_seen(engine: TorchEngine) -> None:
    prompt = [*PREFIX, 20]
    out = await ask(engine, "a", prompt, seed=3)
    held = prompt + out.ids
    respelled = [*held[:-1], held[-1] % 90 + 1, 30]
    for ids in ([*held[:-2], 77, 78, 79], prompt, [44, *held], respelled):
        with pytest.raises(ValueError, match="extend"):
            await ask(engine, "a", ids)
    assert (await ask(engine, "a", [*held, 30])).ids  # the refusals did no harm


async def test_two_requests_of_one_session_are_mixed_up(engine: TorchEngine) -> None:
    first = asyncio.create_task(ask(engine, "a", limit=300))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="before it had answered"):
        await ask(engine, "a", limit=1)
    assert (await first).ids


@pytest.mark.parametrize(("ids", "limit"), [([], 1), ([-1], 1), ([97], 1), ([20], 0)])
async def test_one_bad_request_fails_every_rollout(engine: TorchEngine, ids: list[int], limit: int) -> None:
    other = asyncio.create_task(ask(engine, "good", limit=50))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="below 97"):
        await engine.generate("bad", ids, temperature=1.0, limit=limit, seed=0)
    assert (await other).ids


async def test_broken_weights_give_tokens_without_probability(engine: TorchEngine, weights: LlamaWeights) -> None:
    weights.norm.fill_(float("nan"))
    engine.refresh()
    with pytest.raises(RuntimeError, match="not finite"):
        await ask(engine, "a")


async def test_new_weights_never_reach_the_sampler(engine: TorchEngine, weights: LlamaWeights) -> None:
    """Canary. A single token's log-prob moves with the weights; prefix and prompt keys are made anew too."""
    before = await ask(engine, "a", limit=1, seed=1)
    with torch.no_grad():
        weights.layers[0]["qkv"].add_(torch.randn_like(weights.layers[0]["qkv"]))
    with pytest.raises(RuntimeError, match="live"):
        engine.refresh()
    engine.release("a")
    engine.refresh()
    after = await ask(engine, "a", limit=1, seed=1)
    assert abs(before.logprobs[0] - after.logprobs[0]) > 1e-3
    fresh = TorchEngine(weights, prefix=PREFIX, stop_ids=(STOP,), rows=2)
    expected = await ask(fresh, "a", limit=1, seed=1)
    fresh.close()
    assert after == expected


def _broken(*_: Any) -> Any:
    raise RuntimeError("memory is short")
