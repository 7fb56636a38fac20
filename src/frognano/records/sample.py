"""Sample: what is learned from. One token segment of a trajectory with its reward and the probabilities it was drawn at."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from frognano.records.base import Record
from frognano.records.tokens import check_tokens


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
        check_tokens(self.response_ids, self.loss_mask, self.logprobs)
        return self

    @property
    def trainable(self) -> int:
        """Number of tokens that carry loss."""
        return sum(self.loss_mask)
