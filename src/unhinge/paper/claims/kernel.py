"""Theorem 5: a constant neural tangent kernel (errata 29 to 32)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import expm
from torch import Tensor

from unhinge.paper.claims.oracles import drive_matrix, relative
from unhinge.paper.claims.problems import Problem, between, draw, gaussian
from unhinge.paper.claims.registry import Formula, Undefined, claim
from unhinge.paper.claims.unconstrained import EXPM, engine


def dense(problem: Problem, kernel: Tensor, clock: float) -> Tensor:
    """State by the exponential of the full (n p + C p) generator; kernel (n p, n p) on features row by row."""
    drive = drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    wide = torch.kron(drive, torch.eye(problem.dim, dtype=torch.float64))  # rows of prototypes to rows of features
    n, c = wide.shape[1], wide.shape[0]
    matrix = torch.zeros(n + c, n + c, dtype=torch.float64)
    matrix[:n, n:] = kernel @ wide.T
    matrix[n:, :n] = wide
    flat = torch.from_numpy(np.asarray(expm((clock * matrix).numpy()))) @ problem.state.flatten()
    return flat.reshape(-1, problem.dim)


def random_kernel(generator: torch.Generator, size: int, rank: int) -> Tensor:
    factor = gaussian(generator, size, rank) / rank**0.5
    return factor @ factor.T


def engine_flow(problem: Problem, kernel: Tensor, clock: float) -> Tensor:
    state = engine(problem).kernel_flow(problem.features, problem.weight, kernel, lr=clock).at(1.0)
    return torch.cat([state.features, state.weight])


def printed_blocks(problem: Problem, kernel: Tensor, clock: float) -> Tensor:
    """Build A as printed: the kernel over the identity of size C. Their columns do not match."""
    a = np.zeros((0, 0))
    size, classes = len(kernel), problem.num_classes
    try:
        a = np.block([[np.zeros((size, classes)), kernel.numpy()], [np.eye(classes), np.zeros((classes, classes))]])
    except ValueError as error:
        raise Undefined(f"a {size}×{size} kernel beside a {classes}×{classes} identity is no matrix") from error
    return torch.from_numpy(a)


@claim(
    "theorem-5-kernel",
    title="The dynamics under a constant kernel of features and parameters",
    where="dynamics-under-NTK",
    says="A has the kernel above an identity of size C",
    right="the kernel is pCN × pCN and acts on stacked features; the printed blocks can only mean I ⊗ K_p",
    printed=printed_blocks,
    ours=engine_flow,
    oracle="dense matrix exponential of the full system, any positive semidefinite kernel",
    tolerance=1e-10,
    because=EXPM,
    errata=(29,),
    severity="A",
)
def any_kernel(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=3, per_class=2, dim=3)
    kernel = random_kernel(generator, problem.features.numel(), 20)
    clock = between(generator, 0.5, 3.0)
    return relative(formula(problem, kernel, clock), dense(problem, kernel, clock))


def factors(problem: Problem, small: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the printed A, read with a p x p kernel, and of B."""
    p, n, c = problem.dim, len(problem.labels), problem.num_classes
    a = torch.zeros(2 * p, 2 * p, dtype=torch.float64)
    a[:p, p:], a[p:, :p] = small, torch.eye(p, dtype=torch.float64)
    b = torch.zeros(n + c, n + c, dtype=torch.float64)
    drive = drive_matrix(problem.labels, c, problem.gamma)
    b[:n, n:], b[n:, :n] = drive.T, drive
    values_a, vectors_a = torch.linalg.eig(a)
    values_b, vectors_b = torch.linalg.eigh(b)
    return values_a, vectors_a, values_b.to(values_a), vectors_b.to(vectors_a)


def stacked(problem: Problem) -> Tensor:
    """Row-first vectorization of the block-diagonal matrix of features and prototypes, as columns."""
    p, n, c = problem.dim, len(problem.labels), problem.num_classes
    block = torch.zeros(2 * p, n + c, dtype=torch.float64)
    block[:p, :n], block[p:, n:] = problem.features.T, problem.weight.T
    return block.flatten()


def unstacked(problem: Problem, flat: Tensor) -> Tensor:
    p, n, c = problem.dim, len(problem.labels), problem.num_classes
    block = flat.real.reshape(2 * p, n + c)
    return torch.cat([block[:p, :n].T, block[p:, n:].T])


def printed_product(problem: Problem, small: Tensor, clock: float) -> Tensor:
    values_a, vectors_a, values_b, vectors_b = factors(problem, small)
    if len(vectors_a) != len(vectors_b):
        raise Undefined("U_A and U_B have different sizes")
    both = torch.kron(vectors_a @ vectors_b, torch.eye(len(vectors_b)).to(vectors_a))
    back = torch.kron(torch.linalg.inv(vectors_a @ vectors_b).contiguous(), torch.eye(len(vectors_b)).to(vectors_a))
    return _evolve(problem, both, back, values_a, values_b, clock)


def kronecker_product(problem: Problem, small: Tensor, clock: float) -> Tensor:
    values_a, vectors_a, values_b, vectors_b = factors(problem, small)
    both = torch.kron(vectors_a, vectors_b)
    back = torch.kron(torch.linalg.inv(vectors_a).contiguous(), torch.linalg.inv(vectors_b).contiguous())
    return _evolve(problem, both, back, values_a, values_b, clock)


def _evolve(problem: Problem, both: Tensor, back: Tensor, a: Tensor, b: Tensor, clock: float) -> Tensor:
    start = stacked(problem).to(both)
    return unstacked(problem, both @ (torch.exp(torch.kron(a, b) * clock) * (back @ start)))


@claim(
    "theorem-5-product",
    title="The change of basis that makes the kernel dynamics diagonal",
    where="dynamics-under-NTK",
    says="U_B⁻¹U_A⁻¹ ⊗ I",
    right="U_A⁻¹ ⊗ U_B⁻¹; the printed product needs 2p = CN + C, and is wrong even then",
    printed=printed_product,
    ours=kronecker_product,
    oracle="dense matrix exponential of the full system, 2p = CN + C",
    tolerance=1e-9,
    because="eigenvectors of A are not orthogonal: their inverse costs some digits",
    errata=(30,),
    severity="A",
)
def product(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=3, per_class=1, dim=3)  # 2p = 6 = CN + C
    small = random_kernel(generator, 3, 6) + 0.2 * torch.eye(3, dtype=torch.float64)
    clock = between(generator, 0.5, 2.0)
    full = torch.kron(torch.eye(3, dtype=torch.float64), small)
    return relative(formula(problem, small, clock), dense(problem, full, clock))


def by_eigenvectors(problem: Problem, small: Tensor, clock: float) -> Tensor:
    vectors = factors(problem, small)[1]
    if torch.linalg.matrix_rank(vectors, tol=1e-6) < len(vectors):
        raise Undefined("A has no full set of eigenvectors")
    return kronecker_product(problem, small, clock)


def by_engine(problem: Problem, small: Tensor, clock: float) -> Tensor:
    full = torch.kron(torch.eye(len(problem.labels), dtype=torch.float64), small)
    return engine_flow(problem, full, clock)


@claim(
    "theorem-5-singular",
    title="The dynamics under a constant kernel that is singular",
    where="dynamics-under-NTK",
    says="decompose A into eigenvectors",
    right="A is defective then; a symmetric problem of size pC needs no inverse of the kernel",
    printed=by_eigenvectors,
    ours=by_engine,
    oracle="dense matrix exponential of the full system",
    tolerance=1e-10,
    because=EXPM,
    errata=(31,),
    severity="B",
)
def singular(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=3, per_class=2, dim=3)
    small = random_kernel(generator, 3, 2)
    clock = between(generator, 0.5, 2.0)
    full = torch.kron(torch.eye(len(problem.labels), dtype=torch.float64), small)
    return relative(formula(problem, small, clock), dense(problem, full, clock))


@claim(
    "theorem-5-learning-rate",
    title="The factor of the eigenvalues in the exponent",
    where="dynamics-under-NTK",
    says="the time t",
    right="the integrated rate, ηt for a constant one",
    printed=lambda rate, time: time,
    ours=lambda rate, time: rate * time,
    oracle="2000 small steps of gradient descent on a linear network, then the ratio of exponents",
    tolerance=1e-3,
    because="gradient descent with steps of 1/2000",
    errata=(31,),
    severity="B",
    problems=2,
)
def learning_rate(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator, num_classes=3, per_class=2, dim=2)
    inputs = gaussian(generator, 6, 8)  # features = inputs @ parameters: a constant kernel
    parameters = gaussian(generator, 8, 2)
    rate, time, steps = between(generator, 0.2, 0.5), 1.0, 2000
    drive = drive_matrix(problem.labels, 3, problem.gamma)
    theta, w = parameters.clone(), problem.weight.clone()
    for _ in range(steps):
        theta, w = (
            theta + rate * time / steps * inputs.T @ (drive.T @ w),
            w + rate * time / steps * drive @ (inputs @ theta),
        )
    start = Problem(3, 2, problem.gamma, inputs @ parameters, problem.weight, problem.bias)
    kernel = torch.kron(inputs @ inputs.T, torch.eye(2, dtype=torch.float64))
    state = dense(start, kernel, formula(rate, time))
    return relative(state, torch.cat([inputs @ theta, w]))


def printed_residual(logits: Tensor, onehot: Tensor) -> Tensor:
    return 2 / len(logits) * (logits - onehot)


def negative_residual(logits: Tensor, onehot: Tensor) -> Tensor:
    return -2 / len(logits) * (logits - onehot)


@claim(
    "theorem-5-squared-error",
    title="The residual that drives the flow under squared error",
    where="dynamics-under-NTK",
    says="+2/(CN)·(logits − labels)",
    right="−2/(CN)·(logits − labels)",
    printed=printed_residual,
    ours=negative_residual,
    oracle="minus autograd's gradient of the squared error",
    tolerance=1e-12,
    because="float64 rounding",
    errata=(32,),
    severity="B",
)
def squared_error(generator: torch.Generator, formula: Formula) -> float:
    problem = draw(generator)
    onehot = torch.eye(problem.num_classes, dtype=torch.float64)[problem.labels]
    h, w, b = (x.clone().requires_grad_() for x in (problem.features, problem.weight, problem.bias))
    loss = (h @ w.T + b - onehot).square().sum() / len(onehot)
    slopes = torch.autograd.grad(loss, (h, w, b))
    c = formula((problem.features @ problem.weight.T + problem.bias), onehot)
    by_formula = c @ problem.weight, c.T @ problem.features, c.sum(0)
    return max(relative(x, -y) for x, y in zip(by_formula, slopes, strict=True))
