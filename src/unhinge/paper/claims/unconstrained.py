"""Theorem 1 and Corollary 1: no decay (errata 7, 8, 9, 40)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unhinge.paper.claims.oracles import (
    apart,
    dense_flow,
    direction,
    drive_matrix,
    expand,
    generator_matrix,
    gradients,
    relative,
)
from unhinge.paper.claims.problems import Problem, between, choose, draw, gaussian, whole
from unhinge.paper.claims.registry import Formula, SharperCheck, Undefined, claim
from unhinge.paper.notation import alpha_beta, eigenvalues, projections, z_bar
from unhinge.theory import LayerPeeled, Schedule, constant, cosine, warmup

EXPM = "a dense matrix exponential is right to some 1e-12 here"


def engine(problem: Problem) -> LayerPeeled:
    return LayerPeeled(problem.labels, problem.num_classes, problem.gamma, problem.feature_decay, problem.weight_decay)


def special_gammas(generator: torch.Generator, classes: int) -> tuple[float, ...]:
    """Inside, at and beyond the special values of gamma."""
    edge = 2 / (classes - 2)
    return 0.0, between(generator, 0.05, 0.95) * edge, 1 / (classes - 1), edge, between(generator, 1.2, 3.0) * edge


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
)
def flow(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 5)
    worst = 0.0
    for gamma in special_gammas(generator, classes):
        problem = draw(generator, gamma, classes)
        clocks = between(generator, 0.1, 4.0), between(generator, 0.1, 4.0)
        worst = max(worst, relative(formula(problem, *clocks), dense_flow(problem, *clocks)))
    return worst


def linear_bias(problem: Problem, weight_clock: float) -> Tensor:
    slope = (1 + problem.gamma - problem.gamma * problem.num_classes) / problem.num_classes
    return problem.bias + slope * weight_clock


@claim(
    "theorem-1-bias",
    title="Biases without decay grow in proportion to the integrated rate, all alike",
    where="closed-form-dynamics",
    says="b₀ + ζ₂(1 + γ − γC)/C",
    ours=linear_bias,
    oracle="100 midpoint steps along autograd's gradient with a cosine rate",
    tolerance=1e-12,
    because="the gradient is constant, so the steps only add up rounding",
)
def bias(generator: torch.Generator, formula: Formula) -> float:
    problem, clock = draw(generator, num_classes=whole(generator, 2, 4), per_class=2), between(generator, 1.0, 5.0)
    moving, steps = problem.bias, 100
    for k in range(steps):  # a rate of integral `clock`, from twice its mean to 0
        rate = clock / steps * (1 + math.cos(math.pi * (k + 0.5) / steps))
        moving = moving - rate * gradients(problem, problem.features, problem.weight, moving)[2]
    return relative(formula(problem, clock), moving)


def first_rate_times_time(schedule: Schedule, time: float) -> float:
    """The one clock that knows no more than the first rate and is right for constant rates."""
    return schedule(torch.zeros((), dtype=torch.float64)).item() * time


def integrated_rate(schedule: Schedule, time: float) -> float:
    return schedule.integral(torch.tensor(time, dtype=torch.float64)).item()


@claim(
    "theorem-1-scalars",
    title="What the scalars of the closed form depend on",
    where="closed-form-dynamics",
    says="only on C, N, γ and the two rates at time 0",
    right="on the integrals of the rates up to now; the appendix repeats the theorem without the slip",
    printed=first_rate_times_time,
    ours=integrated_rate,
    oracle="Runge–Kutta steps along the flow with a cosine rate",
    tolerance=1e-11,
    because="1000 Runge–Kutta steps leave an error of 1e-13",
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
    for step in range(steps):
        early, middle, late = (
            1 + math.cos(math.pi * x * width) for x in (float(step), step + 0.5, step + 1.0)
        )  # the cosine rate from 2 to 0, written out
        k1 = early * rates @ state
        k2 = middle * rates @ (state + width / 2 * k1)
        k3 = middle * rates @ (state + width / 2 * k2)
        k4 = late * rates @ (state + width * k3)
        state = state + width / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    clock = formula(schedule, time)
    return relative(dense_flow(problem, clock, clock), state)


def ratio_at_zero(feature_lr: Schedule, weight_lr: Schedule) -> float:
    start = torch.zeros((), dtype=torch.float64)
    first, second = feature_lr(start).item(), weight_lr(start).item()
    if second == 0:
        raise Undefined("0/0: both rates start at 0")
    return first / second


def ratio_of_integrals(feature_lr: Schedule, weight_lr: Schedule) -> float:
    return integrated_rate(feature_lr, 2.0) / integrated_rate(weight_lr, 2.0)


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
    feature_lr, weight_lr = (warmup(constant(rate), 1.0) for rate in (s, 1.0))
    clock = 30 / (math.sqrt(s) * _gap(problem))
    state = dense_flow(problem, s * clock, clock, problem.leading * math.sqrt(s) * clock)
    return apart(printed_limit(problem, formula(feature_lr, weight_lr)), state)


def printed_image(problem: Problem) -> Tensor:
    r"""The printed :math:`(W M^\top, H W)`, columns as in the paper."""
    drive = drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    h, w = problem.features.T, problem.weight.T
    if w.shape[1] != drive.T.shape[0] or h.shape[1] != w.shape[0]:
        raise Undefined(f"W has {w.shape[1]} columns and Mᵀ {drive.shape[1]} rows")
    return torch.cat([w @ drive.T, h @ w], dim=1)


def right_image(problem: Problem) -> Tensor:
    drive = drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    return torch.cat([problem.weight.T @ drive, problem.features.T @ drive.T], dim=1)


@claim(
    "theorem-1-generator",
    title="What the generator makes of a state, in the proof",
    where="closed-form-dynamics",
    says="(H, W)B = (W Mᵀ, H W)",
    right="(H, W)B = (W M, H Mᵀ)",
    printed=printed_image,
    ours=right_image,
    oracle="the product with the dense block matrix B",
    tolerance=1e-13,
    because="float64 rounding of sums of at most 20 terms",
    errata=(7,),
    severity="C",
)
def image(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator)
    return relative(formula(problem), (generator_matrix(problem, 1.0, 1.0).T @ problem.state).T)


def printed_mean_line(problem: Problem, sign: int, vector: Tensor) -> Tensor:
    r"""The second printed line for :math:`\mathcal E_2`, a vector of ones of length CN√N read as one of length CN."""
    c, n = problem.num_classes, problem.per_class
    ones, labels = torch.ones(c * n, dtype=torch.float64), torch.eye(c).double().repeat_interleave(n, 0)
    row = (1 + problem.gamma) * ones @ labels - problem.gamma * (ones @ ones) * torch.ones(c, dtype=torch.float64)
    return sign / (c * n) * torch.outer(vector, row)


def right_mean_line(problem: Problem, sign: int, vector: Tensor) -> Tensor:
    return printed_mean_line(problem, sign, vector) / math.sqrt(problem.per_class)


@claim(
    "theorem-1-mean-line",
    title="An intermediate line of the proof: H Mᵀ for features on one common vector",
    where="closed-form-dynamics",
    says="a factor 1/(CN), and a vector of ones of length CN√N",
    right="a factor 1/(CN√N), and a vector of ones of length CN; the end of the chain is right",
    printed=printed_mean_line,
    ours=right_mean_line,
    oracle="the product of the features with the dense matrix M",
    tolerance=1e-13,
    because="float64 rounding of sums of at most 15 terms",
    errata=(40,),
    severity="C",
)
def mean_line(generator: torch.Generator, formula: Formula) -> float:
    problem, sign = draw(generator), 2 * whole(generator, 0, 1) - 1
    vector = problem.weight[0]
    features = sign / math.sqrt(problem.per_class) * vector.expand(len(problem.labels), -1)
    drive = drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    # Against the size of the factors: at γ = 1/(C−1) the product itself vanishes.
    off = (formula(problem, sign, vector) - features.T @ drive.T).norm() / (features.norm() * drive.norm())
    return float(off)


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
)
def eigenvalue_count(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 5)
    worst = 0
    for gamma in special_gammas(generator, classes):
        values = torch.linalg.eigvalsh(generator_matrix(draw(generator, gamma, classes), 1.0, 1.0))
        worst = max(worst, abs(formula(classes, gamma) - 1 - int((values.diff() > 1e-9).sum())))
    return worst


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


def any_gamma(generator: torch.Generator, classes: int) -> float:
    """All of Corollary 1's range (for two classes up to 3), every third time the best value itself."""
    if whole(generator, 0, 2) == 0:
        return 1 / (classes - 1)
    return between(generator, 0.01, 0.99) * (2 / (classes - 2) if classes > 2 else 3.0)


def exponent(num_classes: int, per_class: int, gamma: float, s: float) -> float:
    unit = math.sqrt(s) / (num_classes * math.sqrt(per_class))
    return unit * max(-gamma * num_classes, (num_classes - 2) * gamma - 2)


@claim(
    "corollary-1-rate",
    title="How fast the direction converges, for 0 < γ < 2/(C−2)",
    where="convergence-rate-unconstrained-case",
    says="exponent max(−γC, (C−2)γ − 2)/(C√N) per unit of √(ζ₁ζ₂)",
    ours=exponent,
    oracle="slope of the log-distance where the next mode has fallen by e⁻⁴⁰, dense eigenvectors",
    tolerance=1e-11,
    because="dense eigenvalues are right to 1e-15, and the smallest gap drawn is some 1e-3",
    problems=12,
)
def rate(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 2, 5)
    problem, s = draw(generator, any_gamma(generator, classes), classes), between(generator, 0.3, 3.0)
    slope = expand(problem, s).slope()
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
    oracle="the highest eigenspace of the dense generator that the start has a part in",
    tolerance=1e-10,
    because="eigenvectors of a small dense matrix",
    errata=(9,),
    severity="C",
    problems=8,
)
def genericity(generator: torch.Generator, formula: Formula) -> float:
    classes, root = whole(generator, 3, 5), choose(generator, 0.5, 1.0, 2.0)
    draft = draw(generator, any_gamma(generator, classes), classes, dim=3)
    # Dyadic values: with four examples per class X + √s W is the same for all classes exactly, in float64.
    weight = (8 * draft.weight).round() / 8
    features = (-root * weight / 2).repeat_interleave(4, 0)
    problem = Problem(classes, 4, draft.gamma, features, weight + 0.5, draft.bias)
    return apart(formula(problem, root**2), expand(problem, root**2).parts[0])


@claim(
    "corollary-1-two-classes",
    title="The limiting direction for two classes, at γ = 0",
    where="convergence-unconstrained-case",
    says="Z̄/|Z̄|: for two classes γ is left free",
    right="γ > 0 is needed there too: at γ = 0 the mean grows as fast, and X₀ + √s W₀ is not centered",
    printed=limit_direction,
    ours=engine_direction,
    oracle="the leading eigenspace of the dense generator",
    tolerance=1e-10,
    because="eigenvectors of a small dense matrix",
    errata=(9,),
    severity="C",
)
def two_classes(generator: torch.Generator, formula: Formula) -> float:
    problem, s = draw(generator, 0.0, 2), between(generator, 0.3, 3.0)
    return apart(formula(problem, s), expand(problem, s).parts[0])


def ratio_one(bias: Tensor, slope: float) -> float:
    return 1.0


@claim(
    "corollary-1-bias-ratio",
    title="The ratio of the largest to the smallest bias in the limit, for γ ≠ 1/(C−1)",
    where="convergence-unconstrained-case",
    says="1",
    ours=ratio_one,
    oracle="biases at two late times along autograd's constant gradient, the part in 1/time extrapolated away",
    tolerance=1e-9,
    because="what is left falls as the square of 1/time: (|b₀| over 1e7 times the slope)²",
)
def bias_ratio(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 2, 5)
    side = choose(generator, -1.0, 1.0) * between(generator, 0.2, 0.9)
    problem = draw(generator, gamma=(1 + side) / (classes - 1), num_classes=classes)
    slope = -gradients(problem, problem.features, problem.weight, problem.bias)[2]
    once, twice = (problem.bias + time * slope for time in (1e7, 2e7))
    seen = 2 * (twice.max() / twice.min()) - once.max() / once.min()
    return abs(formula(problem.bias, slope[0].item()) - seen.item())


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
    says="the panel of the accuracy is explained by alignment, as if aligned meant classified correctly",
    right="they do align, but class y is right iff G_y·G_y exceeds every G_j·G_y; in few dimensions often not",
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


def one_fastest(num_classes: int) -> tuple[float, float]:
    """The least and the largest of the fastest gammas."""
    return 1 / (num_classes - 1), 1 / (num_classes - 1)


def all_fastest(num_classes: int) -> tuple[float, float]:
    return 1 / (num_classes - 1), math.inf if num_classes == 2 else 1 / (num_classes - 1)


def gaps_of(classes: int, per_class: int, gammas: Tensor) -> Tensor:
    """Difference of the leading exponent and the next, from dense eigenvalues."""
    # The generator is affine in gamma.
    at_zero, at_one = (generator_matrix(_labels_only(classes, per_class, gamma), 1.0, 1.0) for gamma in (0.0, 1.0))
    values = torch.linalg.eigvalsh(at_zero + gammas[:, None, None] * (at_one - at_zero)).flip(1)
    return values[:, 0] - values[:, classes - 1]  # the leading mode has C - 1 copies


def _gamma_grid(classes: int) -> Tensor:
    return torch.linspace(0.0, 1.0, 301, dtype=torch.float64)[1:-1] * (2 / (classes - 2) if classes > 2 else 3.0)


def _set_of_fastest(generator: torch.Generator, formula: Formula) -> float:
    """1 unless the interval has all grid points of the largest gap and no other."""
    for classes in (2, whole(generator, 3, 6)):
        low, high = formula(classes)
        grid = torch.cat([_gamma_grid(classes), torch.tensor([low], dtype=torch.float64)])
        gaps = gaps_of(classes, whole(generator, 2, 3), grid)
        named = (grid > low - 1e-9) & (grid < high + 1e-9)
        if not torch.equal(gaps > gaps.max() * (1 - 1e-8), named):
            return 1.0
    return 0.0


@claim(
    "corollary-1-best-gamma",
    title="The γ at which the direction converges fastest",
    where="convergence-unconstrained-case",
    says="1/(C−1)",
    right="1/(C−1), and for C = 2 every larger γ as well",
    printed=one_fastest,
    ours=all_fastest,
    oracle="largest gap of the dense generator's eigenvalues on a grid of γ",
    tolerance=1e-12,
    because="the largest gap is attained, so that only the rounding of eigenvalues shows",
    errata=(9,),
    problems=3,
    remark="True as printed, but not the only one: for C = 2 every γ ≥ 1 ties.",
    sharper=SharperCheck(_set_of_fastest, 0.0, "a yes or no"),
)
def best_gamma(generator: torch.Generator, formula: Formula) -> float:
    worst = 0.0
    for classes in (2, whole(generator, 3, 6)):
        grid = torch.cat([torch.tensor([formula(classes)[0]], dtype=torch.float64), _gamma_grid(classes)])
        gaps = gaps_of(classes, whole(generator, 2, 3), grid)
        worst = max(worst, (gaps.max() / gaps[0]).item() - 1)
    return worst


def _labels_only(classes: int, per_class: int, gamma: float) -> Problem:
    empty = gaussian(torch.Generator(), 1, 1)
    return Problem(classes, per_class, gamma, empty, empty, empty)
