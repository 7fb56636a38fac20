"""Keys and values of single rows, taken out of a batch's cache and put together again in any company.

A batch pads its rows on the left, so that each row's keys stay in one piece: windows and distances count slots, not positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

RowKeys = list[tuple[Tensor, Tensor]]
"""Per layer: keys and values of one row, each [1, K, n, E]."""


def split(cache: Any, lengths: Sequence[int]) -> list[RowKeys]:
    """The rows of a transformers DynamicCache, of which row i holds `lengths[i]` tokens at its end; views, not copies."""

    def row(z: Tensor, i: int, length: int) -> Tensor:
        return z[i : i + 1, :, z.shape[2] - length :]

    return [
        [(row(layer.keys, i, length), row(layer.values, i, length)) for layer in cache.layers]
        for i, length in enumerate(lengths)
    ]


def join(rows: Sequence[RowKeys]) -> Any:
    """A DynamicCache of full layers that holds these rows, padded on the left. None of them is changed by its growth."""
    from transformers import DynamicCache

    width = max(row[0][0].shape[2] for row in rows)

    def padded(z: Tensor) -> Tensor:
        return pad(z, (0, 0, width - z.shape[2], 0))

    cache: Any = DynamicCache()
    for i, layer in enumerate(zip(*rows, strict=True)):
        cache.update(torch.cat([padded(k) for k, _ in layer]), torch.cat([padded(v) for _, v in layer]), i)
    return cache


def kept(row: RowKeys) -> RowKeys:
    """A copy that does not hold the rest of its batch in memory."""
    return [(k.clone(), v.clone()) for k, v in row]
