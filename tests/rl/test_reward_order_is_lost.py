"""Success > truncated but correct > failure, whatever the lengths; raw and shaped are two things."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from frognano.records import ExitReason, Status, Verdict
from frognano.rl.reward import RewardConfig, efficiency, raw_reward, shaped_reward
from frognano.rl.samples import make_group
from rl.graded import GRADED, run

WON, LOST = Verdict(status=Status.RESOLVED), Verdict(status=Status.NOT_RESOLVED)
CUT = [r for r in ExitReason if r.truncated]
LENGTH = st.integers(0, 10**7)
CONFIGS = st.builds(
    RewardConfig,
    alpha=st.floats(0, 1e6),
    floor=st.floats(0.5, 1, exclude_min=True),
    efficiency_from_iteration=st.integers(1, 5),
)


@given(CONFIGS, LENGTH, LENGTH, LENGTH, st.integers(1, 6), st.none() | st.integers(1, 10**6), st.sampled_from(CUT))
def test_order_depends_on_length(
    config: RewardConfig, a: int, b: int, c: int, iteration: int, n: int | None, cut: ExitReason
) -> None:
    def worth(tokens: int, reason: ExitReason, verdict: Verdict) -> float:
        return shaped_reward(run(tokens=tokens, reason=reason), verdict, config, iteration, n)

    success, truncated = worth(a, ExitReason.AGENT, WON), worth(b, cut, WON)
    assert 1 >= success > truncated > 0
    assert truncated == 0.5
    for reason in GRADED:
        assert worth(c, reason, LOST) == 0  # among failures length changes nothing


@pytest.mark.parametrize("floor", [0.5, 0.49, 0.0, -1.0, 1.01, math.nan])
def test_floor_that_breaks_the_order_is_accepted(floor: float) -> None:
    with pytest.raises(ValidationError):
        RewardConfig(floor=floor)


def test_efficiency_has_other_values_than_its_equation() -> None:
    assert efficiency(0, 100, 0.1, 0.6) == 1.0
    assert efficiency(100, 100, 0.1, 0.6) == 1.0
    assert efficiency(101, 100, 0.1, 0.6) < 1.0
    assert efficiency(200, 100, 0.1, 0.6) == pytest.approx(1 - 0.1 * math.log(2))
    assert efficiency(10**9, 100, 0.1, 0.6) == 0.6
    assert efficiency(10**9, 100, 0.0, 0.6) == 1.0


@given(LENGTH, LENGTH, st.integers(1, 10**6))
def test_longer_success_earns_more(a: int, b: int, threshold: int) -> None:
    assert (efficiency(a, threshold, 0.1, 0.6) >= efficiency(b, threshold, 0.1, 0.6)) is (a <= b) or (
        efficiency(a, threshold, 0.1, 0.6) == efficiency(b, threshold, 0.1, 0.6)
    )


def test_length_counts_before_its_iteration_or_without_a_threshold() -> None:
    config = RewardConfig()
    long = run(tokens=10_000)
    assert shaped_reward(long, WON, config, 2, 100) == 1.0
    assert shaped_reward(long, WON, config, 3, 100) < 1.0
    assert shaped_reward(long, WON, config, 3, None) == 1.0


def test_infrastructure_error_is_trained_as_a_failure() -> None:
    broken = Verdict(status=Status.INFRASTRUCTURE_ERROR)
    with pytest.raises(ValueError, match="leave the trajectory out"):
        raw_reward(broken)
    group = make_group("g", [(run("a"), WON), (run("b"), broken), (run("c"), LOST)], RewardConfig(), 1, None)
    assert [(s.trajectory_id, s.raw_reward) for s in group.samples] == [("a", 1.0), ("c", 0.0)]


def test_sample_loses_ids_mask_or_probabilities_on_the_way() -> None:
    trajectory = run("a", segments=2, reason=ExitReason.MAX_TURNS)
    group = make_group("g", [(trajectory, WON)], RewardConfig(), 1, None)
    assert len(group.samples) == 2
    for sample, segment in zip(group.samples, trajectory.segments, strict=True):
        assert sample.prompt_ids == segment.prompt_ids
        assert sample.response_ids == segment.ids
        assert sample.loss_mask == segment.loss_mask
        assert sample.logprobs == segment.logprobs
        assert (sample.raw_reward, sample.reward, sample.truncated) == (1.0, 0.5, True)
        assert sample.temperature == trajectory.temperature
        assert sample.policy == trajectory.policy


def test_run_without_token_ids_is_trained_on() -> None:
    with pytest.raises(ValueError, match="no token ids"):
        make_group("g", [(run("a", segments=0), WON)], RewardConfig(), 1, None)


def test_shuffled_rewards_still_tell_who_won() -> None:
    """The control's rewards: the same ones in each group, dealt out without looking, and the same after a restart."""
    rollouts = [(run(f"t{i}"), WON if i < 4 else LOST) for i in range(8)]
    config = RewardConfig(shuffle=True)
    correct = 0
    for g in range(200):
        dealt = make_group(f"g{g}", rollouts, config, 1, None).rewards()
        assert dealt == make_group(f"g{g}", rollouts, config, 1, None).rewards()
        assert sorted(dealt.values()) == [(0.0, 0.0)] * 4 + [(1.0, 1.0)] * 4
        correct += sum(dealt[f"t{i}"][0] == (i < 4) for i in range(8))
    assert 0.45 < correct / 1600 < 0.55
