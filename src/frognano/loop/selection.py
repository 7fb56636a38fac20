"""Which checkpoint an iteration hands on, from few and noisy validation rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence


def select(scores: Sequence[tuple[str, float]], trials: int) -> str:
    """The latest version within one standard error of the best rate; `scores` in the order of training.

    The one-standard-error rule of Breiman et al., Classification and Regression Trees (1984), with the longest-trained
    policy where theirs has the simplest: 3 of 32 after 4 of 32 is no reason to throw an iteration's learning away, 0 of 32
    after 8 is. ValueError without scores or trials.
    """
    if not scores or trials < 1:
        raise ValueError(f"{len(scores)} scores of {trials} trials: at least one each is needed to select a checkpoint")
    best = max(rate for _, rate in scores)
    error = math.sqrt(best * (1 - best) / trials)
    return next(version for version, rate in reversed(scores) if rate >= best - error)
