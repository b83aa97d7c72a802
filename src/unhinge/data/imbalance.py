r"""Long-tailed and step imbalance of any data set, by the count formulas of the literature.

With :math:`C` classes, ratio :math:`\rho = n_{\max} / n_{\min}` and classes in the order of their labels:
exponential, :math:`n_c = \lfloor n_{\max}\, \rho^{-c/(C-1)} \rfloor` (Cui et al. 2019, Cao et al. 2019);
step, :math:`n_{\max}` for the first half and :math:`\lfloor n_{\max} / \rho \rfloor` for the second (Buda et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from unhinge.data.batches import generator_of
from unhinge.data.images import ImageSet

__all__ = ["Imbalance", "Subsample", "imbalanced"]

_KINDS = ("exp", "step")


@dataclass(frozen=True)
class Imbalance:
    """A profile of class sizes: `kind` is "exp" or "step", `ratio` the largest class over the smallest.

    Example:
        >>> Imbalance.parse("exp:100").counts([5000] * 10)
        (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
        >>> Imbalance.parse("step:10").counts([5000] * 4)
        (5000, 5000, 500, 500)
        >>> str(Imbalance("step", 10))
        'step:10'
    """

    kind: Literal["exp", "step"]
    ratio: float

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"the kind of imbalance must be one of {', '.join(_KINDS)}, got {self.kind!r}.")
        if not isinstance(self.ratio, Real) or not 1 <= self.ratio < math.inf:
            raise ValueError(
                f"the imbalance ratio is the largest class over the smallest, at least 1, got {self.ratio!r}. "
                "Papers that write 0.01 mean 100."
            )

    @staticmethod
    def parse(text: str) -> Imbalance:
        """Read `exp:100` or `step:10`."""
        kind, _, ratio = text.partition(":")
        try:
            number = float(ratio)
        except ValueError:
            raise ValueError(f"imbalance must read like exp:100 or step:10, got {text!r}.") from None
        return Imbalance(kind, number)  # type: ignore[arg-type]  # checked there

    def __str__(self) -> str:
        return f"{self.kind}:{self.ratio:g}"

    def shares(self, num_classes: int) -> tuple[float, ...]:
        r"""Each class's size over :math:`n_{\max}`."""
        factor = 1 / self.ratio
        if self.kind == "exp":
            return tuple(factor ** (c / (num_classes - 1)) if num_classes > 1 else 1.0 for c in range(num_classes))
        # An odd class in the middle is a large one.
        large = num_classes - num_classes // 2
        return (1.0,) * large + (factor,) * (num_classes - large)

    def counts(self, available: list[int] | Tensor, largest: int | None = None) -> tuple[int, ...]:
        r"""Images of each class, where :math:`n_{\max}` is `largest`, or as large as every class has enough for.

        For balanced data the default of :math:`n_{\max}` is the size of a class, as in the literature. Unequal classes
        keep the profile's ratio instead of being cut off where they run out.

        Arguments:
            available: Images there are of each class, :math:`(C,)`.
            largest: :math:`n_{\max}`; None for as many as there can be.

        Example:
            >>> Imbalance.parse("exp:100").counts([5000] * 10, largest=500)
            (500, 299, 179, 107, 64, 38, 23, 13, 8, 5)
        """
        have = [int(n) for n in available]
        shares = self.shares(len(have))
        most = _floor(min((n / share for n, share in zip(have, shares, strict=True)), default=0.0))
        if largest is not None and not 1 <= largest <= most:
            which = "each class" if self.ratio == 1 else f"the largest class of {self}"
            raise ValueError(
                f"{which} shall have {largest} images, but these data have enough for 1 to {most}. "
                f"Ask for at most {most} as the largest."
            )
        largest = most if largest is None else largest
        counts = tuple(min(n, _floor(largest * share)) for n, share in zip(have, shares, strict=True))
        if not counts or min(counts) < 1:
            raise ValueError(
                f"{self} would leave a class without images: the largest class could have {largest}. "
                f"Choose a ratio of at most {max(largest, 1)}."
            )
        return counts


@dataclass(frozen=True, eq=False)
class Subsample:
    """An imbalanced set, and the indices that were kept, to be stored with a run."""

    images: ImageSet
    indices: Tensor  # (n,) int64, ascending, into the set it was taken from


def imbalanced(
    images: ImageSet, imbalance: Imbalance | str | None, *, seed: int, largest: int | None = None
) -> Subsample:
    """Keep a random part of each class, `largest` images of the largest; without an imbalance, as many of each.

    At the same seed and the same `largest`, a larger ratio keeps a part of what a smaller one keeps, and fewer images
    are a part of more. Without a `largest`, classes of unequal size can have more images in the first class the larger
    the ratio is.

    Example:
        >>> from unhinge.data import load
        >>> part = imbalanced(load("digits").training, "exp:10", seed=0)
        >>> part.images.counts.tolist()
        [142, 109, 85, 65, 51, 39, 30, 23, 18, 14]
    """
    profile = Imbalance.parse(imbalance) if isinstance(imbalance, str) else imbalance or Imbalance("exp", 1)
    if not isinstance(profile, Imbalance):
        raise ValueError(f"imbalance must read like exp:100 or step:10, got {imbalance!r}.")
    kept = []
    for label, count in enumerate(profile.counts(images.counts, largest)):
        members = (images.labels == label).nonzero().squeeze(1).cpu()
        kept.append(members[torch.randperm(len(members), generator=generator_of(seed, label))[:count]])
    indices = torch.cat(kept).sort().values
    return Subsample(images.subset(indices.to(images.labels.device)), indices)


def _floor(value: float) -> int:
    # 49 * (1 / 49) is a hair below 1 in floats, and 1 is meant.
    return math.floor(value * (1 + 1e-12))
