"""Theorem 3: fixed prototypes (errata 22, 23, 37)."""

from __future__ import annotations

import math

import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from unhinge.paper.claims.oracles import apart, drive_matrix, gradients, measured_exponent, relative
from unhinge.paper.claims.problems import Problem, between, draw
from unhinge.paper.claims.registry import Formula, SharperCheck, claim
from unhinge.paper.claims.unconstrained import engine

SOLVER = "the ODE solver's tolerance of 1e-12, accumulated"


def integrate(problem: Problem, clock: float) -> Tensor:
    """Features by DOP853 along autograd's gradient, prototypes fixed."""
    shape = problem.features.shape

    def slope(_: float, flat: object) -> object:
        features = torch.as_tensor(flat, dtype=torch.float64).reshape(shape)
        return -gradients(problem, features, problem.weight, problem.bias)[0].flatten().numpy()

    solved = solve_ivp(slope, (0, clock), problem.features.flatten().numpy(), "DOP853", rtol=1e-12, atol=1e-13)
    return torch.from_numpy(solved.y[:, -1].copy()).reshape(shape)


def pull(problem: Problem) -> Tensor:
    r""":math:`W M` as rows: where each feature is drawn to."""
    return drive_matrix(problem.labels, problem.num_classes, problem.gamma).T @ problem.weight


def closed_form(problem: Problem, clock: float) -> Tensor:
    decay = problem.feature_decay
    fall = math.exp(-decay * clock)
    return fall * problem.features + (1 - fall) / decay * pull(problem)


def engine_flow(problem: Problem, clock: float) -> Tensor:
    return engine(problem).anchored(problem.features, problem.weight, lr=clock).at(1.0).features


@claim(
    "theorem-3-flow",
    title="The closed form of the features when the prototypes are fixed",
    where="PAL-dynamics",
    says="e^(−λζ)H₀ + (1 − e^(−λζ))/λ · W M",
    printed=closed_form,
    ours=engine_flow,
    oracle="an ODE solver (DOP853) along autograd's gradient",
    tolerance=1e-9,
    because=SOLVER,
    problems=3,
)
def flow(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=3, per_class=2).with_decay(between(generator, 0.1, 1.0), 0.0)
    clock = between(generator, 0.5, 5.0)
    return relative(formula(problem, clock), integrate(problem, clock))


def step_ahead(problem: Problem, clock: float) -> Tensor:
    """The left side of a difference equation: the change over one unit of time."""
    return closed_form(problem, clock + 1) - closed_form(problem, clock)


def derivative(problem: Problem, clock: float) -> Tensor:
    tiny = 1e-4
    ahead, behind = (closed_form(problem, clock + x) for x in (tiny, -tiny))
    return (ahead - behind) / (2 * tiny)


@claim(
    "theorem-3-equation",
    title="The kind of equation the fixed-prototype features obey",
    where="eq:pal",
    says="a difference equation",
    right="a differential equation",
    printed=step_ahead,
    ours=derivative,
    oracle="minus autograd's gradient along the solution",
    tolerance=1e-6,
    because="central differences with step 1e-4",
    errata=(23,),
    severity="C",
)
def equation(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator).with_decay(between(generator, 0.1, 1.0), 0.0)
    clock = between(generator, 0.5, 3.0)
    now = closed_form(problem, clock)
    return relative(formula(problem, clock), -gradients(problem, now, problem.weight, problem.bias)[0])


def decay_itself(decay: float) -> float:
    return decay


@claim(
    "theorem-3-rate",
    title="How fast the features approach W M/λ",
    where="PAL-dynamics",
    says="as e^(−λζ)",
    ours=decay_itself,
    oracle="slope of the distance, by an ODE solver",
    tolerance=1e-6,
    because=SOLVER,
    problems=3,
)
def rate(generator: torch.Generator, formula: Formula) -> float:
    decay = between(generator, 0.3, 1.0)
    problem = draw(generator, num_classes=3, per_class=2).with_decay(decay, 0.0)
    target = pull(problem) / decay
    slope = measured_exponent(lambda clock: (integrate(problem, clock) - target).norm().item(), 1.0, 4.0)
    return abs(formula(decay) + slope)


def exponential_fall(clock: float, decay: float) -> float:
    """Distance at twice a late clock over the distance at it, for an exponential: nothing is left."""
    return 0.0


def fall_of_direction(clock: float, decay: float) -> float:
    r"""The same from the coefficient of the start, :math:`\lambda/(e^{\lambda\zeta} - 1)`, whose limit is 1/clock."""
    return 0.5 if decay == 0 else math.expm1(decay * clock) / math.expm1(2 * decay * clock)


@claim(
    "theorem-3-zero-decay",
    title="How the direction converges at λ = 0, when all cases are said to converge exponentially",
    where="pal-toy",
    says="exponentially: λ = 0 is listed with the other cases",
    right="as 1/ζ: the distance halves when ζ doubles; an exponential needs λ > 0",
    printed=exponential_fall,
    ours=fall_of_direction,
    oracle="an ODE solver along autograd's gradient, then the distance of directions",
    tolerance=1e-3,
    because="the distance is 1/ζ to first order: the next is 1/ζ of that, at ζ = 1e4 per example",
    errata=(22,),
    severity="C",
    problems=2,
)
def zero_decay(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=3, per_class=2, gamma=between(generator, 0.3, 0.8))
    goal, clock = pull(problem), 1e4 * len(problem.labels)
    early, late = (apart(integrate(problem, x), goal) for x in (clock, 2 * clock))
    return abs(formula(clock, 0.0) - late / early)


def coefficient(decay: float, clock: float) -> float:
    """How much of the start is left in the direction."""
    return decay / math.expm1(decay * clock)


@claim(
    "theorem-3-larger-decay",
    title="Whether a larger decay of the features speeds up their direction",
    where="pal-toy",
    says="it does",
    right="it does: what is left of the start falls with λ",
    ours=coefficient,
    oracle="an ODE solver along autograd's gradient at two decays, then the order of the distances",
    tolerance=0.0,
    because="an order",
    problems=3,
)
def larger_decay(generator: torch.Generator, formula: Formula) -> float:
    draft = draw(generator, num_classes=3, per_class=2)
    small = between(generator, 0.05, 0.3)
    large, clock = small * between(generator, 1.5, 3.0), between(generator, 8.0, 12.0)
    with_small, with_large = (apart(integrate(draft.with_decay(x, 0.0), clock), pull(draft)) for x in (small, large))
    return float((formula(large, clock) < formula(small, clock)) != (with_large < with_small))


def rest(problem: Problem, strength: float, steps: int) -> Tensor:
    """Features after steps of torch.optim.SGD on the mean loss plus strength times the sum of their squares."""
    features = problem.features.clone().requires_grad_()
    drive = drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    optimizer = torch.optim.SGD([features], lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -(drive.T * (features @ problem.weight.T)).sum() + strength * features.square().sum()
        loss.backward()
        optimizer.step()
    return features.detach()


def _resting_point(generator: torch.Generator, formula: Formula) -> float:
    problem, strength = draw(generator), between(generator, 0.2, 0.5)
    return relative(pull(problem) / formula(strength), rest(problem, strength, 200))


@claim(
    "theorem-3-penalty",
    title="Whether the penalty λ Σ|f|² of the experiments speeds up the direction, as the theorem's decay does",
    where="explicit-regularization",
    says="it does, by the theorem, for a decay called λ in both places",
    right="it does, with twice the penalty for the theorem's λ: features rest at W M/(2λ)",
    printed=lambda strength: strength,
    ours=lambda strength: 2 * strength,
    oracle="torch.optim.SGD on the mean loss plus the penalty: order of the distances at two strengths",
    tolerance=0.0,
    because="an order",
    errata=(37,),
    problems=2,
    remark="True as printed, but λ means two things: the theory's term is λ/2 |H|², and a batch sum is not a mean.",
    sharper=SharperCheck(_resting_point, 1e-9, "200 steps that contract by a fifth or more"),
)
def penalty(generator: torch.Generator, formula: Formula) -> float:
    problem, small = draw(generator), between(generator, 0.02, 0.05)
    large = small * between(generator, 1.5, 3.0)
    with_small, with_large = (apart(rest(problem, x, 40), pull(problem)) for x in (small, large))
    predicted = coefficient(formula(large), 20.0) < coefficient(formula(small), 20.0)
    return float(predicted != (with_large < with_small))
