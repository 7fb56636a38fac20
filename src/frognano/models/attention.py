"""Attention over many tokens at once: for prompts and for scoring, where scores must never be laid out in memory."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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
