"""One batched forward over live rows: each row appends one or more tokens to what it has seen."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from frognano.models.attention import attend_shared, flash, join
from frognano.models.kv import NEVER, GroupMemory, PrefixMemory, RowMemory
from frognano.models.linear import laid_out, linear
from frognano.models.llama import LlamaWeights, block, rms_norm, rope_table


class Decoder:
    """Rows with their memory. `groups[s]` is the group of row s, `seen[s]` whether it comes after the static prefix."""

    def __init__(self, weights: LlamaWeights) -> None:
        self.weights = weights
        self._head = laid_out(weights.head.detach())
        c, dtype = weights.config, weights.embedding.dtype
        self.prefix = PrefixMemory(weights, [])
        self.group = GroupMemory(c, dtype)
        self.row = RowMemory(c, dtype)
        self.groups: list[int] = []
        self.seen: list[bool] = []
        self._cos, self._sin = rope_table(c, 1024, dtype)

    def _rope(self, at: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(at.max()) + 1
        if longest > len(self._cos):
            self._cos, self._sin = rope_table(self.weights.config, 2 * longest, self._cos.dtype)
        return self._cos[at][:, None], self._sin[at][:, None]

    @torch.no_grad()
    def set_prefix(self, ids: list[int]) -> None:
        """Compute the static prefix with the current weights. Only between batches: no row may be live."""
        if self.groups:
            raise RuntimeError("the static prefix cannot change while rows are live")
        self.prefix = PrefixMemory(self.weights, ids)
        self.group = GroupMemory(self.weights.config, self._cos.dtype)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """[N, D] -> [N, V], fp32."""
        return linear(hidden, self._head).float()

    @torch.no_grad()
    def add_groups(self, prompts: list[list[int]], seen: list[bool]) -> Tensor:
        """Prefill prompts (without the prefix); last hidden states [G_new, D]."""
        return self.group.add(self.weights, self.prefix, prompts, seen)

    def add_rows(self, group: int, seen: bool, rows: int) -> list[int]:
        first = len(self.groups)
        self.groups += [group] * rows
        self.seen += [seen] * rows
        self.row.add(rows)
        return list(range(first, first + rows))

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these; groups without a row go too."""
        self.row.keep(rows)
        kept = [self.groups[r] for r in rows]
        alive = sorted(set(kept))
        if len(alive) < len(self.group.lengths):
            self.group.keep(alive)
        renamed = {g: i for i, g in enumerate(alive)}
        self.groups, self.seen = [renamed[g] for g in kept], [self.seen[r] for r in rows]

    @torch.no_grad()
    def extend(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """Append `tokens[i]` (all of one length) to row `rows[i]`; hidden state of each last token, [A, D]."""
        c, n, length = self.weights.config, len(rows), len(tokens[0])
        index = torch.tensor(rows)
        own_before = self.row.lengths[index]
        self.row.reserve(int(own_before.max()) + length)
        width = int(own_before.max()) + length
        base = torch.tensor(
            [(len(self.prefix.ids) if self.seen[r] else 0) + self.group.lengths[self.groups[r]] for r in rows]
        )
        step = torch.arange(length)
        cos, sin = self._rope((base[:, None] + own_before[:, None] + step).flatten())
        x = self.weights.embedding[torch.tensor(tokens).flatten()]

        # Rows of one group sit together in a [G, M] grid, so that the group's keys are read once for all of them.
        used = Counter(self.groups[r] for r in rows)
        g = len(self.group.lengths)
        # Few of the groups, as when a tool's result is fed to a row or two: theirs are copied, the others left alone.
        few = sorted(used) if 2 * len(used) <= g else None
        chosen = slice(None) if few is None else torch.tensor(few)
        place = {group: i for i, group in enumerate(few or range(g))}
        g, m = len(place), max(used.values())
        taken: Counter[int] = Counter()
        cells = []
        for r in rows:
            cells.append(place[self.groups[r]] * m + taken[self.groups[r]])
            taken[self.groups[r]] += 1
        cell = torch.tensor(cells)
        in_order = cells == list(range(g * m))  # nothing to move into the grid or out of it
        last_key = own_before[:, None] + step  # [A, T]: the last own key each query may see
        own_mask = torch.where(torch.arange(width) <= last_key[..., None], 0.0, NEVER).to(x.dtype)
        prefix_mask = None
        if not all(self.seen[r] for r in rows):
            prefix_mask = torch.tensor([0.0 if self.seen[r] else NEVER for r in rows])[:, None, None]
        slots = len(self.groups)
        whole = n == slots and rows == list(range(n))
        dense = not whole and 2 * n >= slots  # cheaper to attend for idle rows too than to copy the keys of the others
        write_rows = index[:, None].expand(n, length)
        write_at = own_before[:, None] + step
        layer_number = 0
        shared_by = c.heads // c.kv_heads  # query heads a key head (R)

        def spread(z: Tensor) -> Tensor:
            return z.new_zeros(slots, *z.shape[1:]).index_copy(0, index, z) if dense else z

        own_mask = spread(own_mask.repeat(1, shared_by, 1))[:, None]  # [·, 1, R*T, ·]
        group_mask = self.group.mask()[chosen].expand(-1, -1, m * shared_by * length, -1)

        def to_grid(z: Tensor) -> Tensor:
            """[A, K, R*T, ·] -> [G, K, M*R*T, ·]."""
            z = z if in_order else z.new_zeros(g * m, *z.shape[1:]).index_copy(0, cell, z)
            grid: Tensor = z.unflatten(0, (g, m)).transpose(1, 2).flatten(2, 3)
            return grid

        def from_grid(z: Tensor) -> Tensor:
            """The way back."""
            z = z.unflatten(2, (m, -1)).transpose(1, 2).flatten(0, 1)
            return z if in_order else z[cell]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            i = layer_number
            keys, values = self.row.keys[i], self.row.values[i]
            keys[write_rows, :, write_at] = k.view(n, length, c.kv_heads, -1)
            values[write_rows, :, write_at] = v.view(n, length, c.kv_heads, -1)
            keys, values = keys[:slots, :, :width], values[:slots, :, :width]
            if not whole and not dense:
                keys, values = keys[index], values[index]
            # queries: [A, K, R*T, E]
            q = (
                q.view(n, length, c.kv_heads, shared_by, -1)
                .permute(0, 2, 3, 1, 4)
                .reshape(n, c.kv_heads, shared_by * length, -1)
            )
            # Each place gives what its keys say and the log of its part of the softmax.
            own = flash(spread(q), keys, values, attn_mask=own_mask)
            out, lse = [own[0][index] if dense else own[0]], [own[1][index] if dense else own[1]]
            group = flash(to_grid(q), self.group.keys(i)[chosen], self.group.values(i)[chosen], attn_mask=group_mask)
            out.append(from_grid(group[0]))
            lse.append(from_grid(group[1]))
            if self.prefix.ids:
                far, far_lse = attend_shared(q, self.prefix.keys[i], self.prefix.values[i])
                out.append(far)
                lse.append(far_lse if prefix_mask is None else far_lse + prefix_mask)
            joined = join(out, lse)  # [A, K, R*T, E]
            by_token: Tensor = joined.unflatten(2, (shared_by, length)).permute(0, 3, 1, 2, 4)
            return by_token.reshape(n * length, -1)

        for layer_number, layer in enumerate(self.weights.layers):  # noqa: B007  (read by `attend`)
            x = block(c, layer, x, cos, sin, attend)
        self.row.lengths[index] += length
        return rms_norm(x.view(n, length, -1)[:, -1], self.weights.norm, c.eps)
