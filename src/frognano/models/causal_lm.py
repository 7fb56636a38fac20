"""Any causal LM of transformers behind its public forward, with what must be known about it found out by trying.

Whether the logits are hidden states times the head (no soft cap, no scale), whether what follows a token leaves it alone, and
whether keys and values of left-padded rows can be kept, is measured on the model itself: no list of architectures is held.
Rows are padded on the right and never share a computation, so that attention, recurrence and experts all see each row whole.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frognano.models.row_cache import join, split

UNBOUNDED = 1 << 30
"""Context of a model whose config states none (recurrent ones)."""
LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx", "seq_length")
CACHE = ("cache", "past_key_values")
"""What a forward calls its cache, in newer and older transformers."""
BATCH_TOKENS = 4096
"""Tokens of one forward, padding included; a longer row still goes alone."""


def load_causal_lm(path: Path, dtype: torch.dtype) -> Any:
    """The model of a transformers folder, in eval mode. Raises ValueError that says what it is instead, and the remedy."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    check_checkpoint(path)
    with open(path / "config.json") as file:
        raw = json.load(file)
    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in raw:
            raise ValueError(
                f"{path}: model type {kind} runs code that lies beside the weights (auto_map), and that code is not"
                " executed here: take a model whose architecture transformers ships"
            )
        raise ValueError(f"{path}: the installed transformers knows no model type {kind}: upgrade transformers")
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        raise ValueError(
            f"{path}: model type {kind} is no causal language model: take one that predicts the next token"
        )
    model: Any = AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=dtype, trust_remote_code=False, local_files_only=True
    )
    return model.eval()


def check_checkpoint(path: Path) -> None:
    """Refuse what is no folder of full weights, by name and with the remedy."""
    if (path / "adapter_config.json").is_file():
        raise ValueError(
            f"{path} holds a PEFT adapter, which is not supported: merge it into its base model"
            " (merge_and_unload, then save_pretrained) and give that folder"
        )
    if not (path / "config.json").is_file():
        raise ValueError(
            f"no model at {path}: expected a transformers folder with config.json and weights, as save_pretrained writes"
        )
    with open(path / "config.json") as file:
        quantised = json.load(file).get("quantization_config")
    if quantised:
        raise ValueError(
            f"{path} is quantised ({quantised.get('quant_method', 'unknown method')}), which is not supported, since its"
            " weights take no gradient: give the unquantised checkpoint, or dequantize() it and save_pretrained"
        )
    if not any(any(path.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin")):
        raise ValueError(f"no weights at {path}: expected *.safetensors beside config.json")


class CausalLM:
    """`model` with its probes. `plain_head`: the matrix whose product with the hidden states are the logits, if it is so."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name
        self.config = model.config.get_text_config(decoder=True)
        self._accepts = set(inspect.signature(model.forward).parameters)
        self._base_accepts = set(inspect.signature(model.base_model.forward).parameters)
        self._cache = next((name for name in CACHE if name in self._accepts), None)
        with torch.no_grad():
            self.plain_head = self._plain_head()
            self._check_causal()

    @property
    def context(self) -> int:
        """Longrope changes every position once a row passes its original context: up to there, what was sampled stays so."""
        limits = [getattr(self.config, name, None) for name in LIMITS]
        first = next((limit for limit in limits if isinstance(limit, int) and limit > 0), UNBOUNDED)
        return min([first, *_longrope_limits(getattr(self.config, "rope_parameters", None))])

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    # -- parts --------------------------------------------------------------------------------------------------

    def blocks(self) -> nn.ModuleList:
        """The decoder's blocks, lowest first: its longest outermost list, or that of as many members as the config says."""
        lists = list(_outermost_lists(self.model.get_decoder()))
        named = [m for m in lists if len(m) == getattr(self.config, "num_hidden_layers", None)]
        if not lists:
            raise ValueError(f"{self.name}: no list of blocks to take the top of; set trainable_layers to all")
        return named[0] if named else max(lists, key=len)

    def trained(self, layers: int | str) -> dict[str, nn.Parameter]:
        """Parameters that learn, by name: of the top blocks, or of decoder and head. Others (towers, adapters) never do."""
        if layers == "all":
            head = self.model.get_output_embeddings()
            modules: Sequence[nn.Module] = [self.model.get_decoder(), *([head] if head is not None else [])]
        else:
            blocks = self.blocks()
            modules = list(blocks)[max(0, len(blocks) - int(layers)) :]
        chosen = {id(p) for module in modules for p in module.parameters()}
        return {k: p for k, p in self.model.named_parameters() if id(p) in chosen and p.is_floating_point()}

    # -- forward ------------------------------------------------------------------------------------------------

    def hidden(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Normalised hidden states [B, T, D] of rows padded on the right."""
        out = self.model.base_model(**_only(self._inputs(rows), self._base_accepts))
        return out.last_hidden_state  # type: ignore[no-any-return]

    def logits(self, rows: Sequence[Sequence[int]], last: int = 0) -> Tensor:
        """Logits [B, T, V] of rows padded on the right, in the model's dtype; at least those of the last positions of T."""
        extra = {"logits_to_keep": last} if last and "logits_to_keep" in self._accepts else {}
        return self.model(**_only(self._inputs(rows), self._accepts), **extra).logits  # type: ignore[no-any-return]

    def next_logits(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """fp32 logits [B, V] of the token after each row, each row computed whole."""
        at = torch.tensor([len(r) - 1 for r in rows])
        every = torch.arange(len(rows))
        if self.plain_head is not None:
            return nn.functional.linear(self.hidden(rows)[every, at], self.plain_head).float()
        longest = int(at.max()) + 1
        logits = self.logits(rows, last=longest - int(at.min()))
        return logits[every, at - (longest - logits.shape[1])].float()

    def cached_logits(self, ids: Tensor, lengths: Tensor, cache: Any) -> Tensor:
        """fp32 logits [B, V] after `ids` [B, T], appended to a cache whose row i holds `lengths[i]` tokens at its end."""
        width, new = cache.get_seq_length(), ids.shape[1]
        inputs = {
            "input_ids": ids,
            "attention_mask": (torch.arange(width + new) >= width - lengths[:, None]).long(),
            "position_ids": lengths[:, None] + torch.arange(new),
            self._cache: cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        if self.plain_head is not None:
            hidden = self.model.base_model(**_only(inputs, self._base_accepts)).last_hidden_state[:, -1]
            return nn.functional.linear(hidden, self.plain_head).float()
        return self.model(**_only(inputs, self._accepts)).logits[:, -1].float()  # type: ignore[no-any-return]

    def _inputs(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        lengths = torch.tensor([len(r) for r in rows])
        longest = int(lengths.max())
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
            "position_ids": torch.arange(longest).expand(len(rows), -1),
            "use_cache": False,
        }

    # -- probes -------------------------------------------------------------------------------------------------

    def _example(self, length: int) -> list[int]:
        """Ids that repeat nothing where the vocabulary allows it."""
        return [(7 + 13 * i) % self.vocabulary for i in range(length)]

    def _plain_head(self) -> Tensor | None:
        """Tried with a foreign output put in place of the head's: it must come out as the logits, untouched."""
        head, base = self.model.get_output_embeddings(), self.model.base_model
        if not isinstance(head, nn.Linear) or head.bias is not None or base is self.model:
            return None
        taken: list[Tensor] = []

        def replace(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            taken.append(inputs[0])
            return torch.linspace(-99, 99, output.numel(), dtype=output.dtype).view_as(output)

        row = self._example(5)
        handle = head.register_forward_hook(replace)
        try:
            logits = self.logits([row])
        finally:
            handle.remove()
        if len(taken) != 1 or taken[0].shape[:2] != (1, len(row)):
            return None
        untouched = torch.equal(logits.float(), replace(head, (taken[0],), logits).float())
        hidden = self.hidden([row])
        same = hidden.shape == taken[0].shape and torch.allclose(hidden.float(), taken[0].float(), 1e-2, 1e-4)
        return head.weight if untouched and same else None

    def _check_causal(self) -> None:
        """What follows must not change what was predicted before it: padding on the right relies on that."""
        row = self._example(6)
        short, long = self.logits([row[:4]])[0], self.logits([[*row[:4], *row[:1:-1]]])[0, :4]
        if not same_up_to_rounding(short, long, self.model.dtype):
            raise ValueError(
                f"{self.name} is not causal, what comes later changes earlier predictions: set is_decoder in its config"
            )

    def caches_plainly(self) -> bool:
        """Whether keys and values of rows padded on the left can be kept, and give what computing each row whole gives."""
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        layer_types = set(getattr(self.config, "layer_types", None) or ())
        if self._cache is None or "attention_mask" not in self._accepts or "chunked_attention" in layer_types:
            return False
        rows = [self._example(9), self._example(12)[7:]]
        own = getattr(self.model(torch.tensor([rows[0]]), use_cache=True), self._cache, None)
        layers = own.layers if type(own) is DynamicCache else []
        if not layers or any(type(x) not in (DynamicLayer, DynamicSlidingWindowLayer) for x in layers):
            return False
        memories = []
        for row in rows:
            cache = DynamicCache()
            self.cached_logits(torch.tensor([row[:-2]]), torch.tensor([0]), cache)
            if len(cache.layers) != len(layers) or any(getattr(x, "keys", None) is None for x in cache.layers):
                return False
            memories.append(split(cache, [len(row) - 2])[0])
        cache, lengths = join(memories), torch.tensor([len(r) - 2 for r in rows])
        for i in (2, 1):
            out = self.cached_logits(torch.tensor([[r[-i]] for r in rows]), lengths + 2 - i, cache)
        kept = same_up_to_rounding(out, self.next_logits(rows), self.model.dtype)
        if not kept:
            warnings.warn(
                f"{self.name}: its cache gives other numbers than the whole rows; every step computes them anew",
                stacklevel=2,
            )
        return kept


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of rows for one forward each, rows of like length together."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def same_up_to_rounding(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits differ by no more than the rounding of `dtype`, measured against their own spread."""
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    a, b = a.float(), b.float()
    return bool((a - b).norm() <= tolerance * (b - b.mean(-1, keepdim=True)).norm() + 1e-6)


def _only(arguments: dict[Any, Any], accepted: Iterable[str]) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if k in accepted}


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)


def _longrope_limits(parameters: Any) -> Iterator[int]:
    """Original contexts in a config's rope parameters, which may lie one per kind of layer."""
    if isinstance(parameters, dict):
        if parameters.get("rope_type") == "longrope":
            yield int(parameters["original_max_position_embeddings"])
        for value in parameters.values():
            yield from _longrope_limits(value)
