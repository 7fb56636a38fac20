"""What all trajectories begin with, computed once: keys and values of the static prefix in every layer.

No token of a prefix sees anything behind it, so its states are the same in every micro-batch of an update, and those of the
frozen layers the same in every update. The gradient is that of computing it anew in each: micro-batches add up theirs by the
keys and values, and one backward pass carries the sums through the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from frognano.models.attention import attention
from frognano.models.llama import LlamaWeights, block, heads, rope_table


@dataclass(frozen=True)
class PrefixStates:
    """`keys` and `values`: [P, K, E] a layer. `middle` [P, D]: what the lowest layer that learns takes in."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    middle: Tensor


def prefix_states(
    weights: LlamaWeights, ids: list[int], frozen_layers: int, known: PrefixStates | None = None
) -> PrefixStates:
    """The states of P tokens, with gradient in the layers that learn.

    `known`: earlier states of the same tokens, whose frozen layers still hold.
    """
    c, grad, keys, values = weights.config, torch.is_grad_enabled(), [], []
    cos, sin = rope_table(c, len(ids), weights.embedding.dtype)
    cos, sin = cos[:, None], sin[:, None]
    see = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys.append(k)
        values.append(v)
        return attention(q.unflatten(1, (c.kv_heads, -1))[None], k[None], v[None], see)[0] if ids else q.flatten(1)

    if known is None:
        with torch.set_grad_enabled(grad and frozen_layers == 0):
            x = middle = F.embedding(torch.tensor(ids, dtype=torch.long), weights.embedding)
    else:
        x = middle = known.middle
        keys, values = list(known.keys[:frozen_layers]), list(known.values[:frozen_layers])
    for i in range(len(keys), c.layers):
        with torch.set_grad_enabled(grad and i >= frozen_layers):
            if i == frozen_layers:
                middle = x
            if i < c.layers - 1:
                x = block(c, weights.layers[i], x, cos, sin, attend)
            else:  # what comes out of the last layer is asked for by nobody
                _, k, v = heads(c, weights.layers[i], x, cos, sin)
                keys.append(k)
                values.append(v)
    return PrefixStates(tuple(keys), tuple(values), middle)


class PrefixCache:
    """Gives the states of a prefix to all micro-batches of an update; between updates it keeps those of the frozen layers."""

    def __init__(self, weights: LlamaWeights, frozen_layers: int) -> None:
        self.weights, self.frozen_layers = weights, frozen_layers
        self._ids: list[int] | None = None
        self._frozen: PrefixStates | None = None
        self._shared: PrefixStates | None = None

    def states(self, ids: list[int]) -> PrefixStates | None:
        """The shared states, inside `sharing` of just these tokens."""
        return self._shared if self._shared is not None and ids == self._ids else None

    @contextmanager
    def sharing(self, ids: list[int]) -> Iterator[None]:
        """Inside, micro-batches that begin with `ids` share its states. The backward pass through them runs at the end, none
        after an exception."""
        n = self.frozen_layers
        states = prefix_states(self.weights, ids, n, self._frozen if ids == self._ids else None)
        self._ids = list(ids)
        self._frozen = PrefixStates(states.keys[:n], states.values[:n], states.middle.detach()) if n else None
        made = [z for z in (*states.keys[n:], *states.values[n:]) if z.requires_grad]
        leaves = {id(z): z.detach().requires_grad_() for z in made}
        keys, values = (tuple(leaves.get(id(z), z) for z in zs) for zs in (states.keys, states.values))
        self._shared = PrefixStates(keys, values, states.middle)
        try:
            yield
        finally:
            self._shared = None
        reached = [(z, leaves[id(z)].grad) for z in made if leaves[id(z)].grad is not None]
        if reached:
            torch.autograd.backward([z for z, _ in reached], [g for _, g in reached])
