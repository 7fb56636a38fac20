"""Model: who answers. A chat model gives text and calls; a token model also gives exact ids and log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from frognano.records import Message, ToolCall, TrajectoryBuilder


class Sampling(BaseModel):
    """How replies are drawn. Training allows no truncation of the distribution: q must be a full-vocabulary probability."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(1.0, ge=0)
    max_tokens_per_turn: int = Field(8192, gt=0)


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model is told of it; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Completion:
    """One reply. ``finish`` is `length` when the token limit cut it: its calls must not run."""

    raw: str
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish: Literal["stop", "length"]
    generated_tokens: int
    seconds: float = 0.0


class ContextOverflow(RuntimeError):
    """The conversation no longer fits the model's context."""


class ModelError(RuntimeError):
    """The model could not answer (server, transport): a retriable error, never a score."""


@dataclass
class Conversation:
    """Messages for the model, and the token ids that a token model holds for them (append-only)."""

    messages: list[Message]
    tools: Sequence[ToolSpec]
    tokens: TrajectoryBuilder | None = None
    rendered: int = field(default=0)
    """How many of ``messages`` the ids in ``tokens`` cover; only a token model reads or writes it."""


class Model(Protocol):
    """``policy`` is echoed into every trajectory, so that weights that never arrived are noticed."""

    policy: str

    async def complete(self, conversation: Conversation, sampling: Sampling) -> Completion:
        """Answer the conversation. Does not append to ``messages``: the harness does."""
        ...
