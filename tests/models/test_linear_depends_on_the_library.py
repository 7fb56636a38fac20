"""Whichever library multiplies, the values are the same; where one of them cannot, the other does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from frognano.models import linear as module
from frognano.models.linear import laid_out, linear


@pytest.fixture(autouse=True, params=[True, False])
def openblas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(module, "openblas_is_faster", lambda: request.param)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(1, 3, 2), (64, 576, 192), (7, 5, 1), (0, 4, 3)])
def test_values_differ(shape: tuple[int, int, int]) -> None:
    n, d, m = shape
    x, weight, bias = torch.randn(n, d), torch.randn(m, d, requires_grad=True), torch.randn(m)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


def test_input_that_is_not_laid_out_in_order_is_misread() -> None:
    x, weight = torch.randn(8, 20)[:, ::2], torch.randn(10, 6).T
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


def test_layout_changes_values_or_gradient() -> None:
    """Columns first: the same matrix, whoever multiplies, and a gradient that the optimizer can add to it."""
    x, weight = torch.randn(5, 7), torch.randn(11, 7)
    moved = laid_out(weight)
    assert torch.equal(moved, weight)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, moved), F.linear(x, weight), rtol=1e-5, atol=1e-5)
    moved.requires_grad_(True)
    linear(x, moved).sum().backward()
    torch.testing.assert_close(moved.grad, x.sum(0).expand(11, 7))
    assert moved.grad is not None
    assert moved.grad.stride() == moved.stride()


def test_layout_copies_what_would_not_gain() -> None:
    for weight in (torch.randn(4, 3).bfloat16(), torch.randn(4, 3).double()):
        assert laid_out(weight) is weight


def test_gradient_is_lost() -> None:
    x, weight = torch.randn(3, 4), torch.randn(2, 4, requires_grad=True)
    linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(2, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precision_is_lost(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 4).to(dtype), torch.randn(2, 4).to(dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_another_maker_gets_the_slower_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for maker, expected in (("GenuineIntel", False), ("AuthenticAMD", torch.backends.mkl.is_available())):
        monkeypatch.setattr(module.Path, "read_text", lambda self, maker=maker: f"vendor_id : {maker}")
        module.openblas_is_faster.cache_clear()
        assert module.openblas_is_faster() is expected
    module.openblas_is_faster.cache_clear()
