"""Which groups teach, and what each of their samples is worth."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frognano.records import Sample
from frognano.rl.groups import EPS, Group, advantages, signal, split
from models.tiny import sample


def one(trajectory: str, raw: float, shaped: float | None = None, group: str = "g") -> Sample:
    return sample([1], [2, 3], [1, 1], trajectory=trajectory, group=group, raw=raw, reward=shaped)


def group_of(*rewards: float, shaped: list[float] | None = None) -> Group:
    shaped = shaped or list(rewards)
    return Group("g", tuple(one(f"t{i}", r, s) for i, (r, s) in enumerate(zip(rewards, shaped, strict=True))))


def test_forked_trajectory_counts_once_for_each_sample() -> None:
    """[1, 1, 1, 0] where three are one trajectory: baseline 0.5."""
    group = Group("g", (one("a", 1), one("a", 1), one("a", 1), one("b", 0)))
    std = statistics.stdev([1, 0])
    assert advantages(group) == pytest.approx([0.5 / (std + EPS)] * 3 + [-0.5 / (std + EPS)])
    assert signal(group) == "kept"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_advantage_is_not_its_equation(rewards: list[float]) -> None:
    got = advantages(group_of(*rewards))
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    assert got == pytest.approx([(r - mean) / (std + 1e-6) for r in rewards], rel=1e-6, abs=1e-6)


def test_std_is_taken_with_n() -> None:
    assert advantages(group_of(1, 0))[0] == pytest.approx(0.5 / (0.5**0.5 + EPS))


@pytest.mark.parametrize(
    ("raw", "shaped", "verdict"),
    [
        ([1] * 8, [1, 0.9, 0.8, 0.7, 1, 1, 0.6, 1], "all1"),  # lengths differ, successes do not
        ([1, 1], [1.0, 0.5], "all1"),
        ([0] * 8, [0] * 8, "all0"),
        ([0.7] * 8, [0.7] * 8, "all1"),
        ([0.1 + 0.2, 0.3], [0.3, 0.3], "all0"),  # equal up to floating point
        ([1], [1], "too_small"),
        ([], [], "too_small"),
        ([1, 0], [0.5, 0], "kept"),
    ],
)
def test_constant_group_slips_through(raw: list[float], shaped: list[float], verdict: str) -> None:
    assert signal(group_of(*raw, shaped=shaped)) == verdict


def test_one_usable_reward_gives_a_nan() -> None:
    """One of eight survived the infrastructure; also when it forked."""
    group = Group("g", (one("a", 1), one("a", 1)))
    assert signal(group) == "too_small"
    with pytest.raises(ValueError, match="two trajectories"):
        advantages(group)


def test_samples_of_one_trajectory_disagree_about_its_reward() -> None:
    with pytest.raises(ValueError, match="different rewards"):
        Group("g", (one("a", 1), one("a", 0)))
    with pytest.raises(ValueError, match="different rewards"):
        Group("g", (one("a", 1, 1.0), one("a", 1, 0.9)))


def test_sample_lands_in_another_group() -> None:
    with pytest.raises(ValueError, match="group h in group g"):
        Group("g", (one("a", 1, group="h"),))


def test_a_group_is_lost_or_counted_twice() -> None:
    groups = [group_of(1, 0), group_of(0, 0), group_of(1, 1), group_of(1)]
    parts = split(groups)
    assert {k: len(v) for k, v in parts.items()} == {"kept": 1, "all0": 1, "all1": 1, "too_small": 1}
