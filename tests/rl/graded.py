"""Trajectories as the trainer sees them."""

from __future__ import annotations

from frognano.records import ExitReason, Segment, Trajectory, Turn

GRADED = [r for r in ExitReason if not r.retriable and r is not ExitReason.CANCELLED]


def run(name: str = "t", *, tokens: int = 3, reason: ExitReason = ExitReason.AGENT, segments: int = 1) -> Trajectory:
    return Trajectory(
        id=name,
        task_id="task0001",
        rung=0,
        policy="pi0",
        harness="leaf",
        temperature=0.7,
        turns=(Turn(raw="x", text="x", finish="stop", generated_tokens=tokens),),
        messages=(),
        exit_reason=reason,
        segments=tuple(
            Segment(prompt_ids=(7, 8 + i), ids=(9, 10, 11), loss_mask=(1, 0, 1), logprobs=(-0.5, 0.0, -0.1 * i))
            for i in range(segments)
        ),
    )
