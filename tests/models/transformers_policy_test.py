"""Any causal LM of transformers: q of the sampler and p of the scorer are those of the model's own forward, row by row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from frognano.models import causal_lm
from frognano.models.packed import Packed, Row
from frognano.models.policy import LlamaPolicy, load_policy
from frognano.models.transformers_engine import TransformersEngine
from frognano.models.transformers_policy import TransformersPolicy
from frognano.records import Sample
from frognano.rl.checkpoint import load_trainer, load_weights, save_checkpoint
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.groups import Group
from frognano.rl.trainer import Trainer

STOP = 5
PREFIX = [3, 9, 4, 12, 33]
TEMPERATURE = 0.8
IDS: dict[str, Any] = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SMALL = {
    **IDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "full_attention_interval": 2,
}
ONE_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "rope_theta": 10000.0,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(
        **IDS, n_embd=32, n_layer=4, n_head=4, n_positions=128, initializer_range=0.3
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SMALL),
    "phi": lambda: transformers.PhiConfig(**SMALL),
    "bloom": lambda: transformers.BloomConfig(**IDS, hidden_size=32, n_layer=3, n_head=4, initializer_range=0.3),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, sliding_window=6, final_logit_softcapping=4.0, attn_logit_softcapping=6.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GROUPED, sliding_window=6, sliding_window_pattern=2),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=6),
    "olmo2": lambda: transformers.Olmo2Config(**SMALL, num_key_value_heads=2),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**GROUPED, **EXPERTS),
    "phi3": lambda: transformers.Phi3Config(
        **SMALL, num_key_value_heads=2, original_max_position_embeddings=40, rope_parameters=LONG
    ),
    "qwen3_5": lambda: transformers.Qwen3_5TextConfig(**GROUPED, **LINEAR),
    "mamba": lambda: transformers.MambaConfig(
        **IDS, hidden_size=32, num_hidden_layers=3, state_size=8, initializer_range=0.3
    ),
    "jamba": lambda: transformers.JambaConfig(
        **SMALL, **ONE_MAMBA, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2
    ),
}
KEEPS_NO_KEYS = {"qwen3_5", "mamba", "jamba"}
NO_PLAIN_HEAD = {"phi", "gemma2"}
"""Phi's head has a bias, Gemma 2 caps its logits."""
CONTEXT = {"phi3": 40, "mamba": causal_lm.UNBOUNDED, "bloom": causal_lm.UNBOUNDED}
"""Phi 3 changes all its positions after 40 tokens; the others name no limit."""
ALL = pytest.mark.parametrize("name", CONFIGS)
ONE_OF_EACH = pytest.mark.parametrize("name", ["gpt2", "mamba"])
"""One that keeps keys, one that does not."""

torch.set_num_threads(1)


@cache
def reference(name: str) -> Any:
    """The model as transformers computes it, with random weights large enough that a mistake shows."""
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


def write(name: str, folder: Path) -> Path:
    reference(name).save_pretrained(folder)
    return folder


def policy_of(name: str, folder: Path, layers: Any = "all", dtype: torch.dtype = torch.float32) -> TransformersPolicy:
    policy = load_policy(write(name, folder), layers, dtype)
    assert isinstance(policy, TransformersPolicy)
    return policy


def logp_after(model: Any, ids: list[int], temperature: float = TEMPERATURE) -> Tensor:
    """log p [T, V] of the next token after each of the ids: one row, one forward, nothing else."""
    return torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0].float() / temperature, -1)


Turn = tuple[list[int], list[int], list[float]]
"""What was asked, what was answered, and log q of the answer."""


async def talk(engine: TransformersEngine, i: int, turns: int = 2, limit: int = 6) -> list[Turn]:
    """A session of several turns; each turn adds another number of observed tokens."""
    ids, out = [*PREFIX, 20 + i % 2, *([7] if i == 3 else [])], []
    for t in range(turns):
        reply = await engine.generate(f"s{i}", ids, temperature=TEMPERATURE, limit=limit - i % 3, seed=10 * i + t)
        out.append((ids, reply.ids, reply.logprobs))
        ids = ids + reply.ids + [11, 13, 17][: 1 + (i + t) % 3]
    engine.release(f"s{i}")
    return out


async def talks(engine: TransformersEngine, sessions: int = 5) -> list[Turn]:
    return [turn for one in await asyncio.gather(*(talk(engine, i) for i in range(sessions))) for turn in one]


def sampled(policy: TransformersPolicy, rows: int = 3) -> list[Turn]:
    engine = policy.engine(PREFIX, (STOP,), rows, 1)
    try:
        return asyncio.run(talks(engine))
    finally:
        engine.close()


@ALL
def test_what_a_model_is_is_found_out(name: str, tmp_path: Path):
    policy = policy_of(name, tmp_path)
    with torch.no_grad():
        assert policy.lm.caches_plainly() == (name not in KEEPS_NO_KEYS)
    assert (policy.lm.plain_head is None) == (name in NO_PLAIN_HEAD)
    assert policy.context == CONTEXT.get(name, 128)


@ALL
@torch.no_grad()
def test_q_is_the_probability_of_the_whole_row(name: str, tmp_path: Path):
    """Rows of several lengths join, wait for their tools and leave; none of it may touch another's log-probs."""
    turns = sampled(policy_of(name, tmp_path))
    assert len(turns) == 10
    for before, reply, q in turns:
        logp = logp_after(reference(name), before + reply)
        p = [float(logp[len(before) + t - 1, token]) for t, token in enumerate(reply)]
        assert q == pytest.approx(p, abs=2e-4)


@ONE_OF_EACH
def test_what_is_drawn_depends_on_the_seed_alone(name: str, tmp_path: Path):
    policy = policy_of(name, tmp_path)
    together, one_by_one = sampled(policy, rows=5), sampled(policy, rows=1)
    assert [reply for _, reply, _ in together] == [reply for _, reply, _ in one_by_one]


PACKED = Packed(
    prefix=PREFIX,
    prompts=[[20, 8], [21]],
    rows=[
        [Row((6, 30, 11, 40), (1, 1, 0, 1)), Row((50,), (1,)), Row((8, 8), (0, 0))],
        [Row((14, 15, 16, 17, 18, 19, 22), (0, 1, 1, 0, 0, 1, 0))],
    ],
)


def scored_alone(model: Any) -> Tensor:
    """log p of the targets of `PACKED`, each row whole and alone."""
    out = []
    for prompt, rows in zip(PACKED.prompts, PACKED.rows, strict=True):
        before = PREFIX + prompt
        for row in rows:
            logp = logp_after(model, before + list(row.ids))
            out += [logp[len(before) + t - 1, x] for t, x in enumerate(row.ids) if row.trained[t]]
    return torch.stack(out)


@ALL
@pytest.mark.parametrize("tokens", [4096, 12], ids=["one_forward", "several_forwards"])
def test_p_and_its_gradient_are_those_of_rows_alone(
    name: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(causal_lm, "BATCH_TOKENS", tokens)
    policy, model = policy_of(name, tmp_path, 2), reference(name)
    scores = policy.score(PACKED, TEMPERATURE)
    expected = scored_alone(model)
    torch.testing.assert_close(scores.logp, expected, atol=2e-4, rtol=0)
    assert scores.entropy.shape == scores.logp.shape
    assert not scores.entropy.requires_grad

    weight = torch.linspace(-1, 1, len(expected))
    (scores.logp * weight).sum().backward()
    slopes = policy.gradients()
    named = dict(model.named_parameters())
    wanted = torch.autograd.grad((expected * weight).sum(), [named[k] for k in slopes], allow_unused=True)
    for key, slope in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(
            slopes[key], torch.zeros_like(slopes[key]) if slope is None else slope, atol=2e-3, rtol=2e-3
        )
    assert sum(float(s.abs().sum()) for s in slopes.values()) > 0


def test_nothing_to_score_is_no_score(tmp_path: Path):
    packed = Packed([], [[1, 2]], [[Row((3,), (0,))]])
    assert policy_of("gpt2", tmp_path).score(packed, 1.0).logp.shape == (0,)


def test_a_llama_gives_what_the_llama_policy_gives(tmp_path: Path):
    config = transformers.LlamaConfig(**GROUPED)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    ours, theirs = load_policy(tmp_path, "all", torch.float32), TransformersPolicy(tmp_path, "all", torch.float32)
    assert isinstance(ours, LlamaPolicy)
    a, b = ours.score(PACKED, TEMPERATURE), theirs.score(PACKED, TEMPERATURE)
    torch.testing.assert_close(a.logp, b.logp, atol=1e-4, rtol=0)
    torch.testing.assert_close(a.entropy, b.entropy, atol=1e-4, rtol=0)
    for scores in (a, b):
        scores.logp.sum().backward()
    embedding = ours.gradients()["embedding"], theirs.gradients()["model.embed_tokens.weight"]
    torch.testing.assert_close(*embedding, atol=1e-4, rtol=1e-4)
    one, two = (p.engine(PREFIX, (STOP,), 3, 1) for p in (ours, theirs))
    try:
        for (_, reply, q), (_, same, q_same) in zip(asyncio.run(talks(one)), asyncio.run(talks(two)), strict=True):
            assert reply == same
            assert q == pytest.approx(q_same, abs=1e-4)
    finally:
        one.close()
        two.close()


def group_of(turns: list[Turn]) -> Group:
    """Replies of one task, every other of them right."""
    samples = [
        Sample(
            trajectory_id=f"t{i}",
            group_id="g",
            policy="base",
            prompt_ids=tuple(before),
            response_ids=tuple(reply),
            loss_mask=(1,) * len(reply),
            logprobs=tuple(q),
            temperature=TEMPERATURE,
            truncated=False,
            raw_reward=float(i % 2),
            reward=float(i % 2),
        )
        for i, (before, reply, q) in enumerate(turns)
    ]
    return Group("g", tuple(samples))


def trainer_of(policy: TransformersPolicy, rate: float = 1e-2) -> Trainer:
    return Trainer(policy, OptimizerConfig(learning_rate=rate), DppoConfig())


@ONE_OF_EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_update_reaches_the_sampler_after_refresh(name: str, dtype: torch.dtype, tmp_path: Path):
    policy = policy_of(name, tmp_path, 1, dtype)
    engine = policy.engine(PREFIX, (STOP,), 3, 1)
    try:
        before = asyncio.run(talks(engine))
        metrics = trainer_of(policy).update([group_of(before)])
        engine.refresh()
        after = asyncio.run(talks(engine))
    finally:
        engine.close()
    assert metrics["stepped"] == 1
    assert metrics["grad_norm"] > 0
    assert metrics["max_abs_diff"] < (1e-4 if dtype == torch.float32 else 0.1)
    assert [q for *_, q in before] != [q for *_, q in after]
    with torch.no_grad():
        for ids, reply, q in after:
            logp = logp_after(policy.lm.model, ids + reply)
            p = [float(logp[len(ids) + t - 1, token]) for t, token in enumerate(reply)]
            assert q == pytest.approx(p, abs=1e-3 if dtype == torch.float32 else 0.3)
    assert all(m.dtype == torch.float32 for m in policy.masters.values())


@ALL
def test_only_the_top_blocks_learn(name: str, tmp_path: Path):
    policy = policy_of(name, tmp_path, 2)
    before = {k: v.clone() for k, v in policy.lm.model.state_dict().items()}
    trainer_of(policy).update([group_of([([3, 4], [8, 9], [-4.0, -4.0]), ([3, 4], [10, 11], [-4.0, -4.0])])])
    moved = {k for k, v in policy.lm.model.state_dict().items() if not torch.equal(v, before[k])}
    blocks = policy.lm.blocks()
    top = {id(p) for block in list(blocks)[-2:] for p in block.parameters()}
    assert moved
    assert moved <= {k for k, p in policy.lm.model.named_parameters() if id(p) in top}
    assert len(blocks) == policy.lm.config.num_hidden_layers


@ALL
def test_everything_learns_but_nothing_twice(name: str, tmp_path: Path):
    policy = policy_of(name, tmp_path)
    assert set(policy.masters) == {k for k, _ in policy.lm.model.named_parameters()}


def test_a_checkpoint_brings_weights_and_optimizer_back(tmp_path: Path):
    policy, again = policy_of("gpt2", tmp_path / "m", 2), policy_of("gpt2", tmp_path / "m", 2)
    group = group_of(sampled(policy))
    one, two = trainer_of(policy), trainer_of(again)
    one.update([group])
    save_checkpoint(tmp_path / "c", one)
    load_trainer(tmp_path / "c", two)
    assert torch.equal(policy.score(PACKED, 1.0).logp, again.score(PACKED, 1.0).logp)
    one.update([group])
    two.update([group])
    assert torch.equal(policy.score(PACKED, 1.0).logp, again.score(PACKED, 1.0).logp)
    with pytest.raises(ValueError, match="trainable_layers"):
        policy_of("gpt2", tmp_path / "m", 1).restore(load_weights(tmp_path / "c"))


@ALL
@torch.no_grad()
def test_a_saved_policy_is_a_model_of_transformers(name: str, tmp_path: Path):
    policy = policy_of(name, tmp_path / "m", 2)
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    for master in policy.masters.values():
        master += 0.01 * torch.ones_like(master)
    policy.publish()
    policy.save_pretrained(tmp_path / "out")
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    torch.testing.assert_close(scored_alone(saved), policy.score(PACKED, TEMPERATURE).logp, atol=2e-4, rtol=0)
    assert not torch.allclose(scored_alone(saved), scored_alone(reference(name)), atol=1e-4)
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no model at .*config.json"),
        ({"config.json": {"model_type": "gpt2"}}, "no weights at"),
        ({"config.json": {"model_type": "llama"}, "adapter_config.json": {}}, "PEFT adapter.*merge_and_unload"),
        (
            {"config.json": {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}},
            "quantised .awq.*deq",
        ),
        (
            {"config.json": {"model_type": "own", "auto_map": {"AutoModel": "x.Y"}}, "model.safetensors": {}},
            "type own runs code that lies beside the weights",
        ),
        ({"config.json": {"model_type": "own"}, "model.safetensors": {}}, "knows no model type own: upgrade"),
        ({"config.json": {"model_type": "t5"}, "model.safetensors": {}}, "t5 is no causal language model"),
    ],
)
def test_what_is_no_full_causal_lm_is_refused_by_name(files: dict[str, Any], says: str, tmp_path: Path):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=says) as caught:
        load_policy(tmp_path, "all", torch.float32)
    assert str(tmp_path) in str(caught.value)


def test_a_model_that_sees_the_future_is_refused(tmp_path: Path):
    config = transformers.BertConfig(**SMALL)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is not causal.*is_decoder"):
        load_policy(tmp_path, "all", torch.float32)
