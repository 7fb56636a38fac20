"""vLLM's server as the sampler, for real: the ids and log-probs are those of the policy's own forward, weights arrive, nothing
of it survives us."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from frognano.errors import FrogNanoError
from frognano.models.pocket import ensure_pocket_model
from frognano.models.policy import LlamaPolicy
from frognano.models.vllm_engine import VllmEngine
from frognano.models.vllm_server import EngineConfig
from models.tiny import logp_of

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(1800)]
TEMPERATURE = 0.7
STOP = 2
"""<|im_end|>"""
SERVER = ("--enforce-eager",)
"""Nothing is compiled: a test is shorter without."""


@pytest.fixture(scope="module")
def policy() -> LlamaPolicy:
    return LlamaPolicy(ensure_pocket_model(), 2, torch.float32)


def start(python: Path, policy: LlamaPolicy, folder: Path, context: int = 400) -> VllmEngine:
    config = EngineConfig(kind="vllm", python=python, arguments=SERVER)
    return VllmEngine(
        config, policy, folder, folder, stop_ids=(STOP,), rows=8, context=context, threads=1, dtype="float32"
    )


@pytest.fixture(scope="module")
def engine(vllm_python: Path, policy: LlamaPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    engine = start(vllm_python, policy, tmp_path_factory.mktemp("vllm"))
    yield engine
    engine.close()


def ids(text: str) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(ensure_pocket_model())
    return [int(i) for i in tokenizer(text)["input_ids"]]


@torch.no_grad()
def gaps(
    policy: LlamaPolicy, folder: Path, prompt: list[int], out: Any, temperature: float = TEMPERATURE
) -> list[float]:
    """|log q − log p| of each sampled token; p from transformers' forward of the weights as they are now."""
    from transformers import AutoModelForCausalLM

    policy.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    logp = logp_of(model, prompt + out.ids, temperature)[len(prompt) - 1 :]
    return [abs(float(p) - q) for p, q in zip(logp, out.logprobs, strict=True)]


async def say(
    engine: VllmEngine, prompt: list[int], limit: int = 24, seed: int = 1, temperature: float = TEMPERATURE
) -> Any:
    return await engine.generate("s", prompt, temperature=temperature, limit=limit, seed=seed)


async def test_log_probs_are_not_those_the_tokens_were_drawn_with(
    engine: VllmEngine, policy: LlamaPolicy, tmp_path: Path
) -> None:
    """At a temperature, and with what the model's own generation settings would cut off."""
    prompt = ids("<|im_start|>user\nWrite a haiku about rivers.<|im_end|>\n<|im_start|>assistant\n")
    out = await say(engine, prompt, limit=64)
    found = gaps(policy, tmp_path, prompt, out)
    assert max(found) < 0.02, found


async def test_a_reply_ends_elsewhere_than_where_it_should(engine: VllmEngine) -> None:
    short = await say(engine, ids("one two three"), limit=3)
    assert (len(short.ids), short.finish) == (3, "length")
    prompt = ids("<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes.")
    ends = [await say(engine, prompt, limit=200, seed=i, temperature=0.3) for i in range(4)]
    stopped = [e for e in ends if e.finish == "stop"]
    assert stopped
    assert all(e.ids[-1] == STOP and STOP not in e.ids[:-1] for e in stopped)


async def test_many_conversations_are_mixed_up(engine: VllmEngine, policy: LlamaPolicy, tmp_path: Path) -> None:
    """Three times as many as it has rows, each asked again with its own reply and more."""
    rng = random.Random(3)
    prompts = [ids(f"def f{i}(x):\n    return x + ") for i in range(24)]

    async def talk(i: int) -> tuple[list[int], Any]:
        first = await say(engine, prompts[i], limit=4 + i % 5, seed=i)
        longer = prompts[i] + first.ids + [rng.randrange(100, 40_000) for _ in range(i % 7)]
        return longer, await say(engine, longer, limit=6, seed=i)

    for prompt, out in (await asyncio.gather(*(talk(i) for i in range(24))))[::4]:
        assert max(gaps(policy, tmp_path, prompt, out)) < 0.02


async def test_one_seed_draws_two_replies(engine: VllmEngine) -> None:
    prompt = ids("Once upon a time there was")
    same = [await say(engine, prompt, seed=7) for _ in range(2)]
    other = await say(engine, prompt, seed=8)
    assert same[0].ids == same[1].ids != other.ids


async def test_weights_do_not_arrive(engine: VllmEngine, policy: LlamaPolicy, tmp_path: Path) -> None:
    """Nor may keys of the old ones stay in the prefix cache, for which the prompt is longer than one of its blocks."""
    prompt = ids("The quick brown fox jumps over the lazy dog. " * 16)
    before = await say(engine, prompt)
    assert max(gaps(policy, tmp_path / "old", prompt, before)) < 0.02
    kept = {name: tensor.clone() for name, tensor in policy.masters.items()}
    with torch.no_grad():
        policy.restore({name: t + 0.05 * torch.randn(t.shape, generator=_seeded()) for name, t in kept.items()})
    await asyncio.to_thread(engine.refresh)
    after = await say(engine, prompt)
    assert max(gaps(policy, tmp_path / "new", prompt, after)) < 0.02
    assert max(gaps(policy, tmp_path / "new", prompt, before)) > 0.1, "the weights were to be others"
    policy.restore(kept)
    await asyncio.to_thread(engine.refresh)
    again = await say(engine, prompt)
    assert max(gaps(policy, tmp_path / "old", prompt, again)) < 0.02
    assert not list(engine.folder.glob("weights-*")), "a copy of the weights for each update would fill the disk"


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


async def test_a_cancelled_rollout_keeps_its_row(engine: VllmEngine) -> None:
    asked = [asyncio.create_task(say(engine, ids("and so on, " * 3), limit=300, seed=i)) for i in range(16)]
    await asyncio.sleep(1.0)
    for task in asked:
        task.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*asked, return_exceptions=True))
    out = await asyncio.wait_for(say(engine, ids("one two three"), limit=4), 60)
    assert len(out.ids) == 4


async def test_what_cannot_be_answered_looks_like_a_dead_server(engine: VllmEngine) -> None:
    with pytest.raises(ValueError, match="400"):
        await say(engine, [7] * 500)
    assert len((await say(engine, [7, 8, 9], limit=2)).ids) == 2


def test_its_cpu_time_is_booked_as_other_programs(engine: VllmEngine) -> None:
    before = engine.watch.cpu
    asyncio.run(say(engine, ids("count: 1 2 3"), limit=48))
    assert engine.watch.cpu > before
    assert engine.outside_cpu == pytest.approx(engine.watch.cpu, abs=1.0)


@pytest.mark.parametrize("victim", ["server", "worker"])
async def test_a_killed_server_is_asked_for_ever(
    victim: str, vllm_python: Path, policy: LlamaPolicy, tmp_path: Path
) -> None:
    engine = start(vllm_python, policy, tmp_path / "vllm")
    try:
        assert (await say(engine, [7, 8, 9], limit=2)).ids
        waiting = asyncio.create_task(say(engine, ids("and so on, " * 3), limit=300))
        await asyncio.sleep(1.0)
        if victim == "server":
            os.killpg(engine.server.pid, signal.SIGKILL)
        else:
            os.kill(worker_of(engine.server.pid), signal.SIGKILL)
        gone = r"vLLM's server (was killed by signal 9|ended with exit code \d+).*goes on with the run"
        with pytest.raises(FrogNanoError, match=gone):
            await asyncio.wait_for(waiting, 120)
        with pytest.raises(FrogNanoError, match=gone):
            await say(engine, [7, 8, 9], limit=2)
    finally:
        engine.close()


def worker_of(group: int) -> int:
    """The process that computes, of a server's process group."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and "VLLM::Worker" in (folder / "cmdline").read_text():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("the server has no worker")
