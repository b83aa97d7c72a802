"""Theorem 1 and Corollary 1: no decay (errata 7, 8, 9)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unhinge.claims.oracles import (
    apart,
    dense_flow,
    direction,
    generator_matrix,
    gradients,
    measured_exponent,
    relative,
)
from unhinge.claims.problems import Problem, between, choose, draw, gaussian, whole
from unhinge.claims.registry import Formula, Undefined, claim
from unhinge.theory import LayerPeeled, Schedule, constant, cosine, warmup
from unhinge.theory.paper import alpha_beta, eigenvalues, projections, z_bar

EXPM = "a dense matrix exponential is right to some 1e-13 here"


def engine(problem: Problem) -> LayerPeeled:
    return LayerPeeled(problem.labels, problem.num_classes, problem.gamma, problem.feature_decay, problem.weight_decay)


def special_gamma(generator: torch.Generator, classes: int) -> float:
    """Inside, at and beyond the special values of gamma."""
    edge = 2 / (classes - 2)
    return choose(generator, 0.0, 0.5 * edge, 1 / (classes - 1), edge, 2 * edge)


def five_parts(problem: Problem, feature_clock: float, weight_clock: float) -> Tensor:
    """The printed sum over five subspaces, with the scalars of the appendix."""
    first, second = eigenvalues(problem.num_classes, problem.per_class, problem.gamma)
    parts = projections(problem.features, problem.weight, problem.labels)
    clocks = torch.tensor([feature_clock, weight_clock], dtype=torch.float64)
    state = torch.cat([parts.within.features, parts.within.weight])
    for part, sigma, sign in zip(parts[:4], (first, first, second, second), (1, -1, 1, -1), strict=True):
        alpha, beta = alpha_beta(sigma, sign, clocks[0], clocks[1])
        state = state + torch.cat(
            [(alpha * clocks[0] + beta) * part.features, (alpha * clocks[1] + beta) * part.weight]
        )
    return state


def engine_flow(problem: Problem, feature_clock: float, weight_clock: float) -> Tensor:
    state = engine(problem).flow(problem.features, problem.weight, lr=(feature_clock, weight_clock)).at(1.0)
    return torch.cat([state.features, state.weight])


@claim(
    "theorem-1-flow",
    title="The closed form of features and prototypes without decay, any γ and any ratio of the rates",
    where="closed-form-dynamics",
    says="five projections of the start, each with its own cosh and sinh of the integrated rates",
    right="the same; the engine evaluates it by two 2×2 matrices",
    printed=five_parts,
    ours=engine_flow,
    oracle="dense matrix exponential",
    tolerance=1e-11,
    because=EXPM,
    errata=(7,),
    severity="C",
    problems=10,
)
def flow(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 5)
    problem = draw(generator, special_gamma(generator, classes), classes)
    one, two = between(generator, 0.1, 8.0), between(generator, 0.1, 8.0)
    return relative(formula(problem, one, two), dense_flow(problem, one, two))


def linear_bias(problem: Problem, weight_clock: float) -> Tensor:
    slope = (1 + problem.gamma - problem.gamma * problem.num_classes) / problem.num_classes
    return problem.bias + slope * weight_clock


@claim(
    "theorem-1-bias",
    title="Biases without decay grow in proportion to the integrated rate, all alike",
    where="closed-form-dynamics",
    says="b₀ + ζ₂(1 + γ − γC)/C",
    ours=linear_bias,
    oracle="2000 midpoint steps along autograd's gradient",
    tolerance=1e-11,
    because="the gradient is constant, so the steps only add up rounding",
)
def bias(generator: torch.Generator, formula: Formula) -> float:
    problem, clock = draw(generator), between(generator, 1.0, 5.0)
    moving = problem.bias
    slope = -gradients(problem, problem.features, problem.weight, moving)[2]
    for _ in range(2000):  # cosine-shaped rate, integral `clock`
        moving = moving + clock / 2000 * slope
    return relative(formula(problem, clock), moving)


def first_rate_times_time(schedule: Schedule, time: float) -> float:
    return schedule(torch.zeros((), dtype=torch.float64)).item() * time


def integrated_rate(schedule: Schedule, time: float) -> float:
    return schedule.integral(torch.tensor(time, dtype=torch.float64)).item()


@claim(
    "theorem-1-scalars",
    title="What the scalars of the closed form depend on",
    where="closed-form-dynamics",
    says="only on C, N, γ and the two rates at time 0",
    right="on the integrals of the rates up to now",
    printed=first_rate_times_time,
    ours=integrated_rate,
    oracle="Runge–Kutta steps along the flow with a cosine rate",
    tolerance=1e-8,
    because="1000 Runge–Kutta steps",
    errata=(7,),
    severity="C",
    problems=3,
)
def scalars(generator: torch.Generator, formula: Formula) -> float:
    problem, time = draw(generator), between(generator, 0.3, 0.9)
    schedule = cosine(2.0, 1.0)
    rates = generator_matrix(problem, 1.0, 1.0)
    state, steps = problem.state, 1000
    width = time / steps
    for k in range(steps):
        early, middle, late = (
            1 + math.cos(math.pi * x * width) for x in (float(k), k + 0.5, k + 1.0)
        )  # the cosine rate from 2 to 0, written out
        one = early * rates @ state
        two = middle * rates @ (state + width / 2 * one)
        three = middle * rates @ (state + width / 2 * two)
        four = late * rates @ (state + width * three)
        state = state + width / 6 * (one + 2 * two + 2 * three + four)
    clock = formula(schedule, time)
    return relative(dense_flow(problem, clock, clock), state)


def ratio_at_zero(one: Schedule, two: Schedule) -> float:
    start = torch.zeros((), dtype=torch.float64)
    first, second = one(start).item(), two(start).item()
    if second == 0:
        raise Undefined("0/0: both rates start at 0")
    return first / second


def ratio_of_integrals(one: Schedule, two: Schedule) -> float:
    return integrated_rate(one, 2.0) / integrated_rate(two, 2.0)


@claim(
    "theorem-1-ratio",
    title="The ratio s of the two rates, for a schedule that warms up from 0",
    where="convergence-unconstrained-case",
    says="the ratio of the rates at time 0",
    right="the ratio of their integrals, at any time they are positive",
    printed=ratio_at_zero,
    ours=ratio_of_integrals,
    oracle="direction of a dense matrix exponential at a late time",
    tolerance=1e-9,
    because=EXPM,
    errata=(8,),
    severity="C",
)
def ratio(generator: torch.Generator, formula: Formula) -> float:
    problem, s = draw(generator), between(generator, 0.2, 4.0)
    one, two = (warmup(constant(rate), 1.0) for rate in (s, 1.0))
    clock = 30 / (math.sqrt(s) * _gap(problem))
    state = dense_flow(problem, s * clock, clock, problem.leading * math.sqrt(s) * clock)
    limit = z_bar(problem.features, problem.weight, problem.labels, formula(one, two))
    return apart(torch.cat([limit.features, limit.weight]), state)


def always_five(num_classes: int, gamma: float) -> int:
    return 5


def distinct(num_classes: int, gamma: float) -> int:
    first, second = 1 + gamma, 1 + gamma - gamma * num_classes
    return 3 if min(abs(second), abs(abs(second) - first)) < 1e-12 else 5


@claim(
    "theorem-1-eigenvalues",
    title="How many different eigenvalues belong to the five subspaces",
    where="closed-form-dynamics",
    says="five, always",
    right="five, but three at γ = 0, 1/(C−1) and 2/(C−2), where pairs of subspaces share one; no harm is done",
    printed=always_five,
    ours=distinct,
    oracle="eigenvalues of the dense generator",
    tolerance=0.0,
    because="a count",
    errata=(7,),
    severity="C",
    problems=8,
)
def eigenvalue_count(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 5)
    problem = draw(generator, special_gamma(generator, classes), classes)
    values = torch.linalg.eigvalsh(generator_matrix(problem, 1.0, 1.0))
    count = 1 + int((values.diff() > 1e-9).sum())
    return abs(formula(classes, problem.gamma) - count)


# ---- Corollary 1 ------------------------------------------------------------------------------------------------


def printed_limit(problem: Problem, s: float) -> Tensor:
    """From the plus and minus projections, with the printed coefficients."""
    limit = z_bar(problem.features, problem.weight, problem.labels, s)
    return torch.cat([limit.features, limit.weight])


def simpler_limit(problem: Problem, s: float) -> Tensor:
    r"""From :math:`G = (X_0 + \sqrt s W_0) J` alone."""
    n = problem.per_class
    x = math.sqrt(n) * problem.features.reshape(problem.num_classes, n, -1).mean(1)
    g = x + math.sqrt(s) * problem.weight
    g = g - g.mean(0)
    return torch.cat([(g / (2 * math.sqrt(n))).repeat_interleave(n, 0), g / (2 * math.sqrt(s))])


@claim(
    "corollary-1-limit",
    title="The limit of the state divided by its exponential growth, for 0 < γ < 2/(C−2)",
    where="convergence-unconstrained-case",
    says="Π₁⁺ and Π₁⁻ of the start with coefficients (1 ± √s)/2 and ±(1 ± √s)/(2√s)",
    right="the same, and it simplifies: only the centered X₀ + √s W₀ matters",
    printed=printed_limit,
    ours=simpler_limit,
    oracle="dense matrix exponential at a late time",
    tolerance=1e-10,
    because=EXPM + ", and the other modes have fallen by e⁻³⁰",
)
def limit(generator: torch.Generator, formula: Formula) -> float:
    problem, s = draw(generator), between(generator, 0.2, 4.0)
    clock = 30 / (math.sqrt(s) * _gap(problem))
    state = dense_flow(problem, s * clock, clock, problem.leading * math.sqrt(s) * clock)
    return relative(formula(problem, s), state)


def _gap(problem: Problem) -> float:
    """Difference of the two largest growth rates at s = 1, from the dense generator."""
    values = torch.linalg.eigvalsh(generator_matrix(problem, 1.0, 1.0)).flip(0)
    below = values[values < values[0] - 1e-9]
    return (values[0] - below[0]).item()


def apart_modes(generator: torch.Generator, sign: float) -> tuple[float, int]:
    r"""Gamma and a number of classes with :math:`\sigma_2/\sigma_1` 0 or well away from it: slopes are clean there."""
    classes = whole(generator, 3, 5)
    share = sign * between(generator, 0.6, 0.8)
    return (1 - share) / (classes - 1 + share), classes


def exponent(num_classes: int, per_class: int, gamma: float, s: float) -> float:
    unit = math.sqrt(s) / (num_classes * math.sqrt(per_class))
    return unit * max(-gamma * num_classes, (num_classes - 2) * gamma - 2)


@claim(
    "corollary-1-rate",
    title="How fast the direction converges, for 0 < γ < 2/(C−2)",
    where="convergence-rate-unconstrained-case",
    says="exponent max(−γC, (C−2)γ − 2)/(C√N) per unit of √(ζ₁ζ₂)",
    ours=exponent,
    oracle="slope of the distance between two late times of a dense matrix exponential",
    tolerance=1e-3,
    because="the slope is taken where the distance is 1e-4 to 1e-8: faster modes and rounding still show",
    problems=8,
)
def rate(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, *apart_modes(generator, choose(generator, -1, 0, 1)))
    s = between(generator, 0.3, 3.0)
    end = simpler_limit(problem, s)

    def distance(clock: float) -> float:
        state = dense_flow(problem, s * clock, clock, problem.leading * math.sqrt(s) * clock)
        return apart(state, end)

    unit = 1 / (math.sqrt(s) * _gap(problem))
    slope = measured_exponent(distance, 11 * unit, 18 * unit)
    return abs(formula(problem.num_classes, problem.per_class, problem.gamma, s) / slope - 1)


def limit_direction(problem: Problem, s: float) -> Tensor:
    end = printed_limit(problem, s)
    if end.norm() < 1e-12 * problem.state.norm():
        raise Undefined("0/0: the start has no part in the leading modes")
    return direction(end)


def engine_direction(problem: Problem, s: float) -> Tensor:
    end = engine(problem).flow(problem.features, problem.weight, lr=(s, 1.0)).direction()
    return torch.cat([end.features, end.weight])


@claim(
    "corollary-1-genericity",
    title="The limiting direction of a start whose centered X₀ + √s W₀ is zero",
    where="convergence-unconstrained-case",
    says="Z̄/|Z̄|, for every start",
    right="the next growing mode that the start has a part in",
    printed=limit_direction,
    ours=engine_direction,
    oracle="the start's part in the second eigenspace of the dense generator",
    tolerance=1e-10,
    because="eigenvectors of a small dense matrix",
    errata=(9,),
    severity="C",
)
def genericity(generator: torch.Generator, formula: Formula) -> float:
    draft = draw(generator, dim=3)
    # Dyadic values: the centered sum cancels exactly in float64.
    weight = (8 * draft.weight).round() / 8
    problem = Problem(
        draft.num_classes,
        4,
        0.25 / (draft.num_classes - 1),
        (-weight / 2).repeat_interleave(4, 0),
        weight + 0.5,
        draft.bias,
    )
    values, vectors = torch.linalg.eigh(generator_matrix(problem, 1.0, 1.0))
    below = values[values < values[-1] - 1e-9]
    second = vectors[:, abs(values - below[-1]) < 1e-9]
    state = second @ (second.T @ problem.state)
    return apart(formula(problem, 1.0), state)


def ratio_one(bias: Tensor, slope: float) -> float:
    return 1.0


@claim(
    "corollary-1-bias-ratio",
    title="The ratio of the largest to the smallest bias in the limit, for γ ≠ 1/(C−1)",
    where="convergence-unconstrained-case",
    says="1",
    ours=ratio_one,
    oracle="biases after time 1e10 along autograd's constant gradient",
    tolerance=1e-6,
    because="the ratio approaches 1 as 1/time",
    errata=(40,),
    severity="C",
)
def bias_ratio(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, gamma=between(generator, 0.5, 0.9) / 3, num_classes=4)
    slope = -gradients(problem, problem.features, problem.weight, problem.bias)[2]
    late = problem.bias + 1e10 * slope
    return abs(formula(problem.bias, slope[0].item()) - (late.max() / late.min()).item())


def all_correct(features: Tensor, weight: Tensor) -> float:
    return 1.0


def correct_by_gram(features: Tensor, weight: Tensor) -> float:
    r"""Class y is right iff :math:`G_y\cdot G_y > G_j\cdot G_y` for all other j; one example per class here."""
    g = features + weight
    g = g - g.mean(0)
    gram = g @ g.T
    return (gram.argmax(1) == torch.arange(len(g))).double().mean().item()


@claim(
    "corollary-1-accuracy",
    title="Training accuracy once features and prototypes are aligned",
    where="unconstrained-illustration",
    says="aligned features are classified correctly when γ < 2/(C−2)",
    right="class y is right iff G_y·G_y exceeds every G_j·G_y; in few dimensions often not",
    printed=all_correct,
    ours=correct_by_gram,
    oracle="argmax of the logits of a dense matrix exponential at a late time",
    tolerance=1e-12,
    because="a fraction of classes",
    errata=(9,),
    severity="C",
    problems=6,
)
def accuracy(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, gamma=1 / 9, num_classes=10, per_class=1, dim=whole(generator, 2, 4))
    clock = 40 / problem.leading
    state = dense_flow(problem, clock, clock, 40.0)
    logits = state[:10] @ state[10:].T
    seen = (logits.argmax(1) == problem.labels).double().mean().item()
    return abs(formula(problem.features, problem.weight) - seen)


def one_over_others(num_classes: int) -> float:
    return 1 / (num_classes - 1)


@claim(
    "corollary-1-best-gamma",
    title="The γ at which the direction converges fastest",
    where="convergence-unconstrained-case",
    says="1/(C−1)",
    right="1/(C−1); for C = 2 every larger γ is as fast",
    ours=one_over_others,
    oracle="largest gap of the dense generator's eigenvalues on a grid of γ",
    tolerance=1e-3,
    because="the grid has steps of 1/1000 of 2/(C−2)",
    errata=(9,),
    severity="C",
    problems=3,
)
def best_gamma(generator: torch.Generator, formula: Formula) -> float:
    classes, n = whole(generator, 3, 6), whole(generator, 2, 3)
    grid = torch.linspace(0.0, 1.0, 1001, dtype=torch.float64)[1:-1] * 2 / (classes - 2)
    stack = torch.stack(
        [generator_matrix(_bare(classes, n, gamma), 1.0, 1.0) for gamma in (0.0, 1.0)]
    )  # the generator is affine in gamma
    values = torch.linalg.eigvalsh(stack[0] + grid[:, None, None] * (stack[1] - stack[0])).flip(1)
    gaps = values[:, 0] - values[:, classes - 1]  # the leading mode has C - 1 copies
    return abs(formula(classes) - grid[gaps.argmax()].item()) * (classes - 2) / 2


def _bare(classes: int, per_class: int, gamma: float) -> Problem:
    empty = gaussian(torch.Generator(), 1, 1)
    return Problem(classes, per_class, gamma, empty, empty, empty)
