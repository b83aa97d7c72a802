r"""One step after another on the sphere, in the coordinates along and across :math:`\hat v`  [eq: sphere-step].

In place and in numpy, unless a gradient is asked for; and where a walk at a changing rate has been, so that the next
question about it goes on from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import repeat
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["KEPT", "LEAST_SQUARE", "STRIDE", "Array", "Stones", "descend", "descended"]

STRIDE = 256  # steps between two looks at whether a closed form can take over
KEPT = 2**24  # bytes of steps that a path remembers: a hundred examples for ten thousand steps
STONES = 512  # places on a walk at a changing rate that it remembers
# Squares of coordinates in units of the larger length must not underflow.
LEAST_SQUARE = 1e-200

Array = npt.NDArray[np.float64]


def descended(z: Tensor, pull: Tensor, rates: Tensor, decay: Tensor, power: int) -> Tensor:
    """The coordinates after one step for each rate."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (z, pull, rates, decay)):
        for rate in rates.unbind():
            z = _step(z, pull, rate, decay, power)
        return z
    z = z.detach().clone()
    with np.errstate(over="ignore", invalid="ignore"):  # features that are thrown out of range are refused afterwards
        descend(z.numpy(), pull.detach().numpy(), rates.tolist(), decay.item(), power)
    return z


def _step(z: Tensor, pull: Tensor, rate: Tensor, decay: Tensor, power: int) -> Tensor:
    """One step as a new value, for autograd; the operations of `descend`, one for one."""
    a, b = z
    fade = rate * decay
    q = (a * a + b * b).clamp(min=LEAST_SQUARE)
    if power == 2:
        q = q.sqrt() * q
    strength = pull / q * rate
    along = a + (strength * b * b - fade * a)
    across = b - (strength * a * b + fade * b)
    return torch.stack([along, across])


def descend(
    z: Array, pull: Array, rates: Iterable[float], decay: float, power: int, every: Array | None = None
) -> None:
    """One step for each rate, in place, or with the coordinates after every step in `every` (m, 2, n).

    Both coordinates at once and with `out=`: of a hundred examples calls cost most, of a thousand allocations would.
    """
    both, (q, t) = np.stack([pull, -pull]), np.empty((2, len(pull)))
    turn, square = np.empty_like(z), np.empty_like(z)
    # Only a feature that does not turn is ever so short; without decay no norm falls.
    short = decay > 0 or bool((np.square(z).sum(0) < LEAST_SQUARE).any())
    now = z
    for rate, after in zip(rates, repeat(z) if every is None else every):  # noqa: B905  # the rows may be endless
        np.multiply(now, now, out=square)
        np.add(square[0], square[1], out=q)
        if short:
            np.maximum(q, LEAST_SQUARE, out=q)
        if power == 2:
            np.sqrt(q, out=t)
            np.multiply(t, q, out=q)
        np.divide(both, q, out=turn)
        if rate != 1:
            np.multiply(turn, rate, out=turn)
        np.multiply(turn, now[::-1], out=turn)
        np.multiply(turn, now[1], out=turn)
        if decay > 0:
            np.multiply(now, rate * decay, out=square)
            np.subtract(turn, square, out=turn)
        np.add(now, turn, out=after)  # b - s b and not (1 - s) b, whose rounding would go the same way at every step
        now = after


class Stones:
    """Where a walk at a changing rate was after some of its steps, so that the next question goes on from there.

    Every `apart` steps, which doubles when `STONES` of them, or `KEPT` bytes, are full. As in `Trail`, a step is the
    same number whoever takes it; a thread that adds at the same time as another may lose a stone, and walks instead.
    """

    def __init__(self) -> None:
        self.apart = STRIDE
        self.known: tuple[tuple[int, Tensor], ...] = ()

    def before(self, step: int) -> tuple[int, Tensor] | None:
        """The last stone that is not behind this step."""
        known = self.known
        place = bisect_right(known, step, key=itemgetter(0))
        return known[place - 1] if place else None

    def add(self, step: int, z: Tensor) -> None:
        """Remember the coordinates after a step, if there is a place for a stone."""
        known = self.known
        if step % self.apart or (known and step <= known[-1][0]):
            return
        room = min(STONES, KEPT / (z.numel() * z.element_size()))
        if len(known) >= room:
            self.apart *= 2
            known = tuple(stone for stone in known if stone[0] % self.apart == 0)
        self.known = (*known, (step, z)) if step % self.apart == 0 and len(known) < room else known
