"""Trainer: one batch of groups, one optimizer step, and the numbers that a run must show."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from frognano.models.packed import Packed
from frognano.models.scoring import Scores
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.dppo import NonFiniteRatio, dppo_loss
from frognano.rl.groups import Group, split
from frognano.rl.packing import micro_batches, static_prefix
from frognano.stopwatch import Stopwatch


class Trainable(Protocol):
    """What the trainer needs of a policy; `LlamaPolicy` and `TransformersPolicy` are."""

    masters: dict[str, Tensor]

    def sharing(self, prefix: list[int]) -> AbstractContextManager[None]: ...

    def score(self, packed: Packed, temperature: float) -> Scores: ...

    def gradients(self) -> dict[str, Tensor]: ...

    def publish(self) -> None: ...


class Trainer:
    """Holds optimizer state; `reset` forgets it (each iteration starts from the weights alone)."""

    def __init__(self, policy: Trainable, optimizer: OptimizerConfig, dppo: DppoConfig) -> None:
        self.policy, self.config, self.dppo = policy, optimizer, dppo
        self.watches = {stage: Stopwatch() for stage in ("forward", "backward", "optimizer", "publication")}
        """CPU seconds are the process's: nothing else may compute meanwhile."""
        self.reset()

    def reset(self) -> None:
        c = self.config
        self.step = 0
        self.optimizer = torch.optim.AdamW(
            list(self.policy.masters.values()), lr=c.learning_rate, betas=c.betas, weight_decay=c.weight_decay
        )

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One optimizer step on the groups with signal; none (and the weights stay) where no group has any."""
        started = time.monotonic()
        parts = split(groups)
        kept = parts["kept"]
        samples = [s for g in kept for s in g.samples]
        divisor = sum(s.trainable for s in samples)
        metrics: dict[str, float] = {
            "groups": len(groups),
            "groups_kept": len(kept),
            "groups_all0": len(parts["all0"]),
            "groups_all1": len(parts["all1"]),
            "groups_too_small": len(parts["too_small"]),
            "tokens": divisor,
            "surprise": surprise(groups),
        }
        if divisor == 0:
            return {**metrics, "stepped": 0.0, "train_seconds": time.monotonic() - started}
        entropy = value = diff = max_diff = max_rho = forward = 0.0
        dropped_pos = dropped_neg = 0
        prefix = static_prefix(kept)
        with self._sharing(prefix):
            for batch in micro_batches(kept, self.config.micro_batch_tokens):
                with self._timed("forward"):
                    scores = self.policy.score(batch.packed, batch.temperature)
                    try:
                        loss = dppo_loss(scores.logp, batch.logq, batch.advantage, divisor, self.dppo.delta)
                    except NonFiniteRatio:
                        self.policy.gradients()  # or the part summed so far would slip into the next update
                        raise
                with self._timed("backward"):
                    loss.value.backward()
                value += float(loss.value.detach())
                entropy += float(scores.entropy.sum())
                diff += loss.sum_abs_diff
                max_diff, max_rho = max(max_diff, loss.max_abs_diff), max(max_rho, loss.max_rho)
                dropped_pos, dropped_neg = dropped_pos + loss.dropped_pos, dropped_neg + loss.dropped_neg
                forward += batch.packed.tokens - len(prefix)
        norm = self._step(self.policy.gradients())
        return {
            **metrics,
            "stepped": 1.0,
            "loss": value,
            "entropy": entropy / divisor,
            "mean_abs_diff": diff / divisor,
            "max_abs_diff": max_diff,
            "max_rho": max_rho,
            "masked_pos": dropped_pos / divisor,
            "masked_neg": dropped_neg / divisor,
            "grad_norm": norm,
            "forward_tokens": forward + len(prefix),
            "train_seconds": time.monotonic() - started,
        }

    def _timed(self, stage: str) -> AbstractContextManager[None]:
        return self.watches[stage].running(time.process_time)

    @contextmanager
    def _sharing(self, prefix: list[int]) -> Iterator[None]:
        """The prefix is computed when this is entered and its gradient when it is left."""
        with ExitStack() as stack:
            with self._timed("forward"):
                stack.enter_context(self.policy.sharing(prefix))
            yield
            with self._timed("backward"):
                stack.close()

    def _step(self, gradients: dict[str, Tensor]) -> float:
        with self._timed("optimizer"):
            norm = self._move(gradients)
        with self._timed("publication"):
            self.policy.publish()
        return norm

    def _move(self, gradients: dict[str, Tensor]) -> float:
        """The masters one step on; the norm of the gradient before it was clipped."""
        c = self.config
        for name, master in self.policy.masters.items():
            master.grad = gradients[name]
        try:
            norm = torch.nn.utils.clip_grad_norm_(list(self.policy.masters.values()), c.clip, error_if_nonfinite=True)
        except RuntimeError:
            self._drop_gradients()
            raise
        self.step += 1
        rate = c.learning_rate * (min(1.0, self.step / c.warmup) if c.warmup else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self._drop_gradients()
        return float(norm)

    def _drop_gradients(self) -> None:
        for master in self.policy.masters.values():
            master.grad = None


def surprise(groups: Sequence[Group]) -> float:
    """Mean −log q of all sampled tokens, in nats; NaN for none. An estimate of the entropy of the policy that
    sampled, there too where no group has signal and nothing is computed."""
    q = [x for g in groups for s in g.samples for x, trained in zip(s.logprobs, s.loss_mask, strict=True) if trained]
    return -sum(q) / len(q) if q else math.nan
