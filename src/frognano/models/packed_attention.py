"""Attention of packed rows that copies no key: the static prefix is one set of keys for all tokens, whatever row they are in.

A softmax over keys in two places, the prefix (0) and a token's own group and row (1), is put together from the softmax in each:

    out = exp(lse_0 - lse) out_0 + exp(lse_1 - lse) out_1,   lse = log(exp lse_0 + exp lse_1)

and its gradient from the usual one of each place, taken with the common `out` and `lse`. Both come from the flash kernels of
torch for CPUs, so that scores are never laid out, forward or backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frognano.models.attention import flash, grid
from frognano.models.packed import Layout

_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Grid:
    """A padded grid [rows, length] over the tokens `which` of the N after the prefix.

    `bias` [rows, 1, R*length, keys] is 0 where a token may look and -inf elsewhere.
    """

    which: slice
    cells: Tensor
    rows: int
    length: int
    bias: Tensor

    def queries(self, z: Tensor, kv: int) -> Tensor:
        """[N, H, ...] -> [rows, K, R*length, ...]: the query heads of one key head stand one after another."""
        return _fold(grid(z[self.which], self.cells, self.rows, self.length), kv)

    def tokens(self, z: Tensor) -> Tensor:
        """Back to [n, H, ...] of the tokens `which`."""
        return _unfold(z, self.length).flatten(0, 1)[self.cells]


@dataclass(frozen=True)
class Places:
    """Where the tokens after the prefix lie: the prompts, then the rows, each of which goes on from the prompt `row_group`."""

    prompts: Grid
    rows: Grid | None
    row_group: Tensor  # [B]

    @classmethod
    def of(cls, layout: Layout, prefix: int, ratio: int, dtype: torch.dtype) -> Places:
        """`ratio`: R, query heads a key head."""

        def made(which: slice, cells: Tensor, may_see: Tensor) -> Grid:
            part = may_see[:, None, :, prefix:].repeat(1, 1, ratio, 1)
            bias = torch.zeros(part.shape, dtype=dtype).masked_fill_(~part, float("-inf"))
            return Grid(which, cells, len(may_see), may_see.shape[1], bias)

        n = len(layout.prompt_cells)
        prompts = made(slice(0, n), layout.prompt_cells, layout.prompt_mask)
        rows = made(slice(n, None), layout.row_cells, layout.row_mask) if layout.row_mask.shape[1] else None
        return cls(prompts, rows, layout.row_group)

    def keys(self, z: Tensor) -> list[tuple[Grid, Tensor]]:
        """Of keys or values [N, K, E]: each grid with the [rows, K, T, E] that its tokens may see."""
        p = self.prompts
        prompt = grid(z[p.which], p.cells, p.rows, p.length)
        if self.rows is None:
            return [(p, prompt.transpose(1, 2))]
        own = grid(z[self.rows.which], self.rows.cells, self.rows.rows, self.rows.length)
        row = torch.cat([prompt[self.row_group], own], 1)
        return [(p, prompt.transpose(1, 2)), (self.rows, row.transpose(1, 2))]

    def gradient(self, parts: list[Tensor], like: Tensor) -> Tensor:
        """The transpose of `keys`: gradients of its results, added up by token, [N, K, E]."""
        out, p, prompt = torch.empty_like(like), self.prompts, parts[0].transpose(1, 2)
        if self.rows is not None:
            row = parts[1].transpose(1, 2)
            prompt = prompt.index_add(0, self.row_group, row[:, : p.length])
            out[self.rows.which] = row[:, p.length :].flatten(0, 1)[self.rows.cells]
        out[p.which] = prompt.flatten(0, 1)[p.cells]
        return out


def packed_attention(places: Places, prefix_k: Tensor, prefix_v: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [N, H, E], k and v [N, K, E] of the tokens after the prefix, prefix_k and prefix_v [P, K, E] -> [N, H*E]."""
    return _PackedAttention.apply(places, prefix_k, prefix_v, q, k, v)  # type: ignore[no-any-return,no-untyped-call]


def _fold(z: Tensor, kv: int) -> Tensor:
    """[b, T, H, ...] -> [b, K, R*T, ...]: the query heads of one key head stand one after another."""
    folded: Tensor = z.unflatten(2, (kv, -1)).movedim(1, 3).flatten(2, 3)
    return folded


def _unfold(z: Tensor, length: int) -> Tensor:
    """[b, K, R*T, ...] -> [b, T, H, ...]"""
    unfolded: Tensor = z.unflatten(2, (-1, length)).movedim(3, 1).flatten(2, 3)
    return unfolded


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, places: Places, prefix_k: Tensor, prefix_v: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        kv = k.shape[1]
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)
        for (where, keys), (_, values) in zip(places.keys(k), places.keys(v), strict=True):
            part, part_lse = flash(where.queries(q, kv), keys, values, attn_mask=where.bias)
            out[where.which], lse[where.which] = where.tokens(part), where.tokens(part_lse)
        if len(prefix_k):
            far, far_lse = flash(_fold(q[None], kv), *(z.transpose(0, 1)[None] for z in (prefix_k, prefix_v)))
            far, far_lse = (_unfold(z, len(q))[0] for z in (far, far_lse))
            near_lse, lse = lse, torch.logaddexp(lse, far_lse)
            out *= (near_lse - lse).exp()[..., None].to(out.dtype)
            out += far * (far_lse - lse).exp()[..., None].to(out.dtype)
        ctx.places = places
        ctx.save_for_backward(prefix_k, prefix_v, q, k, v, out, lse)
        return out.flatten(1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        prefix_k, prefix_v, q, k, v, out, lse = ctx.saved_tensors
        places, kv, slope = ctx.places, k.shape[1], slope.view_as(q)
        dq, dks, dvs = torch.empty_like(q), [], []
        for (where, keys), (_, values) in zip(places.keys(k), places.keys(v), strict=True):
            folded = [where.queries(z, kv) for z in (slope, q, out, lse)]
            part, dk, dv = _backward(
                folded[0], folded[1], keys, values, folded[2], folded[3], 0.0, False, attn_mask=where.bias
            )
            dq[where.which] = where.tokens(part)
            dks.append(dk)
            dvs.append(dv)
        far_k = far_v = None
        if len(prefix_k):
            folded = [_fold(z[None], kv) for z in (slope, q, out, lse)]
            keys, values = (z.transpose(0, 1)[None] for z in (prefix_k, prefix_v))
            part, far_k, far_v = _backward(folded[0], folded[1], keys, values, folded[2], folded[3], 0.0, False)
            dq += _unfold(part, len(q))[0]
            far_k, far_v = far_k[0].transpose(0, 1), far_v[0].transpose(0, 1)
        return None, far_k, far_v, dq, places.gradient(dks, k), places.gradient(dvs, v)
