"""Theorem 4: normalized features, fixed prototypes (errata 24 to 28, 39)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from unhinge.paper.claims.oracles import mean_loss, measured_exponent, relative
from unhinge.paper.claims.problems import between, choose, gaussian, whole
from unhinge.paper.claims.registry import Formula, SharperCheck, Undefined, claim

ROUNDING = "float64 rounding"


def step(h: Tensor, w: Tensor, rate: float, rescaled: bool = False) -> Tensor:
    """One step of gradient descent on minus w·h/|h|, by autograd; rescaled multiplies the gradient by |h|."""
    x = h.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(-(w @ x) / x.norm(), x)
    return h - rate * (h.norm() if rescaled else 1.0) * gradient


def descend(h: Tensor, w: Tensor, rate: Callable[[int], float], steps: int, rescaled: bool = False) -> list[Tensor]:
    path = [h]
    for k in range(steps):
        path.append(step(path[-1], w, rate(k), rescaled))
    return path


def cosine(a: Tensor, b: Tensor) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


def angle(a: Tensor, b: Tensor) -> float:
    a, b = a / a.norm(), b / b.norm()
    return torch.atan2((a - (a @ b) * b).norm(), a @ b).item()


def pair(generator: torch.Generator, size: float = 1.0) -> tuple[Tensor, Tensor]:
    """A feature of norm `size` and a prototype, at an angle drawn uniformly from 0 to nearly pi."""
    w, side = (torch.nn.functional.normalize(gaussian(generator, 4), dim=0) for _ in range(2))
    side = torch.nn.functional.normalize(side - (side @ w) * w, dim=0)
    theta = between(generator, 0.1, 3.0)
    return size * (math.cos(theta) * w + math.sin(theta) * side), between(generator, 0.5, 2.0) * w


def plain_path(h: Tensor, w: Tensor, rate: Callable[[int], float]) -> Iterator[tuple[float, float]]:
    """The same descent in the plane of the two vectors, in plain floats: angle and squared norm, step after step.

    The step, h + rate (w - ĥ ĥ·w)/|h|, is minus the gradient written out, in coordinates along and beside w.
    """
    size = w.norm().item()
    x = (h @ w).item() / size
    y = math.sqrt(max(h.norm().item() ** 2 - x * x, 0.0))
    for k in itertools.count():
        square = x * x + y * y
        yield math.atan2(abs(y), x), square
        pull = rate(k) * size / math.sqrt(square)
        x, y = x + pull * y * y / square, y - pull * x * y / square


# ---- the step condition -----------------------------------------------------------------------------------------


def largest_drop(generator: torch.Generator, allowed: Formula, rescaled: bool) -> float:
    """The largest fall of the cosine over one step, among 100 random steps that a condition allows."""
    drop = 0.0
    for _ in range(100):
        h, w = pair(generator, 10 ** between(generator, -1.5, 1.0))
        # (1 + gamma)/(C N) is absorbed in the rate; alpha from 0.01 to 100
        rate = 10 ** between(generator, -2, 2) * h.norm().item() ** (1 if rescaled else 2) / w.norm().item()
        if allowed(rate, h, w):
            drop = max(drop, cosine(h, w) - cosine(step(h, w, rate, rescaled), w))
    return drop


def crosses_iff_refused(generator: torch.Generator, allowed: Formula, rescaled: bool) -> float:
    """1 unless steps from next to the prototype pass it exactly where the condition refuses them."""
    for _ in range(40):
        w, side = (torch.nn.functional.normalize(gaussian(generator, 4), dim=0) for _ in range(2))
        side = torch.nn.functional.normalize(side - (side @ w) * w, dim=0)
        size, w = 10 ** between(generator, -1.5, 1.0), between(generator, 0.5, 2.0) * w
        h = size * (w / w.norm() + 1e-3 * side)
        alpha = choose(generator, between(generator, 0.01, 0.99), 10 ** between(generator, 0.01, 2))
        rate = alpha * h.norm().item() ** (1 if rescaled else 2) / w.norm().item()
        crossed = bool(step(h, w, rate, rescaled) @ side < 0)
        if crossed == bool(allowed(rate, h, w)):
            return 1.0
    return 0.0


def norm_condition(rate: float, h: Tensor, w: Tensor) -> bool:
    return bool(rate / h.norm() <= 1 / w.norm())


def square_condition(rate: float, h: Tensor, w: Tensor) -> bool:
    return bool(rate / h.norm() ** 2 <= 1 / w.norm())


@claim(
    "theorem-4-step-condition",
    title="A step size at which the cosine with the prototype cannot fall, on which the proof rests",
    where="convergence-of-spherical-case",
    says="η(1+γ)/(CN|h|) ≤ 1/|w|",
    right="η(1+γ)/(CN|h|²) ≤ 1/|w|: the largest step that never passes the prototype",
    printed=norm_condition,
    ours=square_condition,
    oracle="a step of gradient descent by autograd, from random features with steps the condition allows",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(24,),
    severity="A",
    sharper=SharperCheck(lambda generator, formula: crosses_iff_refused(generator, formula, False), 0.0, "a yes or no"),
)
def step_condition(generator: torch.Generator, formula: Formula) -> float:
    return largest_drop(generator, formula, rescaled=False)


def free_of_norm(rate: float, h: Tensor, w: Tensor) -> bool:
    return bool(rate <= 1 / w.norm())


@claim(
    "rescaled-step-condition",
    title="A step size at which the cosine cannot fall, when the rate is multiplied by the feature norm",
    where="rescaled-lr-for-the-spherical",
    says="η(1+γ)/(CN) ≤ 1/|w|",
    right="η(1+γ)/(CN|h|) ≤ 1/|w|",
    printed=free_of_norm,
    ours=norm_condition,
    oracle="a rescaled step by autograd, from random features with steps the condition allows",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(24,),
    severity="A",
    sharper=SharperCheck(lambda generator, formula: crosses_iff_refused(generator, formula, True), 0.0, "a yes or no"),
)
def rescaled_step_condition(generator: torch.Generator, formula: Formula) -> float:
    return largest_drop(generator, formula, rescaled=True)


@claim(
    "theorem-4-governing-quantity",
    title="The power of the norm in η/|h|^ν that governs convergence",
    where="rescaled-lr-for-the-spherical",
    says="ν = 1",
    right="ν = 2",
    printed=lambda: 1,
    ours=lambda: 2,
    oracle="two descents from one direction, with different norms and equal η/|h|^ν: their angles must agree",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(24,),
    severity="A",
)
def governing(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator)
    rate, factor = between(generator, 0.05, 0.5), between(generator, 2.0, 5.0)
    plain = descend(h, w, lambda _: rate, 20)[-1]
    scaled = descend(factor * h, w, lambda _: rate * factor ** formula(), 20)[-1]
    return abs(angle(plain, w) - angle(scaled, w))


# ---- one step ---------------------------------------------------------------------------------------------------


def printed_step(rate: float, h: Tensor, w: Tensor) -> Tensor:
    unit = h / h.norm()
    return (1 - rate * (w @ unit) / h.norm()) * h + rate / h.norm() * w


def right_step(rate: float, h: Tensor, w: Tensor) -> Tensor:
    unit = h / h.norm()
    return (1 - rate * (w @ unit) / h.norm() ** 2) * h + rate / h.norm() * w


@claim(
    "theorem-4-step",
    title="A step of descent as a combination of the feature and its prototype",
    where="discrete-dynamics-of-H",
    says="(1 − η w·ĥ/|h|)h + (η/|h|)w",
    right="(1 − η w·ĥ/|h|²)h + (η/|h|)w",
    printed=printed_step,
    ours=right_step,
    oracle="a step of gradient descent by autograd",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(25,),
    severity="B",
)
def one_step(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator, between(generator, 0.3, 3.0))
    rate = between(generator, 0.1, 1.0)
    return relative(formula(rate, h, w), step(h, w, rate))


def recurrence(alpha: float, beta: float, factor: float) -> tuple[float, float]:
    side = 1 - beta**2
    return factor * alpha / (1 + alpha**2 * side), (beta + alpha * side) / math.sqrt(1 + alpha**2 * side)


@claim(
    "theorem-4-recurrence",
    title="The two scalars α = η|w|/|h|² and β (the cosine) obey a recurrence of their own",
    where="discrete_dynamical-system",
    says="β' = (β + α(1−β²))/√(1 + α²(1−β²)), α' = ξα/(1 + α²(1−β²)), ξ the ratio of successive rates",
    ours=recurrence,
    oracle="30 steps of gradient descent by autograd with a falling rate",
    tolerance=1e-12,
    because=ROUNDING,
)
def scalars(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator, between(generator, 0.5, 2.0))
    rate, factor = between(generator, 0.05, 1.0), between(generator, 0.9, 1.0)
    path = descend(h, w, lambda k: rate * factor**k, 30)
    alpha, beta = rate * w.norm().item() / h.norm().item() ** 2, cosine(h, w)
    worst = 0.0
    for k, now in enumerate(path[1:], start=1):
        alpha, beta = formula(alpha, beta, factor)
        seen = rate * factor**k * w.norm().item() / now.norm().item() ** 2
        worst = max(worst, abs(beta - cosine(now, w)), abs(alpha / seen - 1))
    return worst


# ---- the limit --------------------------------------------------------------------------------------------------


def prototype_itself(h: Tensor, w: Tensor) -> Tensor:
    return w / w.norm()


def _any_size(generator: torch.Generator, formula: Formula) -> float:
    """Angle left after at most 200 000 steps at a constant rate of up to 50 times the condition's."""
    h, w = pair(generator)
    rate = 10 ** between(generator, -1, 1.7) / w.norm().item()
    goal = formula(h, w)
    along = cosine(goal, w)
    path = itertools.islice(plain_path(h, w, lambda _: rate), 200_000)
    left = next((theta for theta, _ in path if theta < 1e-6), math.pi)
    return abs(left - math.acos(max(min(along, 1.0), -1.0)))


@claim(
    "theorem-4-limit",
    title="The limit of the normalized feature at a constant rate, unless it starts opposite to its prototype",
    where="convergence-of-spherical-case",
    says="the normalized prototype, under the step condition",
    right="the normalized prototype, for a constant rate of any size",
    ours=prototype_itself,
    oracle="200 steps of gradient descent by autograd",
    tolerance=1e-9,
    because="200 steps that contract by a seventh or more in the end",
    errata=(24,),
    remark="True as printed, but the step condition is unnecessary: it keeps the approach monotone, no more.",
    sharper=SharperCheck(_any_size, 1e-5, "the path is followed until the angle is below 1e-6"),
    problems=8,
)
def limit(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator)
    rate = between(generator, 0.5, 1.0) / w.norm().item()  # |h| = 1: both forms of the condition hold
    last = descend(h, w, lambda _: rate, 200)[-1]
    return angle(last, formula(h, w))


def stays(h: Tensor, w: Tensor) -> Tensor:
    return h


@claim(
    "theorem-4-opposite",
    title="A feature exactly opposite to its prototype",
    where="convergence-of-spherical-case",
    says="never moves",
    ours=stays,
    oracle="20 steps of gradient descent by autograd",
    tolerance=1e-12,
    because="the gradient there is rounding only",
)
def opposite(generator: torch.Generator, formula: Formula) -> float:
    w = gaussian(generator, 4)
    h = -between(generator, 0.5, 2.0) * w
    return relative(descend(h, w, lambda _: 0.01, 20)[-1], formula(h, w))


def _converges(h: Tensor, w: Tensor, power: float, factor: float) -> bool:
    """Whether the angle still falls by 3 % from step 3000 to step 6000, or has all but vanished."""
    rate = 0.3 / w.norm().item()
    path = plain_path(h, w, lambda k: rate * (k + 1) ** -power * factor**k)
    early, late = (theta for theta, _ in itertools.islice(path, 3000, 6001, 3000))
    return late < 1e-9 or late < 0.97 * early


def _allowed_and_seen(generator: torch.Generator, formula: Formula) -> list[tuple[bool, bool]]:
    """For rates (k+1)^-power factor^k: whether convergence is asserted, and seen."""
    h, w = pair(generator)
    kinds = [(power, 1.0) for power in (0.0, 0.5, 1.0, 1.5)] + [(0.0, 0.5), (0.5, 0.9)]
    return [(bool(formula(*kind)), _converges(h, w, *kind)) for kind in kinds]


def _hypotheses_exactly(generator: torch.Generator, formula: Formula) -> float:
    return float(any(asserted != seen for asserted, seen in _allowed_and_seen(generator, formula)))


@claim(
    "theorem-4-hypotheses",
    title="Learning rates for which the normalized feature converges",
    where="convergence-of-spherical-case",
    says="those bounded away from 0 whose successive ratio tends to 1",
    right="any non-increasing rate whose sum diverges, with α₀ ≤ 1",
    printed=lambda power, factor: power == 0.0 and factor == 1.0,
    ours=lambda power, factor: power <= 1.0 and factor == 1.0,
    oracle="6000 steps of gradient descent at rates (k+1)^(−power)·factor^k: does the angle still fall?",
    tolerance=0.0,
    because="a yes or no",
    errata=(26,),
    problems=4,
    remark="True as printed, but stricter than needed: a divergent sum of non-increasing rates is enough.",
    sharper=SharperCheck(_hypotheses_exactly, 0.0, "a yes or no"),
)
def hypotheses(generator: torch.Generator, formula: Formula) -> float:
    return float(any(asserted and not seen for asserted, seen in _allowed_and_seen(generator, formula)))


def assumed(h: Tensor, w: Tensor, rate: float, rescaled: bool) -> float:
    """No bound is given: any finite norm is allowed for."""
    return math.inf


def norm_bound(h: Tensor, w: Tensor, rate: float, rescaled: bool) -> float:
    theta, pull = angle(h, w), rate * w.norm().item()
    if rescaled:
        return h.norm().item() + 2 / math.pi * theta * pull
    return math.sqrt(h.norm().item() ** 2 + 4 / math.pi * theta * pull)


def _norms(generator: torch.Generator, formula: Formula) -> tuple[float, float, list[Tensor], Tensor]:
    """Longest feature on a path, the bound, the path and the prototype."""
    h, w = pair(generator, between(generator, 0.3, 3.0))
    rescaled = whole(generator, 0, 1) == 1
    rate = between(generator, 0.2, 1.0) * h.norm().item() ** (1 if rescaled else 2) / w.norm().item()
    path = descend(h, w, lambda _: rate, 200, rescaled)
    return max(x.norm().item() for x in path), formula(h, w, rate, rescaled), path, w


def _close_bound(generator: torch.Generator, formula: Formula) -> float:
    longest, bound, _, _ = _norms(generator, formula)
    return max(bound / longest - 1.5, 0.0)


@claim(
    "theorem-4-bounded-norm",
    title="The rate is exponential if the norm stays finite",
    where="convergence-of-spherical-case",
    says="a finite limit of the norm is a hypothesis",
    right="it always is: |h|² ≤ |h₀|² + (4/π)θ₀η|v| for α₀ ≤ 1, and |h| ≤ |h₀| + (2/π)θ₀η|v| with rescaled rates",
    printed=assumed,
    ours=norm_bound,
    oracle="200 steps of gradient descent by autograd, from all angles: longest norm, and fall of the angle per step",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(26, 39),
    problems=8,
    remark="True as printed, but the hypothesis is unnecessary: the norm is always bounded.",
    sharper=SharperCheck(_close_bound, 0.0, "a bound far above the norm would say nothing: ours is within half of it"),
)
def bounded_norm(generator: torch.Generator, formula: Formula) -> float:
    longest, bound, path, w = _norms(generator, formula)
    angles = [angle(x, w) for x in path]
    late = [x for x in angles if 1e-9 < x < 1e-2]
    slowest = max((after / before for before, after in pairwise(late)), default=0.0)
    return max(longest - bound, 0.0) + max(slowest - 0.99, 0.0)  # an exponential: each step by at least 1 %


def doubled(alpha: float) -> float:
    return 2 * math.log(abs(1 - alpha))


def single(alpha: float) -> float:
    return math.log(abs(1 - alpha))


@claim(
    "theorem-4-rate",
    title="The exponent per step at which the normalized feature converges, α the limit of η|v|/|h|²",
    where="convergence-of-spherical-case",
    says="at the end of the proof the exponent of the squared error, 2 log|1 − α|, is taken for that of the error",
    right="log|1 − α|",
    printed=doubled,
    ours=single,
    oracle="slope of the angle over gradient descent by autograd",
    tolerance=1e-5,
    because="the slope is taken from angles of 1e-3 on, where α is within their square of its limit",
    errata=(27,),
    severity="B",
)
def rate_of_convergence(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator)
    rate = between(generator, 0.2, 0.6) / w.norm().item()
    path = descend(h, w, lambda _: rate, 500)
    angles = [angle(x, w) for x in path]
    early = next(k for k, x in enumerate(angles) if x < 1e-3)
    late = next(k for k, x in enumerate(angles) if x < 1e-6)
    slope = measured_exponent(lambda k: angles[int(k)], early, late)
    alpha = rate * w.norm().item() / path[-1].norm().item() ** 2
    return abs(formula(alpha) / slope - 1)


def half_square(h: Tensor, weight: Tensor, label: int, gamma: float) -> float:
    w = weight[label]
    unit, goal = h / h.norm(), w / w.norm()
    return ((1 + gamma) * w.norm() / 2 * ((unit - goal).square().sum() - 2)).item()


def common_norm(h: Tensor, weight: Tensor, label: int, gamma: float) -> float:
    """The footnote's norm of w without an index: it has a value if all prototypes share one norm."""
    norms = weight.norm(dim=1)
    if norms.max() - norms.min() > 1e-9 * norms.max():
        raise Undefined("|w| has no index, and the prototypes have different norms")
    return half_square(h, weight, label, gamma)


@claim(
    "theorem-4-alignment-form",
    title="The loss of a normalized feature is a squared distance to its prototype when the prototypes sum to 0",
    where="sec:spherical-case",
    says="(1+γ)|w|/2 · (|ĥ − ŵ_y|² − 2), the norm without an index",
    right="(1+γ)|w_y|/2 · (|ĥ − ŵ_y|² − 2)",
    printed=common_norm,
    ours=half_square,
    oracle="the loss summed logit by logit",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(28,),
    severity="C",
)
def alignment_form(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 6)
    weight = gaussian(generator, classes, 4)
    weight = weight - weight.mean(0)
    h, label, gamma = gaussian(generator, 4), whole(generator, 0, classes - 1), between(generator, 0.1, 1.0)
    loss = mean_loss((h / h.norm() @ weight.T)[None], torch.tensor([label]), gamma).item()
    return float(abs(formula(h, weight, label, gamma) - loss))


# ---- rescaled rates ---------------------------------------------------------------------------------------------


@claim(
    "rescaled-faster",
    title="Whether multiplying the rate by the feature norm speeds up convergence",
    where="rescaled-lr-for-the-spherical",
    says="it does",
    right="it does if the norm exceeds 1, and slows it down otherwise",
    printed=lambda norm: True,
    ours=lambda norm: norm > 1,
    oracle="angles after 50 small steps of gradient descent by autograd, with and without",
    tolerance=0.0,
    because="an order",
    errata=(39,),
    severity="C",
    problems=4,
)
def rescaled_faster(generator: torch.Generator, formula: Formula) -> float:
    wrong = 0.0
    for sign in (-1, 1):
        size = math.exp(sign * between(generator, 0.01, 2.3))
        h, w = pair(generator, size)
        # So small a step that 50 of them leave the norm alone to 1e-4.
        rates = [0.002 * min(size, size**2) / w.norm().item()] * 50
        plain, rescaled = (descend(h, w, rates.__getitem__, len(rates), flag)[-1] for flag in (False, True))
        wrong = max(wrong, float(bool(formula(size)) != (angle(rescaled, w) < angle(plain, w))))
    return wrong
