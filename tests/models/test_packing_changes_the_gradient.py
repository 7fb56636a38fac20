"""Packed scoring and its gradients against a second computation: transformers, one unpadded sample at a time."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from frognano.models import scoring
from frognano.models.llama import LlamaConfig, LlamaWeights
from frognano.models.packed import Layout, Packed, Row, common_prefix
from frognano.models.policy import LlamaPolicy
from frognano.models.scoring import head_scores, hidden_states
from frognano.records import Sample
from frognano.rl.dppo import dppo_loss
from frognano.rl.groups import Group, advantages
from frognano.rl.packing import micro_batches, pack
from models.tiny import FAMILIES, logp_of, our_weights, random_ids, sample, save_tiny, tiny_model

T = 0.7
DELTA = 0.2


@torch.no_grad()
def batch(model: Any, seed: int, groups: int = 5, far: float = 0.4) -> list[Group]:
    """Uneven prompts, lengths and masks; q lies so far from p that DPPO drops more than a tenth of the tokens."""
    rng = random.Random(seed)
    prefix = random_ids(rng, 9)
    out = []
    for g in range(groups):
        prompt = prefix + random_ids(rng, rng.randint(1, 12))
        samples = []
        for i in range(rng.randint(3, 5)):
            n = rng.randint(1, 25)
            ids = [int(x) for x in model.generate(
                torch.tensor([prompt]), do_sample=True, max_new_tokens=n, top_k=0, eos_token_id=None, pad_token_id=0
            )[0, len(prompt) :]] if rng.random() < 0.7 else random_ids(rng, n)  # fmt: skip
            mask = [int(rng.random() < 0.7) for _ in ids]
            p = logp_of(model, prompt + ids, T)[len(prompt) - 1 :].exp().tolist()
            q = [math.log(min(0.999, max(0.02, x + rng.gauss(0, far)))) * m for x, m in zip(p, mask, strict=True)]
            samples.append(
                sample(
                    prompt,
                    ids,
                    mask,
                    trajectory=f"t{i // 2 if g == 0 else i}",
                    group=f"g{g}",
                    raw=float(i < 2),
                    logprobs=q,
                )
            )
        out.append(Group(f"g{g}", tuple(samples)))
    return out


def independent(model: Any, groups: list[Group]) -> tuple[float, dict[str, torch.Tensor], float]:
    """The loss from its equation: loops over samples and tokens, nothing shared with the code under test."""
    tokens = sum(sum(s.loss_mask) for g in groups for s in g.samples)
    total, dropped = torch.zeros(()), 0
    for group in groups:
        by_trajectory = {s.trajectory_id: s.reward for s in group.samples}
        rewards = torch.tensor(list(by_trajectory.values()), dtype=torch.float64)
        for s in group.samples:
            a = float((s.reward - rewards.mean()) / (rewards.std(correction=1) + 1e-6))
            logp = logp_of(model, [*s.prompt_ids, *s.response_ids], s.temperature)[len(s.prompt_ids) - 1 :]
            for t in range(len(s.response_ids)):
                if not s.loss_mask[t]:
                    continue
                p, q = float(logp[t].detach().exp()), float(torch.tensor(s.logprobs[t]).exp())
                if (p - q > DELTA) if a > 0 else (p - q < -DELTA):
                    dropped += 1
                else:
                    total = total - a * torch.exp(logp[t] - s.logprobs[t]) / tokens
    total.backward()
    state = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    config = LlamaConfig.of(model.config)
    full = {n: state.get(n, torch.zeros_like(v)) for n, v in model.state_dict().items()}
    named = LlamaWeights.from_state(config, full, torch.float32)
    grads = {f"layers.{i}.{k}": v for i, layer in enumerate(named.layers) for k, v in layer.items()}
    grads |= {"embedding": named.embedding, "norm": named.norm}
    if named.head is not named.embedding:
        grads["head"] = named.head
    model.zero_grad()
    return float(total.detach()), grads, dropped / tokens


def ours(
    policy: LlamaPolicy, groups: list[Group], max_tokens: int = 10**6
) -> tuple[float, dict[str, torch.Tensor], float]:
    tokens = sum(s.trainable for g in groups for s in g.samples)
    total, dropped = 0.0, 0
    for part in micro_batches(groups, max_tokens):
        scores = policy.score(part.packed, part.temperature)
        loss = dppo_loss(scores.logp, part.logq, part.advantage, tokens, DELTA)
        loss.value.backward()
        total += float(loss.value.detach())
        dropped += loss.dropped_pos + loss.dropped_neg
    return total, policy.gradients(), dropped / tokens


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], names: Any = None) -> None:
    """To 1e-5 of the largest entry of the whole gradient."""
    scale = max(float(v.abs().max()) for v in want.values())
    for name in names or want:
        gap = float((got[name] - want[name]).abs().max())
        assert gap <= 1e-5 * max(1.0, scale), f"{name}: {gap:.1e} at a scale of {scale:.1e}"


@pytest.fixture(scope="module", params=FAMILIES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LlamaPolicy]:
    folder = save_tiny(tmp_path_factory.mktemp(request.param), request.param)
    return tiny_model(request.param), LlamaPolicy(folder, "all", torch.float32)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LlamaPolicy]:
    folder = save_tiny(tmp_path_factory.mktemp("llama"), "llama")
    return tiny_model("llama"), LlamaPolicy(folder, "all", torch.float32)


@pytest.mark.parametrize("seed", [1, 2])
def test_loss_or_gradient_differs_from_a_second_computation(world: tuple[Any, LlamaPolicy], seed: int) -> None:
    model, policy = world
    groups = batch(model, seed)
    want, want_grads, want_dropped = independent(model, groups)
    got, grads, dropped = ours(policy, groups)
    assert dropped == want_dropped
    assert dropped > 0.1
    assert got == pytest.approx(want, abs=1e-5, rel=1e-5)
    assert set(grads) == set(want_grads)
    assert_same(grads, want_grads)


def test_micro_batches_or_order_of_samples_change_the_gradient(llama: tuple[Any, LlamaPolicy]) -> None:
    model, policy = llama
    groups = batch(model, 3)
    want, want_grads, _ = ours(policy, groups)
    shuffled = [
        Group(g.id, tuple(random.Random(7).sample(g.samples, len(g.samples))))
        for g in random.Random(6).sample(groups, 5)
    ]
    counts = []
    for some, limit in ((groups, 1), (groups, 120), (shuffled, 10**6), (shuffled, 200)):
        counts.append(len(list(micro_batches(some, limit))))
        got, grads, _ = ours(policy, some, limit)
        assert got == pytest.approx(want, abs=1e-5)
        assert_same(grads, want_grads)
    assert counts[0] == 5
    assert counts[2] == 1


def test_micro_batch_is_larger_than_allowed_without_need(llama: tuple[Any, LlamaPolicy]) -> None:
    groups = batch(llama[0], 4)
    single = {g.id: pack([g]).packed.tokens for g in groups}
    for limit in (50, 150, 400):
        parts = list(micro_batches(groups, limit))
        assert all(p.packed.tokens <= max(limit, max(single.values())) for p in parts)
        assert sum(p.packed.targets for p in parts) == sum(s.trainable for g in groups for s in g.samples)


@torch.no_grad()
def test_sharing_a_prompt_changes_logprobs(llama: tuple[Any, LlamaPolicy]) -> None:
    """One forward for all, with a prefix, without one, and each sample alone, in the order of the targets."""
    model, policy = llama
    groups = batch(model, 5)
    part = pack(groups)
    got = policy.score(part.packed, T).logp
    order: list[Sample] = [s for g in groups for s in g.samples]
    want = torch.cat([
        logp_of(model, [*s.prompt_ids, *s.response_ids], T)[len(s.prompt_ids) - 1 :][torch.tensor(s.loss_mask) == 1]
        for s in order
    ])  # fmt: skip
    torch.testing.assert_close(got, want, atol=2e-5, rtol=0)
    q = [x for s in order for x, m in zip(s.logprobs, s.loss_mask, strict=True) if m]
    assert part.logq.tolist() == pytest.approx(q)
    a = [x for g in groups for s, x in zip(g.samples, advantages(g), strict=True) for _ in range(s.trainable)]
    assert part.advantage.tolist() == pytest.approx(a)
    bare = Packed([], [part.packed.prefix + p for p in part.packed.prompts], part.packed.rows)
    torch.testing.assert_close(policy.score(bare, T).logp, got, atol=2e-5, rtol=0)


@pytest.mark.parametrize("trainable", [1, 2, 3])
def test_freezing_lower_layers_changes_the_gradient_of_the_upper_ones(
    llama: tuple[Any, LlamaPolicy], trainable: int
) -> None:
    """Frozen head (our own autograd function) and frozen blocks against everything trainable."""
    model, everything = llama
    part = LlamaPolicy(everything.path, trainable, torch.float32)
    groups = batch(model, 6)
    want, want_grads, _ = ours(everything, groups)
    got, grads, _ = ours(part, groups)
    assert got == pytest.approx(want, abs=1e-5)
    assert {n.split(".")[1] for n in grads} == {str(i) for i in range(3 - trainable, 3)}
    assert_same(grads, want_grads, grads)
    assert part.weights.layers[0]["qkv"].requires_grad is (trainable == 3)
    assert not part.weights.head.requires_grad


@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("frozen", [True, False])
def test_chunk_of_the_head_changes_the_gradient(chunk: int, frozen: bool) -> None:
    torch.manual_seed(1)
    hidden, head = torch.randn(40, 16, requires_grad=True), torch.randn(97, 16, requires_grad=not frozen)
    targets, weight = torch.randint(97, (40,)), torch.randn(40)
    logs = torch.log_softmax(hidden @ head.T / T, -1)
    want = torch.autograd.grad(
        (logs.gather(1, targets[:, None])[:, 0] * weight).sum(), [hidden] + [head] * (not frozen)
    )
    scores = head_scores(hidden, head, targets, T, chunk)
    got = torch.autograd.grad((scores.logp * weight).sum(), [hidden] + [head] * (not frozen))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropy, -(logs.exp() * logs).sum(-1).detach(), atol=1e-5, rtol=0)
    assert not scores.entropy.requires_grad


@pytest.mark.parametrize("frozen", [True, False])
def test_long_batch_holds_logits_of_all_targets(monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """Every matrix product of the head has at most `chunk` rows, and what autograd keeps is smaller than one [n, V]."""
    n, vocabulary, chunk = 600, 1000, 64
    hidden = torch.randn(n, 8, requires_grad=True)
    head = torch.randn(vocabulary, 8, requires_grad=not frozen)
    rows: list[int] = []
    linear = scoring.linear

    def watched(x: torch.Tensor, *rest: Any) -> Any:
        rows.append(len(x))
        return linear(x, *rest)

    monkeypatch.setattr(scoring, "linear", watched)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        scores = head_scores(hidden, head, torch.randint(vocabulary, (n,)), T, chunk)
    scores.logp.sum().backward()
    assert max(rows) == chunk
    assert max(kept, default=0) < chunk * vocabulary


def test_only_trained_positions_are_projected(llama: tuple[Any, LlamaPolicy], monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Packed([7, 8], [[9]], [[Row((10, 11, 12, 13), (0, 1, 0, 1))]])
    policy = llama[1]
    assert len(hidden_states(policy.weights, packed, Layout.of(packed), 0)) == 2
    assert len(policy.score(packed, T).logp) == 2


def test_gradient_flows_to_observations_and_not_to_actions(llama: tuple[Any, LlamaPolicy]) -> None:
    """The last token of a row is seen by nobody: another observation there changes nothing, another action does.

    An untied head would show it at once; here the rows of the tied embedding that no input token uses show it.
    """
    policy = llama[1]

    def gradient(last: int, mask: int) -> dict[str, torch.Tensor]:
        packed = Packed([7], [[8]], [[Row((9, 10, last), (1, 0, mask))]])
        policy.score(packed, T).logp.sum().backward()
        return policy.gradients()

    qkv = "layers.0.qkv"
    assert torch.equal(gradient(11, 0)[qkv], gradient(12, 0)[qkv])
    assert not torch.allclose(gradient(11, 1)[qkv], gradient(12, 1)[qkv])
    assert not torch.allclose(gradient(11, 1)[qkv], gradient(11, 0)[qkv])


def test_stop_token_gets_no_gradient(llama: tuple[Any, LlamaPolicy]) -> None:
    """The sampled stop token is the last target; what it adds to the gradient is not zero."""
    model, policy = llama
    packed = Packed([], [[7, 8]], [[Row((9, model.config.eos_token_id), (0, 1))]])
    policy.score(packed, T).logp.sum().backward()
    assert float(policy.gradients()["layers.2.down"].abs().max()) > 1e-4


def test_rows_without_a_target_break_the_pass(llama: tuple[Any, LlamaPolicy]) -> None:
    policy = llama[1]
    for rows in ([[Row((), ())], [Row((9, 9), (0, 0)), Row((4,), (1,))]], [[Row((), ())], [Row((), ())]]):
        packed = Packed([7], [[8], [8, 9]], rows)
        logp = policy.score(packed, T).logp
        assert len(logp) == packed.targets
        logp.sum().backward()
        assert all(bool(g.isfinite().all()) for g in policy.gradients().values())


def test_bf16_working_copy_gives_another_direction(llama: tuple[Any, LlamaPolicy]) -> None:
    model, policy = llama
    half = LlamaPolicy(policy.path, "all", torch.bfloat16)
    groups = batch(model, 8, far=0.05)
    _, want, _ = ours(policy, groups)
    _, got, _ = ours(half, groups)
    a, b = (torch.cat([g[k].flatten() for k in sorted(want)]) for g in (got, want))
    cosine = float(torch.nn.functional.cosine_similarity(a, b, 0))
    print(f"bf16 gradient: cosine to fp32 {cosine:.4f}")
    assert cosine > 0.98


def test_common_prefix_swallows_a_whole_prompt() -> None:
    assert common_prefix([(1, 2, 3), (1, 2)]) == 1
    assert common_prefix([(1, 2), (1, 2)]) == 1
    assert common_prefix([(5,), (6,)]) == 0
    assert common_prefix([]) == 0
    with pytest.raises(ValueError, match="prompt needs"):
        Packed([1], [[]], [[Row((2,), (1,))]])
    with pytest.raises(ValueError, match="groups"):
        Packed([1], [[2]], [])


def test_temperatures_are_mixed_in_one_batch() -> None:
    samples = tuple(sample([1], [2], [1], trajectory=f"t{i}", raw=float(i), temperature=0.5 + i) for i in range(2))
    with pytest.raises(ValueError, match="temperatures"):
        pack([Group("g", samples)])


def test_weights_tuned_for_one_position_pass_at_another(llama: tuple[Any, LlamaPolicy]) -> None:
    """Positions of a row go on from its own prompt, not from the longest one of the batch."""
    policy = llama[1]
    weights = our_weights(llama[0])
    row = Row((30, 31, 32), (1, 1, 1))
    alone = Packed([7, 8], [[9]], [[row]])
    beside = Packed([7, 8], [[9], [10] * 40], [[row], [Row((4,), (0,))]])
    with torch.no_grad():
        a = head_scores(hidden_states(weights, alone, Layout.of(alone), 0), weights.head, Layout.of(alone).targets, T)
        b = policy.score(beside, T)
    torch.testing.assert_close(a.logp, b.logp, atol=1e-5, rtol=0)
