"""A kernel as something that multiplies, whatever it is made of; and what must hold of it.

Matrix, function or linear operator: a solution asks for a few products, never for the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.numerics import CHUNK, EPS, merged
from unhinge.theory.targets import Targets
from unhinge.theory.types import Kernel, Operator
from unhinge.theory.validation import as_tensors, check_alike, check_shape

__all__ = [
    "STRIP",
    "Coupling",
    "Eigen",
    "Multiplier",
    "as_kernel",
    "check_symmetric",
    "couple",
    "eigen",
    "kernel_kind",
    "multiply",
    "respond",
    "symmetric_eigen",
]


STRIP = 256  # rows and columns of a matrix of n by n that are looked at together


@dataclass(frozen=True)
class Coupling:
    r"""The target matrix :math:`M = A B^\top` as an action; for integer labels by class sums, nothing is C by n."""

    targets: Targets
    matrix: Tensor  # (C, r) float64, A

    def gather(self, rows: Tensor) -> Tensor:
        r""":math:`M H`, shape :math:`(C, q)` from :math:`(n, q)`."""
        return self.matrix.to(rows) @ self.targets.reduce(rows)

    def scatter(self, weight: Tensor) -> Tensor:
        r""":math:`M^\top W`, shape :math:`(n, q)` from :math:`(C, q)`."""
        return self.targets.expand(self.matrix.to(weight).mT @ weight)


def couple(targets: Targets, spectrum: Spectrum) -> Coupling:
    """The small factor of M from its modes, with the class weights and the exact gamma they carry."""
    size = targets.reduce(torch.zeros(targets.size, 1, dtype=torch.float64, device=targets.labels.device)).shape[0]
    eye = torch.eye(size, dtype=torch.float64)
    rows, _ = spectrum.analyze(eye, torch.zeros(targets.num_classes, size, dtype=torch.float64))
    _, matrix = spectrum.synthesize(rows, spectrum.sigma[spectrum.group, None] * rows)
    return Coupling(targets, matrix)


Multiplier: TypeAlias = Tensor | Operator | Callable[[Tensor], Tensor]  # a kernel once lists and arrays are tensors


def as_kernel(kernel: Kernel, like: Tensor) -> Multiplier:
    """An array or a list as a tensor; operators and functions as they are, for only they know how they multiply."""
    if isinstance(kernel, np.ndarray | list | tuple):
        return as_tensors({"features": like, "kernel": kernel})[1]
    return cast(Multiplier, kernel)  # kernel_kind() refuses the rest, in words


def kernel_kind(kernel: Multiplier, features: Tensor, new: int | None = None) -> str:
    """``"example"`` for (n, n), ``"full"`` for (n p, n p); an operator without a shape says it by its `kind`.

    A cross kernel has `new` rows (times p) instead of n.
    """
    if _has_shape(kernel):
        size, dim = features.shape
        name, letter, count = ("kernel", "n", size) if new is None else ("cross_kernel", "n'", new)
        example, full, came = (count, size), (count * dim, size * dim), tuple(kernel.shape)
        if came not in (example, full):
            raise ValueError(
                f"{name} must have shape ({letter}, n) = {example} or ({letter} p, n p) = {full}, got {came}. "
                "A full kernel is indexed by features.reshape(-1): the p entries of one example are neighbors."
            )
        if isinstance(kernel, Tensor):
            check_alike(**{"features": features, name: check_shape(name, kernel, came)})
            if kernel.requires_grad:
                raise ValueError(
                    f"answers are not differentiable in the kernel: where its modes tie, they turn without a "
                    f"derivative. Pass {name}.detach()."
                )
        return "example" if came == example else "full"
    if not callable(kernel):
        raise ValueError(
            f"kernel must be a tensor, a function of the features' shape or a linear operator, got "
            f"{type(kernel).__name__}. Convert an array with torch.as_tensor(kernel)."
        )
    kind = getattr(kernel, "kind", "full")
    if kind not in ("example", "full"):
        raise ValueError(f'the kind of a kernel operator must be "example" or "full", got {kind!r}.')
    return str(kind)


def _has_shape(kernel: Multiplier) -> TypeGuard[Tensor | Operator]:
    """A tensor, or what multiplies arrays: a scipy LinearOperator, a sparse matrix."""
    return hasattr(kernel, "shape") and hasattr(kernel, "__matmul__")


def multiply(kernel: Multiplier, rows: Tensor, size: int) -> Tensor:
    """The product with rows (n, q), as rows (`size`, q)."""
    if _has_shape(kernel):
        asked = rows if kernel.shape[1] == len(rows) else rows.reshape(-1)
        plain = asked if isinstance(kernel, Tensor) else asked.detach().cpu().numpy()
        out = torch.as_tensor(kernel @ plain)
    else:
        out = _call(cast(Callable[[Tensor], Tensor], kernel), rows, size)
    if not bool(torch.isfinite(out).all()):
        raise ValueError("a product with the kernel is NaN or infinite; check the operator on a single example first.")
    return out.to(rows).reshape(size, rows.shape[1])


def _call(kernel: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    """A function of rows, or of the same numbers in one vector."""
    troubles = []
    for asked in (rows, rows.reshape(-1)):
        try:
            out = torch.as_tensor(kernel(asked)).detach()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            troubles.append(f"raised {type(error).__name__}: {error}")
            continue
        if out.numel() == size * rows.shape[1]:
            return out
        troubles.append(f"returned {tuple(out.shape)}")
    raise ValueError(
        f"the kernel must turn {tuple(rows.shape)} into {(size, rows.shape[1])}. It could be applied neither to rows "
        f"(it {troubles[0]}) nor to one vector of {rows.numel()} numbers (it {troubles[1]})."
    )


def respond(kernel: Multiplier, kind: str, coupling: Coupling, like: Tensor) -> Tensor:
    r""":math:`K m`: how the features answer a unit of each prototype entry, shape (n, C) or (n p, C p), float64."""
    size, dim = like.shape
    if isinstance(kernel, Tensor):
        # K m = (m^T K)^T by class sums over its rows, in double precision a block of columns at a time
        blocks = kernel.detach().reshape(size, -1).split(max(1, CHUNK // size), dim=1)
        gathered = torch.cat([coupling.gather(block.double()) for block in blocks], 1)
        return gathered.reshape(-1, len(kernel)).mT
    # Of each direction of the labels first, which no gradient goes through; the coupling then mixes the answers.
    small = coupling.matrix.shape[1]
    axes = coupling.targets.expand(torch.eye(small, dtype=torch.float64, device=like.device)).to(like)  # (n, r)
    matrix = coupling.matrix.to(like.device)
    if kind == "example":
        return multiply(kernel, axes, size).double() @ matrix.mT
    columns = []
    for entry in range(small * dim):
        rows = torch.zeros_like(like)
        rows[:, entry % dim] = axes[:, entry // dim]
        columns.append(multiply(kernel, rows, size).reshape(-1).double())
    return torch.einsum("nrd,cr->ncd", torch.stack(columns, 1).unflatten(1, (small, dim)), matrix).flatten(1)


def check_symmetric(name: str, matrix: Tensor, eps: float, floor: float = 0.0) -> None:
    r"""Kernels are sums of as many products as a network has parameters, in any order: the budget is
    :math:`\epsilon^{2/3}`, 4e-11 in double and 2e-5 in single precision, beyond the rounding of such sums and far below
    the asymmetry of a matrix that is no kernel.

    Entries below `floor` are what is left of terms that cancel; their signs mean nothing.
    """
    low, high = matrix.aminmax()
    largest = max(-low.item(), high.item())
    uneven = 0.0
    for start in range(0, len(matrix), STRIP):  # each pair once, and no copy of the whole
        rows, columns = matrix[start : start + STRIP, start:], matrix[start:, start : start + STRIP]
        uneven = max(uneven, (rows - columns.mT).abs().max().item())
    if uneven > max(floor, eps ** (2 / 3) * largest):
        raise ValueError(
            f"{name} must be symmetric, but entries differ from their mirror image by up to {uneven:.3g} (largest "
            f"entry {largest:.3g}). A kernel of gradients is J J^T; if this is rounding, pass (kernel + kernel.mT) / 2."
        )


class Eigen(NamedTuple):
    r"""A symmetric matrix by its eigenvectors, and how a change of it moves those that share an eigenvalue.

    Vectors of one eigenvalue turn freely, so they have no slope. A function f of the matrix has one: its part within
    such a group is :math:`f'(\theta)` times the change of the matrix there, which `within` carries. It has no value.
    """

    values: Tensor  # (k,), equal where only rounding tells them apart, each with the mean slope of its group
    vectors: Tensor  # (k, k), with their slopes out of the group
    within: Tensor | None  # (k, k), zero; its slope is the rest. None where nothing is tied, or nothing has a slope


def eigen(name: str, matrix: Tensor, eps: float, floor: float = 0.0) -> Eigen:
    """Eigenvalues, descending, and eigenvectors of a matrix that must have none below 0; rounding-level ones are 0.

    `floor`: the rounding of what the matrix was computed from, where that is larger than its own.
    """
    check_symmetric(name, matrix, eps, floor)
    values, vectors, within = symmetric_eigen((matrix + matrix.mT) / 2, floor)
    if values[0] < -max(floor, eps ** (2 / 3) * values.abs().max().item()):
        raise ValueError(
            f"the kernel must be positive semidefinite, but {name} has the eigenvalue {values[0].item():.6g} "
            f"(largest: {values[-1].item():.6g}). Pass a kernel of the form J J^T."
        )
    values = torch.where(values > 0, values, 0.0)
    return Eigen(values.flip(0), vectors.flip(1), None if within is None else within.flip(0, 1))


def symmetric_eigen(matrix: Tensor, floor: float = 0.0) -> Eigen:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, with slopes that are right at ties.

    What the solver leaves of an eigenvalue that is zero becomes zero; two that only its rounding tells apart become
    equal: otherwise a tie would break after a long time.
    """
    values, vectors, group = _Eigh.apply(matrix, floor)  # type: ignore[no-untyped-call]
    if not matrix.requires_grad or len(values) == int(group[-1]) + 1:
        return Eigen(values, vectors, None)
    fixed = vectors.detach()
    change = fixed.mT @ (matrix - matrix.detach()) @ fixed
    within = torch.where(group == group[:, None], change, 0.0) - torch.diag(values - values.detach())
    return Eigen(values, vectors, within)


class _Eigh(torch.autograd.Function):
    """Vectors turn by their mutual terms over the gap; torch's own gradient divides by that of a tie, zero, too."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
        if matrix.device.type == "cpu":
            # Both are LAPACK's divide and conquer. NumPy's (OpenBLAS) took 0.6 of the time of torch's (MKL) on an AMD
            # processor; no other was tried.
            values, vectors = (torch.from_numpy(part) for part in np.linalg.eigh(matrix.detach().numpy()))
        else:
            values, vectors = torch.linalg.eigh(matrix)
        noise = 4 * len(values) * EPS * values.abs().max() + floor
        means, group = merged(torch.where(values.abs() > noise, values, 0.0), noise)
        ctx.save_for_backward(values, vectors, group)
        ctx.mark_non_differentiable(group)
        return means[group], vectors, group

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_values: Tensor, d_vectors: Tensor, _: Tensor) -> tuple[Tensor, None]:
        values, vectors, group = ctx.saved_tensors
        gap, distinct = values - values[:, None], group != group[:, None]
        inverse = torch.where(distinct, 1 / torch.where(distinct, gap, 1.0), 0.0)
        sums = torch.zeros_like(values).index_add(0, group, d_values)
        members = torch.bincount(group).to(values)
        core = torch.diag(sums[group] / members[group]) + inverse * (vectors.mT @ d_vectors)
        full = vectors @ core @ vectors.mT
        return (full + full.mT) / 2, None
