"""DPPO with the binary total-variation mask ("Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879).

    ρ = p/q,   drop a token when A > 0 and p − q > δ, or A ≤ 0 and p − q < −δ   (the mask is detached)
    L = −(1/|T|) Σ_kept A·ρ,   |T| = all trainable tokens of the kept groups, dropped ones included

p is the trained policy's probability of the sampled token, q the one it was sampled with, taken from the decode path. No
reference KL, no entropy bonus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class NonFiniteRatio(RuntimeError):
    """A ratio p/q is not finite: the numbers of sampler and trainer have come apart."""


@dataclass(frozen=True)
class Loss:
    """`value` carries gradient; the rest are metrics over the n tokens given."""

    value: Tensor
    dropped_pos: int
    dropped_neg: int
    sum_abs_diff: float
    max_abs_diff: float
    max_rho: float


def keep_mask(p: Tensor, q: Tensor, advantage: Tensor, delta: float) -> Tensor:
    """True where the token is kept. All [n]."""
    drop = torch.where(advantage > 0, p - q > delta, p - q < -delta)
    return ~drop


def dppo_loss(logp: Tensor, logq: Tensor, advantage: Tensor, divisor: int, delta: float) -> Loss:
    """logp [n] with gradient, logq and advantage [n]; `divisor` is |T| of the whole batch, not of this part of it."""
    if divisor <= 0:
        raise ValueError("no trainable token: skip the update")
    rho = torch.exp(logp - logq)
    if not torch.isfinite(rho).all():
        raise NonFiniteRatio(f"{int((~torch.isfinite(rho)).sum())} of {rho.numel()} ratios p/q are not finite")
    with torch.no_grad():
        p, q = logp.exp(), logq.exp()
        keep = keep_mask(p, q, advantage, delta)
        diff = (p - q).abs()
    value = -(advantage * rho * keep).sum() / divisor
    return Loss(
        value,
        int((~keep & (advantage > 0)).sum()),
        int((~keep & (advantage <= 0)).sum()),
        float(diff.sum()),
        float(diff.max()) if diff.numel() else 0.0,
        float(rho.detach().max()) if rho.numel() else 0.0,
    )
