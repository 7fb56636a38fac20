"""Our DPPO loss against verl's `dppo_tv` and SkyRL's `dppo`, each run by itself in an environment of its own.

What differs by design, and is held fast here:

- verl's loss is ρ, detached, times log p: its gradient is ours, its value is not (it is compared with what it stands for);
- verl truncates ρ at `clip_ratio_c`, 3 by default; it is lifted to 1e9 here, and a test shows what the default does;
- both bound log ρ by 20, we by nothing (a ratio that is not finite stops the run): beyond, verl's gradient stays at e^20, and
  SkyRL's vanishes, since it goes through the bound;
- we and verl take A = 0 for negative, SkyRL for neither: without effect, the gradient is 0;
- the divisor, all trainable tokens of the batch, is given by the caller to us (`divisor`) and to verl (`batch_num_tokens`), and
  put into the advantages by SkyRL's reduction `token_mean`; where there is no such token, we refuse, SkyRL gives 0.
"""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from frognano.rl.dppo import dppo_loss, keep_mask
from peers.conftest import install

pytestmark = [pytest.mark.peers, pytest.mark.timeout(3600)]
HERE = Path(__file__).parent
DELTA = 0.2
Case = dict[str, Any]


def case(logp: torch.Tensor, logq: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor, **more: Any) -> Case:
    return {
        "logp": logp,
        "logq": logq,
        "advantage": advantage,
        "mask": mask.float(),
        "divisor": int(mask.sum()),
        **more,
    }


def random_case(seed: int, rows: int = 8, length: int = 40) -> Case:
    """Confident and unsure tokens, q near p and far from it, a third of the tokens not trained, stored there as log q = 0."""
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(rows, length, generator=g).clamp(1e-4, 0.9999)
    q = (p + torch.randn(rows, length, generator=g) * 0.25).clamp(1e-4, 0.9999)
    mask = torch.rand(rows, length, generator=g) > 0.33
    return case(p.log(), q.log() * mask, torch.randn(rows, generator=g), mask)


def cases() -> dict[str, Case]:
    made = {f"random {seed}": random_case(seed) for seed in range(8)}
    ones = torch.ones(4, 6)
    made["ratios up to e^18, both signs"] = case(
        torch.linspace(-8, -0.01, 24).view(4, 6),
        torch.linspace(-18.01, -6, 24).flip(0).view(4, 6).clamp(max=-0.001),
        torch.tensor([2.0, -2.0, 1.0, -1.0]),
        ones,
    )
    made["ratios down to e^-18"] = case(
        torch.linspace(-18, -9, 24).view(4, 6), ones * -0.05, torch.tensor([2.0, -2.0, 1.0, -1.0]), ones
    )
    p = torch.tensor([[0.5, 0.5, 0.9, 0.3]] * 2)
    edge = torch.tensor([[DELTA, DELTA + 1e-6, DELTA - 1e-6, 0.0], [-DELTA, -DELTA - 1e-6, -DELTA + 1e-6, 0.0]])
    for sign in (1.0, -1.0):
        made[f"at the edge of the mask, A {sign:+.0f}"] = case(
            p.log(), (p - edge).log(), torch.tensor([sign, sign]), torch.ones(2, 4)
        )
    made["all advantages negative"] = {**random_case(20), "advantage": -torch.linspace(0.1, 1.5, 8)}
    made["advantages of 0"] = {**random_case(21), "advantage": torch.tensor([0.0, 1.0] * 4)}
    some = random_case(22)
    some["mask"][::2] = 0  # whole rows that are not trained
    some["logq"] = some["logq"] * some["mask"]
    made["rows without a trained token"] = {**some, "divisor": int(some["mask"].sum())}
    wild = random_case(23)
    wild["logp"] = torch.where(wild["mask"] > 0, wild["logp"], -80.0)
    made["wild log-probs where nothing is trained"] = wild
    made["huge advantages"] = {**random_case(24), "advantage": torch.linspace(-1e4, 1e4, 8)}
    made["a divisor of one token"] = case(
        torch.full((3, 5), -0.7),
        torch.full((3, 5), -0.75),
        torch.tensor([1.0, -1.0, 1.0]),
        torch.eye(5)[2:5] * torch.eye(5)[2],
    )
    return made


def beyond() -> Case:
    """log ρ of 28: A > 0 with p below δ, and A < 0."""
    return case(
        torch.tensor([[-2.0], [-2.0]]), torch.tensor([[-30.0], [-30.0]]), torch.tensor([1.0, -1.0]), torch.ones(2, 1)
    )


def nothing() -> Case:
    return case(torch.full((2, 3), -1.0), torch.full((2, 3), -1.0), torch.tensor([1.0, -1.0]), torch.zeros(2, 3))


def ours(c: Case) -> tuple[float, torch.Tensor]:
    logp = c["logp"].clone().requires_grad_()
    which = c["mask"] > 0
    advantage = c["advantage"][:, None].expand_as(logp)[which]
    loss = dppo_loss(logp[which], c["logq"][which], advantage, c["divisor"], DELTA).value
    loss.backward()
    assert logp.grad is not None
    return float(loss.detach()), logp.grad


def asked_of(peer: str, tmp_path: Path, made: dict[str, Case]) -> dict[str, dict[str, torch.Tensor]]:
    """Losses and gradients of the peer, computed in its environment, which is made on the first call."""
    installed = install(peer)
    if installed.returncode:
        why = installed.stderr.strip().splitlines()[-1:]
        pytest.skip(
            f"{peer} could not be installed: {why}; let uv and pip reach a package index and run bash scripts/peer.sh {peer}"
        )
    given, taken = tmp_path / "given.pt", tmp_path / "taken.pt"
    torch.save({"cases": made, "delta": DELTA, "clip_ratio_c": 1e9}, given)
    run = [installed.stdout.strip(), str(HERE / f"{peer}_loss.py"), str(given), str(taken)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(torch.load(taken))


@pytest.fixture(scope="module", params=["verl", "skyrl"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    made = {**cases(), "beyond": beyond(), "nothing": nothing(), "truncated": {**random_case(0), "clip_ratio_c": 3.0}}
    return request.param, asked_of(request.param, tmp_path_factory.mktemp(request.param), made)


@pytest.mark.parametrize("name", list(cases()))
def test_gradient_differs(peer: tuple[str, dict[str, Any]], name: str) -> None:
    c, theirs = cases()[name], peer[1][name]
    loss, gradient = ours(c)
    scale = float(gradient.abs().max())
    torch.testing.assert_close(theirs["gradient"], gradient, rtol=1e-5, atol=1e-6 * max(scale, 1e-3))
    if peer[0] == "skyrl":
        assert float(theirs["loss"]) == pytest.approx(loss, rel=1e-5, abs=1e-6)
    else:  # the value that its form stands for
        which = c["mask"] > 0
        logp, logq = c["logp"][which], c["logq"][which]
        advantage = c["advantage"][:, None].expand_as(c["logp"])[which]
        kept = keep_mask(logp.exp(), logq.exp(), advantage, DELTA)
        want = -(advantage * (logp - logq).exp() * logp * kept).sum() / c["divisor"]
        assert float(theirs["loss"]) == pytest.approx(float(want), rel=1e-5, abs=1e-6)


def test_cases_never_reach_the_mask() -> None:
    """The comparison would be empty if nothing were dropped, or everything."""
    c = random_case(0)
    which = c["mask"] > 0
    advantage = c["advantage"][:, None].expand_as(c["logp"])[which]
    kept = keep_mask(c["logp"][which].exp(), c["logq"][which].exp(), advantage, DELTA)
    assert 0.05 < float((~kept).float().mean()) < 0.6
    assert max(float((c["logp"] - c["logq"])[c["mask"] > 0].max()) for c in cases().values()) > 9


def test_bound_on_the_ratio_goes_unseen(peer: tuple[str, dict[str, Any]]) -> None:
    _, gradient = ours(beyond())
    torch.testing.assert_close(gradient, torch.tensor([[-1.0], [1.0]]) * math.exp(28) / 2)
    bound = {"verl": math.exp(20) / 2, "skyrl": 0.0}[peer[0]]
    torch.testing.assert_close(peer[1]["beyond"]["gradient"], torch.tensor([[-1.0], [1.0]]) * bound)


def test_truncation_that_verl_has_by_default_goes_unseen(peer: tuple[str, dict[str, Any]]) -> None:
    _, gradient = ours(random_case(0))
    gap = float((peer[1]["truncated"]["gradient"] - gradient).abs().max())
    assert (gap > 1e-3) if peer[0] == "verl" else (gap < 1e-7)


def test_batch_without_a_trained_token_makes_a_step(peer: tuple[str, dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="no trainable token"):
        ours(nothing())
    theirs = peer[1]["nothing"]
    assert float(theirs["gradient"].nan_to_num().abs().max()) == 0.0
    assert math.isnan(float(theirs["loss"])) is (peer[0] == "verl")  # 0 / 0
