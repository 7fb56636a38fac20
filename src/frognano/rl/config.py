"""How an update is made. Apart from what uses it, so that a recipe is read, and refused, without torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class DppoConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    delta: float = Field(0.2, gt=0, le=1, description="Allowed |p − q| in the direction of the advantage.")


class OptimizerConfig(BaseModel):
    """Adam with decoupled weight decay; the learning rate is constant after a linear warm-up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0, description="Bound on the norm of the gradient.")
    warmup: int = Field(0, ge=0, description="Updates, counted anew in each iteration since the optimizer is.")
    micro_batch_tokens: int = Field(8192, gt=0, description="Tokens in one forward pass; memory grows with it.")
