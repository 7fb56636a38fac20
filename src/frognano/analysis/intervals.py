"""Intervals for solve rates.

Tasks made from one function resemble each other, so trials are not independent: resampling whole functions with
replacement (the cluster bootstrap, percentile interval) is honest about that where a binomial interval is too narrow.
Of few clusters a percentile interval is too narrow itself, so its percentiles are taken further out (see `_tail`).
A bootstrap of only successes or only failures has no width at all, nor has one of a single cluster; there the Wilson
interval over the number of clusters stands in, and for a difference Newcombe's, of two Wilson intervals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

RESAMPLES = 2000


class Interval(NamedTuple):
    estimate: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """``f"{interval:%}"`` → ``45.5 % (38.1–52.9)``."""
        if spec == "%":
            return f"{100 * self.estimate:.1f} % ({100 * self.low:.1f}–{100 * self.high:.1f})"
        return f"{self.estimate:{spec}} ({self.low:{spec}}–{self.high:{spec}})"


class Trial(NamedTuple):
    """One counted rollout. ``cluster`` is the function that the task's bug sits in (``Task.group``)."""

    task_id: str
    cluster: str
    resolved: bool


def wilson(k: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of k successes in n independent trials; without trials, everything is possible."""
    if not 0 <= k <= n:
        raise ValueError(f"{k} successes of {n} trials")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = k / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, 0.0 if k == 0 else max(0.0, middle - half), 1.0 if k == n else min(1.0, middle + half))


def cluster_rate(
    trials: Iterable[Trial], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The share of resolved trials, with an interval over clusters."""
    counts = list(_counts(trials).values())
    k, n = sum(k for k, _ in counts), sum(n for _, n in counts)
    if k in (0, n) or len(counts) < 2:
        _, low, high = wilson(round(len(counts) * k / n) if n else 0, len(counts), level)
        return Interval(k / n if n else math.nan, low, high)
    rates = sorted(
        sum(counts[i][0] for i in drawn) / sum(counts[i][1] for i in drawn)
        for drawn in _resampled(len(counts), resamples, seed)
    )
    return Interval(k / n, *_percentiles(rates, level, len(counts)))


def cluster_difference(
    before: Iterable[Trial], after: Iterable[Trial], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """rate(after) − rate(before) on the same tasks: each resample draws the same clusters for both."""
    before, after = list(before), list(after)
    if {t.task_id for t in before} != {t.task_id for t in after}:
        raise ValueError("a paired difference needs the same tasks on both sides")
    a, b = _counts(before), _counts(after)
    rows = [(*a[cluster], *b[cluster]) for cluster in a]
    if not rows:
        return Interval(math.nan, -1.0, 1.0)

    def difference(drawn: Sequence[int]) -> float:
        ka, na, kb, nb = (sum(rows[i][column] for i in drawn) for column in range(4))
        return kb / nb - ka / na

    ka, na, kb, nb = map(sum, zip(*rows, strict=True))
    if len(rows) < 2 or (ka in (0, na) and kb in (0, nb)):
        return _newcombe(cluster_rate(before, level=level), cluster_rate(after, level=level))
    differences = sorted(difference(drawn) for drawn in _resampled(len(rows), resamples, seed))
    return Interval(difference(range(len(rows))), *_percentiles(differences, level, len(rows)))


def _newcombe(before: Interval, after: Interval) -> Interval:
    """Newcombe 1998, Statistics in Medicine 17:873, method 10. For independent rates: for paired ones on the wide side."""
    change = after.estimate - before.estimate
    down = math.hypot(after.estimate - after.low, before.high - before.estimate)
    up = math.hypot(after.high - after.estimate, before.estimate - before.low)
    return Interval(change, max(-1.0, change - down), min(1.0, change + up))


def _counts(trials: Iterable[Trial]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for trial in trials:
        k, n = counts.get(trial.cluster, (0, 0))
        counts[trial.cluster] = (k + trial.resolved, n + 1)
    return counts


def _resampled(size: int, resamples: int, seed: int) -> Iterable[list[int]]:
    source, population = random.Random(seed), range(size)
    return (source.choices(population, k=size) for _ in range(resamples))


def _percentiles(ordered: Sequence[float], level: float, clusters: int) -> tuple[float, float]:
    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    tail = _tail(level, clusters)
    return at(tail), at(1 - tail)


def student_t(level: float, v: int) -> float:
    """The two-sided quantile of Student's t with v degrees of freedom: exact for 1 and 2, then its expansion in 1/v
    (Abramowitz and Stegun 26.7.5), 4 % low for 3 and 1 % for 5."""
    if v == 1:
        return math.tan(math.pi * level / 2)
    if v == 2:
        return level * math.sqrt(2 / (1 - level**2))
    z = NormalDist().inv_cdf((1 + level) / 2)
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    return t + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)


def _tail(level: float, n: int) -> float:
    """The share below a percentile interval that is as wide as one by Student's t with n − 1 degrees of freedom and a variance
    over n − 1, of n clusters: Hesterberg 2015, The American Statistician 69:371, "expanded percentile"."""
    v = n - 1
    return NormalDist().cdf(-student_t(level, v) * math.sqrt(n / v))
