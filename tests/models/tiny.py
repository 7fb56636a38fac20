"""Tiny random models of the families that the decoder computes, and the log-probs that transformers gives for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from frognano.models.llama import LlamaConfig as OurConfig
from frognano.models.llama import LlamaWeights
from frognano.records import Sample

VOCABULARY = 97
STOP = 5
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": STOP,
    "initializer_range": 0.2,
}
FAMILIES = ("llama", "llama-untied", "qwen2", "qwen3")

torch.set_num_threads(1)


def tiny_config(family: str) -> Any:
    match family:
        case "llama":
            return LlamaConfig(**COMMON, tie_word_embeddings=True)
        case "llama-untied":
            return LlamaConfig(**COMMON, tie_word_embeddings=False, rope_parameters={"rope_theta": 500.0})
        case "qwen2":
            return Qwen2Config(**COMMON, tie_word_embeddings=False)
        case "qwen3":
            return Qwen3Config(**COMMON, tie_word_embeddings=True, head_dim=24)
    raise ValueError(family)


def tiny_model(family: str, seed: int = 0) -> Any:
    """Every parameter random, norms and biases too, so that none of them can be forgotten unseen."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    return model


def save_tiny(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    tiny_model(family, seed).save_pretrained(folder)
    return folder


def our_weights(model: Any, dtype: torch.dtype = torch.float32) -> LlamaWeights:
    return LlamaWeights.from_state(OurConfig.of(model.config), model.state_dict(), dtype)


def logp_of(model: Any, ids: list[int], temperature: float) -> torch.Tensor:
    """log p of ids[1:], one unpadded forward of transformers: [len - 1], with gradient if enabled."""
    logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def random_ids(rng: random.Random, length: int) -> list[int]:
    """No stop token among them."""
    return [rng.randrange(STOP + 1, VOCABULARY) for _ in range(length)]


def sample(
    prompt: list[int],
    ids: list[int],
    mask: list[int],
    *,
    trajectory: str,
    group: str = "g",
    raw: float = 1.0,
    reward: float | None = None,
    logprobs: list[float] | None = None,
    temperature: float = 0.7,
) -> Sample:
    return Sample(
        trajectory_id=trajectory,
        group_id=group,
        policy="pi0",
        prompt_ids=tuple(prompt),
        response_ids=tuple(ids),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs if logprobs is not None else [-1.0 * m for m in mask]),
        temperature=temperature,
        truncated=False,
        raw_reward=raw,
        reward=raw if reward is None else reward,
    )
