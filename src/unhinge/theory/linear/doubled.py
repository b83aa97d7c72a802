r"""Numbers of twice the usual precision, as the unevaluated sum of two doubles.

Some 32 digits, elementwise on whole tensors. The differences of the exponents of two modes are what long times magnify;
two singular values that agree to eight digits still have a difference of full accuracy here.

The exact sum is Knuth's, the exact product Dekker's: T. J. Dekker, "A floating-point technique for extending the
available precision", Numerische Mathematik 18 (1971).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

__all__ = ["Doubled", "doubled"]

SPLITTER = 2.0**27 + 1  # cuts 53 bits into two halves of 26, whose products are exact


def _exact_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = a + b
    shifted = total - a
    return total, (a - (total - shifted)) + (b - shifted)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    spread = SPLITTER * a
    high = spread - (spread - a)
    return high, a - high


def _exact_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


@dataclass(frozen=True)
class Doubled:
    """`high + low`, with `low` below half a unit in the last place of `high`. Entries below 1e290 in size."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, value: Tensor) -> Doubled:
        return cls(value, torch.zeros_like(value))

    def __add__(self, other: Doubled) -> Doubled:
        high, error = _exact_sum(self.high, other.high)
        low, rest = _exact_sum(self.low, other.low)
        high, error = _exact_sum(high, error + low)
        return Doubled(*_exact_sum(high, error + rest))

    def __neg__(self) -> Doubled:
        return Doubled(-self.high, -self.low)

    def __sub__(self, other: Doubled) -> Doubled:
        return self + (-other)

    def __mul__(self, other: Doubled) -> Doubled:
        high, error = _exact_product(self.high, other.high)
        return Doubled(*_exact_sum(high, error + (self.high * other.low + self.low * other.high)))

    def __truediv__(self, other: Doubled) -> Doubled:
        quotient = Doubled.of(self.high / other.high)
        for _ in range(2):
            rest = self - quotient * other
            quotient = quotient + Doubled.of(rest.high / other.high)
        return quotient

    def sqrt(self) -> Doubled:
        """Square root of entries that are not negative."""
        root = self.high.sqrt()
        first = Doubled.of(root)
        rest = (self - first * first).high
        return first + Doubled.of(torch.where(root > 0, rest / (2 * torch.where(root > 0, root, 1.0)), 0.0))

    def sum(self, axis: int = 0) -> Doubled:
        """The sum along an axis, by halving it."""
        part = Doubled(self.high.movedim(axis, 0), self.low.movedim(axis, 0))
        while len(part.high) > 1:
            if len(part.high) % 2:
                part = Doubled(*(torch.nn.functional.pad(x.movedim(0, -1), (0, 1)).movedim(-1, 0) for x in part.both))
            half = len(part.high) // 2
            part = Doubled(part.high[:half], part.low[:half]) + Doubled(part.high[half:], part.low[half:])
        return part[0] if len(part.high) else Doubled.of(part.high.sum(0))

    def __getitem__(self, index: object) -> Doubled:
        return Doubled(self.high[index], self.low[index])  # type: ignore[index]

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.high, self.low

    @property
    def value(self) -> Tensor:
        """Rounded to one double."""
        return self.high + self.low


def doubled(values: list[Decimal]) -> Doubled:
    """A vector from decimal numbers of any precision."""
    high = [float(value) for value in values]
    low = [float(value - Decimal(first)) for value, first in zip(values, high, strict=True)]
    return Doubled(torch.tensor(high, dtype=torch.float64), torch.tensor(low, dtype=torch.float64))
