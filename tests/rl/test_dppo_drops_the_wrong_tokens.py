"""The mask of DPPO, what flows through it, and the divisor."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from frognano.rl.config import DppoConfig
from frognano.rl.dppo import NonFiniteRatio, dppo_loss, keep_mask


@pytest.mark.parametrize(
    ("advantage", "p", "q", "kept"),
    [
        (1.0, 0.9, 0.5, False),  # already moved up far enough
        (1.0, 0.1, 0.9, True),  # moved the other way: may come back
        (1.0, 0.75, 0.5, True),  # exactly δ is within
        (1.0, 0.7500001, 0.5, False),
        (-1.0, 0.1, 0.5, False),
        (-1.0, 0.9, 0.1, True),
        (-1.0, 0.25, 0.5, True),
        (-1.0, 0.2499999, 0.5, False),
        (0.0, 0.1, 0.5, False),  # A = 0 goes with A < 0
        (0.0, 0.9, 0.1, True),
    ],
)
def test_mask_differs_from_its_table(advantage: float, p: float, q: float, kept: bool) -> None:
    got = keep_mask(torch.tensor([p]), torch.tensor([q]), torch.tensor([advantage]), 0.25)
    assert got.tolist() == [kept]


def test_gradient_flows_through_the_mask_or_is_cut_from_the_ratio() -> None:
    """dL/dlogp = −A·ρ/|T| where kept, 0 where dropped."""
    p, q = torch.tensor([0.9, 0.5, 0.1, 0.45]), torch.tensor([0.5, 0.4, 0.5, 0.5])
    a = torch.tensor([1.0, 2.0, -1.0, -3.0])
    logp = p.log().requires_grad_()
    loss = dppo_loss(logp, q.log(), a, 10, 0.2)
    loss.value.backward()
    keep = torch.tensor([0.0, 1.0, 0.0, 1.0])
    torch.testing.assert_close(logp.grad, -a * p / q * keep / 10)
    assert float(loss.value.detach()) == pytest.approx(float(-(a * p / q * keep).sum() / 10), abs=1e-6)
    assert (loss.dropped_pos, loss.dropped_neg) == (1, 1)
    assert loss.sum_abs_diff == pytest.approx(0.4 + 0.1 + 0.4 + 0.05)
    assert loss.max_abs_diff == pytest.approx(0.4)
    assert loss.max_rho == pytest.approx(1.8)


def test_dropped_tokens_leave_the_divisor() -> None:
    logq = torch.tensor([0.5, 0.5]).log()
    one = dppo_loss(torch.tensor([0.95, 0.5]).log(), logq, torch.ones(2), 2, 0.2)
    assert float(one.value) == pytest.approx(-0.5)


def test_parts_do_not_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    logp, logq, a = torch.rand(9).log(), torch.rand(9).log(), torch.randn(9)
    whole = dppo_loss(logp, logq, a, 9, 0.2).value
    parts = [dppo_loss(logp[i : i + 2], logq[i : i + 2], a[i : i + 2], 9, 0.2).value for i in range(0, 9, 2)]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_ratio_that_is_not_finite_is_trained_on(bad: float) -> None:
    logp = torch.tensor([-1.0, bad, -2.0, bad])
    with pytest.raises(NonFiniteRatio, match="2 of 4"):
        dppo_loss(logp, torch.full((4,), -1.0), torch.ones(4), 4, 0.2)


def test_sampled_token_of_probability_zero_is_trained_on() -> None:
    with pytest.raises(NonFiniteRatio, match="1 of 1"):
        dppo_loss(torch.tensor([-1.0]), torch.tensor([-math.inf]), torch.ones(1), 1, 0.2)


def test_batch_without_a_trainable_token_gives_a_nan() -> None:
    with pytest.raises(ValueError, match="skip the update"):
        dppo_loss(torch.zeros(0), torch.zeros(0), torch.zeros(0), 0, 0.2)
    empty = dppo_loss(torch.zeros(0, requires_grad=True), torch.zeros(0), torch.zeros(0), 5, 0.2)
    empty.value.backward()  # an empty part of a batch is an exact 0 with a graph
    assert float(empty.value.detach()) == 0.0


@pytest.mark.parametrize("delta", [0, -0.1, 1.1, math.nan])
def test_delta_outside_of_what_a_probability_can_move(delta: float) -> None:
    with pytest.raises(ValidationError):
        DppoConfig(delta=delta)
