"""The tensors of a policy that learn: fp32 masters that the optimizer steps, and the working copies that compute."""

from __future__ import annotations

import torch
from torch import Tensor


class TrainedTensors:
    """`masters` by name: fp32 tensors; the working tensors themselves where those are fp32."""

    def __init__(self, work: dict[str, Tensor]) -> None:
        if not work:
            raise ValueError("no tensor of the policy learns: trainable_layers must be at least 1")
        self._work = work
        for tensor in work.values():
            tensor.requires_grad_(True)
        self.masters = {k: v if v.dtype == torch.float32 else v.detach().float() for k, v in work.items()}

    def gradients(self) -> dict[str, Tensor]:
        """fp32 gradients by name, taken from the working tensors and cleared there."""
        out = {}
        for name, tensor in self._work.items():
            out[name] = torch.zeros_like(tensor, dtype=torch.float32) if tensor.grad is None else tensor.grad.float()
            tensor.grad = None
        return out

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters into the tensors that sampler and scorer compute with."""
        for name, tensor in self._work.items():
            if tensor is not self.masters[name]:
                tensor.copy_(self.masters[name])

    @torch.no_grad()
    def restore(self, masters: dict[str, Tensor]) -> None:
        """Take weights back from a checkpoint."""
        if set(masters) != set(self.masters):
            raise ValueError(
                "the checkpoint trains other tensors than this policy: trainable_layers or the model differ"
            )
        for name, tensor in masters.items():
            self.masters[name].copy_(tensor)
        self.publish()
