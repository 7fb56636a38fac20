"""Intervals cover the truth as often as they say, also when tasks of one function stand or fall together."""

from __future__ import annotations

import math
import random
import time
from statistics import NormalDist

import pytest

from frognano.analysis.intervals import Interval, Trial, _tail, cluster_difference, cluster_rate, student_t, wilson


def trials(outcomes: dict[str, list[int]]) -> list[Trial]:
    return [Trial(f"{c}{i}", c, bool(x)) for c, xs in outcomes.items() for i, x in enumerate(xs)]


def test_wilson_against_published_values():
    # Newcombe 1998, table I: 81/263 and 0/20, 1/29
    assert wilson(81, 263)[1:] == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20)[1:] == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29)[1:] == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert math.isnan(wilson(0, 0).estimate)


def test_one_trial_a_cluster_agrees_with_the_binomial():
    interval = cluster_rate(trials({f"f{i}": [i % 4 == 0] for i in range(200)}))
    assert interval.estimate == 0.25
    assert interval[1:] == pytest.approx(wilson(50, 200)[1:], abs=0.015)


def test_clusters_that_stand_or_fall_together_widen_the_interval():
    together = cluster_rate(trials({f"f{i}": [i % 2] * 10 for i in range(20)}))
    apart = cluster_rate(trials({f"f{i}": [1, 0] * 5 for i in range(20)}))
    assert together.high - together.low > 0.35
    assert apart.high - apart.low < 0.01


def test_coverage_is_about_what_it_says():
    source, covered = random.Random(3), 0
    for seed in range(200):
        ps = [source.betavariate(1, 3) for _ in range(40)]
        sample = trials({f"f{i}": [source.random() < p for _ in range(3)] for i, p in enumerate(ps)})
        interval = cluster_rate(sample, resamples=300, seed=seed)
        covered += interval.low <= 0.25 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_few_repositories_of_unlike_size_look_certain():
    """Eight, with as many tasks as those of the held-out set; 2.5 and 97.5 alone covered 0.87."""
    source, covered, sizes = random.Random(5), 0, (2, 5, 1, 22, 10, 30, 35, 5)
    for seed in range(400):
        ps = [source.betavariate(3.6, 9.4) for _ in sizes]
        sample = trials(
            {f"r{i}": [source.random() < p for _ in range(n)] for i, (n, p) in enumerate(zip(sizes, ps, strict=True))}
        )
        interval = cluster_rate(sample, resamples=300, seed=seed)
        covered += interval.low <= 3.6 / 13 <= interval.high
    assert 0.90 <= covered / 400 <= 0.98


@pytest.mark.parametrize(("n", "t"), [(4, 3.1824), (8, 2.3646), (72, 1.9939)])
def test_percentiles_are_those_of_student(n: int, t: float):
    assert -NormalDist().inv_cdf(_tail(0.95, n)) == pytest.approx(t * math.sqrt(n / (n - 1)), rel=0.01)


@pytest.mark.parametrize("outcome", [0, 1])
def test_all_alike_still_has_a_width(outcome: int):
    interval = cluster_rate(trials({f"f{i}": [outcome] * 4 for i in range(10)}))
    assert interval.estimate == outcome
    assert interval.high - interval.low == pytest.approx(0.2775, abs=0.001)


def test_a_paired_difference_is_narrower_than_two_separate_rates():
    before = trials({f"f{i}": [i % 2] * 3 for i in range(40)})
    after = [t._replace(resolved=t.resolved or t.cluster.endswith("4")) for t in before]
    difference = cluster_difference(before, after)
    assert difference.estimate == pytest.approx(0.1)
    assert 0 < difference.low < 0.1 < difference.high < 0.25
    with pytest.raises(ValueError, match="same tasks"):
        cluster_difference(before, after[1:])


@pytest.mark.parametrize("outcomes", [(0, 0), (0, 1), (1, 1)])
def test_a_difference_without_spread_is_not_certain(outcomes: tuple[int, int]):
    before, after = (trials({f"f{i}": [x] * 4 for i in range(10)}) for x in outcomes)
    difference = cluster_difference(before, after)
    assert difference.estimate == outcomes[1] - outcomes[0]
    assert 0.25 < difference.high - difference.low < 0.6
    assert -1 <= difference.low <= difference.estimate <= difference.high <= 1
    if outcomes == (0, 0):
        assert difference[1:] == pytest.approx((-wilson(0, 10).high, wilson(0, 10).high))


def test_a_difference_of_one_repository_is_not_certain():
    difference = cluster_difference(trials({"f": [1, 0, 0, 0]}), trials({"f": [1, 1, 1, 0]}))
    assert difference.estimate == 0.5
    assert difference.high - difference.low > 0.7


def test_seeded_and_fast():
    sample = trials({f"f{i}": [i % 3 == 0] * 2 for i in range(100)})
    start = time.process_time()
    assert cluster_rate(sample) == cluster_rate(sample)
    assert time.process_time() - start < 1.5
    assert f"{Interval(0.455, 0.381, 0.529):%}" == "45.5 % (38.1–52.9)"


def test_nothing_measured_is_nan_not_zero():
    assert math.isnan(cluster_rate([]).estimate)


@pytest.mark.parametrize(("v", "told"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042)])  # a table of Student's t
def test_three_seeds_are_taken_for_thirty(v: int, told: float):
    assert student_t(0.95, v) == pytest.approx(told, rel=0.012)
