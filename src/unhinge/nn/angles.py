"""The smallest angle between vectors, with all of its digits."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["smallest_angle", "unit_rows"]

BLOCK = 1 << 22  # cosines held at once: 32 MB, whatever the number of rows


def smallest_angle(rows: Tensor) -> Tensor:
    r"""The angle between the two rows that are closest, in radians, :math:`\min_{i\ne j}\angle(w_i, w_j)`.

    The closest pair is found by its cosine, and its angle measured as

    .. math:: \angle(a, b) = 2\operatorname{atan2}(\|\hat a - \hat b\|, \|\hat a + \hat b\|)

    (Kahan). The arccosine of the cosine would lose half of the digits near 0 and :math:`\pi`, and has no slope there.
    Differentiable; computed in the dtype given. Time grows as :math:`C^2p`, memory does not.

    Arguments:
        rows: :math:`W`, shape :math:`(C, p)`, at least two; their lengths do not matter. A row of zeros is taken to
            stand at right angles to all others.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
        >>> smallest_angle(rows) * 180 / torch.pi
        tensor(90.)
        >>> smallest_angle(torch.tensor([[1.0, 0.0], [1.0, 1e-9]], dtype=torch.float64))
        tensor(1.0000e-09, dtype=torch.float64)
    """
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"an angle needs at least two rows of shape (C, p), got {tuple(rows.shape)}.")
    units = unit_rows(rows)
    fixed, count = units.detach(), len(rows)
    best, pair = -2.0, (0, 1)
    for start in range(0, count, size := max(1, BLOCK // count)):
        cosines = fixed[start : start + size] @ fixed.mT
        cosines.diagonal(start).fill_(-2.0)  # a row with itself
        top, place = cosines.flatten().max(0)
        if not top.item() <= best:  # also for NaN, which then shows in the angle
            best, pair = top.item(), (start + int(place) // count, int(place) % count)
    a, b = units[pair[0]], units[pair[1]]
    if not (bool(a.detach().any()) or bool(b.detach().any())):  # both are zero, and have no angle: a right one
        return (a + b).sum() + torch.pi / 2
    return 2 * torch.atan2((a - b).norm(), (a + b).norm())


def unit_rows(rows: Tensor) -> Tensor:
    r"""Rows of length 1, :math:`x/\|x\|` along the last axis; rows of zeros stay, with the gradient of the identity.

    The largest entry is taken out first, as a constant, since it does not change the direction: squares neither
    overflow nor vanish, in half precision too.

    Example:
        >>> unit_rows(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    peak = rows.detach().abs().amax(-1, keepdim=True)
    scaled = rows / torch.where(peak == 0, 1, peak)
    # Not the length of a row of zeros: its second derivative is infinite, also where it is not chosen.
    length = torch.linalg.vector_norm(torch.where(peak == 0, 1, scaled), dim=-1, keepdim=True)
    return scaled / torch.where(peak == 0, 1, length)
