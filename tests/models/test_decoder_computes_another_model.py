"""Our decoder against transformers: each family, tied and untied, names and numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from frognano.models.decoder import Decoder
from frognano.models.llama import LlamaConfig as OurConfig
from frognano.models.llama import LlamaWeights
from frognano.models.packed import Layout, Packed, Row
from frognano.models.policy import load_policy
from frognano.models.scoring import head_scores, hidden_states
from models.tiny import FAMILIES, logp_of, our_weights, random_ids, tiny_config, tiny_model


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


def test_weights_change_on_the_way_to_transformers_names_and_back(model: Any) -> None:
    state = our_weights(model).to_state()
    expected = {k: v for k, v in model.state_dict().items() if not (k == "lm_head.weight" and _tied(model))}
    assert set(state) == set(expected)
    assert all(torch.equal(state[k], expected[k]) for k in expected)
    fresh = AutoModelForCausalLM.from_config(model.config)
    missing, unexpected = fresh.load_state_dict(state, strict=False)
    assert not unexpected
    assert not missing or missing == ["lm_head.weight"]


def test_tied_head_saved_twice_becomes_a_head_of_its_own() -> None:
    model = tiny_model("llama")
    assert "lm_head.weight" in model.state_dict()
    weights = our_weights(model)
    assert weights.head is weights.embedding


def test_missing_untied_head_is_replaced_by_the_embedding() -> None:
    model = tiny_model("llama-untied")
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    with pytest.raises(KeyError, match="lm_head"):
        LlamaWeights.from_state(OurConfig.of(model.config), state, torch.float32)


@torch.no_grad()
def test_scoring_forward_differs_from_transformers(model: Any) -> None:
    ids = random_ids(random.Random(1), 40)
    packed = Packed([], [ids[:1]], [[Row(tuple(ids[1:]), (1,) * 39)]])
    layout, weights = Layout.of(packed), our_weights(model)
    hidden = hidden_states(weights, packed, layout, 0)
    got = head_scores(hidden, weights.head, layout.targets, 0.7)
    torch.testing.assert_close(got.logp, logp_of(model, ids, 0.7), atol=2e-5, rtol=0)


@torch.no_grad()
def test_decoding_step_by_step_differs_from_transformers(model: Any) -> None:
    """Prefix, group prompt, then own tokens in chunks of 1 to 5, across the growth of the row memory at 64."""
    rng = random.Random(2)
    ids = random_ids(rng, 120)
    decoder = Decoder(our_weights(model))
    decoder.set_prefix(ids[:13])
    hidden = [decoder.add_groups([ids[13:20]], [True])[0]]
    (row,) = decoder.add_rows(0, True, 1)
    at, ends = 20, [19]
    while at < 110:
        step = rng.randint(1, 5)
        hidden.append(decoder.extend([row], [ids[at : at + step]])[0])
        at += step
        ends.append(at - 1)
    got = decoder.logits(torch.stack(hidden)).log_softmax(-1)
    want = model(torch.tensor([ids[:at]])).logits[0, ends].log_softmax(-1)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


def test_sampler_builds_an_autograd_graph() -> None:
    weights = our_weights(tiny_model("llama"))
    for tensor in (weights.embedding, weights.norm, *weights.layers[0].values()):
        tensor.requires_grad_(True)
    decoder = Decoder(weights)
    decoder.set_prefix([7, 8])
    hidden = decoder.add_groups([[9]], [True])
    decoder.add_rows(0, True, 1)
    assert not decoder.logits(hidden).requires_grad
    assert not decoder.extend([0], [[11]]).requires_grad


def test_prefix_is_swapped_under_live_rows() -> None:
    decoder = Decoder(our_weights(tiny_model("llama")))
    decoder.add_groups([[9, 10]], [False])
    decoder.add_rows(0, False, 1)
    with pytest.raises(RuntimeError, match="live"):
        decoder.set_prefix([7])


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"mlp_bias": True},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
    ],
)
def test_variant_we_do_not_compute_is_taken_for_one_we_do(settings: dict[str, Any]) -> None:
    assert not OurConfig.supports(LlamaConfig(**settings))
    assert OurConfig.supports(tiny_config("llama"))


def test_sliding_window_is_ignored() -> None:
    assert not OurConfig.supports(MistralConfig(sliding_window=64))
    assert OurConfig.supports(MistralConfig(sliding_window=None))


def test_saved_policy_is_another_model(model: Any, tmp_path: Any) -> None:
    model.save_pretrained(tmp_path / "a")
    load_policy(tmp_path / "a", "all", torch.float32).save_pretrained(tmp_path / "b")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b").eval()
    ids = random_ids(random.Random(3), 20)
    with torch.no_grad():
        torch.testing.assert_close(logp_of(again, ids, 1.0), logp_of(model, ids, 1.0), atol=1e-6, rtol=0)


def _tied(model: Any) -> bool:
    return bool(model.config.tie_word_embeddings)
