"""The policy: weights that are sampled from and trained, with the version that every trajectory echoes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from frognano.models.engine import TorchEngine
from frognano.models.llama import FAMILY, LlamaConfig, LlamaWeights
from frognano.models.packed import Layout, Packed
from frognano.models.scoring import Scores, head_scores, hidden_states


class PolicyConfig(BaseModel):
    """Which weights, and how much of them learns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field("pocket", description="`pocket`, or the folder of any transformers causal LM.")
    trainable_layers: int | Literal["all"] = Field("all", description="The top k blocks, or everything.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the CPU computes it."
    )
    threads: int = Field(0, ge=0, description="Compute threads; 0: one per physical core.")


def compute_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16 only where the processor multiplies it natively: emulated it is several times slower than fp32."""
    if name == "auto":
        native = (
            torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        )
        return torch.bfloat16 if native else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


class LlamaPolicy:
    """A policy of the Llama family on the shared-prefix decoder. Masters are fp32; the working copy has `dtype`."""

    def __init__(self, path: Path, trainable_layers: int | Literal["all"], dtype: torch.dtype) -> None:
        from safetensors.torch import load_file
        from transformers import AutoConfig

        self.path = path
        self.config = LlamaConfig.of(AutoConfig.from_pretrained(path))
        state: dict[str, Tensor] = {}
        for file in sorted(path.glob("*.safetensors")):
            state.update(load_file(file))
        self.weights = LlamaWeights.from_state(self.config, state, dtype)
        everything = trainable_layers == "all"
        count = self.config.layers if trainable_layers == "all" else min(trainable_layers, self.config.layers)
        self.frozen_layers = -1 if everything else self.config.layers - count
        """Lowest blocks without gradient; -1: the embedding learns as well."""
        self._work: dict[str, Tensor] = {}
        for i in range(self.config.layers - count, self.config.layers):
            self._work.update({f"layers.{i}.{k}": v for k, v in self.weights.layers[i].items()})
        if everything:
            self._work.update({"embedding": self.weights.embedding, "norm": self.weights.norm})
            if self.weights.head is not self.weights.embedding:
                self._work["head"] = self.weights.head
        for tensor in self._work.values():
            tensor.requires_grad_(True)
        shared = dtype == torch.float32
        self.masters = {k: v if shared else v.detach().float() for k, v in self._work.items()}
        """fp32 tensors that the optimizer steps; the working tensors themselves where those are fp32."""

    def score(self, packed: Packed, temperature: float) -> Scores:
        """log p of every target under the current weights, at the sampling temperature."""
        layout = Layout.of(packed)
        hidden = hidden_states(self.weights, packed, layout, max(0, self.frozen_layers))
        return head_scores(hidden, self.weights.head, layout.targets, temperature)

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

    def save_pretrained(self, folder: Path) -> None:
        """A transformers folder with the current weights, for any other engine."""
        import shutil

        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for file in self.path.iterdir():
            if file.is_file() and file.suffix != ".safetensors" and file.name != "model.safetensors.index.json":
                shutil.copy(file, folder)
        save_file(self.weights.to_state(), folder / "model.safetensors", metadata={"format": "pt"})

    @property
    def context(self) -> int:
        return self.config.context

    def engine(self, prefix: list[int], stop_ids: tuple[int, ...], rows: int, threads: int) -> TorchEngine:
        return TorchEngine(self.weights, prefix=prefix, stop_ids=stop_ids, rows=rows, threads=threads)


def load_policy(path: Path, trainable_layers: int | Literal["all"], dtype: torch.dtype) -> LlamaPolicy:
    """The policy of a transformers folder. Raises ValueError where there is none."""
    from transformers import AutoConfig

    if not (path / "config.json").is_file():
        raise ValueError(f"no model at {path}: expected a transformers folder with config.json and safetensors")
    config = AutoConfig.from_pretrained(path)
    if not LlamaConfig.supports(config):
        raise ValueError(f"{path}: model type {config.model_type} is not of the families {', '.join(FAMILY)}")
    return LlamaPolicy(path, trainable_layers, dtype)
