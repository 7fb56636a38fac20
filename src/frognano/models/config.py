"""Which policy a recipe names. Apart from what uses it, so that a recipe is read, and refused, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PolicyConfig(BaseModel):
    """Which weights, and how much of them learns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field("pocket", description="`pocket`, or the folder of any transformers causal LM.")
    trainable_layers: int | Literal["all"] = Field("all", description="The top k blocks, or everything.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the CPU computes it."
    )
    threads: int = Field(0, ge=0, description="Compute threads; 0: one per core.")
