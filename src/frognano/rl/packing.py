"""Packing: kept groups become micro-batches in which nothing shared is computed twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frognano.models.packed import Packed, Row, common_prefix
from frognano.records import Sample
from frognano.rl.groups import Group, advantages


@dataclass(frozen=True)
class MicroBatch:
    """`logq` and `advantage` [targets] lie in the order in which `packed` gives its targets."""

    packed: Packed
    logq: Tensor
    advantage: Tensor
    temperature: float


def micro_batches(groups: Sequence[Group], max_tokens: int) -> Iterator[MicroBatch]:
    """Groups of like length together, at most `max_tokens` in a forward (a single larger group still goes whole).

    All have the prefix that `static_prefix` gives, so that its states can be shared.
    """
    shared = len(static_prefix(groups))
    order = sorted(groups, key=lambda g: max(len(s.response_ids) for s in g.samples))
    batch: list[Group] = []
    for group in order:
        if batch and pack([*batch, group], shared).packed.tokens > max_tokens:
            yield pack(batch, shared)
            batch = []
        batch.append(group)
    if batch:
        yield pack(batch, shared)


def static_prefix(groups: Sequence[Group]) -> list[int]:
    """What the prompts of all groups begin with, short of the whole of any of them."""
    prompts = list({s.prompt_ids for g in groups for s in g.samples})
    return list(prompts[0][: common_prefix(prompts)]) if prompts else []


def pack(groups: Sequence[Group], shared: int | None = None) -> MicroBatch:
    """Samples with one prompt share it; the first `shared` tokens, by default all that the prompts begin with, are held once.
    One temperature for all."""
    by_prompt: dict[tuple[int, ...], list[tuple[Sample, float]]] = {}
    for group in groups:
        for sample, advantage in zip(group.samples, advantages(group), strict=True):
            by_prompt.setdefault(sample.prompt_ids, []).append((sample, advantage))
    temperatures = {s.temperature for rows in by_prompt.values() for s, _ in rows}
    if len(temperatures) != 1:
        raise ValueError(f"samples of different temperatures in one batch: {sorted(temperatures)}")
    shared = common_prefix(list(by_prompt)) if shared is None else shared
    logq: list[float] = []
    advantage_of: list[float] = []
    for rows in by_prompt.values():
        for sample, advantage in rows:
            kept = [q for q, trained in zip(sample.logprobs, sample.loss_mask, strict=True) if trained]
            logq += kept
            advantage_of += [advantage] * len(kept)
    packed = Packed(
        prefix=list(next(iter(by_prompt))[:shared]),
        prompts=[list(p[shared:]) for p in by_prompt],
        rows=[[Row(s.response_ids, s.loss_mask) for s, _ in rows] for rows in by_prompt.values()],
    )
    return MicroBatch(packed, torch.tensor(logq), torch.tensor(advantage_of), temperatures.pop())
