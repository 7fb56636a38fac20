"""Checkpoint: trained weights and optimizer state of one policy version, whole or not there at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import torch

from frognano.rl.trainer import Trainer

STATE = "state.pt"


def save_checkpoint(folder: Path, trainer: Trainer) -> None:
    """One file, written beside, flushed, then renamed over: a reader sees the old one or the new one, whole.

    A full disk passes as OSError and leaves the old one. What a killed save left behind goes with the next save.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f".{STATE}.*"):
        leftover.unlink()
    fresh = folder / f".{STATE}.{os.getpid()}"
    state = {
        "masters": {k: v.detach() for k, v in trainer.policy.masters.items()},
        "optimizer": trainer.optimizer.state_dict(),
        "step": trainer.step,
    }
    try:
        with fresh.open("wb") as file:
            _write(state, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / STATE)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    """torch tells of a failed write as a RuntimeError about its zip archive: raise what the disk said instead."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
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
