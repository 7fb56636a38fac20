"""Attention for prompts, decoding and scoring: scores are never laid out in memory, shared keys are held once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""(q [B, H, T, E], k and v [B, H, L, E]) -> (out [B, H, T, E], lse [B, H, T] in fp32: the log of the softmax's divisor)."""


def causal(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Each token of q [B, T, H, E], k and v [B, T, K, E] sees itself and those before it: out [B, T, H, E], lse [B, T, H]."""
    ratio = q.shape[2] // k.shape[2]
    k, v = (z.transpose(1, 2).repeat_interleave(ratio, 1) for z in (k, v))
    out, lse = flash(q.transpose(1, 2), k, v, is_causal=True)
    return out.transpose(1, 2), lse.transpose(1, 2)


def attend_shared(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """q [N, K, R, E] on keys that all of it sees, k and v [K, P, E]: out [N, K, R, E], lse [N, K, R]."""
    rows = q.transpose(0, 1).flatten(1, 2)[None]
    out, lse = (z[0].unflatten(1, (len(q), -1)).transpose(0, 1) for z in flash(rows, k[None], v[None]))
    return out, lse


def join(out: list[Tensor], lse: list[Tensor]) -> Tensor:
    """One softmax over the keys of several places, from what each gave alone: out [..., E], lse [...]. The equation is that of
    `packed_attention.py`."""
    share = torch.softmax(torch.stack(lse), 0).to(out[0].dtype)[..., None]
    joined = out[0] * share[0]
    for part, weight in zip(out[1:], share[1:], strict=True):
        joined = torch.addcmul(joined, part, weight)
    return joined


def attention(q: Tensor, k: Tensor, v: Tensor, may_see: Tensor) -> Tensor:
    """q [B, T, K, R, E], k and v [B, L, K, E], may_see [B, T, L] -> [B, T, K*R*E]."""
    b, t, kv, r, e = q.shape
    q = q.permute(0, 2, 3, 1, 4).reshape(b, kv, r * t, e)
    mask = may_see[:, None, None].expand(b, 1, r, t, -1).reshape(b, 1, r * t, -1)
    out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.view(b, kv, r, t, e).permute(0, 3, 1, 2, 4).reshape(b, t, -1)


def grid(z: Tensor, cells: Tensor, rows: int, length: int) -> Tensor:
    """Packed tokens z [N, heads, E] laid out as [rows, length, heads, E], zeros where there is no token."""
    return z.new_zeros(rows * length, *z.shape[1:]).index_copy(0, cells, z).view(rows, length, *z.shape[1:])
