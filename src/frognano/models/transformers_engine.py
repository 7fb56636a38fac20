"""The in-process sampler of any transformers causal LM: `engine.py` on one of two memories.

Where the model keeps plain keys and values, live rows are decoded together on them; where it holds anything else (recurrent
states, fused caches), every step computes the rows whole: slow, and exact. Which of the two is found out by trying.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frognano.models.causal_lm import CausalLM, batches
from frognano.models.engine import SamplerEngine
from frognano.models.row_cache import RowKeys, join, kept, split


class CachedMemory:
    """A `Memory` of keys and values. The rows of the last step lie in one cache; the others are parked, each alone."""

    def __init__(self, lm: CausalLM, prefix: list[int]) -> None:
        self.lm, self.prefix = lm, prefix

    @property
    def vocabulary(self) -> int:
        return self.lm.vocabulary

    @torch.no_grad()
    def reset(self) -> None:
        self._parked: dict[str, RowKeys] = {}
        self._batch: list[str | None] = []
        """Names of the rows in `_cache`; None where one has left."""
        self._cache: Any = None
        self._lengths = torch.zeros(0, dtype=torch.long)
        self._prompt_of: dict[str, tuple[int, ...]] = {}
        self._prompts: dict[tuple[int, ...], tuple[RowKeys, Tensor]] = {}
        """Keys and logits of the prompts of live rows: a task's rollouts share them until they grow."""
        self._prefix_keys = self._prefill(self.prefix, [])[0] if self.prefix else []

    def _prefill(self, ids: list[int], before: RowKeys) -> tuple[RowKeys, Tensor]:
        from transformers import DynamicCache

        cache: Any = join([before]) if before else DynamicCache()
        held = cache.get_seq_length()
        logits = self.lm.cached_logits(torch.tensor([ids]), torch.tensor([held]), cache)
        return split(cache, [held + len(ids)])[0], logits[0]

    @torch.no_grad()
    def start(self, prompts: dict[str, list[int]]) -> list[Tensor]:
        p = len(self.prefix)
        for name, ids in prompts.items():
            key = tuple(ids)
            if key not in self._prompts:
                after = 0 < p < len(ids) and ids[:p] == self.prefix
                self._prompts[key] = self._prefill(ids[p:], self._prefix_keys) if after else self._prefill(ids, [])
            self._prompt_of[name] = key
            self._parked[name] = self._prompts[key][0]
        return [self._prompts[tuple(ids)][1] for ids in prompts.values()]

    @torch.no_grad()
    def extend(self, names: list[str], tokens: list[list[int]]) -> Tensor:
        if names != self._batch:
            self._gather(names)
        logits = self.lm.cached_logits(torch.tensor(tokens), self._lengths, self._cache)
        self._lengths = self._lengths + len(tokens[0])
        return logits

    def logits(self, states: Tensor) -> Tensor:
        return states

    def leave(self, name: str) -> None:
        self._parked.pop(name, None)
        self._batch = [None if n == name else n for n in self._batch]
        gone = self._prompt_of.pop(name)
        if gone not in self._prompt_of.values():
            del self._prompts[gone]

    def _gather(self, names: list[str]) -> None:
        """Make these rows the batch; rows that drop out of it are parked."""
        rows = dict(zip(self._batch, split(self._cache, self._lengths.tolist()), strict=True)) if self._batch else {}
        for name, row in rows.items():
            if name is not None and name not in names:
                self._parked[name] = kept(row)
        company = [rows[n] if n in rows else self._parked.pop(n) for n in names]
        self._cache = join(company)
        self._batch, self._lengths = list(names), torch.tensor([row[0][0].shape[2] for row in company])


class WholeMemory:
    """A `Memory` of nothing but ids: each step computes every row from its start."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm

    @property
    def vocabulary(self) -> int:
        return self.lm.vocabulary

    def reset(self) -> None:
        self._ids: dict[str, list[int]] = {}

    def start(self, prompts: dict[str, list[int]]) -> list[Tensor]:
        self._ids.update({name: list(ids) for name, ids in prompts.items()})
        distinct = list({tuple(ids): ids for ids in prompts.values()}.values())
        logits = self._next(distinct)
        return [logits[distinct.index(ids)] for ids in prompts.values()]

    def extend(self, names: list[str], tokens: list[list[int]]) -> Tensor:
        for name, new in zip(names, tokens, strict=True):
            self._ids[name] += new
        return self._next([self._ids[n] for n in names])

    def logits(self, states: Tensor) -> Tensor:
        return states

    def leave(self, name: str) -> None:
        del self._ids[name]

    @torch.no_grad()
    def _next(self, rows: list[list[int]]) -> Tensor:
        out: dict[int, Tensor] = {}
        for batch in batches([len(r) for r in rows]):
            out.update(zip(batch, self.lm.next_logits([rows[i] for i in batch]), strict=True))
        return torch.stack([out[i] for i in range(len(rows))])


class TransformersEngine(SamplerEngine):
    """`cached`: rows are decoded on kept keys and values, not computed whole at every step."""

    def __init__(
        self, lm: CausalLM, *, prefix: list[int], stop_ids: tuple[int, ...], rows: int = 64, threads: int = 1
    ) -> None:
        with torch.no_grad():
            self.cached = lm.caches_plainly()
        memory = CachedMemory(lm, prefix) if self.cached else WholeMemory(lm)
        super().__init__(memory, stop_ids=stop_ids, rows=rows, threads=threads)
