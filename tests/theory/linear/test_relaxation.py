"""What momentum makes of a decay and a constant pull, against powers of the affine step at 60 digits."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch

from unhinge import LayerPeeled, cosine, warmup
from unhinge.theory.linear.momentum import Momentum, MomentumSymbol
from unhinge.theory.schedules import Schedule, constant, step

F64 = torch.float64
EPS = torch.finfo(F64).eps
OPTIONS = {
    "plain": Momentum(0.9),
    "little": Momentum(0.5),
    "dampened": Momentum(0.9, 0.3),
    "nesterov": Momentum(0.9, 0.0, True),
    "decoupled": Momentum(0.9, 0.0, False, True),
    "decoupled nesterov": Momentum(0.5, 0.0, True, True),
    "decoupled dampened": Momentum(0.9, 0.5, False, True),
    "decoupled alone": Momentum(0.0, 0.0, False, True),
}
# Rates and decays: those whose roots are real, with a decay of zero and nearly zero, turn, and alternate.
PAIRS = [(0.1, 0.0), (0.1, 1e-13), (0.1, 1e-9), (0.05, 5e-4), (1e-3, 0.1), (0.1, 0.0999), (0.3, 0.5), (0.5, 1.9)]
STEPS = [0, 1, 2, 3, 7, 20, 101, 10**4, 10**6, 10**9, 10**12]


def affine(options: Momentum, rate: float, decay: float, first: bool) -> mpmath.matrix:
    """One step of SGD on (bias, buffer, 1) with the gradient decay * bias - 1, from the definition."""
    mu, eta, pull = mpmath.mpf(options.factor), mpmath.mpf(rate), mpmath.mpf(0 if options.decoupled else decay)
    fresh = mpmath.mpf(1) if first else 1 - mpmath.mpf(options.dampening)
    buffer = [fresh * pull, mpmath.mpf(0) if first else mu, -fresh]
    used = [pull + mu * buffer[0], mu * buffer[1], -1 + mu * buffer[2]] if options.nesterov else buffer
    keep = 1 - eta * (decay if options.decoupled else 0)
    return mpmath.matrix([[keep - eta * used[0], -eta * used[1], -eta * used[2]], buffer, [0, 0, 1]])


def factors(options: Momentum, rate: float, decay: float, k: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    if k == 0:
        return mpmath.mpf(1), mpmath.mpf(0)
    whole = affine(options, rate, decay, False) ** (k - 1) * affine(options, rate, decay, True)
    return whole[0, 0], whole[0, 2]


def relaxation(options: Momentum, schedule: Schedule, rate: float, decay: float, k: Any) -> tuple[Any, Any]:
    symbol = MomentumSymbol(schedule.shape, options, torch.zeros((), dtype=F64))
    return symbol.relaxation(torch.as_tensor(k), torch.tensor(rate, dtype=F64), torch.tensor(decay, dtype=F64))


@pytest.mark.parametrize(("rate", "decay"), PAIRS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_trillion_steps_are_as_exact_as_ten(name: str, rate: float, decay: float) -> None:
    options = OPTIONS[name]
    keeps, pushes = relaxation(options, constant(1.0), rate, decay, STEPS)
    with mpmath.workdps(60):
        for k, keep, push in zip(STEPS, keeps.tolist(), pushes.tolist(), strict=True):
            kept, pushed = factors(options, rate, decay, k)
            # what fades exponentially is known to the rounding of its exponent, and once it turns relative to its start
            budget = 64 * EPS * max(1.0, abs(float(mpmath.log(abs(kept) + mpmath.mpf("1e-300")))))
            assert abs(keep - kept) <= budget * max(abs(kept), mpmath.mpf("1e-14") if keep != 0 else 1), k
            # a pair that turns: 1 minus its response is divided by the decay
            assert abs(push - pushed) <= 512 * EPS * abs(pushed), k


@pytest.mark.parametrize("name", OPTIONS)
def test_after_a_schedule_the_last_rate_goes_on(name: str) -> None:
    options, decay = OPTIONS[name], 0.02
    for schedule in (warmup(constant(1.0), 5), cosine(1.0, total=20, end=0.2), step(1.0, every=[4, 9], factor=0.3)):
        state = mpmath.matrix([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
        asked = [0, 1, 3, 5, 9, 20, 21, 40]
        keeps, pushes = relaxation(options, schedule, 0.5, decay, asked)
        found = dict(zip(asked, zip(keeps.tolist(), pushes.tolist(), strict=True), strict=True))
        with mpmath.workdps(40):
            for k in range(41):
                if k in found:
                    assert found[k] == pytest.approx((float(state[0, 0]), float(state[0, 2])), rel=1e-12, abs=1e-13)
                state = affine(options, 0.5 * schedule(float(k)).item(), decay, k == 0) * state


@pytest.mark.parametrize(
    "options", [{"momentum": 0.5}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9}], ids=str
)
def test_late_biases_are_those_of_the_limit(options: dict[str, Any]) -> None:
    problem = LayerPeeled(torch.tensor([0, 0, 0, 1, 2]), feature_decay=0.5, weight_decay=0.5)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(*shape, generator=generator, dtype=F64) for shape in ((5, 3), (3, 3), (3,))]
    path = problem.descent(*start, lr=0.3, **options)
    for late in (10**7, 10**12, 10**15):
        torch.testing.assert_close(path.at(late).bias, path.limit().bias, rtol=64 * EPS, atol=0)


def test_slopes_of_biases_under_momentum_are_finite_differences() -> None:
    for name, options in OPTIONS.items():
        for rate, decay in ((0.1, 0.0), (0.1, 1e-4), (0.3, 0.5)):
            numbers = [torch.tensor(value, dtype=F64, requires_grad=True) for value in (rate, decay)]
            symbol = MomentumSymbol(constant(1.0).shape, options, torch.zeros((), dtype=F64))

            def both(eta: torch.Tensor, fall: torch.Tensor, symbol: MomentumSymbol = symbol) -> tuple[Any, Any]:
                return symbol.relaxation(torch.tensor([1, 2, 5, 30]), eta, fall)

            slopes = torch.autograd.functional.jacobian(both, tuple(numbers))
            for index, value in enumerate((rate, decay)):
                width = 1e-6 * max(value, 1e-2)
                moved = [
                    torch.stack(both(*(n.detach() + shift * (i == index) for i, n in enumerate(numbers))))
                    for shift in (width, -width)
                ]
                expected = (moved[0] - moved[1]) / (2 * width)
                found = torch.stack([slopes[0][index], slopes[1][index]])
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=f"{name} {rate} {decay}")
