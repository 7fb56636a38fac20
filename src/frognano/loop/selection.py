"""Which checkpoint an iteration hands on, from few and noisy validation rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence


def select(scores: Sequence[tuple[str, float]], trials: int) -> str:
    """The latest version whose rate is not below the best by more than one standard error of their difference; `scores` in
    the order of training.

    In the spirit of the one-standard-error rule of Breiman et al., Classification and Regression Trees (1984), with the
    longest-trained policy where theirs has the simplest: 2 of 32 after 4 of 32 is no reason to throw an iteration's learning
    away, 1 of 32 is. ValueError without scores or trials.
    """
    if not scores or trials < 1:
        raise ValueError(f"{len(scores)} scores of {trials} trials: at least one each is needed to select a checkpoint")
    best = max(rate for _, rate in scores)

    def no_worse(rate: float) -> bool:
        return best - rate <= math.sqrt((best * (1 - best) + rate * (1 - rate)) / trials)

    return next(version for version, rate in reversed(scores) if no_worse(rate))
