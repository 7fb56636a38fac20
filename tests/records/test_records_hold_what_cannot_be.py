"""Token records refuse what no sampler gives, so that no trainer learns from it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from frognano.records import ExitReason, Sample, Segment, TrajectoryBuilder

BAD = [
    pytest.param((1, 2), (1, 1, 1), (-1.0, -1.0), "mask", id="mask longer than the ids"),
    pytest.param((1, 2), (1,), (-1.0, -1.0), "mask", id="mask shorter"),
    pytest.param((1, 2), (1, 1), (-1.0,), "log-probs", id="log-prob missing"),
    pytest.param((1, 2), (1, 1), (-1.0, math.nan), "nan", id="NaN"),
    pytest.param((1, 2), (1, 1), (-1.0, -math.inf), "inf", id="probability zero"),
    pytest.param((1, 2), (1, 1), (-1.0, 0.1), "0.1", id="probability above one"),
    pytest.param((1, 2), (1, 0), (-1.0, -1.0), "observation", id="log-prob on an observation"),
    pytest.param((1, 2), (1, 2), (-1.0, -1.0), "0 and 1", id="mask that is none"),
]


def segment(ids: Any, mask: Any, logprobs: Any) -> Segment:
    return Segment(prompt_ids=(1,), ids=ids, loss_mask=mask, logprobs=logprobs)


def make_sample(ids: Any, mask: Any, logprobs: Any, **other: Any) -> Sample:
    fields = {
        **{"trajectory_id": "t", "group_id": "g", "policy": "pi0", "prompt_ids": (1,), "response_ids": ids},
        **{"loss_mask": mask, "logprobs": logprobs, "temperature": 0.7, "truncated": False},
        **{"raw_reward": 1.0, "reward": 1.0},
    }
    return Sample.model_validate({**fields, **other})


@pytest.mark.parametrize("make", [segment, make_sample])
@pytest.mark.parametrize(("ids", "mask", "logprobs", "message"), BAD)
def test_tokens_mask_and_probabilities_do_not_belong_together(
    make: Any, ids: Any, mask: Any, logprobs: Any, message: str
) -> None:
    assert make((1, 2), (1, 0), (-1.0, 0.0))
    with pytest.raises(ValidationError, match=message):
        make(ids, mask, logprobs)


@pytest.mark.parametrize(
    "other", [{"temperature": 0}, {"prompt_ids": ()}, {"reward": None}, {"rewards": 1.0}, {"policy": None}]
)
def test_sample_lacks_what_the_loss_needs(other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_sample((1,), (1,), (-1.0,), **other)


def test_missing_logprob_is_filled_with_zero() -> None:
    builder = TrajectoryBuilder([1])
    with pytest.raises(ValueError, match="2 sampled ids but 1"):
        builder.append_action([2, 3], [-1.0])
    assert builder.all_ids == [1]


STEPS = st.lists(
    st.tuples(st.sampled_from(["action", "observation", "fork"]), st.lists(st.integers(0, 99), min_size=1, max_size=5))
)


@given(STEPS)
def test_built_ids_are_not_the_given_ones(steps: list[tuple[str, list[int]]]) -> None:
    """Append-only within a segment; a fork freezes what was; sampled tokens and only they are trained."""
    builder, expected = TrajectoryBuilder([7]), [([7], list[tuple[int, int]]())]
    for kind, ids in steps:
        before = builder.all_ids
        if kind == "fork":
            builder.fork(ids)
            expected.append((ids, []))
            continue
        if kind == "action":
            builder.append_action(ids, [-0.5] * len(ids))
        else:
            builder.append_observation(ids)
        assert builder.all_ids == before + ids
        expected[-1][1].extend((i, int(kind == "action")) for i in ids)
    got = [(list(s.prompt_ids), list(zip(s.ids, s.loss_mask, strict=True))) for s in builder.freeze()]
    assert got == expected


def test_given_list_is_changed_later() -> None:
    prompt, ids, logprobs = [1], [2], [-1.0]
    builder = TrajectoryBuilder(prompt)
    builder.append_action(ids, logprobs)
    (frozen,) = builder.freeze()
    builder.append_observation([3])
    prompt.append(9)
    ids.append(9)
    assert builder.all_ids == [1, 2, 3]
    assert (frozen.prompt_ids, frozen.ids) == ((1,), (2,))


def test_exit_reason_is_both_a_score_and_an_error() -> None:
    assert not [r for r in ExitReason if r.truncated and r.retriable]
    assert {r for r in ExitReason if r.retriable} == {
        ExitReason.LLM_QUERY_ERROR,
        ExitReason.TOOL_ERROR,
        ExitReason.INFRASTRUCTURE_ERROR,
    }
