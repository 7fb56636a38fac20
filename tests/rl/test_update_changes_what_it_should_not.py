"""One update: no step without signal, constant groups change nothing, warm-up, and what `reset` forgets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from frognano.models.policy import LlamaPolicy
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.dppo import NonFiniteRatio
from frognano.rl.groups import Group
from frognano.rl.trainer import Trainer
from models.tiny import random_ids, sample, save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def trainer(folder: Path, dtype: torch.dtype = torch.float32, **settings: float) -> Trainer:
    config = OptimizerConfig.model_validate({"learning_rate": 1e-3, "micro_batch_tokens": 60, **settings})
    return Trainer(LlamaPolicy(folder, "all", dtype), config, DppoConfig(delta=1.0))


def group(seed: int, *raw: float, mask: int = 1) -> Group:
    rng = random.Random(seed)
    prompt = random_ids(rng, 6)
    samples = [
        sample(prompt, random_ids(rng, 8), [mask] * 8, trajectory=f"t{i}", group=f"g{seed}", raw=r)
        for i, r in enumerate(raw)
    ]
    return Group(f"g{seed}", tuple(samples))


def masters(t: Trainer) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in t.policy.masters.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    "groups", [[], [group(1, 0, 0)], [group(1, 1, 1), group(2, 0, 0), group(3, 1)], [group(1, 1, 0, mask=0)]]
)
def test_batch_without_signal_moves_the_weights(folder: Path, groups: list[Group]) -> None:
    """Not even weight decay may act."""
    t = trainer(folder)
    before = masters(t)
    metrics = t.update(groups)
    assert metrics["stepped"] == 0
    assert metrics["groups"] == len(groups)
    assert t.step == 0
    assert same(before, masters(t))


def test_kept_and_dropped_groups_are_miscounted(folder: Path) -> None:
    m = trainer(folder).update([group(1, 1, 0), group(2, 0, 0), group(3, 1, 1), group(4, 1), group(5, 1, 1)])
    counted = {k.removeprefix("groups_"): m[k] for k in m if k.startswith("groups")}
    assert counted == {"groups": 5, "kept": 1, "all0": 1, "all1": 2, "too_small": 1}
    assert m["tokens"] == 16
    assert m["stepped"] == 1


def test_constant_group_shrinks_the_step(folder: Path) -> None:
    alone, beside = trainer(folder), trainer(folder)
    a, b = alone.update([group(1, 1, 0)]), beside.update([group(2, 0, 0), group(1, 1, 0), group(3, 1, 1)])
    assert (a["grad_norm"], a["loss"], a["tokens"]) == (b["grad_norm"], b["loss"], b["tokens"])
    assert same(masters(alone), masters(beside))


def test_metrics_depend_on_the_micro_batch(folder: Path) -> None:
    groups = [group(i, 1, 0, 0) for i in range(4)]
    one, many = (trainer(folder, micro_batch_tokens=n).update(groups) for n in (10**6, 1))
    for name in ("loss", "entropy", "mean_abs_diff", "max_abs_diff", "max_rho", "masked_pos", "grad_norm"):
        assert one[name] == pytest.approx(many[name], rel=1e-4, abs=1e-6), name
    assert one["entropy"] > 0


def test_warm_up_is_skipped_or_never_ends(folder: Path) -> None:
    t = trainer(folder, warmup=4)
    rates = []
    for i in range(6):
        t.update([group(i, 1, 0)])
        rates.append(t.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_reset_keeps_moments_of_the_last_iteration(folder: Path) -> None:
    """After `reset` an update equals that of a new trainer on the same weights."""
    old = trainer(folder, warmup=3)
    for i in range(3):
        old.update([group(i, 1, 0)])
    old.reset()
    assert old.step == 0
    assert not old.optimizer.state_dict()["state"]
    new = trainer(folder, warmup=3)
    policy = new.policy
    assert isinstance(policy, LlamaPolicy)
    policy.restore(masters(old))
    old.update([group(7, 1, 0)])
    new.update([group(7, 1, 0)])
    assert same(masters(old), masters(new))


def test_failed_update_leaves_gradients_for_the_next_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second micro-batch has a broken ratio: nothing moves, and what the first one summed is gone."""
    t, clean = trainer(folder), trainer(folder)
    before = masters(t)
    rng = random.Random(5)
    broken = Group("b", tuple(
        sample([7], random_ids(rng, 40), [1] * 40, trajectory=f"t{i}", group="b", raw=i, logprobs=[-1000.0] * 40)
        for i in range(2)
    ))  # fmt: skip
    with pytest.raises(NonFiniteRatio):
        t.update([group(1, 1, 0), broken])
    assert same(before, masters(t))
    assert t.update([group(2, 1, 0)])["grad_norm"] == clean.update([group(2, 1, 0)])["grad_norm"]
    assert same(masters(t), masters(clean))


def test_gradient_that_is_not_finite_is_stepped_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t, clean = trainer(folder), trainer(folder)
    before, real = masters(t), t.policy.gradients
    monkeypatch.setattr(t.policy, "gradients", lambda: {k: v / 0 for k, v in real().items()})
    with pytest.raises(RuntimeError, match="non-finite"):
        t.update([group(1, 1, 0)])
    monkeypatch.undo()
    assert t.step == 0
    assert same(before, masters(t))
    t.update([group(2, 1, 0)])
    clean.update([group(2, 1, 0)])
    assert same(masters(t), masters(clean))


def test_clip_is_not_applied(folder: Path) -> None:
    """Adam hides the scale of a gradient, so its first moment is looked at."""
    t = trainer(folder, clip=1e-3)
    norm = t.update([group(1, 1, 0)])["grad_norm"]
    moments = torch.cat([s["exp_avg"].flatten() for s in t.optimizer.state.values()])
    assert norm > 1e-3
    assert float(moments.norm()) == pytest.approx(1e-3 * (1 - t.config.betas[0]), rel=1e-2)


def test_bf16_copy_swallows_small_steps(folder: Path) -> None:
    """Steps far below bf16's resolution add up in the masters, and reach the working copy once they are large enough."""
    t = trainer(folder, torch.bfloat16, learning_rate=1e-5, weight_decay=0.0)
    policy = t.policy
    assert isinstance(policy, LlamaPolicy)
    start, start16 = masters(t)["layers.1.down"], policy.weights.layers[1]["down"].detach().clone()
    for _ in range(30):
        t.update([group(1, 1, 0)])
    assert float((masters(t)["layers.1.down"] - start).abs().mean()) > 1e-4
    assert not torch.equal(policy.weights.layers[1]["down"], start16)
    assert torch.equal(policy.weights.layers[1]["down"], masters(t)["layers.1.down"].bfloat16())


def test_good_answer_becomes_less_probable(folder: Path) -> None:
    """Forty updates on one group: the success gains, the failure loses."""
    t = trainer(folder, learning_rate=3e-3)
    g = group(9, 1, 0)

    def logp() -> list[float]:
        from frognano.rl.packing import pack

        with torch.no_grad():
            return [float(x.sum()) for x in t.policy.score(pack([g]).packed, 0.7).logp.split(8)]

    before = logp()
    for _ in range(40):
        t.update([g])
    after = logp()
    assert after[0] > before[0] + 1
    assert after[1] < before[1] - 1
