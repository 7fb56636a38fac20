"""Log-probs of packed trajectories under the current weights, with gradient: the trainer's forward.

Logits exist for a chunk of targets at a time only, so that a long batch never holds [targets, vocabulary].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from frognano.models.attention import attention, grid
from frognano.models.linear import linear
from frognano.models.llama import LlamaWeights, block, rms_norm, rope_table
from frognano.models.packed import Layout, Packed


@dataclass(frozen=True)
class Scores:
    """`logp` [targets] carries gradient; `entropy` [targets] never does (it is a metric, not a term of the loss)."""

    logp: Tensor
    entropy: Tensor


def hidden_states(weights: LlamaWeights, packed: Packed, layout: Layout, frozen_layers: int) -> Tensor:
    """Normalised hidden state of each token that predicts a target, [targets, D]. The lowest layers take no gradient."""
    c, p, g = weights.config, len(packed.prefix), len(packed.prompts)
    n_prompt, b = len(layout.prompt_cells), len(layout.row_group)
    t_prompt, t_row = layout.prompt_mask.shape[1], layout.row_mask.shape[1]
    cos, sin = rope_table(c, int(layout.positions.max()) + 1, weights.embedding.dtype)
    cos, sin = cos[layout.positions][:, None], sin[layout.positions][:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.unflatten(1, (c.kv_heads, -1))
        out = []
        prefix_k, prefix_v = k[:p], v[:p]
        if p:
            see = torch.ones(p, p, dtype=torch.bool).tril()[None]
            out.append(attention(q[None, :p], prefix_k[None], prefix_v[None], see)[0])
        prompts, rows = slice(p, p + n_prompt), slice(p + n_prompt, None)
        kp = grid(k[prompts], layout.prompt_cells, g, t_prompt)
        vp = grid(v[prompts], layout.prompt_cells, g, t_prompt)
        qp = grid(q[prompts], layout.prompt_cells, g, t_prompt)
        kg = torch.cat([prefix_k.expand(g, -1, -1, -1), kp], 1)
        vg = torch.cat([prefix_v.expand(g, -1, -1, -1), vp], 1)
        out.append(attention(qp, kg, vg, layout.prompt_mask).flatten(0, 1)[layout.prompt_cells])
        if t_row:
            kr = torch.cat([kg[layout.row_group], grid(k[rows], layout.row_cells, b, t_row)], 1)
            vr = torch.cat([vg[layout.row_group], grid(v[rows], layout.row_cells, b, t_row)], 1)
            qr = grid(q[rows], layout.row_cells, b, t_row)
            out.append(attention(qr, kr, vr, layout.row_mask).flatten(0, 1)[layout.row_cells])
        return torch.cat(out)

    with torch.set_grad_enabled(torch.is_grad_enabled() and frozen_layers == 0):
        x = F.embedding(layout.ids, weights.embedding)
    for i, layer in enumerate(weights.layers):
        with torch.set_grad_enabled(torch.is_grad_enabled() and i >= frozen_layers):
            x = block(c, layer, x, cos, sin, attend)
    return rms_norm(x[layout.sources], weights.norm, c.eps)


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
            logits = linear(hidden[part], head).float() / temperature
            logs = logits - logits.logsumexp(-1, keepdim=True)
            probability = logs.exp()
            logp.append(logs.gather(1, targets[part, None])[:, 0])
            entropy.append(-(probability * logs).sum(-1))
            slope[part] = (head[targets[part]] - linear(probability.to(head.dtype), head.T)) / temperature
        ctx.save_for_backward(slope)
        joined = torch.cat(entropy) if entropy else hidden.new_zeros(0).float()
        ctx.mark_non_differentiable(joined)
        return torch.cat(logp) if logp else hidden.new_zeros(0).float(), joined

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        return (grad_logp[:, None] * slope).to(slope.dtype), None, None, None, None


def head_scores(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, chunk: int = 512) -> Scores:
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
