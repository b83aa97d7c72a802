"""Theorem 2 and Corollary 2: weight decay (errata 10 to 18), and what imbalance does (erratum 38)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.integrate import quad, solve_ivp
from scipy.linalg import expm
from torch import Tensor

from unhinge.paper.claims.oracles import apart, dense_flow, drive_matrix, expand, generator_matrix, relative
from unhinge.paper.claims.problems import Problem, between, choose, draw, gaussian, simplex, whole
from unhinge.paper.claims.registry import Formula, SharperCheck, Undefined, claim
from unhinge.paper.claims.unconstrained import EXPM, any_gamma, engine_direction, engine_flow
from unhinge.paper.notation import convergence_rate, eigenvalues, pi_coefficients, projections, z_pi
from unhinge.theory import LayerPeeled


def thetas(sigma: float, l1: float, l2: float, z1: float, z2: float) -> tuple[float, float]:
    """The two eigenvalues of the 2 x 2 exponent, smaller first."""
    root = math.sqrt((l1 * z1 - l2 * z2) ** 2 + 4 * sigma**2 * z1 * z2)
    return (-(l1 * z1 + l2 * z2) - root) / 2, (-(l1 * z1 + l2 * z2) + root) / 2


def printed_scalars(sigma: float, l1: float, l2: float, z1: float, z2: float) -> tuple[float, float]:
    """a(t) and b(t) as the appendix prints them."""
    low, high = thetas(sigma, l1, l2, z1, z2)
    if high == low:
        raise Undefined("0/0: the two exponents coincide")
    scale, fall = math.exp(high) / (high - low), math.exp(low - high)
    a = scale * ((sigma * z1 - l1 * z1 - low) - (sigma * z1 - l1 * z1 - high) * fall)
    b = scale * ((l1 * z1 + high + sigma * z2) + (l1 * z1 + low - sigma * z2) * fall)
    return a, b


def right_scalars(sigma: float, l1: float, l2: float, z1: float, z2: float) -> tuple[float, float]:
    """a(t) and b(t) with the signs put right and the limit taken where the exponents coincide."""
    middle, half = -(l1 * z1 + l2 * z2) / 2, (l1 * z1 - l2 * z2) / 2
    radius = math.hypot(half, sigma * math.sqrt(z1 * z2))
    growth = math.exp(middle)
    straight, bent = math.cosh(radius), math.sinh(radius) / radius if radius else 1.0
    return growth * (straight + bent * (sigma * z1 - half)), growth * (straight + bent * (sigma * z2 + half))


def from_scalars(problem: Problem, z1: float, z2: float, scalars: Formula) -> Tensor:
    """The five projections, each with its a(t) and b(t)."""
    first, second = eigenvalues(problem.num_classes, problem.per_class, problem.gamma)
    parts = projections(problem.features, problem.weight, problem.labels)
    state = torch.zeros_like(problem.state)
    for part, sigma in zip(parts, (first, -first, second, -second, 0.0), strict=True):
        a, b = scalars(sigma, problem.feature_decay, problem.weight_decay, z1, z2)
        state = state + torch.cat([a * part.features, b * part.weight])
    return state


def printed_flow(problem: Problem, z1: float, z2: float) -> Tensor:
    return from_scalars(problem, z1, z2, printed_scalars)


@claim(
    "theorem-2-flow",
    title="The closed form of features and prototypes under decay",
    where="closed-form-dynamics-l2",
    says="five projections with scalars a(t), b(t); the last term of b(t) is + (λ₁ζ₁ + θ₁ − σζ₂)e^(θ₁−θ₂)",
    right="the last term of b(t) is − (λ₁ζ₁ + θ₁ + σζ₂)e^(θ₁−θ₂); a(t) is right",
    printed=printed_flow,
    ours=engine_flow,
    oracle="dense matrix exponential",
    tolerance=1e-11,
    because=EXPM,
    errata=(12,),
    severity="B",
    problems=8,
)
def flow(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator).with_decay(between(generator, 0.02, 0.5), between(generator, 0.02, 0.5))
    z1, z2 = between(generator, 0.5, 6.0), between(generator, 0.5, 6.0)
    return relative(formula(problem, z1, z2), dense_flow(problem, z1, z2))


@claim(
    "theorem-2-default",
    title="The closed form under decay in the default setting: equal rates and equal decays",
    where="closed-form-dynamics-l2",
    says="divide by θ₂ − θ₁",
    right="θ₂ = θ₁ for the within-class part always (and for the mean part at γ = 1/(C−1)): take the limit",
    printed=printed_flow,
    ours=lambda problem, z1, z2: from_scalars(problem, z1, z2, right_scalars),
    oracle="dense matrix exponential",
    tolerance=1e-11,
    because=EXPM,
    errata=(13,),
    severity="B",
)
def default_setting(generator: torch.Generator, formula: Formula) -> float:
    decay, clock = between(generator, 0.02, 0.5), between(generator, 0.5, 6.0)
    problem = draw(generator).with_decay(decay, decay)
    return relative(formula(problem, clock, clock), dense_flow(problem, clock, clock))


def printed_exponential(sigma: float, l1: float, l2: float, z1: float, z2: float) -> Tensor:
    low, high = thetas(sigma, l1, l2, z1, z2)
    x, y = math.exp(low), math.exp(high)
    rows = [
        [(l1 * z1 + high) * x - (l1 * z1 + low) * y, sigma * z1 * (y - x)],
        [(l1 * z1 + high) * y - (l1 * z1 + low) * x, sigma * z2 * y - sigma * high * x],
    ]
    return torch.tensor(rows, dtype=torch.float64) / (high - low)


def right_exponential(sigma: float, l1: float, l2: float, z1: float, z2: float) -> Tensor:
    low, high = thetas(sigma, l1, l2, z1, z2)
    x, y = math.exp(low), math.exp(high)
    rows = [
        [(l1 * z1 + high) * x - (l1 * z1 + low) * y, sigma * z1 * (y - x)],
        [sigma * z2 * (y - x), (l1 * z1 + high) * y - (l1 * z1 + low) * x],
    ]
    return torch.tensor(rows, dtype=torch.float64) / (high - low)


@claim(
    "theorem-2-exponential",
    title="The exponential of the 2×2 matrix S in the proof",
    where="closed-form-dynamics-l2",
    says="a second row whose entries are swapped, with θ₂ for ζ₂ in the last",
    right="second row σζ₂(e^θ₂ − e^θ₁) and (λ₁ζ₁ + θ₂)e^θ₂ − (λ₁ζ₁ + θ₁)e^θ₁, over θ₂ − θ₁",
    printed=printed_exponential,
    ours=right_exponential,
    oracle="scipy.linalg.expm of S",
    tolerance=1e-10,
    because="the closed form divides by the difference of two exponents, which is small at times",
    errata=(11,),
    severity="B",
)
def exponential(generator: torch.Generator, formula: Formula) -> float:
    sigma, l1, l2 = (between(generator, 0.05, 0.6) for _ in range(3))
    z1, z2 = between(generator, 0.5, 4.0), between(generator, 0.5, 4.0)
    exact = expm(np.array([[-l1 * z1, sigma * z1], [sigma * z2, -l2 * z2]]))
    return relative(formula(sigma, l1, l2, z1, z2), torch.from_numpy(exact))


def rate_shape(time: float) -> float:
    """A rate for the checks: falls from 1.5 to 0.5 over time 2, as a cosine."""
    return 1 + math.cos(math.pi * time / 2) / 2


def clock_of(time: float) -> float:
    return float(quad(rate_shape, 0, time, epsabs=1e-13)[0])


def printed_drive(decay: float, time: float) -> float:
    """psi with the integrated rate in front of the exponential."""
    return float(quad(lambda x: clock_of(x) * math.exp(decay * clock_of(x)), 0, time, epsabs=1e-10)[0])


def right_drive(decay: float, time: float) -> float:
    """psi with the rate itself in front, which integrates to this."""
    return math.expm1(decay * clock_of(time)) / decay


@claim(
    "theorem-2-bias",
    title="The biases under decay, for a rate that changes",
    where="closed-form-dynamics-l2",
    says="ψ = ∫ ζ₂ exp(λ₂ζ₂)",
    right="ψ = ∫ η₂ exp(λ₂ζ₂) = (exp(λ₂ζ₂) − 1)/λ₂",
    printed=printed_drive,
    ours=right_drive,
    oracle="an ODE solver (DOP853) on the bias's own equation",
    tolerance=1e-8,
    because="the solver's tolerance of 1e-11, accumulated",
    errata=(10,),
    severity="B",
)
def bias(generator: torch.Generator, formula: Formula) -> float:
    decay, time, start = between(generator, 0.1, 1.0), between(generator, 0.5, 1.8), between(generator, -1, 1)
    drive = between(generator, 0.2, 1.0)
    solved = solve_ivp(
        lambda t, b: rate_shape(t) * (drive - decay * b), (0, time), [start], "DOP853", rtol=1e-11, atol=1e-12
    )
    value = math.exp(-decay * clock_of(time)) * (start + drive * formula(decay, time))
    return abs(value - float(solved.y[0, -1]))


def printed_commutator(problem: Problem, now: tuple[float, float], then: tuple[float, float]) -> Tensor:
    """The (2, 1) block in the paper's layout, acting on rows of features on the left: factor of M."""
    factor = problem.weight_decay * (then[1] * then[0] - now[1] * then[0])
    return factor * drive_matrix(problem.labels, problem.num_classes, problem.gamma)


def right_commutator(problem: Problem, now: tuple[float, float], then: tuple[float, float]) -> Tensor:
    factor = problem.weight_decay * (now[0] * then[1] - then[0] * now[1])
    return factor * drive_matrix(problem.labels, problem.num_classes, problem.gamma)


@claim(
    "theorem-2-commutator",
    title="The lower left block of the commutator of the generators at two times",
    where="closed-form-dynamics-l2",
    says="λ₂[η₂(t₂)η₁(t₂) − η₂(t₁)η₁(t₂)]M",
    right="λ₂[η₁(t₁)η₂(t₂) − η₁(t₂)η₂(t₁)]M, which vanishes for proportional rates",
    printed=printed_commutator,
    ours=right_commutator,
    oracle="products of the dense generators at rates that are not proportional",
    tolerance=1e-12,
    because="float64 rounding",
    errata=(14,),
    severity="C",
)
def commutator(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator).with_decay(between(generator, 0.1, 0.5), between(generator, 0.1, 0.5))
    now, then = ((between(generator, 0.5, 2), between(generator, 0.5, 2)) for _ in range(2))
    first, second = (generator_matrix(problem, *rates).T for rates in (now, then))  # the paper multiplies on the right
    bracket = first @ second - second @ first
    n = len(problem.labels)
    return relative(formula(problem, now, then), bracket[n:, :n])


def always_negative(sigma: float, l1: float, l2: float, z1: float, z2: float) -> bool:
    return True


def negative_unless_idle(sigma: float, l1: float, l2: float, z1: float, z2: float) -> bool:
    return max(abs(sigma), l1, l2) > 0


@claim(
    "theorem-2-theta-sign",
    title="Whether the smaller exponent θ₁ of a part is negative",
    where="closed-form-dynamics-l2",
    says="θ₁ < 0",
    right="θ₁ ≤ 0: it is 0 for the within-class part (σ = 0) where nothing decays",
    printed=always_negative,
    ours=negative_unless_idle,
    oracle="numpy's eigenvalues of the 2×2 matrix S, with and without decay, with σ = 0 and not",
    tolerance=0.0,
    because="a yes or no",
    errata=(14,),
    severity="C",
)
def theta_sign(generator: torch.Generator, formula: Formula) -> float:
    wrong = 0.0
    for moving, decaying in itertools.product((0, 1), repeat=2):
        sigma = moving * between(generator, 0.05, 0.6)
        l1, l2 = (decaying * between(generator, 0.05, 0.6) for _ in range(2))
        z1, z2 = between(generator, 0.5, 4.0), between(generator, 0.5, 4.0)
        least = np.linalg.eigvals(np.array([[-l1 * z1, sigma * z1], [sigma * z2, -l2 * z2]])).real.min()
        wrong = max(wrong, float(formula(sigma, l1, l2, z1, z2) != bool(least < -1e-12)))
    return wrong


# ---- Corollary 2 ------------------------------------------------------------------------------------------------


def decayed(generator: torch.Generator, factor: float | None = None) -> tuple[Problem, float]:
    """A problem with both decays at `factor` times critical, and a ratio of rates."""
    problem = draw(generator)
    decay = problem.leading * (between(generator, 0.3, 1.8) if factor is None else factor)
    return problem.with_decay(decay, decay), between(generator, 0.3, 3.0)


def late_state(problem: Problem, s: float) -> Tensor:
    """The direction by a dense matrix exponential once the second mode has fallen by e^-30 behind the first."""
    growth, gap = spectrum_of(problem, s)
    return dense_flow(problem, s * 30 / gap, 30 / gap, growth * 30 / gap)


def spectrum_of(problem: Problem, s: float) -> tuple[float, float]:
    """Leading growth exponent and its distance to the next, from the dense generator."""
    values = torch.linalg.eigvals(generator_matrix(problem, s, 1.0)).real.sort(descending=True).values
    below = values[values < values[0] - 1e-7]
    return values[0].item(), (values[0] - below[0]).item()


def printed_direction(problem: Problem, s: float) -> Tensor:
    end = z_pi(
        problem.features, problem.weight, problem.labels, problem.gamma, problem.feature_decay, problem.weight_decay, s
    )
    return torch.cat([end.features, end.weight])


@claim(
    "corollary-2-direction",
    title="The limiting direction under decay, for 0 < γ < 2/(C−2)",
    where="convergence-of-dynamics-l2",
    says="Z_π, from Π₁⁺ and Π₁⁻ of the start with the coefficients π",
    printed=printed_direction,
    ours=engine_direction,
    oracle="dense matrix exponential at a late time",
    tolerance=1e-9,
    because=EXPM + ", and the other modes have fallen by e⁻³⁰",
)
def limit_direction(generator: torch.Generator, formula: Formula) -> float:
    problem, s = decayed(generator)
    return apart(formula(problem, s), late_state(problem, s))


def normalized_by_features(problem: Problem, s: float) -> Tensor:
    """The appendix form: the limit of W/|W| with the features of Z_pi in the norm."""
    _, coefficients = pi_coefficients(problem.leading, problem.feature_decay, problem.weight_decay, s)
    plus, minus = projections(problem.features, problem.weight, problem.labels)[:2]
    top = coefficients[0] * plus.weight + coefficients[1] * minus.weight
    return top / (coefficients[0] * plus.features + coefficients[1] * minus.features).norm()


def normalized_by_weight(problem: Problem, s: float) -> Tensor:
    end = printed_direction(problem, s)[-problem.num_classes :]
    return end / end.norm()


@claim(
    "corollary-2-appendix-norm",
    title="The limit of W/|W| in the appendix's form of the corollary",
    where="convergence-of-dynamics-l2",
    says="divided by the norm of π_w⁺H₁⁺ + π_w⁻H₁⁻",
    right="divided by the norm of π_w⁺W₁⁺ + π_w⁻W₁⁻",
    printed=normalized_by_features,
    ours=normalized_by_weight,
    oracle="dense matrix exponential at a late time",
    tolerance=1e-9,
    because=EXPM,
    errata=(17,),
    severity="C",
)
def appendix_norm(generator: torch.Generator, formula: Formula) -> float:
    problem, s = decayed(generator)
    late = late_state(problem, s)[-problem.num_classes :]
    return (formula(problem, s) - late / late.norm()).norm().item()


def right_rate(problem: Problem, s: float) -> float:
    return convergence_rate(
        problem.num_classes, problem.per_class, problem.gamma, problem.feature_decay, problem.weight_decay, s
    )


def printed_rate(problem: Problem, s: float) -> float:
    return right_rate(problem, s) / (problem.num_classes * math.sqrt(problem.per_class))


def _measured_rate(generator: torch.Generator) -> tuple[Problem, float, float]:
    """A problem with equal decays, a ratio of rates, and minus the slope of the log-distance."""
    classes = whole(generator, 2, 5)
    draft = draw(generator, any_gamma(generator, classes), classes)
    decay, s = draft.leading * between(generator, 0.1, 3.0), between(generator, 0.3, 3.0)
    problem = draft.with_decay(decay, decay)
    return problem, s, -expand(problem, s).slope()


def _rate_exactly(generator: torch.Generator, formula: Formula) -> float:
    problem, s, seen = _measured_rate(generator)
    return abs(formula(problem, s) / seen - 1)


RATE = "dense eigenvalues are right to 1e-15, and the smallest gap drawn is some 1e-3"


@claim(
    "corollary-2-rate",
    title="The exponent of the bound on the distance of the direction to its limit, under decay",
    where="convergence-of-Z-l2",
    says="(ω₂(σ₁) − ω₂(|σ₂|))/(C√N)",
    right="ω₂(σ₁) − ω₂(|σ₂|), exactly: σ already carries 1/(C√N)",
    printed=printed_rate,
    ours=right_rate,
    oracle="slope of the log-distance where the next mode has fallen by e⁻⁴⁰, dense eigenvectors",
    tolerance=1e-11,
    because=RATE,
    errata=(16,),
    problems=12,
    remark="True as printed, but loose: the exponent is C√N times the printed one.",
    sharper=SharperCheck(_rate_exactly, 1e-11, RATE),
)
def rate(generator: torch.Generator, formula: Formula) -> float:
    problem, s, seen = _measured_rate(generator)
    return max(formula(problem, s) / seen - 1, 0.0)  # a bound: it may be slower than the distance, not faster


def growth_in_statement(factor: float) -> float:
    """Sign of the growth of |Z| for a decay of `factor` times the critical one, as the corollary states it."""
    return math.copysign(1.0, 1 - factor)


def growth_in_proof(factor: float) -> float:
    """The sign of omega_2 that the proof's list asserts."""
    return -growth_in_statement(factor)


def _sign_of_growth(generator: torch.Generator, formula: Formula) -> float:
    factor = choose(generator, between(generator, 0.5, 0.95), between(generator, 1.05, 2.0))
    problem, s = decayed(generator, factor)
    early, late = (late_state_norm(problem, s, clock) for clock in (60.0, 80.0))
    return abs(formula(factor) - math.copysign(1.0, late - early)) / 2


def late_state_norm(problem: Problem, s: float, folds: float) -> float:
    """log |Z| after a time of `folds` over the critical decay."""
    clock = folds / problem.leading
    growth, _ = spectrum_of(problem, s)
    return math.log(dense_flow(problem, s * clock, clock, growth * clock).norm().item()) + growth * clock


claim(
    "corollary-2-norm",
    title="Whether the norm vanishes or diverges, by the size of the decay",
    where="convergence-of-dynamics-l2",
    says="vanishes above (1+γ)/(C√N), diverges below",
    ours=growth_in_statement,
    oracle="norms of a dense matrix exponential at two late times",
    tolerance=0.0,
    because="a sign",
)(_sign_of_growth)

claim(
    "corollary-2-proof-signs",
    title="The sign of the leading exponent ω₂ in the proof's list of cases",
    where="convergence-of-dynamics-l2",
    says="positive above the critical decay, negative below",
    right="the reverse; the statement itself has it right",
    printed=growth_in_proof,
    ours=growth_in_statement,
    oracle="norms of a dense matrix exponential at two late times",
    tolerance=0.0,
    because="a sign",
    errata=(15,),
    severity="B",
)(_sign_of_growth)


def critical_limit(problem: Problem, s: float) -> Tensor:
    plus, minus = projections(problem.features, problem.weight, problem.labels)[:2]
    part = (1 - s) / (1 + s)
    return torch.cat([plus.features + part * minus.features, plus.weight - part * minus.weight])


@claim(
    "corollary-2-critical-limit",
    title="The limit of the state at exactly the critical decay (1+γ)/(C√N), for 0 < γ < 2/(C−2)",
    where="convergence-of-dynamics-l2",
    says="Π₁⁺ plus (features) or minus (prototypes) (1−s)/(1+s) times Π₁⁻",
    ours=critical_limit,
    oracle="dense matrix exponential at a late time",
    tolerance=1e-9,
    because=EXPM,
)
def critical(generator: torch.Generator, formula: Formula) -> float:
    problem, s = decayed(generator, 1.0)
    _, gap = spectrum_of(problem, s)
    return relative(formula(problem, s), dense_flow(problem, s * 30 / gap, 30 / gap))


def dual_at_critical_only(factor: float, share: float) -> bool:
    """Whether duality is asserted, for a decay of `factor` times critical and gamma a `share` of 2/(C - 2)."""
    return factor == 1.0 and share < 1


def dual_always(factor: float, share: float) -> bool:
    return share < 1


def _duality(generator: torch.Generator, formula: Formula) -> tuple[bool, bool]:
    """Asserted, and seen."""
    factor = choose(generator, 1.0, between(generator, 0.3, 1.8))
    share = choose(generator, between(generator, 0.1, 0.8), between(generator, 1.3, 2.0))
    draft = draw(generator, share * 2 / 3, 5)
    problem, s = draft.with_decay(factor * draft.leading, factor * draft.leading), between(generator, 0.3, 3.0)
    state = expand(problem, s).parts[0]
    means = state[:-5].reshape(5, problem.per_class, -1).mean(1)
    return bool(formula(factor, share)), apart(means, state[-5:]) < 1e-8


def _duality_exactly(generator: torch.Generator, formula: Formula) -> float:
    asserted, seen = _duality(generator, formula)
    return float(asserted != seen)


@claim(
    "corollary-2-self-duality",
    title="When class means and prototypes become parallel, for 0 < γ < 2/(C−2)",
    where="convergence-of-dynamics-l2",
    says="when π_h⁺/π_w⁺ = −π_h⁻/π_w⁻; the critical decay is given as an example",
    right="always: the condition is an identity in the decay and in the ratio of the rates",
    printed=dual_at_critical_only,
    ours=dual_always,
    oracle="distance of the directions of class means and prototypes in the leading eigenspace of the dense generator",
    tolerance=0.0,
    because="a yes or no",
    errata=(18,),
    problems=12,
    remark="True as printed, but the condition is unnecessary: it holds for every decay and every ratio.",
    sharper=SharperCheck(_duality_exactly, 0.0, "a yes or no"),
)
def self_duality(generator: torch.Generator, formula: Formula) -> float:
    asserted, seen = _duality(generator, formula)
    return float(asserted and not seen)  # where nothing is asserted, nothing is wrong


def two_more_than_needed(num_classes: int) -> int:
    return num_classes + 1


def one_less_than_classes(num_classes: int) -> int:
    return num_classes - 1


def _rank_of_simplex(generator: torch.Generator) -> tuple[int, int]:
    classes = whole(generator, 2, 9)
    frame = simplex(classes)
    return classes, int(torch.linalg.matrix_rank(frame @ frame.T, tol=1e-9))


def _least_dimension(generator: torch.Generator, formula: Formula) -> float:
    classes, rank = _rank_of_simplex(generator)
    return abs(formula(classes) - rank)


@claim(
    "corollary-2-etf-dimension",
    title="A feature dimension in which a simplex ETF of C prototypes has room",
    where="convergence-of-dynamics-l2",
    says="p ≥ C + 1",
    right="p ≥ C − 1, and no less",
    printed=two_more_than_needed,
    ours=one_less_than_classes,
    oracle="rank of the Gram matrix of a simplex ETF",
    tolerance=0.0,
    because="a count",
    errata=(18,),
    remark="True as printed, but stricter than needed: p ≥ C − 1 is enough.",
    sharper=SharperCheck(_least_dimension, 0.0, "a count"),
)
def etf_dimension(generator: torch.Generator, formula: Formula) -> float:
    classes, rank = _rank_of_simplex(generator)
    return max(rank - formula(classes), 0)


# ---- imbalance --------------------------------------------------------------------------------------------------


def nothing_left(counts: list[int], gamma: float, features: Tensor, weight: Tensor) -> Tensor:
    """Norms of the class means relative to the largest class, as the text has them."""
    return torch.tensor([float(count == max(counts)) for count in counts], dtype=torch.float64)


def engine_norms(counts: list[int], gamma: float, features: Tensor, weight: Tensor) -> Tensor:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    end = LayerPeeled(labels, len(counts), gamma).flow(features, weight).direction().features
    norms = torch.stack([end[labels == c].mean(0).norm() for c in range(len(counts))])
    return norms / norms[0]


@claim(
    "imbalance-minority",
    title="What becomes of the minority features",
    where="Sec. 3.2, on minority collapse",
    says="they approach 0",
    right="that needs two classes that tie for largest; below a single largest one they keep a share, on one side",
    printed=nothing_left,
    ours=engine_norms,
    oracle="singular vectors of the dense matrix M, and class means along them",
    tolerance=1e-9,
    because="the leading singular vector of a dense SVD",
    errata=(38,),
    severity="C",
)
def minority(generator: torch.Generator, formula: Formula) -> float:
    largest = whole(generator, 6, 9)
    alone, tied = ([largest, second, whole(generator, 1, 2)] for second in (whole(generator, 3, 4), largest))
    return max(_off(generator, formula, alone), _off(generator, formula, tied))


def _off(generator: torch.Generator, formula: Formula, counts: list[int]) -> float:
    gamma = between(generator, 0.3, 1.5)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    features, weight = gaussian(generator, len(labels), 3), gaussian(generator, 3, 3)
    right = torch.linalg.svd(drive_matrix(labels, 3, gamma), full_matrices=False).Vh[0]
    norms = torch.stack([right[labels == c].mean().abs() for c in range(3)])
    return (formula(counts, gamma, features, weight) - norms / norms[0]).abs().max().item()
