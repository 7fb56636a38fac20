"""The decoder of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3) as pure functions over plain tensors.

Sampler and trainer run the same block on the same tensors, so that q and p differ by numerics only. Attention is taken
over *segments* (static prefix, prompt of the group, own tokens): keys that many rows share are held and multiplied once.

Shapes: N tokens or rows, D width, H query heads, K key/value heads, R = H/K query heads a key head, E head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from frognano.models.linear import laid_out, linear

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
"""Values of a transformers config's `model_type` that this decoder computes."""


@dataclass(frozen=True)
class LlamaConfig:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    eps: float
    rope_theta: float
    context: int
    tied: bool
    """The head is the embedding."""

    @staticmethod
    def supports(config: Any) -> bool:
        """Whether this decoder computes what the transformers config describes."""
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type in FAMILY
            and config.hidden_act == "silu"
            and rope.get("rope_type", "default") == "default"
            and not getattr(config, "mlp_bias", False)
            and not getattr(config, "attention_bias", False)  # it would put a bias on the output projection too
            and not getattr(config, "use_sliding_window", False)
            and getattr(config, "sliding_window", None) is None
        )

    @classmethod
    def of(cls, config: Any) -> LlamaConfig:
        rope = getattr(config, "rope_parameters", None) or {}
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            eps=config.rms_norm_eps,
            rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else config.rope_theta),  # noqa: SIM401
            context=config.max_position_embeddings,
            tied=bool(config.tie_word_embeddings),
        )


Layer = dict[str, Tensor]
"""Tensors of one block: `norm1`, `qkv`, `out`, `norm2`, `gate_up`, `down`, and, where the model has them, `qkv_bias`,
`q_norm`, `k_norm`."""


@dataclass
class LlamaWeights:
    """`layers[i]` are block tensors; `head` is the embedding itself when the model ties them."""

    config: LlamaConfig
    embedding: Tensor
    head: Tensor
    norm: Tensor
    layers: list[Layer]

    @classmethod
    def from_state(cls, config: LlamaConfig, state: Mapping[str, Tensor], dtype: torch.dtype) -> LlamaWeights:
        """From a transformers state dict; q/k/v and gate/up are fused so that each block has four matrices."""

        def get(name: str) -> Tensor:
            return state[name].to(dtype)

        layers: list[Layer] = []
        for i in range(config.layers):
            p = f"model.layers.{i}."
            layer = {
                "norm1": get(p + "input_layernorm.weight"),
                "qkv": torch.cat([get(p + f"self_attn.{x}_proj.weight") for x in "qkv"]),
                "out": get(p + "self_attn.o_proj.weight"),
                "norm2": get(p + "post_attention_layernorm.weight"),
                "gate_up": torch.cat([get(p + f"mlp.{x}_proj.weight") for x in ("gate", "up")]),
                "down": get(p + "mlp.down_proj.weight"),
            }
            if p + "self_attn.q_proj.bias" in state:
                layer["qkv_bias"] = torch.cat([get(p + f"self_attn.{x}_proj.bias") for x in "qkv"])
            if p + "self_attn.q_norm.weight" in state:
                layer["q_norm"], layer["k_norm"] = (
                    get(p + "self_attn.q_norm.weight"),
                    get(p + "self_attn.k_norm.weight"),
                )
            layers.append({k: laid_out(v) if v.ndim == 2 else v for k, v in layer.items()})
        embedding = get("model.embed_tokens.weight")
        head = embedding if config.tied else get("lm_head.weight")
        return cls(config, embedding, head, get("model.norm.weight"), layers)

    def to_state(self) -> dict[str, Tensor]:
        """Back to transformers' names, the inverse of `from_state`."""
        c = self.config
        rows = [c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.head_width]
        state = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if self.head is not self.embedding:
            state["lm_head.weight"] = self.head
        for i, layer in enumerate(self.layers):
            p = f"model.layers.{i}."
            state[p + "input_layernorm.weight"] = layer["norm1"]
            state[p + "post_attention_layernorm.weight"] = layer["norm2"]
            state[p + "self_attn.o_proj.weight"] = layer["out"]
            state[p + "mlp.down_proj.weight"] = layer["down"]
            for x, w in zip("qkv", layer["qkv"].split(rows), strict=True):
                state[p + f"self_attn.{x}_proj.weight"] = w
            for x, w in zip(("gate", "up"), layer["gate_up"].chunk(2), strict=True):
                state[p + f"mlp.{x}_proj.weight"] = w
            if "qkv_bias" in layer:
                for x, b in zip("qkv", layer["qkv_bias"].split(rows), strict=True):
                    state[p + f"self_attn.{x}_proj.bias"] = b
            if "q_norm" in layer:
                state[p + "self_attn.q_norm.weight"], state[p + "self_attn.k_norm.weight"] = (
                    layer["q_norm"],
                    layer["k_norm"],
                )
        return {k: v.detach().contiguous() for k, v in state.items()}


def rope_table(config: LlamaConfig, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding, each [length, E]; sin is negative in its first half, as `rotate` takes it."""
    inverse = 1.0 / config.rope_theta ** (torch.arange(0, config.head_width, 2).float() / config.head_width)
    angle = torch.outer(torch.arange(length).float(), inverse)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [N, heads, E] by cos, sin [N, 1, E]."""
    half = x.shape[-1] // 2
    return torch.addcmul(x * cos, torch.cat([x[..., half:], x[..., :half]], -1), sin)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [N, H, E], k [N, K, E], v [N, K, E]) of the new tokens -> attention output [N, H*E]; writes its cache if it has one."""


def heads(config: LlamaConfig, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [N, H, E], k and v [N, K, E] of a block's input x [N, D], q and k rotated by cos, sin [N, 1, E]."""
    c = config
    h = linear(rms_norm(x, layer["norm1"], c.eps), layer["qkv"], layer.get("qkv_bias")).unflatten(
        -1, (-1, c.head_width)
    )
    both, v = h.split([c.heads + c.kv_heads, c.kv_heads], 1)
    if "q_norm" in layer:
        q, k = both.split([c.heads, c.kv_heads], 1)
        both = torch.cat([rms_norm(q, layer["q_norm"], c.eps), rms_norm(k, layer["k_norm"], c.eps)], 1)
    q, k = rotate(both, cos, sin).split([c.heads, c.kv_heads], 1)
    return q, k, v


def after_attention(config: LlamaConfig, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a block: its input x [N, D] and what attention gave [N, H*E] to its output [N, D]."""
    x = x + linear(attended, layer["out"])
    gate, up = linear(rms_norm(x, layer["norm2"], config.eps), layer["gate_up"]).chunk(2, -1)
    return x + linear(F.silu(gate) * up, layer["down"])


def block(config: LlamaConfig, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
    """One decoder block on N packed tokens. x: [N, D]; cos, sin: [N, 1, E]."""
    return after_attention(config, layer, x, attend(*heads(config, layer, x, cos, sin)))
