"""The sampler's key/value memory: one static prefix for all rows, one prompt per group, own tokens per row.

Rows that share a prompt (a task's rollouts) hold its keys once; the system prompt with its demonstrations is held once for
everybody. Shapes as in `llama.py`; A active rows, G groups, M rows a group at most, S slots, P / T lengths of a segment.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from frognano.models.attention import attend_shared, causal, grid, join
from frognano.models.llama import (
    LlamaConfig,
    LlamaWeights,
    after_attention,
    heads,
    rms_norm,
    rope_table,
)

PREFILL_TOKENS = 2048
"""Prompt tokens in one forward."""
ROW_TOKENS = 64
"""A row's own tokens get room in steps of so many."""
NEVER = -1e9
"""Added to the score of a key that a query may not see."""


def with_spare(had: int, needed: int) -> int:
    """How many to make room for: a quarter more when it grows, so that who joins one by one is seldom copied."""
    return had if needed <= had else max(needed, had + had // 4)


def replace_each(change: Callable[[Tensor], Tensor], *held: list[Tensor]) -> None:
    """In place and one by one: two copies of one layer are there at a time, not of all."""
    for layers in held:
        for i, layer in enumerate(layers):
            layers[i] = change(layer)


class PrefixMemory:
    """Keys and values of the static prefix: per layer [K, P, E]."""

    def __init__(self, weights: LlamaWeights, ids: list[int]) -> None:
        self.ids = ids
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        if not ids:
            return
        c, length = weights.config, len(ids)
        cos, sin = rope_table(c, length, weights.embedding.dtype)
        cos, sin = cos[:, None], sin[:, None]
        x = weights.embedding[torch.tensor(ids)]
        for i, layer in enumerate(weights.layers):
            q, k, v = heads(c, layer, x, cos, sin)
            self.keys.append(k.transpose(0, 1).contiguous())
            self.values.append(v.transpose(0, 1).contiguous())
            if i < c.layers - 1:  # what comes out of the last layer is asked for by nobody
                x = after_attention(c, layer, x, causal(q[None], k[None], v[None])[0][0].flatten(1))


class GroupMemory:
    """Keys and values of the groups' prompts (after the prefix): per layer [G, K, T, E], padded to the longest."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        self.config, self.dtype = config, dtype
        self.lengths: list[int] = []
        self.width = 0
        self._keys: list[Tensor] = [torch.zeros(0, config.kv_heads, 0, config.head_width, dtype=dtype)] * config.layers
        self._values = list(self._keys)

    def add(self, weights: LlamaWeights, prefix: PrefixMemory, prompts: list[list[int]], seen: list[bool]) -> Tensor:
        """Prefill new groups; returns the hidden state of each prompt's last token, [len(prompts), D].

        `seen[i]`: the i-th prompt comes after the static prefix (else it starts at position 0 and never sees it).
        """
        out, first = [], 0
        for i in range(len(prompts)):
            # In parts, so that the tensors of a part stay in the processor's caches.
            last = i + 1 == len(prompts) or seen[i + 1] != seen[i]
            if last or sum(map(len, prompts[first : i + 2])) > PREFILL_TOKENS:
                out.append(self._prefill(weights, prefix if seen[i] else None, prompts[first : i + 1]))
                first = i + 1
        return torch.cat(out)

    def _prefill(self, weights: LlamaWeights, prefix: PrefixMemory | None, prompts: list[list[int]]) -> Tensor:
        """All of them come after the prefix, or none does."""
        c, g = self.config, len(prompts)
        lengths = torch.tensor([len(x) for x in prompts])
        longest, before = int(lengths.max()), len(prefix.ids) if prefix else 0
        real = torch.arange(longest) < lengths[:, None]
        cells = real.flatten().nonzero()[:, 0]
        last = lengths.cumsum(0) - 1
        at = (before + torch.arange(longest)).expand(g, -1)[real]
        cos, sin = rope_table(c, before + longest, self.dtype)
        cos, sin = cos[at][:, None], sin[at][:, None]
        x = weights.embedding[torch.tensor([i for prompt in prompts for i in prompt])]
        new_keys: list[Tensor] = []
        new_values: list[Tensor] = []
        for i, layer in enumerate(weights.layers):
            q, k, v = heads(c, layer, x, cos, sin)
            # Padding comes after a prompt's tokens, where none of them looks.
            z, k, v = (grid(z, cells, g, longest) for z in (q, k, v))
            new_keys.append(k.transpose(1, 2))
            new_values.append(v.transpose(1, 2))
            out, lse = (z.flatten(0, 1)[cells] for z in causal(z, k, v))
            if i == c.layers - 1:  # only what comes out for the last tokens is asked for
                x, q, out, lse = x[last], q[last], out[last], lse[last]
            if prefix and before:
                q = q.unflatten(1, (c.kv_heads, -1))
                out, lse = (z.unflatten(1, (c.kv_heads, -1)) for z in (out, lse))
                far, far_lse = attend_shared(q, prefix.keys[i], prefix.values[i])
                out = join([out, far], [lse, far_lse]).flatten(1, 2)
            x = after_attention(c, layer, x, out.flatten(1))
        self._append(new_keys, new_values, longest)
        self.lengths += lengths.tolist()
        return rms_norm(x, weights.norm, c.eps)

    def _append(self, keys: list[Tensor], values: list[Tensor], longest: int) -> None:
        """Groups join one by one while others are live: there is room to spare, so that a join copies only itself."""
        first, last = len(self.lengths), len(self.lengths) + len(keys[0])
        self.width = max(self.width, longest)
        groups, _, width, _ = self._keys[0].shape
        if last > groups or self.width > width:
            self._move(slice(0, first), with_spare(groups, last), max(self.width, width))
        for held, new in zip((*self._keys, *self._values), (*keys, *values), strict=True):
            held[first:last, :, :longest] = new

    def _move(self, kept: slice | Tensor, groups: int, width: int) -> None:
        """Into new tensors for so many groups of such width."""

        def moved(old: Tensor) -> Tensor:
            new = old.new_zeros(groups, old.shape[1], width, old.shape[3])
            part = old[kept, :, :width]
            new[: len(part), :, : part.shape[2]] = part
            return new

        replace_each(moved, self._keys, self._values)

    def keys(self, layer: int) -> Tensor:
        """[G, K, T, E]."""
        return self._keys[layer][: len(self.lengths), :, : self.width]

    def values(self, layer: int) -> Tensor:
        return self._values[layer][: len(self.lengths), :, : self.width]

    def keep(self, groups: list[int]) -> None:
        """Forget all groups but these (their indices become 0, 1, …)."""
        self.lengths = [self.lengths[g] for g in groups]
        self.width = max(self.lengths, default=0)
        self._move(torch.tensor(groups, dtype=torch.long), len(groups), self.width)

    def mask(self) -> Tensor:
        """[G, 1, 1, T]: hides the padding."""
        real = torch.arange(self.width)[None] < torch.tensor(self.lengths, dtype=torch.long)[:, None]
        return torch.where(real, 0.0, NEVER).to(self.dtype)[:, None, None]


class RowMemory:
    """Own tokens of each row: per layer [S or more, K, T, E]; rows move together when some leave."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        self.config, self.dtype = config, dtype
        self.lengths = torch.zeros(0, dtype=torch.long)
        self.capacity = ROW_TOKENS
        self.keys = [torch.zeros(0, config.kv_heads, self.capacity, config.head_width, dtype=dtype)] * config.layers
        self.values = list(self.keys)

    def add(self, rows: int) -> None:
        """Their memory is taken at the next `reserve`, with room to spare: who joins costs no copy of the rest."""
        self.lengths = torch.cat([self.lengths, torch.zeros(rows, dtype=torch.long)])

    def keep(self, rows: list[int]) -> None:
        self.reserve(0)
        index = torch.tensor(rows, dtype=torch.long)
        self.lengths = self.lengths[index]
        replace_each(lambda old: old[index], self.keys, self.values)

    def reserve(self, length: int) -> None:
        """Make room for rows of `length` tokens."""
        if length > self.capacity:
            self.capacity = -(-length // ROW_TOKENS) * ROW_TOKENS
        rows, _, capacity, _ = self.keys[0].shape
        if rows >= len(self.lengths) and capacity == self.capacity:
            return
        spare = with_spare(rows, len(self.lengths)) - rows

        def larger(z: Tensor) -> Tensor:
            return torch.nn.functional.pad(z, (0, 0, 0, self.capacity - capacity, 0, 0, 0, spare))

        replace_each(larger, self.keys, self.values)
