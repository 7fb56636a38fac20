"""Live rows on the shared-prefix decoder: which row a session holds, which prompts are held, when rows are moved together."""

from __future__ import annotations

import torch
from torch import Tensor

from frognano.models.decoder import Decoder
from frognano.models.llama import LlamaWeights


class DecoderMemory:
    """The `Memory` of the Llama family. Rows that share a prompt hold its keys once, the static prefix is held once for all."""

    def __init__(self, weights: LlamaWeights, prefix: list[int]) -> None:
        self.weights, self.prefix = weights, prefix

    @property
    def vocabulary(self) -> int:
        return len(self.weights.embedding)

    def reset(self) -> None:
        self._row: dict[str, int] = {}
        self._free: set[int] = set()
        self._group_of: dict[tuple[int, ...], int] = {}
        self._prompt_hidden: dict[tuple[int, ...], Tensor] = {}
        self.decoder = Decoder(self.weights)
        self.decoder.set_prefix(self.prefix)

    def leave(self, name: str) -> None:
        self._free.add(self._row.pop(name))

    def logits(self, states: Tensor) -> Tensor:
        return self.decoder.logits(states)

    def extend(self, names: list[str], tokens: list[list[int]]) -> Tensor:
        rows = [self._row[n] for n in names]
        order = sorted(range(len(rows)), key=rows.__getitem__)
        out = self.decoder.extend([rows[i] for i in order], [tokens[i] for i in order])
        return out[torch.tensor(order).argsort()]

    def start(self, prompts: dict[str, list[int]]) -> list[Tensor]:
        """Prompts that are not held yet are prefilled together."""
        self._compact()
        new = {tuple(ids): ids for ids in prompts.values() if tuple(ids) not in self._group_of}
        if new:
            p, first = len(self.prefix), len(self.decoder.group.lengths)
            seen = [self._comes_after(ids) for ids in new.values()]
            own = [ids[p:] if s else ids for ids, s in zip(new.values(), seen, strict=True)]
            out = self.decoder.add_groups(own, seen)
            for i, key in enumerate(new):
                self._group_of[key], self._prompt_hidden[key] = first + i, out[i]
        for name, ids in prompts.items():
            (self._row[name],) = self.decoder.add_rows(self._group_of[tuple(ids)], self._comes_after(ids), 1)
        return [self._prompt_hidden[tuple(ids)] for ids in prompts.values()]

    def _comes_after(self, ids: list[int]) -> bool:
        p = len(self.prefix)
        return 0 < p < len(ids) and ids[:p] == self.prefix

    def _compact(self) -> None:
        """Move rows together once a quarter of them is free."""
        if not self._free or len(self._free) * 4 < len(self.decoder.groups):
            return
        live = sorted(self._row, key=self._row.__getitem__)
        groups_before = [self.decoder.groups[self._row[n]] for n in live]
        self.decoder.keep([self._row[n] for n in live])
        renamed = {g: i for i, g in enumerate(sorted(set(groups_before)))}
        self._group_of = {k: renamed[g] for k, g in self._group_of.items() if g in renamed}
        self._prompt_hidden = {k: h for k, h in self._prompt_hidden.items() if k in self._group_of}
        self._row = {name: i for i, name in enumerate(live)}
        self._free = set()
