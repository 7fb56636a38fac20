"""A prefix whose states are shared by all micro-batches of an update, against computing it anew in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from frognano.models import prefix as prefix_module
from frognano.models.packed import Packed, Row
from frognano.models.policy import LlamaPolicy
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.dppo import NonFiniteRatio, dppo_loss
from frognano.rl.packing import micro_batches, static_prefix
from frognano.rl.trainer import Trainer
from models.test_packing_changes_the_gradient import DELTA, T, assert_same, batch, independent, ours
from models.tiny import FAMILIES, sample, save_tiny, tiny_model

Groups = list[Any]


def shared(policy: LlamaPolicy, groups: Groups, max_tokens: int) -> tuple[float, dict[str, torch.Tensor], float]:
    """As `ours`, but inside `sharing`; the gradient is whole only after it."""
    tokens = sum(s.trainable for g in groups for s in g.samples)
    total, dropped = 0.0, 0
    with policy.sharing(static_prefix(groups)):
        for part in micro_batches(groups, max_tokens):
            loss = dppo_loss(policy.score(part.packed, part.temperature).logp, part.logq, part.advantage, tokens, DELTA)
            loss.value.backward()
            total += float(loss.value.detach())
            dropped += loss.dropped_pos + loss.dropped_neg
    return total, policy.gradients(), dropped / tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [1, 2, 3, "all"])
def test_sharing_changes_loss_or_gradient(family: str, layers: Any, tmp_path: Path) -> None:
    """Against transformers, one sample at a time, in five micro-batches and in one."""
    policy = LlamaPolicy(save_tiny(tmp_path, family), layers, torch.float32)
    model = tiny_model(family)
    groups = batch(model, 11)
    want, want_grads, want_dropped = independent(model, groups)
    assert len(list(micro_batches(groups, 1))) == 5
    for limit in (1, 10**6):
        got, grads, dropped = shared(policy, groups, limit)
        assert got == pytest.approx(want, abs=1e-5, rel=1e-5)
        assert dropped == want_dropped
        assert_same(grads, want_grads, grads)


@pytest.fixture
def half(tmp_path: Path) -> tuple[Any, LlamaPolicy]:
    folder = save_tiny(tmp_path, "llama")
    return tiny_model("llama"), LlamaPolicy(folder, 2, torch.float32)


def test_states_of_old_weights_or_of_another_prefix_are_kept(half: tuple[Any, LlamaPolicy]) -> None:
    model, policy = half
    groups, others = batch(model, 12), batch(model, 13)
    assert static_prefix(groups) != static_prefix(others)
    for some in (groups, groups, others, groups):
        want = ours(policy, some)  # outside of `sharing` everything is computed anew
        got = shared(policy, some, 60)
        assert got[0] == pytest.approx(want[0], abs=1e-5)
        assert_same(got[1], want[1])
        with torch.no_grad():  # what an optimizer step does
            for tensor in policy.masters.values():
                tensor.add_(torch.randn_like(tensor) * 0.02)


def test_frozen_layers_are_computed_in_every_update(
    half: tuple[Any, LlamaPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, policy = half
    groups, blocks = batch(model, 14), [0]

    def counted(*given: Any) -> Any:
        blocks[0] += 1
        return block(*given)

    block = prefix_module.block
    monkeypatch.setattr(prefix_module, "block", counted)
    for want in (2, 1):  # one frozen layer and one that learns; of the third only keys and values
        blocks[0] = 0
        shared(policy, groups, 1)
        assert blocks[0] == want


def test_another_prefix_than_the_shared_one_is_scored_with_it(half: tuple[Any, LlamaPolicy]) -> None:
    policy = half[1]
    packed = Packed([7, 8, 9], [[10]], [[Row((11, 12), (1, 1))]])
    want = policy.score(packed, T).logp
    with policy.sharing([8, 7, 9]):
        torch.testing.assert_close(policy.score(packed, T).logp, want)
    with policy.sharing([7, 8, 9]):
        torch.testing.assert_close(policy.score(packed, T).logp, want, atol=1e-5, rtol=0)


def test_broken_update_leaves_a_gradient_or_a_shared_prefix(half: tuple[Any, LlamaPolicy]) -> None:
    model, policy = half
    bad = [
        sample([7, 8, 9], [10, 11], [1, 1], trajectory=f"t{i}", raw=float(i), logprobs=[-1e4, -1.0]) for i in range(2)
    ]
    groups = batch(model, 15)
    trainer = Trainer(policy, OptimizerConfig(micro_batch_tokens=1), DppoConfig())
    broken = type(groups[0])("g", tuple(bad))
    with pytest.raises(NonFiniteRatio):
        trainer.update([*groups, broken])
    assert all(float(g.abs().max()) == 0 for g in policy.gradients().values())
    assert policy._prefix.states(static_prefix([*groups, broken])) is None
