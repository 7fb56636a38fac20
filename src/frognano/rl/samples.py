"""Samples: trajectories with verdicts become what is learned from."""

from __future__ import annotations

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
    for trajectory, verdict in rollouts:
        if not verdict.counts:
            continue
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
                    raw_reward=raw_reward(verdict),
                    reward=shaped_reward(trajectory, verdict, reward, iteration, threshold),
                )
            )
    return Group(group_id, tuple(samples))
