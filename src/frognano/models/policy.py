"""The policy: weights that are sampled from and trained, with the version that every trajectory echoes."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from frognano.models.causal_lm import check_checkpoint
from frognano.models.engine import TorchEngine
from frognano.models.llama import FAMILY, LlamaConfig, LlamaWeights
from frognano.models.packed import Layout, Packed
from frognano.models.prefix import PrefixCache
from frognano.models.scoring import Scores, head_scores, hidden_states
from frognano.models.shards import ShardedEngine
from frognano.models.trained import TrainedTensors
from frognano.models.transformers_policy import TransformersPolicy

SHARD_ROWS = 16
"""Rows that a sampler needs at least to be worth reading the weights for."""


def compute_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16 only where the processor multiplies it natively: emulated it is several times slower than fp32."""
    if name == "auto":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if native else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


class LlamaPolicy(TrainedTensors):
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
        work: dict[str, Tensor] = {}
        for i in range(self.config.layers - count, self.config.layers):
            work.update({f"layers.{i}.{k}": v for k, v in self.weights.layers[i].items()})
        if everything:
            work.update({"embedding": self.weights.embedding, "norm": self.weights.norm})
            if self.weights.head is not self.weights.embedding:
                work["head"] = self.weights.head
        super().__init__(work)
        self._prefix = PrefixCache(self.weights, max(0, self.frozen_layers))

    def sharing(self, prefix: list[int]) -> AbstractContextManager[None]:
        """Inside, what is scored on this prefix shares its states; their backward pass runs at the end."""
        return self._prefix.sharing(prefix)

    def score(self, packed: Packed, temperature: float) -> Scores:
        """log p of every target under the current weights, at the sampling temperature."""
        layout = Layout.of(packed)
        states = self._prefix.states(packed.prefix)
        hidden = hidden_states(self.weights, packed, layout, max(0, self.frozen_layers), states)
        return head_scores(hidden, self.weights.head, layout.targets, temperature)

    def save_pretrained(self, folder: Path) -> None:
        """A transformers folder with the current weights, for any other engine."""
        import shutil

        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        for file in self.path.iterdir():
            if file.is_file() and file.suffix != ".safetensors" and file.name != "model.safetensors.index.json":
                shutil.copy(file, folder)
        save_file(self.weights.to_state(), folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)  # it comes as 0600
        config = json.loads((folder / "config.json").read_text())
        # What a reader takes the weights as. Left at the base's bfloat16 it would round most of an update away.
        config["dtype"] = str(self.weights.embedding.dtype).removeprefix("torch.")
        config.pop("torch_dtype", None)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    @property
    def context(self) -> int:
        return self.config.context

    def engine(
        self, prefix: list[int], stop_ids: tuple[int, ...], rows: int, threads: int
    ) -> TorchEngine | ShardedEngine:
        """A sampler a thread, as long as each has `SHARD_ROWS`."""
        shards = max(1, min(threads, rows // SHARD_ROWS))
        engines = [
            TorchEngine(
                self.weights,
                prefix=prefix,
                stop_ids=stop_ids,
                rows=-(-rows // shards),
                threads=max(1, threads // shards),
            )
            for _ in range(shards)
        ]
        return engines[0] if shards == 1 else ShardedEngine(engines)


def load_policy(
    path: Path, trainable_layers: int | Literal["all"], dtype: torch.dtype
) -> LlamaPolicy | TransformersPolicy:
    """The policy of a transformers folder: on our own decoder where it computes this model, else on transformers' forward.

    Raises ValueError, with the remedy, where there is no full causal LM.
    """
    from transformers import AutoConfig

    check_checkpoint(path)
    kind = json.loads((path / "config.json").read_text()).get("model_type")
    if (
        kind in FAMILY
        and LlamaConfig.supports(AutoConfig.from_pretrained(path, trust_remote_code=False))
        and any(path.glob("*.safetensors"))
    ):
        return LlamaPolicy(path, trainable_layers, dtype)
    return TransformersPolicy(path, trainable_layers, dtype)
