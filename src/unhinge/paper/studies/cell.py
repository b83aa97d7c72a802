"""One trained network of a table: which method, in which column, by which recipe. Labels are made from these fields."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unhinge.training.recipe import Recipe
from unhinge.training.recipes import Method, short

__all__ = ["Cell", "Column"]

_PROFILES = {"exp": "long-tailed", "step": "step"}


@dataclass(frozen=True)
class Column:
    """What a column of a table holds fixed; only what varies between columns is given.

    Example:
        >>> Column(profile="exp", ratio=100).label
        'long-tailed, ρ=100'
        >>> Column(augment=False, epochs=60).label
        'no augmentation, 60 epochs'
    """

    data: str | None = None
    each: int | None = None  # images of a class
    largest: int | None = None  # images of the largest class
    profile: str | None = None
    ratio: int | None = None
    label_noise: float | None = None
    augment: bool | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    penalty: float | None = None  # lambda, as the paper writes it
    gamma: float | None = None  # as a multiple of 1/(C-1)
    against: str | None = None  # the unknown images

    @property
    def label(self) -> str:
        """Its head in a table."""
        parts = [self.data] if self.data else []
        parts += [f"{self.each} of each class"] if self.each is not None else []
        parts += [f"{self.largest:,} in the largest class"] if self.largest is not None else []
        parts += [_PROFILES[self.profile]] if self.profile else []
        parts += [f"ρ={self.ratio}"] if self.ratio is not None else []
        parts += [f"noise {self.label_noise:g}"] if self.label_noise is not None else []
        parts += ["augmentation" if self.augment else "no augmentation"] if self.augment is not None else []
        parts += [f"{self.epochs} epochs"] if self.epochs is not None else []
        parts += [f"{self.steps:,} steps"] if self.steps is not None else []
        parts += [f"lr {self.lr:g}"] if self.lr is not None else []
        parts += [f"weight decay {short(self.weight_decay)}"] if self.weight_decay is not None else []
        parts += [f"λ={short(self.penalty)}"] if self.penalty is not None else []
        parts += [f"γ = {self.gamma:g}/(C-1)"] if self.gamma is not None else []
        parts += [f"against {self.against}"] if self.against else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Cell:
    """Where a network stands in a table, and how it is trained; `paper` has the paper's numbers for it, in percent."""

    method: Method
    place: Column
    recipe: Recipe
    ood: str | None = None
    paper: tuple[tuple[str, float], ...] = ()

    @property
    def row(self) -> str:
        """Its method; the penalty is left out where the columns have it."""
        return (self.method if self.place.penalty is None else replace(self.method, penalty=0.0)).label

    @property
    def column(self) -> str:
        """What its column is called."""
        return self.place.label
