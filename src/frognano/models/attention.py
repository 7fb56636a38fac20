"""Attention over many tokens at once: for prompts and for scoring, where scores must never be laid out in memory."""

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


def with_shared(near: Tensor, near_lse: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Joins what q [N, H, E] sees in keys of its own, `near` [N, H, E] and its `near_lse` [N, H], with what it sees in keys
    that all of it shares, k and v [K, P, E]: one softmax over both, [N, H, E]. `packed_attention.py` has the equation."""
    kv = len(k)
    far, far_lse = flash(q.unflatten(1, (kv, -1)).transpose(0, 1).flatten(1, 2)[None], k[None], v[None])
    far, far_lse = (z[0].unflatten(1, (len(q), -1)).transpose(0, 1).flatten(1, 2) for z in (far, far_lse))
    return torch.lerp(far, near, (near_lse - far_lse).sigmoid()[..., None].to(near.dtype))


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
