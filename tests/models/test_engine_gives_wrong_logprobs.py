"""The decode path's own log-probs and ids, while rows join and leave, against one plain forward of transformers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from frognano.models.engine import Generation, TorchEngine
from models.tiny import FAMILIES, STOP, logp_of, our_weights, random_ids, tiny_model

PREFIX = random_ids(random.Random(99), 11)


@dataclass
class Talk:
    """All ids of one session, and (position, log-prob) of each sampled one."""

    ids: list[int]
    sampled: list[tuple[int, float]]


async def talk(
    engine: TorchEngine, name: str, prompt: list[int], *, turns: int, temperature: float, seed: int, limit: int = 12
) -> Talk:
    """A rollout: replies and forced observations of uneven lengths, with a pause before some of them."""
    rng = random.Random(seed)
    t = Talk(list(prompt), [])
    for _ in range(turns):
        out = await engine.generate(name, t.ids, temperature=temperature, limit=limit, seed=rng.randrange(1 << 30))
        t.sampled += [(len(t.ids) + i, q) for i, q in enumerate(out.logprobs)]
        t.ids += out.ids + random_ids(rng, rng.choice([1, 2, 2, 9, 30]))
        if rng.random() < 0.5:
            await asyncio.sleep(0.002 * rng.random())
    engine.release(name)
    return t


async def crowd(engine: TorchEngine, sessions: int, temperature: float, turns: int = 3) -> list[Talk]:
    """Three groups share prompts; one of them does not start with the static prefix; each session joins in its own time."""
    rng = random.Random(4)
    prompts = [PREFIX + random_ids(rng, 6), PREFIX + random_ids(rng, 15), random_ids(rng, 9)]

    async def one(i: int) -> Talk:
        await asyncio.sleep(0.003 * (i % 5))
        return await talk(engine, f"s{i}", prompts[i % 3], turns=1 + i % turns, temperature=temperature, seed=i)

    return await asyncio.gather(*(one(i) for i in range(sessions)))


@torch.no_grad()
def gaps(model: Any, talks: list[Talk], temperature: float) -> list[tuple[float, float]]:
    """(log q, log p) of every sampled token."""
    out = []
    for t in talks:
        logp = logp_of(model, t.ids, temperature).tolist()
        out += [(q, logp[at - 1]) for at, q in t.sampled]
    return out


def start(model: Any, rows: int = 8, dtype: torch.dtype = torch.float32) -> TorchEngine:
    return TorchEngine(our_weights(model, dtype), prefix=PREFIX, stop_ids=(STOP,), rows=rows)


@pytest.fixture
def engine() -> Iterator[TorchEngine]:
    made = start(tiny_model("llama"))
    yield made
    made.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_q_is_not_the_probability_under_the_trainers_model(family: str) -> None:
    """24 sessions on 8 rows: waiting, joining, leaving, compaction, groups that come back."""
    model = tiny_model(family)
    engine = start(model)
    talks = await asyncio.wait_for(crowd(engine, 24, 0.7), 60)
    engine.close()
    pairs = gaps(model, talks, 0.7)
    assert len(pairs) == engine.generated > 200
    assert max(abs(q - p) for q, p in pairs) < 1e-3
    mean = sum(abs(2.718281828**q - 2.718281828**p) for q, p in pairs) / len(pairs)
    print(f"{family}: mean |p - q| {mean:.1e}, max |dlogp| {max(abs(q - p) for q, p in pairs):.1e}")
    assert mean < 1e-4


async def test_bf16_drifts_far_from_its_own_model() -> None:
    """Reported; held loosely, since bf16 rounds at 2^-8. The model is the bf16 one of transformers."""
    model = tiny_model("llama").bfloat16()
    engine = start(model, dtype=torch.bfloat16)
    talks = await asyncio.wait_for(crowd(engine, 24, 0.7), 60)
    engine.close()
    pairs = gaps(model, talks, 0.7)
    mean = sum(abs(2.718281828**q - 2.718281828**p) for q, p in pairs) / len(pairs)
    print(f"bf16: mean |p - q| {mean:.1e}, max |dlogp| {max(abs(q - p) for q, p in pairs):.1e}")
    assert mean < 0.03


async def test_other_rows_change_what_a_seed_draws(engine: TorchEngine) -> None:
    prompt = [*PREFIX, 20, 21, 22]
    alone = await talk(engine, "alone", prompt, turns=3, temperature=1.0, seed=5)
    crowded, *_ = await asyncio.gather(
        talk(engine, "crowded", prompt, turns=3, temperature=1.0, seed=5), crowd(engine, 12, 1.0)
    )
    assert crowded.ids == alone.ids
    assert [q for _, q in crowded.sampled] == pytest.approx([q for _, q in alone.sampled], abs=1e-4)


async def test_seed_of_a_later_turn_is_ignored(engine: TorchEngine) -> None:
    """A turn is drawn from its own seed: the same whether the session is live or was begun anew."""
    prompt = [*PREFIX, 30, 31]
    first = await engine.generate("a", prompt, temperature=1.0, limit=3, seed=1)
    later = prompt + first.ids + [40]
    second = await engine.generate("a", later, temperature=1.0, limit=8, seed=2)
    anew = await engine.generate("b", later, temperature=1.0, limit=8, seed=2)
    assert second.ids == anew.ids


async def test_sampling_does_not_follow_the_distribution() -> None:
    """First tokens of 2,000 seeds against the model's own probabilities: total variation within what chance gives."""
    model = tiny_model("llama")
    engine = start(model, rows=500)
    prompt, n = [*PREFIX, 50, 51], 2000
    counts = torch.zeros(model.config.vocab_size)

    async def draw(i: int) -> None:
        out = await engine.generate(f"d{i}", prompt, temperature=1.5, limit=1, seed=i)
        engine.release(f"d{i}")
        counts[out.ids[0]] += 1

    await asyncio.wait_for(asyncio.gather(*(draw(i) for i in range(n))), 60)
    engine.close()
    with torch.no_grad():
        p = (model(torch.tensor([prompt])).logits[0, -1] / 1.5).softmax(-1)
    assert 0.5 * float((counts / n - p).abs().sum()) < 1.5 * float((p * (1 - p) / n).sqrt().sum()) / 2


async def test_greedy_is_not_the_most_probable_token(engine: TorchEngine) -> None:
    out = await engine.generate("g", [*PREFIX, 12, 13], temperature=0.0, limit=10, seed=0)
    model, ids = tiny_model("llama"), [*PREFIX, 12, 13]
    for token in out.ids:
        assert token == int(model(torch.tensor([ids])).logits[0, -1].detach().argmax())
        ids.append(token)


async def test_reply_ends_without_its_stop_token_or_runs_past_it() -> None:
    """A head that always says STOP: the token is part of the reply and has a log-prob, so that stopping is learned."""
    model = tiny_model("llama-untied")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.01)
    engine = TorchEngine(our_weights(model), prefix=[], stop_ids=(STOP, 6), rows=4)
    outs = await asyncio.gather(
        *(engine.generate(f"x{i}", [20, 21], temperature=1.0, limit=2000, seed=i) for i in range(4))
    )
    engine.close()
    for out in outs:
        assert out.finish == "stop"
        assert out.ids[-1] in (STOP, 6)
        assert not {STOP, 6} & set(out.ids[:-1])
        assert len(out.ids) == len(out.logprobs)
        assert all(q < 0 for q in out.logprobs)


async def test_limit_is_passed_or_reported_as_a_stop(engine: TorchEngine) -> None:
    out = await engine.generate("l", [*PREFIX, 20], temperature=1.0, limit=1, seed=3)
    assert isinstance(out, Generation)
    assert len(out.ids) == 1
    assert out.finish == ("stop" if out.ids[0] == STOP else "length")


async def test_prompt_equal_to_the_prefix_or_a_part_of_it(engine: TorchEngine) -> None:
    model = tiny_model("llama")
    talks = [
        await talk(engine, "whole", PREFIX, turns=2, temperature=0.7, seed=1),
        await talk(engine, "part", PREFIX[:4], turns=2, temperature=0.7, seed=2),
        await talk(engine, "one", [77], turns=2, temperature=0.7, seed=3),
    ]
    assert max(abs(q - p) for q, p in gaps(model, talks, 0.7)) < 1e-3
