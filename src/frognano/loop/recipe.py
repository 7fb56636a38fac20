"""Recipe: one run in one file. Each room's settings are described beside their user; here they only come together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from frognano.analysis.alarms import AlarmsConfig
from frognano.harness.base import Budget
from frognano.models.base import Sampling
from frognano.models.config import PolicyConfig
from frognano.models.vllm_server import EngineConfig
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.reward import RewardConfig
from frognano.runs.store import RunStore
from frognano.runs.trackers import TrackConfig
from frognano.sandbox.base import Limits
from frognano.taskpilot.ladder import RUNGS
from frognano.taskpilot.pilot import PilotConfig
from frognano.taskpilot.posterior import AdmissionRule
from frognano.taskpilot.sources.mutation_config import MutationConfig
from frognano.tasks.grading import GradingConfig
from frognano.tasks.validation_config import ValidationConfig


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunConfig(_Section):
    name: str = Field(
        min_length=1, pattern=r"^[\w.-]+$", description="The run folder is runs/<name> unless --out says."
    )
    seed: int = 0


class RepositoriesConfig(_Section):
    """Which repositories, by their names in the pool. Training and held-out ones must be disjoint."""

    file: Path | None = Field(None, description="A pool of your own; none: the one that comes with frognano.")
    train: tuple[str, ...] = Field(min_length=1)
    heldout: tuple[str, ...] = Field(min_length=1)
    valid_share: float = Field(
        0.2, gt=0, lt=1, description="Of the training repositories' functions, kept for validation."
    )
    workers: int = Field(2, ge=1, description="Candidates validated at a time.")

    @field_validator("train", "heldout", mode="before")
    @classmethod
    def _names(cls, given: object) -> object:
        """One name, or several with commas between them, as people write them on the command line."""
        return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _disjoint(self) -> Self:
        if both := sorted(set(self.train) & set(self.heldout)):
            raise ValueError(f"both in train and in heldout: {', '.join(both)}")
        return self


class HarnessConfig(_Section):
    prompt: Literal["default", "pocket"] = Field("default", description="pocket: four demonstrations for a tiny model.")
    renderer: Literal["template", "xml"] = Field(
        "template", description="The model's own chat template, or XML-like calls."
    )
    style: Literal["plain", "pocket"] = Field("plain", description="How statements are written.")


class RolloutConfig(_Section):
    concurrency: int = Field(64, ge=1, description="Rollouts in flight.")
    rows: int = Field(64, ge=1, description="Rollouts that the sampler holds at once.")


class TrainConfig(_Section):
    iterations: int = Field(5, ge=1)
    updates: int = Field(200, ge=1, description="Per iteration.")
    groups: int = Field(32, ge=1, description="Tasks per update.")
    group_size: int = Field(8, ge=2, description="Trajectories per task.")
    saturated_after: int = Field(2, ge=1, description="Groups in a row all solved (or none) that move a task's rung.")
    replenish_below: int = Field(0, ge=0, description="Fewer live tasks than this calls the pilot again; 0: never.")
    checkpoint_every: int = Field(10, ge=1)
    valid_every: int = Field(20, ge=1)
    calibrate: bool = Field(
        True,
        description="false: tasks as they come, each trained on once. For ablations; the pilot is what this is all about.",
    )
    max_tokens: int | None = Field(
        None,
        gt=0,
        description="Generated for calibration and training in the whole run; the run ends when they are spent.",
    )
    admission: tuple[AdmissionRule, ...] = Field(
        (), description="One rule per iteration, the last one stays; none: the pilot's own rule."
    )


class EvalConfig(_Section):
    heldout_tasks: int = Field(100, ge=1)
    valid_tasks: int = Field(40, ge=1)
    samples: int = Field(1, ge=1, description="Rollouts per held-out task.")
    valid_samples: int = Field(1, ge=1)
    temperature: float | None = Field(None, ge=0, description="none: that of training.")
    recall_samples: int = Field(
        0,
        ge=0,
        description="At the end: rollouts per trained task of π0, of its own iteration's policy and of the last; 0: none.",
    )
    rung_tasks: int = Field(100, ge=1, description="How many of the held-out tasks are measured at further rungs.")
    rungs: tuple[Annotated[int, Field(ge=0, le=len(RUNGS) - 1)], ...] = Field(
        (), description="Further rungs, for the first and the last policy."
    )


class RecipeConfig(_Section):
    """The whole of a recipe; sections that are left out have their defaults, those of the reference at scale."""

    run: RunConfig
    model: PolicyConfig
    engine: EngineConfig = EngineConfig.model_validate({})
    repositories: RepositoriesConfig
    harness: HarnessConfig = HarnessConfig.model_validate({})
    sampling: Sampling = Sampling.model_validate({})
    budget: Budget = Budget.model_validate({})
    box: Limits = Limits.model_validate({})
    rollouts: RolloutConfig = RolloutConfig.model_validate({})
    mutation: MutationConfig = MutationConfig.model_validate({})
    validation: ValidationConfig = ValidationConfig.model_validate({})
    grading: GradingConfig = GradingConfig.model_validate({})
    pilot: PilotConfig = PilotConfig.model_validate({})
    train: TrainConfig = TrainConfig.model_validate({})
    optimizer: OptimizerConfig = OptimizerConfig.model_validate({})
    dppo: DppoConfig = DppoConfig.model_validate({})
    reward: RewardConfig = RewardConfig.model_validate({})
    eval: EvalConfig = EvalConfig.model_validate({})
    alarms: AlarmsConfig = AlarmsConfig.model_validate({})
    track: TrackConfig = TrackConfig.model_validate({})

    def pilot_for(self, iteration: int) -> PilotConfig:
        """The pilot's settings with the admission rule of one iteration (counted from 1)."""
        rules = self.train.admission
        if not rules:
            return self.pilot
        return self.pilot.model_copy(update={"rule": rules[min(iteration, len(rules)) - 1]})


def filled(stored: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a run folder with the keys that it lacks, since it was made before there were such keys."""
    try:
        return RecipeConfig.model_validate(stored).model_dump(mode="json")
    except ValidationError:
        return stored


FREE = ("alarms", "track")
"""Sections that say what is told of a run, not what it does: they may be others when it is resumed."""


def open_run(folder: Path, recipe: RecipeConfig) -> RunStore:
    """Start the run of a folder, or go on with it. StoreError where it was made with another recipe, FREE left out."""
    return RunStore.create(folder, recipe.model_dump(mode="json"), filled, FREE)
