"""Harness: how a model works on a task. One protocol; Leaf is the default implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from frognano.models.base import Model, Sampling
from frognano.records import Trajectory
from frognano.sandbox.base import Sandbox


class Budget(BaseModel):
    """What one run may spend. A run that exhausts it is still graded on the state of its repository."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(75, gt=0)
    max_context_tokens: int = Field(65_536, gt=0)
    max_seconds: float = Field(3_600.0, gt=0)
    max_failures: int | None = Field(
        None, gt=0, description="Failed calls in a row that end a run as stuck; none: only five identical ones do."
    )

    @property
    def name(self) -> str:
        """Written into every policy evaluation, since a pass rate is bound to its budget."""
        failures = "" if self.max_failures is None else f"-f{self.max_failures}"
        return f"turns{self.max_turns}-ctx{self.max_context_tokens}-s{self.max_seconds:g}{failures}"


@dataclass(frozen=True)
class Prompt:
    """What a run starts from. ``task_id`` and ``rung`` are only copied into the trajectory."""

    task_id: str
    rung: int
    text: str


class Harness(Protocol):
    name: str
    """Names the harness, its version and its prompt, e.g. `leaf/1/pocket`; pass rates are bound to it."""

    async def run(
        self, prompt: Prompt, sandbox: Sandbox, model: Model, sampling: Sampling, budget: Budget
    ) -> Trajectory:
        """Work until the model answers without a call or a limit ends it. The patch is taken from the sandbox."""
        ...
