"""Probabilities without softmax, and decisions that are fair to rare classes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unhinge.metrics import expected_calibration_error, strength_curve
from unhinge.nn import FeatureNormPenalty, UnhingedLoss, simplex_etf
from unhinge.nn import functional as UF

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@given(st.integers(2, 12), st.floats(0.1, 100.0), st.integers(0, 2**31))
def test_the_posterior_is_read_from_the_best_feature(classes, radius, seed):
    """h* = r sum_c P_c w_c has logits from which P comes back, whatever the radius."""
    g = torch.Generator().manual_seed(seed)
    frame = simplex_etf(classes, classes + 2, g, dtype=torch.float64)
    p = torch.rand(5, classes, generator=g, dtype=torch.float64).softmax(1)
    logits = radius * p @ frame @ frame.mT
    torch.testing.assert_close(UF.posterior(logits, radius), p, rtol=1e-12, atol=1e-12)


def test_the_best_feature_is_that_of_the_loss_itself():
    """Minimize expected loss and penalty over one feature, by autograd alone."""
    frame, radius = simplex_etf(4, 6, dtype=torch.float64), 7.0
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    loss, penalty = UnhingedLoss(reduction="none"), FeatureNormPenalty.for_radius(radius, num_classes=4)
    h = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([h], line_search_fn="strong_wolfe", tolerance_grad=1e-13, tolerance_change=0.0)

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        value = (p * loss((h @ frame.mT).expand(4, 4), torch.arange(4))).sum() + penalty(h)
        value.backward()
        return value

    for _ in range(5):
        optimizer.step(objective)
    torch.testing.assert_close(UF.posterior(h.detach() @ frame.mT, radius)[0], p, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_distributions_whatever_the_logits(dtype):
    logits = (20 * torch.randn(3, 50, 7)).to(dtype)
    p = UF.posterior(logits, radius=4.0)
    assert p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(3, 50, dtype=p.dtype))
    nothing = UF.posterior(torch.full((1, 4), -100.0, dtype=dtype), radius=1.0)
    assert nothing.tolist() == [[0.25] * 4]


@pytest.mark.parametrize("penalty_too", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_class_weights_leave_a_posterior_that_can_be_read(seed, penalty_too):
    """The objective of one input with a known posterior, minimized by autograd alone: a Newton step of a quadratic."""
    draw = torch.Generator().manual_seed(seed)
    classes, radius = 5, 4.0
    p = torch.softmax(torch.randn(classes, generator=draw, dtype=torch.float64), 0)
    a = torch.rand(classes, generator=draw, dtype=torch.float64) + 0.3
    frame = simplex_etf(classes, 7, draw, dtype=torch.float64)
    loss, penalty = (
        UnhingedLoss(reduction="none"),
        FeatureNormPenalty.for_radius(radius, classes, reduction="sum", loss_reduction="sum"),
    )

    def objective(h):
        losses = loss((h @ frame.mT).expand(classes, classes), torch.arange(classes))
        return (p * a * losses).sum() + penalty(h.expand(classes, -1), p * a if penalty_too else p)

    start = torch.zeros(7, dtype=torch.float64)
    slope, curvature = torch.func.grad(objective)(start), torch.func.hessian(objective)(start)
    logits = (start - torch.linalg.solve(curvature, slope)) @ frame.mT
    wanted = a * p / (a * p).sum()
    if penalty_too:
        torch.testing.assert_close(UF.posterior(logits, radius), wanted, rtol=1e-10, atol=1e-12)
    else:
        torch.testing.assert_close(UF.posterior(logits, radius, a), p, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(UF.posterior(logits, radius), wanted, rtol=1e-3)  # why the weights are asked for


def test_the_posterior_can_be_differentiated_compiled_and_mapped():
    z = 0.1 * torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: UF.posterior(x, 5.0), z)
    torch.testing.assert_close(torch.vmap(lambda x: UF.posterior(x, 5.0))(z), UF.posterior(z, 5.0))


def test_it_is_calibrated_where_softmax_is_not():
    """Labels drawn from known posteriors: reading them from the logits is calibrated, softmax at this radius is not."""
    g = torch.Generator().manual_seed(0)
    p = (2 * torch.randn(20_000, 5, generator=g, dtype=torch.float64)).softmax(1)
    target = torch.multinomial(p, 1, generator=g)[:, 0]
    frame = simplex_etf(5, 8, g, dtype=torch.float64)
    logits = 10 * p @ frame @ frame.mT
    assert expected_calibration_error(UF.posterior(logits, 10.0), target) < 0.01
    assert expected_calibration_error(logits.softmax(1), target) > 0.1


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_adjusted_logits_divide_the_softmax_by_the_prior(strength):
    z, prior = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    expected = z.softmax(1) / prior**strength
    got = UF.adjust_logits(z, prior, strength)
    torch.testing.assert_close(got.softmax(1), expected / expected.sum(1, keepdim=True))
    torch.testing.assert_close(got, z - strength * prior.log())
    assert torch.equal(UF.adjust_logits(z, 100 * prior, strength).argmax(1), got.argmax(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_of_logits_stays_and_counts_will_do(dtype):
    z = torch.randn(2, 3, 4).to(dtype)
    assert UF.adjust_logits(z, torch.tensor([60, 25, 10, 5])).dtype == dtype
    p = z.float().softmax(-1).to(dtype)
    chosen = UF.balanced_decision(p, torch.tensor([60, 25, 10, 5]))
    assert torch.equal(torch.vmap(lambda one: UF.balanced_decision(one, torch.tensor([60, 25, 10, 5])))(p), chosen)
    assert chosen.shape == (2, 3)
    assert torch.equal(chosen, (p.float() / torch.tensor([0.6, 0.25, 0.1, 0.05])).argmax(-1))


def test_the_two_decisions_are_one_rule():
    """Additive on log-posteriors, multiplicative on posteriors."""
    p = torch.rand(200, 6, dtype=torch.float64).softmax(1)
    prior = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.04, 0.01], dtype=torch.float64)
    for strength in (0.0, 0.5, 1.0, 1.5):
        additive = UF.adjust_logits(p.log(), prior, strength).argmax(1)
        assert torch.equal(UF.balanced_decision(p, prior, strength), additive)


def test_the_balanced_decision_is_right_equally_often():
    """Two Gaussians, 50 to 1: the plain decision hardly sees the rare one, the balanced one is fair."""
    g = torch.Generator().manual_seed(1)
    prior = torch.tensor([50, 1]) / 51
    target = torch.arange(4000) % 2
    x = torch.randn(4000, generator=g, dtype=torch.float64) + 2.0 * target
    likelihood = torch.stack([-(x**2) / 2, -((x - 2.0) ** 2) / 2], 1).exp()
    p = likelihood * prior
    p = p / p.sum(1, keepdim=True)
    recalls = [(UF.balanced_decision(p, prior, s)[target == c] == c).double().mean() for s in (0, 1) for c in (0, 1)]
    assert recalls[1] < 0.2
    assert abs(recalls[2] - recalls[3]) < 0.05
    curve = strength_curve(p.log(), target, prior)
    assert curve.best == pytest.approx(1.0, abs=0.25)
    assert curve.balanced_accuracy.max() == pytest.approx(0.841, abs=0.02)  # Phi(1)


def test_below_the_floor_nothing_is_believed():
    p, prior = torch.tensor([[0.98, 0.015, 0.005]]), torch.tensor([0.9, 0.0999, 0.0001])
    assert UF.balanced_decision(p, prior).item() == 2
    assert UF.balanced_decision(p, prior, floor=0.01).item() == 0
    assert UF.balanced_decision(p, prior, floor=0.99).item() == 2  # all are below: all count


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UF.posterior(torch.ones(2, 3), 0.0), "radius must be positive"),
        (lambda: UF.posterior(torch.ones(2, 3), math.nan), "radius must be positive"),
        (lambda: UF.posterior(torch.tensor(1.0), 1.0), r"shape \(\.\.\., C\)"),
        (lambda: UF.posterior(torch.ones(2, 3), 1.0, torch.ones(2)), r"class_weight must have shape \(3,\)"),
        (lambda: UF.posterior(torch.ones(2, 3), 1.0, torch.zeros(3)), "class_weight must be positive"),
        (lambda: UF.adjust_logits(torch.ones(2, 3, dtype=torch.int64), torch.ones(3)), "floating tensor"),
        (lambda: UF.adjust_logits(torch.ones(2, 3), torch.ones(4)), r"shape \(3,\)"),
        (lambda: UF.adjust_logits(torch.ones(2, 3), torch.tensor([1, 0, 1])), "positive and finite in every class"),
        (lambda: UF.adjust_logits(torch.ones(2, 3), torch.ones(3), math.inf), "strength must be a finite"),
        (lambda: UF.balanced_decision(torch.ones(2, 3), torch.ones(3), floor=1.0), "floor must lie"),
        (lambda: UF.balanced_decision(torch.tensor([[1.1, -0.1]]), torch.ones(2)), "some are negative or NaN"),
        (lambda: UF.balanced_decision(torch.tensor([[0.5, math.nan]]), torch.ones(2)), "some are negative or NaN"),
    ],
)
def test_mistakes_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_frequency_that_is_zero_in_float32_divides_as_any_other():
    assert UF.balanced_decision(torch.tensor([[0.0, 1.0]]), [1e-50, 1.0]).tolist() == [1]
    assert UF.balanced_decision(torch.tensor([[0.1, 0.9]]), [1e-50, 1.0]).tolist() == [0]


def test_a_logit_that_is_not_a_number_is_no_probability():
    logits = torch.tensor([[math.nan, 0.0, 0.0], [-9.0, -9.0, -9.0]])
    probabilities = UF.posterior(logits, 1.0)
    assert probabilities[0].isnan().all()
    assert torch.equal(probabilities[1], torch.full((3,), 1 / 3))


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 0.5])])
def test_infinite_logits_have_the_posterior_of_their_limit(weight):
    inf = math.inf
    logits = torch.tensor([[inf, 0.0, 0.0], [inf, -inf, 3.0], [3e38, 1e38, 1e38], [-inf, 1.0, 2.0]])
    expected = UF.posterior(logits.double().clamp(-1e39, 1e39), 0.01, weight)
    assert expected.isfinite().all()
    torch.testing.assert_close(UF.posterior(logits, 0.01, weight).double(), expected, rtol=1e-6, atol=1e-6)


def test_a_word_is_no_prior():
    with pytest.raises(ValueError, match=r"prior must hold one number per class.*bincount"):
        UF.adjust_logits(torch.zeros(2, 3), "counts")
