"""A temperature is the minimum of the log loss, at any scale, and judged by other examples than it was fitted to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch.nn.functional import cross_entropy

from unhinge.metrics import after_temperature, expected_calibration_error, fit_temperature


def drawn(seed: int, examples: int = 400, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    return exact, torch.multinomial(exact.softmax(1), 1, generator=generator)[:, 0]


def by_search(z: torch.Tensor, y: torch.Tensor) -> float:
    """The minimum of the log loss itself, by golden section."""
    found = minimize_scalar(lambda log: cross_entropy(z / math.exp(log), y).item(), bounds=(-4, 8), method="bounded")
    return math.exp(found.x)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_minimum_of_the_log_loss(seed):
    z, y = drawn(seed)
    assert fit_temperature(7 * z, y) == pytest.approx(by_search(7 * z, y), rel=1e-4)


@given(st.integers(0, 50), st.floats(-200, 200))
def test_it_follows_the_scale_of_the_logits_and_forgets_their_shift(seed, log_scale):
    z, y = drawn(seed, 60, 3)
    scale = math.exp(log_scale)
    plain = fit_temperature(z, y)
    moved = fit_temperature(scale * (z + torch.arange(60, dtype=torch.float64)[:, None]), y)
    assert moved == pytest.approx(scale * plain, rel=1e-6) if 0 < plain < math.inf else moved == plain


def test_the_extremes_are_limits():
    z = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
    assert fit_temperature(z, [0, 1]) == 0  # every decision is right
    assert fit_temperature(-z, [0, 1]) == math.inf  # worse than nothing
    equal = after_temperature(torch.ones(4, 3), [0, 1, 2, 0])  # says nothing: any temperature would do
    assert (equal.temperature, equal.log_loss) == (math.inf, pytest.approx(math.log(3), rel=1e-15))
    tied = after_temperature(torch.tensor([[1.0, 1.0, 0.0]] * 4), [0, 1, 0, 1])  # certain of two, right in one
    assert (tied.temperature, tied.log_loss) == (0, pytest.approx(math.log(2), rel=1e-15))
    right = after_temperature(z.repeat_interleave(2, 0), [0, 0, 1, 1])
    assert (right.temperature, right.log_loss, right.ece) == (0, 0, 0)
    useless = after_temperature(-z.repeat_interleave(2, 0), [0, 0, 1, 1])
    assert useless.log_loss == pytest.approx(math.log(3))
    one_wrong = after_temperature(z[[0, 0, 0, 1]], [0, 0, 0, 0])  # fitted without the wrong one: certain, and wrong
    assert one_wrong.log_loss == math.inf


def test_other_examples_choose_the_temperature_that_is_judged():
    z, y = drawn(1, 2000)
    first, second = slice(0, None, 2), slice(1, None, 2)
    temperatures = [by_search(z[half], y[half]) for half in (first, second)]
    losses = [
        cross_entropy(z[second] / temperatures[0], y[second]),
        cross_entropy(z[first] / temperatures[1], y[first]),
    ]
    errors = [
        expected_calibration_error((z[second] / temperatures[0]).softmax(1), y[second]),
        expected_calibration_error((z[first] / temperatures[1]).softmax(1), y[first]),
    ]
    actual = after_temperature(z, y)
    assert actual.temperature == pytest.approx(sum(temperatures) / 2, rel=1e-4)
    assert actual.log_loss == pytest.approx(float(sum(losses)) / 2, rel=1e-6)
    assert actual.ece == pytest.approx(sum(errors) / 2, abs=2e-3)  # an example may change its bin


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_precision_is_summed_in_float64(dtype):
    z, y = drawn(2)
    rounded = z.to(dtype)
    assert fit_temperature(rounded, y) == fit_temperature(rounded.double(), y)
    assert fit_temperature(rounded.double().numpy(), np.asarray(y)) == fit_temperature(rounded, y)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="logits must have shape"):
        fit_temperature(torch.ones(3), [0, 1, 2])
    with pytest.raises(ValueError, match=r"target must lie in 0 \.\. 1"):
        fit_temperature(torch.ones(2, 2), [0, 2])
    with pytest.raises(ValueError, match="two examples"):
        after_temperature(torch.ones(1, 2), [0])
    with pytest.raises(ValueError, match="NaN or infinite"):
        after_temperature(torch.tensor([[math.nan, 1.0]]), [0])
