"""Posterior: what k successes of n rollouts say about a pass rate. Beta(k + prior, n − k + prior), no dependency.

The regularised incomplete beta function I_x(a, b) is the continued fraction of Numerical Recipes §6.4 (modified
Lentz).
"""

from __future__ import annotations

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

JEFFREYS = 0.5
UNIFORM = 1.0


def incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast below the mean only
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0), tiny)
    h = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d, tiny)
            c = _away(1.0 + term / c, tiny)
            h *= d * c
        if abs(d * c - 1.0) < 1e-14:
            break
    return math.exp(log_front) * h / a


def _away(x: float, tiny: float) -> float:
    return x if abs(x) > tiny else tiny


class Posterior(BaseModel):
    """Beta(alpha, beta) over the pass rate p."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float = Field(gt=0)
    beta: float = Field(gt=0)

    @classmethod
    def of(cls, k: int, n: int, prior: float) -> Posterior:
        if not 0 <= k <= n:
            raise ValueError(f"{k} successes of {n} trials")
        return cls(alpha=k + prior, beta=n - k + prior)

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def prob_between(self, low: float, high: float) -> float:
        """P(low ≤ p ≤ high)."""
        return incomplete_beta(self.alpha, self.beta, high) - incomplete_beta(self.alpha, self.beta, low)


class AdmissionRule(BaseModel):
    """low < p̂ < high (``≤ high`` where the bound is below 1), and P(p ≤ high) at least ``confidence``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float = Field(0.0, ge=0, le=1)
    high: float = Field(1.0, ge=0, le=1)
    target: float = Field(0.5, ge=0, le=1, description="Tasks whose screen came nearest to it are confirmed first.")
    confidence: float = Field(0.0, ge=0, lt=1, description="Where high < 1: P(p <= high) must reach this.")
    prior: float = Field(JEFFREYS, gt=0, description="0.5 is Jeffreys', 1 is uniform.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"admission rule: low {self.low} is not below high {self.high}")
        return self

    def above(self, k: int, n: int) -> bool:
        """Too easy."""
        if k == n or k / n > self.high:
            return True
        return self.high < 1.0 and Posterior.of(k, n, self.prior).prob_between(0.0, self.high) < self.confidence

    def below(self, k: int, n: int) -> bool:
        """Too hard."""
        return k == 0 or k / n <= self.low


LEARNABLE = AdmissionRule.model_validate({})
ITERATION_5 = AdmissionRule.model_validate({"high": 0.5})


def admits(k: int, n: int, rule: AdmissionRule) -> bool:
    return n > 0 and not rule.above(k, n) and not rule.below(k, n)
