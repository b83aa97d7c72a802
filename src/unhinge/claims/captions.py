"""The quantitative sentences of the captions (errata 19, 20, 22)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from unhinge.claims.oracles import apart, dense_flow, direction, drive_matrix, relative
from unhinge.claims.problems import Problem, between, choose, draw, gaussian
from unhinge.claims.registry import Formula, claim
from unhinge.claims.regularized import spectrum_of
from unhinge.claims.spherical import angle, descend, pair
from unhinge.claims.unconstrained import EXPM, simpler_limit
from unhinge.theory.paper import convergence_rate, projections

CLASSES, EXAMPLES, RATE = 100, 10, 0.1  # the size of the paper's figures; the feature dimension plays no part


def largest_singular_value(gamma: float) -> float:
    labels = torch.arange(CLASSES).repeat_interleave(EXAMPLES)
    return torch.linalg.svdvals(drive_matrix(labels, CLASSES, gamma))[0].item()


def printed_growth(gamma: float) -> float:
    return (3.95 if gamma == 0.05 else 1.0) * math.sqrt(10) * 1e-4


def right_growth(gamma: float) -> float:
    return RATE * max(1 + gamma, abs(1 + gamma - gamma * CLASSES)) / (CLASSES * math.sqrt(EXAMPLES))


@claim(
    "figure-1-growth",
    title="Growth exponents of the norm in the first figure: γ = 0.05, and the others",
    where="unconstrained-illustration",
    says="3.95√10·1e−4, and roughly √10·1e−4",
    right="η max(1+γ, |1+γ−γC|)/(C√N)",
    printed=printed_growth,
    ours=right_growth,
    oracle="largest singular value of the 100 × 1000 matrix M, times the rate",
    tolerance=0.011,
    because="the caption rounds the smaller exponents to √10·1e−4, the largest of them being 1.0101 times that",
    problems=1,
)
def growth(generator: torch.Generator, formula: Formula) -> float:
    gammas = 0.05, 0.0, 0.001, 0.005, 1 / 99
    return max(abs(formula(gamma) / (RATE * largest_singular_value(gamma)) - 1) for gamma in gammas)


@claim(
    "figure-1-orthogonal",
    title="The limit of the distance to Z̄/|Z̄| for γ > 2/(C−2)",
    where="unconstrained-illustration",
    says="√2",
    ours=lambda: math.sqrt(2),
    oracle="dense matrix exponential at a late time",
    tolerance=1e-9,
    because=EXPM + ", and the other modes have fallen by e⁻³⁰",
)
def orthogonal(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=5, gamma=between(generator, 1.5, 3.0) * 2 / 3)
    top, gap = spectrum_of(problem, 1.0)
    state = dense_flow(problem, 30 / gap, 30 / gap, 30 * top / gap)
    return abs(formula() - (direction(state) - direction(simpler_limit(problem, 1.0))).norm().item())


def no_growth(gamma: float) -> float:
    return 0.0


def growth_at_critical(gamma: float) -> float:
    """Per unit of time, at the decay (1 + gamma)/(C sqrt N)."""
    return max(right_growth(gamma) - RATE * (1 + gamma) / (CLASSES * math.sqrt(EXAMPLES)), 0.0)


@claim(
    "figure-regularized-gamma-growth",
    title="Growth of the norm at decay (1+γ)/(C√N), for the γ of the figure",
    where="regularized-gamma",
    says="none, for any of them",
    right="none up to γ = 2/(C−2); for γ = 0.1 it grows as e^(2.47e−3 t)",
    printed=no_growth,
    ours=growth_at_critical,
    oracle="4000 steps of gradient descent, 100 classes of 10 examples: growth of log|H| per step at the end",
    tolerance=1e-5,
    because="a step multiplies by 1 + x, not by e^x (half the square of 2.5e−3), and slower parts still show",
    errata=(19,),
    severity="A",
    problems=1,
)
def critical_growth(generator: torch.Generator, formula: Formula) -> float:
    return max(abs(formula(gamma) - _measured_growth(generator, gamma)) for gamma in (0.1, 0.01))


def _measured_growth(generator: torch.Generator, gamma: float) -> float:
    labels = torch.arange(CLASSES).repeat_interleave(EXAMPLES)
    drive = drive_matrix(labels, CLASSES, gamma)
    decay = (1 + gamma) / (CLASSES * math.sqrt(EXAMPLES))
    h, w = gaussian(generator, len(labels), 2), gaussian(generator, CLASSES, 2)
    norms = []
    for _ in range(4000):
        h, w = h + RATE * (drive.T @ w - decay * h), w + RATE * (drive @ h - decay * w)
        norms.append(h.norm().item())
    return max(math.log(norms[-1] / norms[-500]) / 499, 0.0)  # a norm that falls does not grow


def first_part(problem: Problem) -> Tensor:
    plus = projections(problem.features, problem.weight, problem.labels).plus_1
    return torch.cat([plus.features, plus.weight])


def both_plus_parts(problem: Problem) -> Tensor:
    parts = projections(problem.features, problem.weight, problem.labels)
    return torch.cat([parts.plus_1.features + parts.plus_2.features, parts.plus_1.weight + parts.plus_2.weight])


@claim(
    "figure-regularized-gamma-limit",
    title="The limit of the state at γ = 0 and the critical decay, equal rates",
    where="regularized-gamma",
    says="Π₁⁺ of the start, as for the other γ",
    right="(Π₁⁺ + Π₂⁺) of the start: the mean does not decay either",
    printed=first_part,
    ours=both_plus_parts,
    oracle="dense matrix exponential at a late time",
    tolerance=1e-10,
    because=EXPM,
    errata=(19,),
    severity="A",
)
def limit_at_zero(generator: torch.Generator, formula: Formula) -> float:
    draft = draw(generator, gamma=0.0)
    problem = draft.with_decay(draft.leading, draft.leading)
    clock = 40 / problem.leading
    return relative(formula(problem), dense_flow(problem, clock, clock))


def always_faster(problem: Problem, small: float, large: float) -> bool:
    return True


def faster_by_rate(problem: Problem, small: float, large: float) -> bool:
    size = problem.num_classes, problem.per_class, problem.gamma, problem.feature_decay, problem.weight_decay
    return convergence_rate(*size, large) > convergence_rate(*size, small)


def _is_faster(problem: Problem, small: float, large: float) -> bool:
    """By the gap of the dense generator's eigenvalues."""
    return spectrum_of(problem, large)[1] > spectrum_of(problem, small)[1]


def _order_of_speed(problem: Problem, formula: Formula, small: float, large: float) -> float:
    return float(bool(formula(problem, small, large)) != _is_faster(problem, small, large))


@claim(
    "figure-regularized-scale",
    title="Whether a larger ratio s of the rates converges faster, for the s ≤ 1 of the figure",
    where="regularized-scale",
    says="it does",
    printed=always_faster,
    ours=faster_by_rate,
    oracle="gap of the dense generator's eigenvalues",
    tolerance=0.0,
    because="an order",
    errata=(20,),
)
def scale_plotted(generator: torch.Generator, formula: Formula) -> float:
    problem = _at_best_gamma(generator, between(generator, 0.3, 3.0))
    large = between(generator, 0.2, 1.0)
    return _order_of_speed(problem, formula, large * between(generator, 0.3, 0.8), large)


@claim(
    "figure-regularized-scale-beyond",
    title="The same sentence for s > 1",
    where="regularized-scale",
    says="it does",
    right="below the critical decay only: above it, a larger s is slower",
    printed=always_faster,
    ours=faster_by_rate,
    oracle="gap of the dense generator's eigenvalues",
    tolerance=0.0,
    because="an order",
    errata=(20,),
    severity="C",
    problems=8,
)
def scale_beyond(generator: torch.Generator, formula: Formula) -> float:
    problem = _at_best_gamma(generator, choose(generator, 0.5, 2.0, 3.0))
    small = between(generator, 1.1, 3.0)
    return _order_of_speed(problem, formula, small, small * between(generator, 1.5, 3.0))


def _at_best_gamma(generator: torch.Generator, factor: float) -> Problem:
    problem = draw(generator, gamma=1 / 4, num_classes=5)
    return problem.with_decay(factor * problem.leading, factor * problem.leading)


@claim(
    "figure-regularized-rate",
    title="Whether larger learning rates converge faster, equal for features and prototypes",
    where="regularized-lr",
    says="they do",
    right="they do, in proportion",
    ours=lambda rate: rate,
    oracle="gap of the dense generator's eigenvalues at two rates",
    tolerance=1e-9,
    because="eigenvalues of a matrix that is not symmetric",
)
def larger_rate(generator: torch.Generator, formula: Formula) -> float:
    problem = _at_best_gamma(generator, 1.0)
    rate = between(generator, 0.1, 5.0)
    faster = torch.linalg.eigvalsh(_rated(problem, rate)).flip(0)
    slower = torch.linalg.eigvalsh(_rated(problem, 1.0)).flip(0)
    index = problem.num_classes - 1  # the leading mode has C - 1 copies
    seen = (faster[0] - faster[index]) / (slower[0] - slower[index])
    return abs(formula(rate) - seen.item()) / rate


def _rated(problem: Problem, rate: float) -> Tensor:
    drive = rate * drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    n, c = drive.shape[1], drive.shape[0]
    matrix = -rate * problem.feature_decay * torch.eye(n + c, dtype=torch.float64)
    matrix[:n, n:] += drive.T
    matrix[n:, :n] += drive
    return matrix


@claim(
    "figure-decay-drops-out",
    title="Whether the decay changes how the direction converges, at equal rates and equal decays",
    where="fig:unconstrained-behaviors",
    says="it does not",
    ours=lambda distance, decay: distance,
    oracle="distance to the limiting direction by a dense matrix exponential, with and without decay",
    tolerance=1e-11,
    because=EXPM,
)
def decay_drops_out(generator: torch.Generator, formula: Formula) -> float:
    free = draw(generator)
    decay, clock = free.leading * between(generator, 0.5, 2.0), between(generator, 2, 8) / free.leading
    end = simpler_limit(free, 1.0)
    without, under = (apart(dense_flow(x, clock, clock), end) for x in (free, free.with_decay(decay, decay)))
    return abs(formula(without, decay) - under)


@claim(
    "figure-spherical-norm",
    title="Whether the feature norm ever falls under descent on normalized features",
    where="spherical-lr-behaviors",
    says="it never does",
    right="it never does: |h'| = |h| √(1 + α² sin²θ)",
    ours=lambda alpha, theta: math.sqrt(1 + (alpha * math.sin(theta)) ** 2),
    oracle="gradient descent by autograd: norm after a step over norm before",
    tolerance=1e-12,
    because="float64 rounding",
)
def spherical_norm(generator: torch.Generator, formula: Formula) -> float:
    h, w = pair(generator, between(generator, 0.5, 2.0))
    rate = between(generator, 0.1, 2.0)
    worst, path = 0.0, descend(h, w, lambda _: rate, 30)
    for before, after in pairwise(path):
        ratio = (after.norm() / before.norm()).item()
        alpha = rate * w.norm().item() / before.norm().item() ** 2
        worst = max(worst, 1 - ratio, abs(formula(alpha, angle(before, w)) - ratio))
    return worst
