"""The five subspaces and the projections on them (appendix of Theorem 1; erratum 1 on the order of columns)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unhinge.paper.claims.oracles import generator_matrix, relative
from unhinge.paper.claims.problems import Problem, draw, gaussian, whole
from unhinge.paper.claims.registry import Formula, claim
from unhinge.paper.notation import projections

ROUNDING = "float64 rounding; the references are least-squares solutions of small systems"


def centering(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64) - 1 / n


def repeat(classes: int, n: int) -> Tensor:
    r""":math:`I_C \otimes 1_N`, shape :math:`(C N, C)`."""
    return torch.kron(torch.eye(classes), torch.ones(n, 1)).double()


def nearest_in(basis: Tensor, point: Tensor) -> Tensor:
    """The nearest point of the span of the columns of `basis`, by least squares."""
    return basis @ torch.linalg.lstsq(basis, point, driver="gelsd").solution


def null_space(constraint: Tensor) -> Tensor:
    """Orthonormal columns x with constraint @ x = 0, by a singular value decomposition."""
    _, values, rows = torch.linalg.svd(constraint)
    return rows[int((values > 1e-9).sum()) :].T


def five(problem: Problem) -> list[Tensor]:
    parts = projections(problem.features, problem.weight, problem.labels)
    return [torch.cat([part.features, part.weight]) for part in parts]


def printed_five(problem: Problem) -> list[Tensor]:
    """The printed projections, with Kronecker products, for class-grouped rows."""
    return [
        *(subspace_1(problem, sign) for sign in (1, -1)),
        *(subspace_2(problem, sign) for sign in (1, -1)),
        subspace_3(problem),
    ]


def subspace_1(problem: Problem, sign: int) -> Tensor:
    c, n = problem.num_classes, problem.per_class
    half = sign / math.sqrt(n) * repeat(c, n).T @ problem.features + problem.weight
    p = centering(c) @ half / 2
    return torch.cat([sign / math.sqrt(n) * repeat(c, n) @ p, p])


def subspace_2(problem: Problem, sign: int) -> Tensor:
    c, n = problem.num_classes, problem.per_class
    h = (sign / math.sqrt(n) * problem.features.sum(0) + problem.weight.sum(0)) / (2 * c)
    return torch.cat([sign / math.sqrt(n) * h.expand(c * n, -1), h.expand(c, -1)])


def subspace_3(problem: Problem) -> Tensor:
    c, n = problem.num_classes, problem.per_class
    return torch.cat([class_deviations(problem.features, c, n), torch.zeros_like(problem.weight)])


def class_deviations(rows: Tensor, classes: int, per_class: int) -> Tensor:
    r""":math:`(I - \frac1N I_C \otimes 1_N 1_N^\top) H`."""
    block = torch.kron(torch.eye(classes), torch.ones(per_class, per_class)).double() / per_class
    return rows - block @ rows


def remove_mean(rows: Tensor) -> Tensor:
    return centering(len(rows)) @ rows


@claim(
    "subspaces-orthogonal",
    title="The five subspaces are orthogonal, fill the space, and are eigenspaces of the flow",
    where="five-orthogonal-subspaces",
    says="orthogonal, sum to everything, eigenvalues ±(1+γ)/(C√N), ±(1+γ−γC)/(C√N), 0",
    printed=printed_five,
    ours=five,
    oracle="inner products, sums, and the dense generator applied to each part",
    tolerance=1e-12,
    because=ROUNDING,
)
def orthogonal(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator)
    parts = formula(problem)
    size = problem.state.norm()
    worst = relative(sum(parts[1:], parts[0]), problem.state)
    for i, a in enumerate(parts):
        for b in parts[:i]:
            worst = max(worst, ((a * b).sum().abs() / size**2).item())
    matrix = generator_matrix(problem, 1.0, 1.0)
    for part, value in zip(parts, _eigenvalues(problem), strict=True):
        worst = max(worst, ((matrix @ part - value * part).norm() / size).item())
    return worst


def _eigenvalues(problem: Problem) -> tuple[float, ...]:
    """Of the five subspaces, in their order."""
    unit = problem.num_classes * math.sqrt(problem.per_class)
    first, second = (1 + problem.gamma) / unit, (1 + problem.gamma - problem.gamma * problem.num_classes) / unit
    return first, -first, second, -second, 0.0


def sizes(num_classes: int, per_class: int) -> list[int]:
    return [num_classes - 1, num_classes - 1, 1, 1, num_classes * (per_class - 1)]


@claim(
    "subspaces-dimensions",
    title="The dimensions of the five subspaces, per feature dimension",
    where="five-orthogonal-subspaces",
    says="C−1, C−1, 1, 1, C(N−1), together C(N+1)",
    ours=sizes,
    oracle="multiplicities of the dense generator's eigenvalues",
    tolerance=0.0,
    because="counts",
)
def dimensions(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=whole(generator, 3, 6))
    values = torch.linalg.eigvalsh(generator_matrix(problem, 1.0, 1.0))
    counts = [int((abs(values - x) < 1e-9).sum()) for x in _eigenvalues(problem)]
    return float(max(abs(a - b) for a, b in zip(formula(problem.num_classes, problem.per_class), counts, strict=True)))


@claim(
    "projection-mean-zero-prototypes",
    title="Nearest prototypes with mean zero",
    where="projection-of-zero-centroid-protoytpes",
    says="subtract the mean",
    ours=remove_mean,
    oracle="least squares on the null space of the constraint",
    tolerance=1e-12,
    because=ROUNDING,
)
def mean_zero_prototypes(generator: torch.Generator, formula: Formula) -> float:
    rows = gaussian(generator, whole(generator, 3, 7), 4)
    basis = null_space(torch.ones(1, len(rows), dtype=torch.float64))
    return relative(formula(rows), nearest_in(basis, rows))


@claim(
    "projection-mean-zero-features",
    title="Nearest features with mean zero in each class",
    where="projection-of-zero-centroid-features",
    says="subtract each class mean, columns class-grouped",
    right="as stated; the proof's blocks belong to the other order of columns",
    ours=class_deviations,
    oracle="least squares on the null space of the constraint",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(1,),
)
def mean_zero_features(generator: torch.Generator, formula: Formula) -> float:
    classes, n = whole(generator, 2, 4), whole(generator, 2, 4)
    rows = gaussian(generator, classes * n, 3)
    return relative(formula(rows, classes, n), nearest_in(null_space(repeat(classes, n).T), rows))


@claim(
    "projection-subspace-1",
    title="The projection on features along (or opposite) prototypes of mean zero",
    where="projection-of-subspace1",
    says="P = ½(±X + W) centered, repeated with ±1/√N for the features",
    right="as stated; the proof's blocks belong to the other order of columns",
    ours=subspace_1,
    oracle="least squares on a basis of the subspace",
    tolerance=1e-12,
    because=ROUNDING,
    errata=(1,),
)
def onto_subspace_1(generator: torch.Generator, formula: Formula) -> float:
    problem, sign = draw(generator), 2 * whole(generator, 0, 1) - 1
    c, n = problem.num_classes, problem.per_class
    centered = torch.eye(c, dtype=torch.float64)[:, 1:] - torch.eye(c, dtype=torch.float64)[:, :1]
    basis = torch.cat([sign / math.sqrt(n) * centered.repeat_interleave(n, 0), centered])
    return relative(formula(problem, sign), nearest_in(basis, problem.state))


@claim(
    "projection-subspace-2",
    title="The projection on one common vector for all features and prototypes, up to sign",
    where="projection-of-subspaces",
    says="h = (±H1/√N + W1)/(2C)",
    ours=subspace_2,
    oracle="least squares on a basis of the subspace",
    tolerance=1e-12,
    because=ROUNDING,
)
def onto_subspace_2(generator: torch.Generator, formula: Formula) -> float:
    problem, sign = draw(generator), 2 * whole(generator, 0, 1) - 1
    c, n = problem.num_classes, problem.per_class
    basis = torch.ones(c * n + c, 1, dtype=torch.float64)
    basis[: c * n] *= sign / math.sqrt(n)
    return relative(formula(problem, sign), nearest_in(basis, problem.state))


@claim(
    "projection-subspace-3",
    title="The projection on deviations from the class means",
    where="projection-of-subspaces",
    says="the features minus their class means, no prototypes",
    ours=subspace_3,
    oracle="least squares on the null space of the class sums",
    tolerance=1e-12,
    because=ROUNDING,
)
def onto_subspace_3(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator)
    c, n = problem.num_classes, problem.per_class
    inside = null_space(repeat(c, n).T)
    basis = torch.cat([inside, torch.zeros(c, inside.shape[1], dtype=torch.float64)])
    return relative(formula(problem), nearest_in(basis, problem.state))
