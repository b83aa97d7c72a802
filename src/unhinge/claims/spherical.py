"""Theorem 4: normalized features, fixed prototypes (errata 24 to 28, 39)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unhinge.claims.oracles import mean_loss, measured_exponent, relative
from unhinge.claims.problems import between, gaussian, simplex, whole
from unhinge.claims.registry import Formula, Undefined, claim

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


# ---- the step condition -----------------------------------------------------------------------------------------


def largest_drop(generator: torch.Generator, allowed: Formula, rescaled: bool) -> float:
    """The largest fall of the cosine over one step, among 200 random steps that a condition allows."""
    drop = 0.0
    for _ in range(200):
        h, w = pair(generator, 10 ** between(generator, -1.5, 1.0))
        # (1 + gamma)/(C N) is absorbed in the rate; alpha from 0.01 to 100
        rate = 10 ** between(generator, -2, 2) * h.norm().item() ** (1 if rescaled else 2) / w.norm().item()
        if allowed(rate, h, w):
            drop = max(drop, cosine(h, w) - cosine(step(h, w, rate, rescaled), w))
    return drop


def norm_condition(rate: float, h: Tensor, w: Tensor) -> bool:
    return bool(rate / h.norm() <= 1 / w.norm())


def square_condition(rate: float, h: Tensor, w: Tensor) -> bool:
    return bool(rate / h.norm() ** 2 <= 1 / w.norm())


@claim(
    "theorem-4-step-condition",
    title="The step size below which the cosine with the prototype never falls",
    where="convergence-of-spherical-case",
    says="η(1+γ)/(CN|h|) ≤ 1/|w|",
    right="η(1+γ)/(CN|h|²) ≤ 1/|w|",
    printed=norm_condition,
    ours=square_condition,
    oracle="a step of gradient descent by autograd, from random features with steps the condition allows",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(24,),
    severity="A",
    problems=5,
)
def step_condition(generator: torch.Generator, formula: Formula) -> float:
    return largest_drop(generator, formula, rescaled=False)


def free_of_norm(rate: float, h: Tensor, w: Tensor) -> bool:
    return bool(rate <= 1 / w.norm())


@claim(
    "rescaled-step-condition",
    title="The same when the learning rate is multiplied by the feature norm",
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
    problems=5,
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
    one = descend(h, w, lambda _: rate, 20)[-1]
    two = descend(factor * h, w, lambda _: rate * factor ** formula(), 20)[-1]
    return abs(angle(one, w) - angle(two, w))


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


@claim(
    "theorem-4-limit",
    title="The limit of the normalized feature at a constant rate, unless it starts opposite to its prototype",
    where="convergence-of-spherical-case",
    says="the normalized prototype",
    right="the normalized prototype, and a constant rate of any size will do",
    ours=prototype_itself,
    oracle="600 steps of gradient descent by autograd",
    tolerance=1e-9,
    because="600 steps that contract by a twentieth or more",
    errata=(24,),
)
def limit(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator)
    rate = between(generator, 0.2, 1.5) / w.norm().item()
    last = descend(h, w, lambda _: rate, 600)[-1]
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


@claim(
    "theorem-4-hypotheses",
    title="Which learning rates make the normalized feature converge",
    where="convergence-of-spherical-case",
    says="those bounded away from 0 whose successive ratio tends to 1",
    right="any non-increasing rate whose sum diverges, with α₀ ≤ 1",
    printed=lambda power, factor: power == 0.0 and factor == 1.0,
    ours=lambda power, factor: power <= 1.0 and factor == 1.0,
    oracle="600 steps of gradient descent at rates (k+1)^(−power)·factor^k",
    tolerance=0.0,
    because="a yes or no",
    errata=(26,),
    severity="B",
    problems=3,
)
def hypotheses(generator: torch.Generator, formula: Formula) -> float:
    w = simplex(4)[0]
    start = gaussian(generator, 4)
    h = start / start.norm()
    wrong = 0.0
    for power, factor in ((0.0, 1.0), (0.5, 1.0), (0.0, 0.5)):
        rates = [0.3 * (k + 1) ** -power * factor**k for k in range(600)]
        seen = angle(descend(h, w, rates.__getitem__, len(rates))[-1], w) < 1e-3
        wrong = max(wrong, float(bool(formula(power, factor)) != seen))
    return wrong


def assumed(h: Tensor, w: Tensor, rate: float, rescaled: bool) -> float:
    raise Undefined("assumed, not proved: no bound is given")


def norm_bound(h: Tensor, w: Tensor, rate: float, rescaled: bool) -> float:
    theta, pull = angle(h, w), rate * w.norm().item()
    if rescaled:
        return h.norm().item() + 2 / math.pi * theta * pull
    return math.sqrt(h.norm().item() ** 2 + 4 / math.pi * theta * pull)


@claim(
    "theorem-4-bounded-norm",
    title="Whether the norm stays finite, which the exponential rate needs",
    where="convergence-of-spherical-case",
    says="an extra hypothesis",
    right="always: |h|² ≤ |h₀|² + (4/π)θ₀η|v| for α₀ ≤ 1, and |h| ≤ |h₀| + (2/π)θ₀η|v| with rescaled rates",
    printed=assumed,
    ours=norm_bound,
    oracle="400 steps of gradient descent by autograd, from all angles",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(26, 39),
    severity="B",
    problems=10,
)
def bounded_norm(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator, between(generator, 0.3, 3.0))
    rescaled = whole(generator, 0, 1) == 1
    alpha = between(generator, 0.1, 1.0)
    rate = alpha * h.norm().item() ** (1 if rescaled else 2) / w.norm().item()
    longest = max(x.norm().item() for x in descend(h, w, lambda _: rate, 400, rescaled))
    bound = formula(h, w, rate, rescaled)
    # A bound ten times too large would hold too: it must also be within twice the growth plus the start.
    return max(longest - bound, 0.0) + max(bound / longest - 2.0, 0.0)


def doubled(alpha: float) -> float:
    return 2 * math.log(abs(1 - alpha))


def single(alpha: float) -> float:
    return math.log(abs(1 - alpha))


@claim(
    "theorem-4-rate",
    title="The exponent per step at which the normalized feature converges, α the limit of η|v|/|h|²",
    where="convergence-of-spherical-case",
    says="that of the squared error, 2 log|1 − α|",
    right="log|1 − α|",
    printed=doubled,
    ours=single,
    oracle="slope of the angle over gradient descent by autograd",
    tolerance=1e-3,
    because="the slope is taken before the angle reaches rounding",
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


@claim(
    "theorem-4-alignment-form",
    title="The loss of a normalized feature is a squared distance to its prototype when the prototypes sum to 0",
    where="sec:spherical-case",
    says="(1+γ)|w_y|/2 · (|ĥ − ŵ_y|² − 2)",
    ours=half_square,
    oracle="the loss summed logit by logit",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(28,),
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
    for size in (between(generator, 0.2, 0.6), between(generator, 1.5, 5.0)):
        h, w = pair(generator, size)
        rates = [0.02 * min(size, size**2) / w.norm().item()] * 50
        plain, rescaled = (descend(h, w, rates.__getitem__, len(rates), flag)[-1] for flag in (False, True))
        wrong = max(wrong, float(bool(formula(size)) != (angle(rescaled, w) < angle(plain, w))))
    return wrong
