"""What it takes to believe a task."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from frognano.sandbox.base import Limits


class ValidationConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gold_runs: int = Field(default=3, ge=3, description="Clean runs of the whole suite, once per repository.")
    bug_runs: int = Field(default=3, ge=3, description="Runs with the bug, per candidate.")
    max_f2p_share: float = Field(default=0.3, gt=0, le=1, description="Of the suite; more is no puzzle.")
    max_p2p: int = Field(default=200, ge=1, description="Further tests that must go on passing.")
    max_test_seconds: float = Field(default=2.0, gt=0, description="A slower test is left out.")
    cpu_seconds: float = Field(default=20.0, gt=0, description="Of one run for a candidate.")
    suite_cpu_seconds: float = Field(default=240.0, gt=0, description="Of one clean run.")
    wall_seconds: float = Field(default=900.0, gt=0)
    limits: Limits = Limits.model_validate({"cpu_seconds": 300.0, "wall_seconds": 1000.0})
