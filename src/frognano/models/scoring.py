"""Log-probs of packed trajectories under the current weights, with gradient: the trainer's forward.

Logits exist for a chunk of targets at a time only, so that a long batch never holds [targets, vocabulary].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from frognano.models.linear import linear
from frognano.models.llama import LlamaWeights, block, rms_norm, rope_table
from frognano.models.packed import Layout, Packed
from frognano.models.packed_attention import Places, packed_attention
from frognano.models.prefix import PrefixStates, prefix_states


@dataclass(frozen=True)
class Scores:
    """`logp` [targets] carries gradient; `entropy` [targets] never does (it is a metric, not a term of the loss)."""

    logp: Tensor
    entropy: Tensor


def hidden_states(
    weights: LlamaWeights, packed: Packed, layout: Layout, frozen_layers: int, prefix: PrefixStates | None = None
) -> Tensor:
    """Normalised hidden state of each token that predicts a target, [targets, D]. The lowest layers take no gradient.

    `prefix`: the states of `packed.prefix`, where they are shared with other micro-batches; without it they are computed.
    """
    c, p, grad = weights.config, len(packed.prefix), torch.is_grad_enabled()
    if prefix is None:
        prefix = prefix_states(weights, packed.prefix, frozen_layers)
    cos, sin = rope_table(c, int(layout.positions.max()) + 1, weights.embedding.dtype)
    cos, sin = cos[layout.positions[p:]][:, None], sin[layout.positions[p:]][:, None]
    places = Places.of(layout, p, c.heads // c.kv_heads, weights.embedding.dtype)
    with torch.set_grad_enabled(grad and frozen_layers == 0):
        x = F.embedding(layout.ids[p:], weights.embedding)
    for i, (layer, k, v) in enumerate(zip(weights.layers, prefix.keys, prefix.values, strict=True)):
        with torch.set_grad_enabled(grad and i >= frozen_layers):
            x = block(c, layer, x, cos, sin, partial(packed_attention, places, k, v))
    return rms_norm(x[layout.sources - p], weights.norm, c.eps)


class _FrozenHead(torch.autograd.Function):
    """log p and entropy of targets when the head takes no gradient.

    The derivative of log p by the hidden state is (head[target] - Σ_v p_v head[v]) / T: computed chunk by chunk in the
    forward pass, so that nothing of vocabulary size is kept or computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        logp, entropy, slope = [], [], torch.empty_like(hidden)
        for i in range(0, len(targets), chunk):
            part = slice(i, i + chunk)
            logs = (
                linear(hidden[part], head).float().div_(temperature)
            )  # in place: each of these is as large as the chunk
            logs -= logs.logsumexp(-1, keepdim=True)
            probability = logs.exp()
            logp.append(logs.gather(1, targets[part, None])[:, 0])
            entropy.append(-torch.linalg.vecdot(probability, logs))
            del logs
            slope[part] = (head[targets[part]] - linear(probability.to(head.dtype), head.T)) / temperature
        ctx.save_for_backward(slope)
        joined = torch.cat(entropy) if entropy else hidden.new_zeros(0).float()
        ctx.mark_non_differentiable(joined)
        return torch.cat(logp) if logp else hidden.new_zeros(0).float(), joined

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        return (grad_logp[:, None] * slope).to(slope.dtype), None, None, None, None


def head_scores(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, chunk: int = 256) -> Scores:
    """Scores of targets [n] given hidden states [n, D] and the output matrix [V, D], never holding [n, V]."""
    if not head.requires_grad:
        logp, entropy = _FrozenHead.apply(hidden, head, targets, temperature, chunk)  # type: ignore[no-untyped-call]
        return Scores(logp, entropy)

    def part(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(linear(hidden, head).float() / temperature, -1)
        with torch.no_grad():
            entropy = -(logs.exp() * logs).sum(-1)
        return logs.gather(1, targets[:, None])[:, 0], entropy

    parts = [
        checkpoint(part, hidden[i : i + chunk], targets[i : i + chunk], use_reentrant=False)
        for i in range(0, max(1, len(targets)), chunk)
    ]
    return Scores(torch.cat([x[0] for x in parts]), torch.cat([x[1] for x in parts]).detach())
