"""Trajectories packed for scoring: the static prefix once, each group's prompt once, own tokens of each row once.

prefix ─┬─ prompt 1 ─┬─ row 1        every token is computed once, whatever shares it;
        │            └─ row 2        each row's log-probs equal those of the row alone
        └─ prompt 2 ─── row 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """Own tokens of one sample and where they are trained. `trained[t]`: own token t is a target."""

    ids: tuple[int, ...]
    trained: tuple[int, ...]


@dataclass(frozen=True)
class Packed:
    """`prompts[g]` follows the prefix, `rows[g]` follow that prompt. Targets go by group, row, position."""

    prefix: list[int]
    prompts: list[list[int]]
    rows: list[list[Row]]

    def __post_init__(self) -> None:
        if len(self.prompts) != len(self.rows):
            raise ValueError(f"{len(self.prompts)} prompts but rows of {len(self.rows)} groups")
        if any(not p for p in self.prompts):
            raise ValueError(
                "a prompt needs at least one token after the prefix: its last token predicts the first target"
            )

    @property
    def tokens(self) -> int:
        """Tokens in the forward pass."""
        return len(self.prefix) + sum(map(len, self.prompts)) + sum(len(r.ids) for g in self.rows for r in g)

    @property
    def targets(self) -> int:
        return sum(sum(r.trained) for g in self.rows for r in g)


def common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all prompts share, leaving at least one token to each."""
    if not prompts:
        return 0
    shortest, longest = min(prompts), max(prompts)
    length = 0
    for a, b in zip(shortest, longest, strict=False):
        if a != b:
            break
        length += 1
    return min(length, min(map(len, prompts)) - 1)


@dataclass(frozen=True)
class Layout:
    """Index tensors of a `Packed`: tokens lie in the order prefix, prompts, rows, without padding."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    prompt_cells: Tensor  # [N_prompt] into a padded [G, T_prompt] grid
    row_cells: Tensor  # [N_row] into a padded [B, T_row] grid
    row_group: Tensor  # [B]
    prompt_mask: Tensor  # [G, T_prompt, P + T_prompt] bool: may see
    row_mask: Tensor  # [B, T_row, P + T_prompt + T_row] bool: may see
    sources: Tensor  # [targets]: index in N of the token whose output predicts the target
    targets: Tensor  # [targets]: token ids
    target_row: Tensor  # [targets]: row number

    @classmethod
    def of(cls, packed: Packed) -> Layout:
        p = len(packed.prefix)
        rows = [r for group in packed.rows for r in group]
        row_group = torch.tensor([g for g, group in enumerate(packed.rows) for _ in group], dtype=torch.long)
        t_prompt = max(map(len, packed.prompts))
        t_row = max((len(r.ids) for r in rows), default=0)
        prompt_lengths = torch.tensor([len(x) for x in packed.prompts])
        row_lengths = torch.tensor([len(r.ids) for r in rows], dtype=torch.long)
        prompt_real = torch.arange(t_prompt) < prompt_lengths[:, None]
        row_real = torch.arange(t_row) < row_lengths[:, None]
        ids = torch.tensor(packed.prefix + [i for x in packed.prompts for i in x] + [i for r in rows for i in r.ids])
        prompt_positions = (p + torch.arange(t_prompt)).expand_as(prompt_real)[prompt_real]
        row_positions = (p + prompt_lengths[row_group][:, None] + torch.arange(t_row))[row_real]
        positions = torch.cat([torch.arange(p), prompt_positions, row_positions])

        causal_prompt = torch.ones(t_prompt, t_prompt, dtype=torch.bool).tril()
        prompt_mask = torch.cat([torch.ones(t_prompt, p, dtype=torch.bool), causal_prompt], -1)
        prompt_mask = prompt_mask.expand(len(packed.prompts), -1, -1)
        causal_row = torch.ones(t_row, t_row, dtype=torch.bool).tril()
        row_mask = torch.cat(
            [
                torch.ones(len(rows), t_row, p, dtype=torch.bool),
                prompt_real[row_group][:, None].expand(-1, t_row, -1),
                causal_row.expand(len(rows), -1, -1),
            ],
            -1,
        )
        prompt_start = p + torch.cat([torch.zeros(1, dtype=torch.long), prompt_lengths.cumsum(0)])
        row_start = int(prompt_start[-1]) + torch.cat([torch.zeros(1, dtype=torch.long), row_lengths.cumsum(0)])
        sources, targets, target_row = [], [], []
        for b, row in enumerate(rows):
            for t, (token, trained) in enumerate(zip(row.ids, row.trained, strict=True)):
                if trained:
                    before = int(prompt_start[row_group[b] + 1]) - 1 if t == 0 else int(row_start[b]) + t - 1
                    sources.append(before)
                    targets.append(token)
                    target_row.append(b)
        return cls(
            ids,
            positions,
            prompt_real.flatten().nonzero()[:, 0],
            row_real.flatten().nonzero()[:, 0],
            row_group,
            prompt_mask,
            row_mask,
            torch.tensor(sources, dtype=torch.long),
            torch.tensor(targets, dtype=torch.long),
            torch.tensor(target_row, dtype=torch.long),
        )
