"""Rates that change now and then, plain and with momentum: whole spans at once, judged by the steps one by one."""

from __future__ import annotations

import itertools

import mpmath
import pytest
import torch

from unhinge.theory.linear.momentum import Momentum, MomentumSymbol
from unhinge.theory.linear.symbols import accumulate
from unhinge.theory.schedules import Geometric, Piecewise, flat_edges

F64 = torch.float64
# Eigenvalues of modes that grow, stand, decay, turn (a complex pair) and swing over (a negative root).
OMEGA = torch.tensor([0.3, 0.01, 0.0, -0.02, -0.4, -1.5, -3.9], dtype=F64)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=F64)


SHAPES = {
    "thirds": Piecewise((number(7.0), number(19.0)), (number(1.0), number(0.1), number(0.01))),
    "between steps": Piecewise((number(0.4), number(6.5), number(7.2)), tuple(map(number, (1.0, 0.5, 0.0, 0.8)))),
    "at once": Piecewise((number(1.0),), (number(0.7), number(0.2))),
    "geometric": Geometric(number(5.5), number(0.3)),
}
OPTIONS = [
    Momentum(factor, dampening, nesterov)
    for factor, dampening, nesterov in itertools.product((0.0, 0.5, 0.9), (0.0, 0.3), (False, True))
    if not (nesterov and (dampening or not factor))
]


def one_by_one(symbol: MomentumSymbol, omega: float, steps: int, digits: int = 40) -> list[mpmath.mpf]:
    """The response to 1 after 0, 1, ... steps of ``torch.optim.SGD`` from its definition, in many digits."""
    options = symbol.options
    with mpmath.workdps(digits):
        z, b, found = mpmath.mpf(1), None, [mpmath.mpf(1)]
        shrink = mpmath.mpf(symbol.shrink.item())
        for index in range(steps):
            rate = mpmath.mpf(symbol.shape.value(number(float(index))).item())
            gradient = -mpmath.mpf(omega) * z
            b = gradient if b is None else options.factor * b + (1 - mpmath.mpf(options.dampening)) * gradient
            used = gradient + options.factor * b if options.nesterov else b
            z = z * (1 - rate * shrink) - rate * used
            found.append(z)
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shrink", [0.0, 0.05])
def test_spans_of_a_constant_rate_are_the_steps_one_by_one(name, options, shrink):
    symbol = MomentumSymbol(SHAPES[name], options, number(shrink))
    moments = torch.tensor([[0, 1, 2, 3, 6, 7, 8], [9, 18, 19, 20, 25, 40, 60]])
    log, value = symbol.values(moments, OMEGA)
    actual = log.exp() * value
    assert actual.shape == (2, 7, len(OMEGA))
    last = 60 if symbol.shape.floor else int(min(60, symbol.shape.settles))
    for place, omega in enumerate(OMEGA.tolist()):
        known = one_by_one(symbol, omega, last)
        expected = torch.tensor([float(known[min(k, last)]) for k in moments.flatten().tolist()], dtype=F64)
        reach = torch.tensor([float(max(map(abs, known[: k + 1]))) for k in moments.flatten().tolist()], dtype=F64)
        difference = (actual[..., place].flatten() - expected).abs()
        assert (difference <= 2e-13 * reach.clamp(min=1e-300)).all(), (omega, difference / reach)


@pytest.mark.parametrize("omega", [1e-3, -1e-3, -0.2])
def test_many_steps_in_a_span_stay_exact(omega):
    shape = Piecewise((number(4000.0), number(8000.0)), (number(1.0), number(0.1), number(0.01)))
    symbol = MomentumSymbol(shape, Momentum(0.9), number(0.0))
    log, value = symbol.values(torch.tensor([3999, 8001, 12_000]), number(omega)[None])
    known = one_by_one(symbol, omega, 12_000, digits=60)
    for actual_log, actual, k in zip(log[:, 0].tolist(), value[:, 0].tolist(), (3999, 8001, 12_000), strict=True):
        with mpmath.workdps(60):
            ratio = mpmath.mpf(actual) * mpmath.exp(mpmath.mpf(actual_log)) / known[k]
        assert abs(ratio - 1) < 1e-13 * max(10.0, abs(actual_log))


@pytest.mark.parametrize("name", SHAPES)
def test_a_sum_over_steps_is_that_of_its_terms(name):
    """Minus infinity too, which a step has that takes a part to zero at once."""
    shape, moments = SHAPES[name], torch.tensor([[0, 1, 2, 6, 7], [8, 19, 20, 40, 60]])

    def term(rate: torch.Tensor) -> torch.Tensor:
        return torch.log1p(rate[:, None] * OMEGA.clamp(min=-1.0))

    actual = accumulate(shape, moments, term)
    each = term(shape.value(torch.arange(60, dtype=F64)))
    for k, row in zip(moments.flatten().tolist(), actual.flatten(0, 1), strict=True):
        finite = each[:k].isfinite().all(0)
        torch.testing.assert_close(row[finite], each[:k].sum(0)[finite], rtol=1e-14, atol=1e-13)
        assert (row[~finite] < -1e100).all()


def test_changes_that_are_too_many_are_not_listed(monkeypatch):
    """A factor near 1 at each step has hundreds of thousands of them: their list costs seconds."""
    shape = Geometric(number(1.0), number(0.9999))
    monkeypatch.setattr(Geometric, "edges", property(lambda _: pytest.fail("the list was made")))
    assert flat_edges(shape, 100) is None
    term = torch.log1p(0.1 * shape.value(torch.arange(50, dtype=F64)))[:, None]
    actual = accumulate(shape, torch.tensor([50]), lambda rate: torch.log1p(0.1 * rate)[:, None])
    torch.testing.assert_close(actual, term.sum(0, keepdim=True), rtol=1e-14, atol=0)


def test_gradients_go_through_the_spans():
    rates = torch.tensor([1.0, 0.1], dtype=F64)

    def response(rates: torch.Tensor, omega: torch.Tensor) -> torch.Tensor:
        shape = Piecewise((number(3.0),), tuple(rates.unbind()))
        log, value = MomentumSymbol(shape, Momentum(0.5), number(0.0)).values(torch.tensor([0, 2, 9]), omega)
        return log.exp() * value

    omega = torch.tensor([0.2, -0.3, -2.0], dtype=F64)
    assert torch.autograd.gradcheck(response, (rates.requires_grad_(), omega.requires_grad_()))
