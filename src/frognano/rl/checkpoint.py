"""Checkpoint: trained weights and optimizer state of one policy version, whole or not there at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from frognano.rl.trainer import Trainer

STATE = "state.pt"


def save_checkpoint(folder: Path, trainer: Trainer) -> None:
    """Written beside, flushed, then renamed: a reader sees a whole checkpoint or none. ENOSPC passes as OSError."""
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        state = {
            "masters": {k: v.detach() for k, v in trainer.policy.masters.items()},
            "optimizer": trainer.optimizer.state_dict(),
            "step": trainer.step,
        }
        with open(fresh / STATE, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The trained tensors of a checkpoint, in fp32."""
    return dict(_read(folder)["masters"])


def load_trainer(folder: Path, trainer: Trainer) -> None:
    """Weights, optimizer and step, as they were."""
    state = _read(folder)
    policy: Any = trainer.policy
    policy.restore(state["masters"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.step = state["step"]


def _read(folder: Path) -> dict[str, Any]:
    file = folder / STATE
    if not file.is_file():
        raise FileNotFoundError(f"no checkpoint at {folder}")
    return dict(torch.load(file, map_location="cpu", weights_only=True))
