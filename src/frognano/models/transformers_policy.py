"""A policy of any transformers causal LM: what `LlamaPolicy` does, through the model's public forward alone.

Nothing is shared between rows, so a batch costs prefix and prompt once per row; on the Llama family `LlamaPolicy` is several
times faster. Batches beyond one forward are computed again in the backward pass, so that one forward's memory is the bound.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from frognano.models.causal_lm import CausalLM, batches, load_causal_lm
from frognano.models.packed import Packed
from frognano.models.scoring import Scores, head_scores
from frognano.models.trained import TrainedTensors
from frognano.models.transformers_engine import TransformersEngine

WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
"""Files of these kinds hold weights: a saved policy does not take them over from its source."""


@dataclass(frozen=True)
class _Whole:
    """One sample from its first token to its last target; the output at `sources[i]` predicts `targets[i]`."""

    ids: list[int]
    sources: list[int]
    targets: list[int]


def _whole_rows(packed: Packed) -> list[_Whole]:
    out = []
    for prompt, rows in zip(packed.prompts, packed.rows, strict=True):
        before = packed.prefix + prompt
        for row in rows:
            at = [t for t, trained in enumerate(row.trained) if trained]
            sources = [len(before) + t - 1 for t in at]
            ids = (before + list(row.ids))[: sources[-1] + 1 if sources else 0]
            out.append(_Whole(ids, sources, [row.ids[t] for t in at]))
    return out


class TransformersPolicy(TrainedTensors):
    """Masters are fp32; the working copy, which is the model, has `dtype`. `lm` is that model."""

    def __init__(self, path: Path, trainable_layers: int | Literal["all"], dtype: torch.dtype) -> None:
        self.path = path
        model = load_causal_lm(path, dtype)
        model.requires_grad_(False)
        self.lm = CausalLM(model, str(path))
        super().__init__(dict(self.lm.trained(trainable_layers)))

    def sharing(self, prefix: list[int]) -> AbstractContextManager[None]:
        """Nothing is shared: transformers' forward takes whole rows."""
        return nullcontext()

    def score(self, packed: Packed, temperature: float) -> Scores:
        """log p of every target under the current weights, at the sampling temperature."""
        rows = _whole_rows(packed)
        asked = [i for i, row in enumerate(rows) if row.targets]
        chunks = [[asked[i] for i in batch] for batch in batches([len(rows[i].ids) for i in asked])]
        logp: dict[int, Tensor] = {}
        entropy: dict[int, Tensor] = {}
        for chunk in chunks:
            part = [rows[i] for i in chunk]
            if torch.is_grad_enabled() and len(chunks) > 1:
                p, h = checkpoint(self._score, part, temperature, use_reentrant=False)
            else:
                p, h = self._score(part, temperature)
            counts = [len(row.targets) for row in part]
            logp.update(zip(chunk, p.split(counts), strict=True))
            entropy.update(zip(chunk, h.split(counts), strict=True))
        if not asked:
            return Scores(torch.zeros(0), torch.zeros(0))
        return Scores(torch.cat([logp[i] for i in asked]), torch.cat([entropy[i] for i in asked]))

    def _score(self, rows: Sequence[_Whole], temperature: float) -> tuple[Tensor, Tensor]:
        """log p and entropy of the targets of rows that fit one forward."""
        ids = [row.ids for row in rows]
        row = torch.tensor([i for i, r in enumerate(rows) for _ in r.sources])
        source = torch.tensor([s for r in rows for s in r.sources])
        targets = torch.tensor([t for r in rows for t in r.targets])
        if self.lm.plain_head is not None:
            scores = head_scores(self.lm.hidden(ids)[row, source], self.lm.plain_head, targets, temperature)
            return scores.logp, scores.entropy
        longest = max(map(len, ids))
        logits = self.lm.logits(ids, last=longest - int(source.min()))
        logits = logits[row, source - (longest - logits.shape[1])]
        logs = torch.log_softmax(logits.float() / temperature, -1)
        with torch.no_grad():
            entropy = -(logs.exp() * logs).sum(-1)
        return logs.gather(1, targets[:, None])[:, 0], entropy

    def save_pretrained(self, folder: Path) -> None:
        """A transformers folder with the current weights, for any other engine; the tokenizer comes along."""
        self.lm.model.save_pretrained(folder)
        for file in self.path.iterdir():
            if (
                file.is_file()
                and file.suffix not in WEIGHTS
                and not file.name.endswith(".index.json")
                and not (folder / file.name).exists()
            ):
                shutil.copy(file, folder)

    @property
    def context(self) -> int:
        return self.lm.context

    def engine(self, prefix: list[int], stop_ids: tuple[int, ...], rows: int, threads: int) -> TransformersEngine:
        return TransformersEngine(self.lm, prefix=prefix, stop_ids=stop_ids, rows=rows, threads=threads)
