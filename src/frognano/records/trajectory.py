"""Trajectory: one run of a harness on a task, as messages for people and as exact token ids for the trainer."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from frognano.records.base import Record
from frognano.records.tokens import check_tokens


class ExitReason(StrEnum):
    """Why a run ended. All but the last four are graded on the state of the repository."""

    AGENT = "agent"
    MAX_TURNS = "max_turns"
    MAX_TIME = "max_time"
    MAX_CONTEXT_LEN = "max_context_len"
    MAX_TOKENS_PER_TURN = "max_tokens_per_turn"
    STUCK = "stuck"
    EMPTY = "empty"
    CANCELLED = "cancelled"
    LLM_QUERY_ERROR = "llm_query_error"
    TOOL_ERROR = "tool_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def retriable(self) -> bool:
        return self in (ExitReason.LLM_QUERY_ERROR, ExitReason.TOOL_ERROR, ExitReason.INFRASTRUCTURE_ERROR)

    @property
    def truncated(self) -> bool:
        """The harness ended the run, not the agent."""
        return self in (
            ExitReason.MAX_TURNS,
            ExitReason.MAX_TIME,
            ExitReason.MAX_CONTEXT_LEN,
            ExitReason.MAX_TOKENS_PER_TURN,
            ExitReason.STUCK,
        )


class ToolCall(Record):
    """A call as parsed from the model's text. ``error`` is set when the text looked like a call but is not one."""

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    error: str = ""


class ToolResult(Record):
    call_id: str
    ok: bool
    text: str
    seconds: float = 0.0


class Message(Record):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = Field((), description="Filled on role `tool`: all results of one turn, in order.")


class Turn(Record):
    """One model reply with the results of its calls. ``raw`` is the sampled text before parsing."""

    raw: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    finish: Literal["stop", "length"]
    generated_tokens: int = 0
    model_seconds: float = 0.0


class Segment(Record):
    """Token ids after a prompt. Observations carry loss_mask 0 and no log-prob (0.0 is only a place holder there)."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] = ()
    loss_mask: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = Field((), description="log q of each sampled token, at the sampling temperature.")

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        check_tokens(self.ids, self.loss_mask, self.logprobs)
        return self


class Trajectory(Record):
    """A finished run. ``patch`` is the byte-exact diff of the repository against the base tree."""

    id: str
    task_id: str
    rung: int
    policy: str
    harness: str
    temperature: float
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...] = Field(description="What the model was shown first: system, demonstrations, task.")
    exit_reason: ExitReason
    error: str = ""
    patch: bytes = b""
    segments: tuple[Segment, ...] = Field((), description="Empty for a model that gives no token ids.")
    seconds: float = 0.0

    @property
    def generated_tokens(self) -> int:
        return sum(t.generated_tokens for t in self.turns)

    @property
    def valid_edit(self) -> bool:
        """At least one Edit or Write call succeeded."""
        edits = {c.id for t in self.turns for c in t.tool_calls if c.name in ("Edit", "Write")}
        return any(r.ok and r.call_id in edits for t in self.turns for r in t.results)


class TrajectoryBuilder:
    """Token ids of one run, append-only. A prompt that does not extend the held ids forks a new segment."""

    def __init__(self, prompt_ids: list[int]) -> None:
        self._done: list[Segment] = []
        self._start(prompt_ids)

    def _start(self, prompt_ids: list[int]) -> None:
        self.prompt_ids = list(prompt_ids)
        self.ids: list[int] = []
        self.loss_mask: list[int] = []
        self.logprobs: list[float] = []

    @property
    def all_ids(self) -> list[int]:
        """What the model has seen so far in the current segment."""
        return self.prompt_ids + self.ids

    def append_action(self, ids: list[int], logprobs: list[float]) -> None:
        """Sampled tokens. A missing log-prob is an error, never a 0."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} sampled ids but {len(logprobs)} log-probs")
        self.ids += ids
        self.loss_mask += [1] * len(ids)
        self.logprobs += logprobs

    def append_observation(self, ids: list[int]) -> None:
        self.ids += ids
        self.loss_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def fork(self, prompt_ids: list[int]) -> None:
        """Freeze the current segment and start another (compaction, a template that rewrote the past)."""
        self._done.append(self._segment())
        self._start(prompt_ids)

    def _segment(self) -> Segment:
        return Segment(
            prompt_ids=tuple(self.prompt_ids),
            ids=tuple(self.ids),
            loss_mask=tuple(self.loss_mask),
            logprobs=tuple(self.logprobs),
        )

    def freeze(self) -> tuple[Segment, ...]:
        return (*self._done, self._segment())
