"""The sampler's key/value memory: one static prefix for all rows, one prompt per group, own tokens per row.

Rows that share a prompt (a task's rollouts) hold its keys once; the system prompt with its demonstrations is held once for
everybody. Shapes as in `llama.py`; A active rows, G groups, M rows a group at most, S slots, P / T lengths of a segment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from frognano.models.attention import attention, grid
from frognano.models.llama import (
    LlamaConfig,
    LlamaWeights,
    block,
    rms_norm,
    rope_table,
    softmax_over_segments,
)

PREFILL_TOKENS = 2048
"""Prompt tokens in one forward."""
ROW_TOKENS = 64
"""A row's own tokens get room in steps of so many."""
NEVER = -1e9
"""Added to the score of a key that a query may not see."""


def causal(length: int, dtype: torch.dtype) -> Tensor:
    """[length, length]: 0 on and below the diagonal, NEVER above."""
    return torch.full((length, length), NEVER, dtype=dtype).triu(1)


def with_spare(had: int, needed: int) -> int:
    """How many to make room for: a quarter more when it grows, so that who joins one by one is seldom copied."""
    return had if needed <= had else max(needed, had + had // 4)


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
        x = weights.embedding[torch.tensor(ids)]
        mask = causal(length, x.dtype)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
            self.keys.append(k)
            self.values.append(v)
            q = q.unflatten(1, (c.kv_heads, -1)).permute(1, 2, 0, 3)  # [K, R, P, E]
            (p,) = softmax_over_segments([q @ k[:, None].transpose(-1, -2) + mask], c.head_width)
            return (p @ v[:, None]).permute(2, 0, 1, 3).reshape(length, -1)

        for layer in weights.layers:
            x = block(c, layer, x, cos[:, None], sin[:, None], attend)


def attend_shared(q: Tensor, k: Tensor) -> Tensor:
    """Scores of q [N, K, R, E] on keys that all rows share, k [K, P, E]: [N, K, R, P]."""
    n, kv, r, e = q.shape
    return (q.transpose(0, 1).reshape(kv, n * r, e) @ k.transpose(-1, -2)).view(kv, n, r, -1).transpose(0, 1)


def read_shared(p: Tensor, v: Tensor) -> Tensor:
    """Values of a shared segment by weights p [N, K, R, P]: [N, K, R, E]."""
    n, kv, r, t = p.shape
    return (p.transpose(0, 1).reshape(kv, n * r, t) @ v).view(kv, n, r, -1).transpose(0, 1)


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
            if i + 1 == len(prompts) or sum(map(len, prompts[first : i + 2])) > PREFILL_TOKENS:
                out.append(self._prefill(weights, prefix, prompts[first : i + 1], seen[first : i + 1]))
                first = i + 1
        return torch.cat(out)

    def _prefill(
        self, weights: LlamaWeights, prefix: PrefixMemory, prompts: list[list[int]], seen: list[bool]
    ) -> Tensor:
        c, g, p = self.config, len(prompts), len(prefix.ids)
        lengths = torch.tensor([len(x) for x in prompts])
        longest = int(lengths.max())
        real = torch.arange(longest) < lengths[:, None]
        cells = real.flatten().nonzero()[:, 0]
        after = torch.tensor(seen)
        at = (torch.where(after, p, 0)[:, None] + torch.arange(longest))[real]
        cos, sin = rope_table(c, int(at.max()) + 1, self.dtype)
        cos, sin = cos[at][:, None], sin[at][:, None]
        x = weights.embedding[torch.tensor([i for prompt in prompts for i in prompt])]
        may_see = torch.cat(
            [
                after[:, None, None].expand(g, longest, p),
                torch.ones(longest, longest, dtype=torch.bool).tril().expand(g, -1, -1),
            ],
            -1,
        )
        new_keys: list[Tensor] = []
        new_values: list[Tensor] = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            i = len(new_keys)
            q, k, v = (grid(z, cells, g, longest) for z in (q.unflatten(1, (c.kv_heads, -1)), k, v))
            new_keys.append(k.transpose(1, 2))
            new_values.append(v.transpose(1, 2))
            if p:
                k = torch.cat([prefix.keys[i].transpose(0, 1).expand(g, -1, -1, -1), k], 1)
                v = torch.cat([prefix.values[i].transpose(0, 1).expand(g, -1, -1, -1), v], 1)
            return attention(q, k, v, may_see).flatten(0, 1)[cells]

        for layer in weights.layers:
            x = block(c, layer, x, cos, sin, attend)
        self._append(new_keys, new_values, longest)
        self.lengths += lengths.tolist()
        return rms_norm(x[lengths.cumsum(0) - 1], weights.norm, c.eps)

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

        for held in (self._keys, self._values):  # layer by layer: two copies of one layer at a time, not of all
            for i, old in enumerate(held):
                held[i] = moved(old)

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
        for held in (self.keys, self.values):
            for i, old in enumerate(held):
                held[i] = old[index]

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

        for held in (self.keys, self.values):
            for i, old in enumerate(held):
                held[i] = larger(old)
