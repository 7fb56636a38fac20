"""What is exported is the policy that was measured, and a folder that is there is whole."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from frognano.errors import FrogNanoError
from frognano.loop import export
from frognano.loop.recipe import RecipeConfig
from frognano.models.policy import LlamaPolicy
from frognano.rl.checkpoint import save_checkpoint
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.trainer import Trainer
from frognano.runs.store import RunStore
from models.tiny import logp_of, random_ids, tiny_model

FUSED = {
    "norm1": ["input_layernorm"],
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "q_norm": ["self_attn.q_norm"],
    "k_norm": ["self_attn.k_norm"],
    "out": ["self_attn.o_proj"],
    "norm2": ["post_attention_layernorm"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}
"""What transformers calls the parts of each of our tensors, and how many rows those of a fused one have in the tiny Qwen 3."""
SIZES = {
    "self_attn.q_proj": 96,
    "self_attn.k_proj": 48,
    "self_attn.v_proj": 48,
    "mlp.gate_proj": 96,
    "mlp.up_proj": 96,
}


@pytest.fixture(params=["float32", "bfloat16"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run of two iterations on a tiny model; the second handed on its own weights."""
    model = tmp_path / "model"
    tiny_model("qwen3").bfloat16().save_pretrained(model)  # as most models are published
    recipe = RecipeConfig.model_validate(
        {
            "run": {"name": "tiny"},
            "model": {"path": str(model), "trainable_layers": 2, "dtype": request.param},
            "repositories": {"train": ["boltons"], "heldout": ["toolz"]},
        }
    )
    dtype = getattr(torch, request.param)
    with RunStore.create(tmp_path / "run", recipe.model_dump(mode="json")) as store:
        for i, version in enumerate(("i1u4", "i2u4"), 1):
            trainer = Trainer(LlamaPolicy(model, 2, dtype), OptimizerConfig(), DppoConfig())
            torch.manual_seed(i)
            for master in trainer.policy.masters.values():
                master.data += 0.1 * torch.randn_like(master)
            save_checkpoint(tmp_path / "run" / "checkpoints" / version, trainer)
            store.finish(f"policies/{i}", version)
    return tmp_path / "run"


def logp(folder: Path, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return logp_of(AutoModelForCausalLM.from_pretrained(folder).float(), ids, 1.0)


def of_checkpoint(run: Path, version: str, ids: list[int]) -> torch.Tensor:
    """As transformers computes the base model with the checkpoint's tensors put in by hand."""
    state = torch.load(run / "checkpoints" / version / "state.pt", weights_only=True)["masters"]
    with RunStore.open(run, read_only=True) as store:
        config = store.config["model"]
    dtype = getattr(torch, config["dtype"])
    model = AutoModelForCausalLM.from_pretrained(config["path"]).float()
    named = dict(model.named_parameters())
    for parameter in named.values():  # not the buffers: rotary frequencies are never rounded
        parameter.data = parameter.data.to(dtype).float()
    for name, value in state.items():
        layer, kind = name.removeprefix("layers.").split(".")
        parts = value.split([SIZES[part] for part in FUSED[kind]]) if len(FUSED[kind]) > 1 else [value]
        for part, tensor in zip(FUSED[kind], parts, strict=True):
            named[f"model.layers.{layer}.{part}.weight"].data.copy_(tensor.to(dtype))
    with torch.no_grad():
        return logp_of(model, ids, 1.0)


def test_exported_weights_are_not_those_of_the_policy(run: Path, tmp_path: Path) -> None:
    ids = random_ids(random.Random(0), 40)
    assert export.export_policy(run, tmp_path / "last") == "i2u4"
    assert export.export_policy(run, tmp_path / "first", "i1u4") == "i1u4"
    assert export.export_policy(run, tmp_path / "base", "base") == "base"
    last, first, base = (logp(tmp_path / name, ids) for name in ("last", "first", "base"))
    assert torch.allclose(last, of_checkpoint(run, "i2u4", ids), atol=1e-4)
    assert torch.allclose(first, of_checkpoint(run, "i1u4", ids), atol=1e-4)
    assert not torch.allclose(last, first, atol=1e-2)
    config = json.loads((tmp_path / "last" / "config.json").read_text())
    assert config["dtype"] == json.loads((run / "recipe.json").read_text())["model"]["dtype"]
    assert not torch.allclose(last, base, atol=1e-2)


def test_export_overwrites_or_leaves_half_a_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FrogNanoError, match="is there already"):
        export.export_policy(run, tmp_path / "model")
    with pytest.raises(FrogNanoError, match="no weights of i3u1: it keeps base, i1u4, i2u4"):
        export.export_policy(run, tmp_path / "out", "i3u1")

    def full(self: LlamaPolicy, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(LlamaPolicy, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        export.export_policy(run, tmp_path / "out")
    assert not [p.name for p in tmp_path.iterdir() if "out" in p.name]
