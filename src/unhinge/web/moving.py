"""Features and prototypes moving, seen in the plane (or space) of a few classes.

The flow acts on rows, so a projection of the start moves as the projection of the path: the picture is solved in two
or three dimensions, whatever p is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unhinge.web.panels import Moving

__all__ = ["FRAMES", "PER_CLASS", "picture_basis", "picture_code", "moving_picture", "shown_classes", "shown_examples"]

FRAMES = 40
PER_CLASS = 12  # examples drawn of each class


def shown_classes(num_classes: int, axes: int) -> list[int]:
    """One class more than axes, from the first to the last; their simplex spans the picture.

    Example:
        >>> shown_classes(10, 2), shown_classes(2, 3)
        ([0, 4, 9], [0, 1])
    """
    wanted = min(axes + 1, num_classes)
    return sorted({round(i * (num_classes - 1) / (wanted - 1)) for i in range(wanted)})


def shown_examples(labels: Tensor, classes: list[int]) -> list[list[int]]:
    """The first few examples of each of these classes."""
    return [(labels == c).nonzero().flatten()[:PER_CLASS].tolist() for c in classes]


def picture_basis(final: Tensor, weight: Tensor, classes: list[int], axes: int) -> Tensor:
    """Orthonormal columns (p, axes) of the span of the final prototypes of these classes, their mean taken away.

    Where these coincide, the initial ones decide; a picture needs some plane.
    """
    rows = final[classes] - final[classes].mean(0) + 1e-9 * weight[classes]
    spare = 1e-12 * torch.eye(weight.shape[1], dtype=weight.dtype)[:axes]
    return torch.linalg.qr(torch.cat([rows[:-1], spare]).mT).Q[:, :axes]


def moving_picture(
    solve: Callable[[Tensor, Tensor], Any],
    norms: tuple[Tensor, Tensor],
    moments: Tensor,
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    basis: Tensor,
    unit: str,
) -> Moving:
    """Frames of features and prototypes, each set divided by its root mean square norm so that directions show.

    Arguments:
        solve: From projected features and prototypes to a path.
        norms: Norms of all features and of all prototypes at the moments.
        basis: The plane, (p, 2) or (p, 3); fewer where p is smaller.
    """
    axes = basis.shape[1]
    classes = shown_classes(len(weight), axes)
    state = solve(features @ basis, weight @ basis).at(moments)
    parts = []
    for rows, norm in ((state.features, norms[0]), (state.weight, norms[1])):
        size = (norm / rows.shape[-2] ** 0.5)[:, None, None]
        parts.append(torch.where(size > 0, rows / torch.where(size > 0, size, 1.0), 0.0))
    groups: list[tuple[str, int, str]] = []
    picked: list[Tensor] = []
    for place, (c, examples) in enumerate(zip(classes, shown_examples(labels, classes), strict=True)):
        groups.append((f"class {c}", place, "dot"))
        picked.append(parts[0][:, examples])
        groups.append((f"prototype {c}", place, "star"))
        picked.append(parts[1][:, [c]])
    ok = [bool(torch.isfinite(torch.cat([rows[i].flatten() for rows in picked])).all()) for i in range(len(moments))]
    steps = [rows.mT.round(decimals=4).tolist() for rows in picked]  # group, frame, axis, point
    frames = [[group[i] for group in steps] for i in range(len(moments)) if ok[i]]
    reach = max((abs(v) for frame in frames for group in frame for axis in group for v in axis), default=1.0)
    kept = [moment for moment, good in zip(moments.tolist(), ok, strict=True) if good]
    return Moving(kept, unit, groups, frames, 1.08 * max(reach, 1e-3), len(frames) // 8)


def picture_code(classes: list[int], axes: int, solve: str) -> str:
    """The points of the picture in Python, from `problem`, `path`, `features`, `weight` and the moments `x`."""
    return (
        f"basis = unhinge.web.moving.picture_basis(path.direction().weight, weight, {classes}, {axes}); "
        f"state = {solve}.at(x)\n"
        "h = state.features * (len(labels)**0.5 / path.feature_norm(x))[:, None, None]; "
        "w = state.weight * (len(weight)**0.5 / path.weight_norm(x))[:, None, None]\n"
        f"curves = {{f'prototype {{c}}': (x, w[:, [c]]) for c in {classes}}} | "
        f"{{f'class {{c}}': (x, h[:, labels == c][:, :{PER_CLASS}]) for c in {classes}}}"
    )
