"""Lemma 1: minimizers of the loss under norm bounds (errata 2, 3, 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unhinge.paper.claims.oracles import relative
from unhinge.paper.claims.problems import between, gaussian, simplex, whole
from unhinge.paper.claims.registry import Formula, claim

SOLVED = "projected gradient descent stops short of the minimum by about this much"


def brute_force(generator: torch.Generator, classes: int, dim: int, gamma: float, e1: float, e2: float) -> Tensor:
    """Prototypes (restarts, C, p) after projected gradient descent on all prototypes and one feature per class."""
    restarts = 6
    w = gaussian(generator, restarts, classes, dim).requires_grad_()
    h = gaussian(generator, restarts, classes, dim).requires_grad_()
    optimizer = torch.optim.SGD([w, h], lr=0.5 / (1 + gamma), momentum=0.5)
    for _ in range(600):
        optimizer.zero_grad()
        losses(w, h, gamma).sum().backward()
        optimizer.step()
        with torch.no_grad():
            for part, bound in ((w, e1), (h, e2)):
                part.mul_((bound / part.norm(dim=-1, keepdim=True)).clamp(max=1.0))
    return torch.stack([w.detach(), h.detach()])


def losses(w: Tensor, h: Tensor, gamma: float) -> Tensor:
    """Mean loss of each restart, one feature per class."""
    logits = h @ w.mT
    own = logits.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (gamma * logits.sum((-2, -1)) - (1 + gamma) * own) / w.shape[-2]


def edge(classes: int) -> float:
    return 2 / (classes - 2) if classes > 2 else math.inf


def printed_minimum(classes: int, gamma: float, e1: float, e2: float) -> float:
    return -(1 + gamma) * e1 * e2


def minimum(classes: int, gamma: float, e1: float, e2: float) -> float:
    """The larger of the two regimes; they meet at gamma = 2/(C-2)."""
    return -max(1 + gamma, gamma * (classes - 1) - 1) * e1 * e2


@claim(
    "lemma-1-value",
    title="The least mean loss of norm-bounded prototypes and features",
    where="neural-collapse-of-unhinged",
    says="−(1 + γ)E₁E₂ for every γ > 0 and p ≥ C − 1",
    right="−(1 + γ)E₁E₂ up to γ = 2/(C−2), −(γ(C−1) − 1)E₁E₂ beyond; two dimensions are enough",
    printed=printed_minimum,
    ours=minimum,
    oracle="projected gradient descent, 6 restarts",
    tolerance=1e-6,
    because=SOLVED,
    errata=(2, 3),
    severity="A",
    problems=3,
)
def value(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 6)
    e1, e2 = between(generator, 0.5, 2.0), between(generator, 0.5, 2.0)
    worst = 0.0
    for share in (between(generator, 0.3, 0.8), between(generator, 1.5, 3.0)):  # of 2/(C-2)
        gamma = share * edge(classes)
        states = brute_force(generator, classes, whole(generator, 2, 5), gamma, e1, e2)
        least = losses(states[0], states[1], gamma).min().item()
        worst = max(worst, abs(formula(classes, gamma, e1, e2) - least) / (e1 * e2))
    return worst


def far_from_simplex(weight: Tensor, bound: float) -> float:
    """How far prototypes are from a simplex ETF of the given radius."""
    classes = len(weight)
    frame = simplex(classes)
    return relative(weight @ weight.T / bound**2, frame @ frame.T)


def far_from_balanced(weight: Tensor, bound: float) -> float:
    """How far prototypes are from norm `bound` each and mean zero."""
    return max(abs(weight.norm(dim=1) / bound - 1).max().item(), weight.mean(0).norm().item() / bound)


@claim(
    "lemma-1-minimizers",
    title="Which prototypes attain the minimum, for 0 < γ < 2/(C−2)",
    where="neural-collapse-of-unhinged",
    says="the simplex ETF and nothing else",
    right="all prototypes of norm E₁ and mean zero; the simplex ETF is the only one just for C ≤ 3",
    printed=far_from_simplex,
    ours=far_from_balanced,
    oracle="projected gradient descent, the pairs (a, −a, b, −b), and prototypes known not to be minimal",
    tolerance=1e-3,
    because="the minimum is flat: a loss within 1e-7 of it leaves the prototypes within its square root",
    errata=(2,),
    severity="A",
)
def minimizers(generator: torch.Generator, formula: Formula) -> float:
    gamma, e1 = between(generator, 0.3, 0.7), between(generator, 0.5, 2.0)  # C = 4, so below 2/(C-2) = 1
    states = brute_force(generator, 4, 3, gamma, e1, 1.0)
    values = losses(states[0], states[1], gamma)
    worst = max(formula(w, e1) for w in states[0][values < values.min() + 1e-9])
    a, b = (e1 * v / v.norm() for v in gaussian(generator, 2, 3))
    pairs = torch.stack([a, -a, b, -b])
    best = losses(pairs[None], (pairs / e1)[None], gamma).item()
    worst = max(worst, formula(pairs, e1), abs(best - values.min().item()))  # the pairs are minimal, by the loss itself
    lone = torch.stack([a, b, a, b])  # not minimal unless a = -b, and then it is one of the pairs
    drive = (1 + gamma) * lone - gamma * lone.sum(0)
    if -drive.norm(dim=1).mean().item() > best + 1e-3:
        worst = max(worst, 1.0 if formula(lone, e1) < 1e-3 else 0.0)
    return worst


def spread_out(weight: Tensor, features: Tensor, e1: float, e2: float) -> float:
    """The printed minimizer: distance from an ETF with features along it."""
    return max(far_from_simplex(weight, e1), relative(features / e2, weight / e1))


def collapsed(weight: Tensor, features: Tensor, e1: float, e2: float) -> float:
    """Distance from: all prototypes on one vector of norm E1, all features opposite to it."""
    spread = (weight - weight.mean(0)).norm().item() / e1
    radius = abs(weight.norm(dim=1).mean().item() / e1 - 1)
    return max(spread, radius, relative(features / e2, -weight / e1))


@claim(
    "lemma-1-large-gamma",
    title="The minimizer for γ > 2/(C−2)",
    where="neural-collapse-of-unhinged",
    says="a simplex ETF with the features along their prototypes",
    right="all prototypes equal, all features opposite to them",
    printed=spread_out,
    ours=collapsed,
    oracle="the best of 6 restarts of projected gradient descent",
    tolerance=1e-4,
    because="600 steps of projected gradient descent",
    errata=(3,),
    severity="A",
)
def large_gamma(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 5)
    gamma = between(generator, 1.6, 3.0) * edge(classes)
    e1, e2 = between(generator, 0.5, 2.0), between(generator, 0.5, 2.0)
    states = brute_force(generator, classes, classes - 1, gamma, e1, e2)
    best = int(losses(states[0], states[1], gamma).argmin())
    return float(formula(states[0, best], states[1, best], e1, e2))


def printed_spread(weight: Tensor) -> float:
    classes, mean = len(weight), weight.mean(0)
    return (weight.square().sum() / classes - classes**2 * mean.square().sum()).item()


def right_spread(weight: Tensor) -> float:
    classes, mean = len(weight), weight.mean(0)
    return (weight.square().sum() / classes + classes * (classes - 2) * mean.square().sum()).item()


@claim(
    "lemma-1-identity",
    title="The mean of |Cŵ − w_c|² in the proof, ŵ the mean prototype",
    where="neural-collapse-of-unhinged",
    says="mean |w_c|² − C²|ŵ|²",
    right="mean |w_c|² + C(C − 2)|ŵ|²; the chain of inequalities has to be replaced",
    printed=printed_spread,
    ours=right_spread,
    oracle="the mean, term by term",
    tolerance=1e-12,
    because="float64 rounding",
    errata=(4,),
    severity="B",
)
def identity(generator: torch.Generator, formula: Formula) -> float:
    weight = gaussian(generator, whole(generator, 3, 8), 4)
    mean = weight.mean(0)
    terms = [(len(weight) * mean - w).square().sum().item() for w in weight]
    return abs(formula(weight) / (sum(terms) / len(terms)) - 1)
