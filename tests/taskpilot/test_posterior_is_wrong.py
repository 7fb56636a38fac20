"""The Beta posterior against a numeric integral, and what a rule lets through."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frognano.taskpilot.posterior import ITERATION_5, LEARNABLE, AdmissionRule, Posterior, admits, incomplete_beta


def integral(a: float, b: float, low: float, high: float, steps: int = 20_000) -> float:
    log_b = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    f = lambda x: math.exp((a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_b)
    h = (high - low) / steps
    return sum(f(low + (i + 0.5) * h) for i in range(steps)) * h


@given(k=st.integers(0, 16), more=st.integers(0, 16), low=st.floats(0.05, 0.5), width=st.floats(0.01, 0.44))
@settings(max_examples=25, deadline=None)
def test_mass_of_an_interval_equals_the_integral(k: int, more: int, low: float, width: float) -> None:
    p = Posterior.of(k, k + more, 0.5)
    assert p.prob_between(low, low + width) == pytest.approx(integral(p.alpha, p.beta, low, low + width), abs=1e-6)


@given(a=st.floats(0.5, 300), b=st.floats(0.5, 300), x=st.floats(0.001, 0.999))
def test_the_beta_function_is_symmetric_and_within_bounds(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) + incomplete_beta(b, a, 1 - x) == pytest.approx(1.0, abs=1e-9)
    assert -1e-12 <= incomplete_beta(a, b, x) <= 1 + 1e-12


def test_known_values() -> None:
    assert incomplete_beta(1, 1, 0.3) == pytest.approx(0.3)
    assert incomplete_beta(2, 2, 0.5) == pytest.approx(0.5)
    assert Posterior.of(3, 4, 1.0).mean == pytest.approx(4 / 6)


def test_rules_admit_the_open_band_and_the_closed_half() -> None:
    assert [k for k in range(9) if admits(k, 8, LEARNABLE)] == [1, 2, 3, 4, 5, 6, 7]
    assert [k for k in range(9) if admits(k, 8, ITERATION_5)] == [1, 2, 3, 4]
    strict = AdmissionRule.model_validate({"high": 0.5, "confidence": 0.8})
    assert [k for k in range(9) if admits(k, 8, strict)] == [1, 2]
    assert not admits(0, 0, LEARNABLE)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="9 successes of 8"):
        Posterior.of(9, 8, 0.5)
