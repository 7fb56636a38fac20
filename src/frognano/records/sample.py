"""Sample: what is learned from. One token segment of a trajectory with its reward and the probabilities it was drawn at."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from frognano.records.base import Record


class Sample(Record):
    """``logprobs`` are log q from the decode path, never recomputed. A forked trajectory gives one sample a segment."""

    trajectory_id: str
    group_id: str
    policy: str
    prompt_ids: tuple[int, ...] = Field(min_length=1)
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float = Field(gt=0)
    truncated: bool
    raw_reward: float
    reward: float = Field(description="Shaped: efficiency, truncated-but-correct.")

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        n = len(self.response_ids)
        if n != len(self.loss_mask) or n != len(self.logprobs):
            raise ValueError(f"sample of {self.trajectory_id}: ids, loss mask and log-probs differ in length")
        return self

    @property
    def trainable(self) -> int:
        """Number of tokens that carry loss."""
        return sum(self.loss_mask)
