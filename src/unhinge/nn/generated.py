r"""Prototypes that are computed when they are needed: a million rows, no memory.

Row c is a function of the seed and of c alone. A counter-based generator (Philox 4x32-10 of Salmon et al. 2011) turns
the number of the row into random bits, so rows come out the same in any order, in any batch and on any machine, and a
batch of n costs :math:`O(np)`. Rows come in opposite pairs, :math:`w_{2k+1} = -w_{2k}`: their sum is zero without a
pass over them, and opposite rows are as far apart as two rows can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unhinge.nn.contract import as_tensor, check_dtype, check_size
from unhinge.theory.validation import check_num_classes

__all__ = ["GeneratedPrototypes"]

Words = NDArray[np.uint64]  # 32 bits in each, so that products fit


@dataclass(frozen=True)
class GeneratedPrototypes:
    r"""Random unit vectors with zero sum for any number of classes, by rows on demand.

    Of an odd number of classes, the last three form a triangle instead of a pair. For few classes (up to a few
    thousand) :func:`~unhinge.nn.prototypes` separates better; here two of C classes come about as close as
    :math:`\cos\theta = \sqrt{1 - C^{-4/p}}`.

    Arguments:
        num_classes: :math:`C`, at least 2.
        dim: :math:`p`, at least 2 if :math:`C > 2`.
        seed: Any whole number of up to 64 bits. It is all there is to save.
        dtype: Of the rows, which are computed in float64 and then rounded.

    Example:
        >>> frame = GeneratedPrototypes(1_000_000_000, 64, seed=1)
        >>> rows = frame.rows(torch.tensor([3, 999_999_999]))
        >>> rows.shape, torch.equal(rows[:1], frame.rows(torch.tensor([3])))
        (torch.Size([2, 64]), True)

        In the loss, the rows of the batch stand for the whole weight:

        >>> from unhinge.nn import functional as UF
        >>> features, target = torch.randn(2, 64), torch.tensor([3, 999_999_999])
        >>> loss = UF.unhinged_loss_from_features(
        ...     features,
        ...     frame.rows(target),
        ...     torch.arange(2),
        ...     gamma=frame.gamma,
        ...     weight_sum=frame.weight_sum,
        ... )
    """

    num_classes: int
    dim: int
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        check_num_classes(self.num_classes)
        check_size("dim", self.dim)
        if self.dim == 1 and self.num_classes > 2:
            raise ValueError(
                f"on a line (dim=1) there are only two unit vectors, but {self.num_classes} classes were asked for."
            )
        check_dtype(self.dtype)
        whole = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if not whole or not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be a whole number from 0 to 2**64 - 1, got {self.seed!r}.")

    @property
    def shape(self) -> torch.Size:
        """:math:`(C, p)`, as a tensor of all rows would have it."""
        return torch.Size((self.num_classes, self.dim))

    @property
    def gamma(self) -> float:
        r"""The default :math:`\gamma = 1/(C-1)`."""
        return 1 / (self.num_classes - 1)

    @property
    def weight_sum(self) -> Tensor:
        r"""The sum of all rows, shape :math:`(p)`: zero."""
        return torch.zeros(self.dim, dtype=self.dtype)

    def rows(self, index: Tensor) -> Tensor:
        r"""The prototypes of the classes `index` :math:`(*)`, shape :math:`(*, p)`, on its device."""
        if as_tensor("index", index).is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"index must hold class indices in an integer dtype, got {index.dtype}.")
        flat = index.detach().cpu().numpy().astype(np.int64).reshape(-1)
        if flat.size and not (flat.min() >= 0 and flat.max() < self.num_classes):
            raise ValueError(
                f"class indices must lie in 0 .. {self.num_classes - 1}, got values from {flat.min()} to {flat.max()}."
            )
        values = torch.from_numpy(self._rows(flat)).to(index.device, self.dtype)
        return values.view(*index.shape, self.dim)

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """All rows, `size` at a time, each block with the number of its first row."""
        for start in range(0, self.num_classes, size):
            yield start, self.rows(torch.arange(start, min(start + size, self.num_classes)))

    def _rows(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        pair, second = np.divmod(index, 2)
        rows = self._directions(pair) * np.where(second == 1, -1.0, 1.0)[:, None]
        if self.num_classes % 2 == 0:
            return rows
        corner = index - (self.num_classes - 3)
        if (corner > 0).any():
            rows[corner > 0] = self._triangle()[corner[corner > 0]]
        return rows

    def _triangle(self) -> NDArray[np.float64]:
        """The last three rows of an odd number: the first as it is, the others at 120 degrees to it in a plane."""
        first = (self.num_classes - 3) // 2
        a, b = self._directions(np.array([first, first + 1]))
        b = b - (a @ b) * a
        b = -a / 2 + math.sqrt(0.75) * b / np.linalg.norm(b)
        return np.stack([a, b, -(a + b)])

    def _directions(self, number: NDArray[np.int64]) -> NDArray[np.float64]:
        """Unit vectors, uniform on the sphere: one per number."""
        blocks = -(-self.dim // 4)
        counter = np.zeros((4, len(number), blocks), dtype=np.uint64)
        counter[0] = np.arange(blocks, dtype=np.uint64)
        counter[1] = (number & 0xFFFFFFFF)[:, None]
        counter[2] = (number >> 32)[:, None]
        bits = philox(counter, self.seed)
        # Box and Muller: two uniform numbers make two normal ones; the half keeps the logarithm finite.
        uniform = (bits.astype(np.float64) + 0.5) / 2.0**32
        radius = np.sqrt(-2 * np.log(uniform[:2]))
        angle = 2 * math.pi * uniform[2:]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        flat = np.moveaxis(normal, 0, -1).reshape(len(number), 4 * blocks)[:, : self.dim]
        return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def philox(counter: Words, key: int) -> Words:
    """Philox 4x32-10: four words of 32 bits from four, for every entry along the other axes.

    The arithmetic is on whole numbers only, so the bits are the same everywhere.

    Example:
        >>> [
        ...     f"{word:08x}" for word in philox(np.zeros(4, dtype=np.uint64), 0)
        ... ]  # the authors' test vector
        ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a, b, c, d = counter
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> half) ^ b ^ np.uint64(keys[0]),
            second & low,
            (first >> half) ^ d ^ np.uint64(keys[1]),
            first & low,
        )
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack([a, b, c, d])
