"""What every record of sampled tokens must satisfy before anything is learned from it."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check_tokens(ids: Sequence[int], loss_mask: Sequence[int], logprobs: Sequence[float]) -> None:
    """Ids, mask and log-probs lie side by side; only sampled tokens carry a log-prob, and it is that of a probability."""
    if not len(ids) == len(loss_mask) == len(logprobs):
        raise ValueError(f"{len(ids)} ids, {len(loss_mask)} mask, {len(logprobs)} log-probs")
    for mask, logprob in zip(loss_mask, logprobs, strict=True):
        if mask not in (0, 1):
            raise ValueError(f"loss mask holds {mask}, allowed are 0 and 1")
        if mask == 0 and logprob != 0.0:
            raise ValueError("an observation token carries a log-prob")
        if not (math.isfinite(logprob) and logprob <= 1e-6):
            raise ValueError(f"log-prob {logprob} is not that of a probability")
