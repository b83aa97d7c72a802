"""Ordered products of small matrices against the loop that multiplies them one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unhinge.theory.linear.products import ordered_products

F64 = torch.float64


def drawn(seed: int, count: int, modes: int, size: int) -> torch.Tensor:
    noise = torch.randn(count, modes, size, size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return torch.eye(size, dtype=F64) + 0.1 * noise


def one_by_one(matrices: torch.Tensor, steps: int) -> torch.Tensor:
    """The product of the first `steps` of them, the last of which goes on for ever."""
    product = torch.eye(matrices.shape[-1], dtype=F64).expand_as(matrices[0])
    for k in range(steps):
        product = matrices[min(k, len(matrices) - 1)] @ product
    return product


@given(
    st.integers(0, 10**6),
    st.integers(1, 70),
    st.integers(1, 3),
    st.integers(2, 4),
    st.lists(st.integers(0, 90), max_size=12),
    st.sampled_from([1, 3, 16, 1024]),
)
@settings(max_examples=60)
def test_products_are_those_of_the_loop(seed, count, modes, size, steps, chunk):
    known = drawn(seed, count, modes, size)

    def matrices(start: int, stop: int) -> torch.Tensor:
        return known[torch.arange(start, stop).clamp(max=count - 1)]

    asked = torch.tensor(steps, dtype=torch.int64)
    log, product = ordered_products(matrices, asked, count - 1, chunk)
    assert log.shape == (len(steps), modes)
    assert product.shape == (len(steps), modes, size, size)
    for row, k in enumerate(steps):
        expected = one_by_one(known, k)
        actual = log[row].exp()[:, None, None] * product[row]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12 * expected.abs().max().item())


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_no_number_of_steps_leaves_the_range(scale):
    known = scale * drawn(0, 50, 2, 2)
    log, product = ordered_products(lambda start, stop: known[start:stop], torch.tensor([7, 40]), 50)
    direct, _ = ordered_products(lambda start, stop: known[start:stop] / scale, torch.tensor([7, 40]), 50)
    assert product.isfinite().all()
    expected = direct + torch.tensor([[7.0], [40.0]], dtype=F64) * torch.tensor(scale, dtype=F64).log()
    torch.testing.assert_close(log, expected, rtol=1e-14, atol=1e-9)


def test_a_step_that_takes_all_to_zero_stays_zero():
    known = drawn(1, 9, 2, 2)
    known[4] = 0.0
    _, product = ordered_products(lambda start, stop: known[start:stop], torch.tensor([4, 5, 8]), 9)
    assert product[0].abs().amax() > 0
    assert product[1:].abs().amax() == 0


def test_gradients_go_through_the_products():
    def products(known: torch.Tensor) -> torch.Tensor:
        asked = torch.tensor([[0, 3], [7, 5]])
        log, product = ordered_products(lambda start, stop: known[start:stop], asked, len(known), chunk=4)
        return log.exp()[..., None, None] * product

    assert torch.autograd.gradcheck(products, (drawn(2, 8, 2, 2).requires_grad_(),))
