"""Samples: trajectories with verdicts become what is learned from."""

from __future__ import annotations

import random
from collections.abc import Sequence

from frognano.records import Sample, Trajectory, Verdict
from frognano.rl.groups import Group
from frognano.rl.reward import RewardConfig, raw_reward, shaped_reward


def make_group(
    group_id: str,
    rollouts: Sequence[tuple[Trajectory, Verdict]],
    reward: RewardConfig,
    iteration: int,
    threshold: int | None,
) -> Group:
    """All rollouts of one task under one policy. Infrastructure errors are left out; a run without ids is refused."""
    samples: list[Sample] = []
    counted = [(t, v) for t, v in rollouts if v.counts]
    earned = [(raw_reward(v), shaped_reward(t, v, reward, iteration, threshold)) for t, v in counted]
    if reward.shuffle:
        random.Random(group_id).shuffle(earned)
    for (trajectory, _), (raw, shaped) in zip(counted, earned, strict=True):
        if not trajectory.segments:
            raise ValueError(f"trajectory {trajectory.id} has no token ids: a chat model cannot be trained on")
        for segment in trajectory.segments:
            samples.append(
                Sample(
                    trajectory_id=trajectory.id,
                    group_id=group_id,
                    policy=trajectory.policy,
                    prompt_ids=segment.prompt_ids,
                    response_ids=segment.ids,
                    loss_mask=segment.loss_mask,
                    logprobs=segment.logprobs,
                    temperature=trajectory.temperature,
                    truncated=trajectory.exit_reason.truncated,
                    raw_reward=raw,
                    reward=shaped,
                )
            )
    return Group(group_id, tuple(samples))
