"""What a view answers: curves, numbers, sentences, and the Python that gives the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

__all__ = ["Answer", "Curve", "Line", "Moving", "Number", "Panel", "Slot", "Tone", "as_list"]

Line = Literal["line", "dashed", "dotted", "marks"]
Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class Slot:
    """The place of a panel on the page, known before anything is solved."""

    key: str
    title: str
    help: str


@dataclass(frozen=True)
class Curve:
    """One line, or set of marks, of a panel."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]  # None where the true value is not finite
    style: Line = "line"
    color: int = 0  # the place in the palette
    hover: Sequence[str] | None = None
    listed: bool = True  # in the legend


@dataclass(frozen=True)
class Moving:
    """Points moving in two or three dimensions, all within [-reach, reach]."""

    moments: Sequence[float]
    unit: str
    groups: Sequence[tuple[str, int, str]]  # name, place in the palette, symbol
    frames: Sequence[Sequence[Sequence[Sequence[float]]]]  # frame, group, axis, point
    reach: float
    first: int = 0  # the frame shown before anything plays


@dataclass(frozen=True)
class Panel:
    """One figure."""

    xlabel: str
    ylabel: str
    curves: Sequence[Curve]
    code: str
    title: str = ""  # instead of the title of its slot
    xlog: bool = False
    ylog: bool = False
    yrange: tuple[float, float] | None = None
    levels: Sequence[tuple[str, float]] = ()  # horizontal lines
    moments: Sequence[tuple[str, float]] = ()  # vertical lines
    moving: Moving | None = None


@dataclass(frozen=True)
class Number:
    """A number beside the curves."""

    label: str
    value: str
    help: str


@dataclass(frozen=True)
class Answer:
    """Everything a view shows for one state."""

    headline: str
    tone: Tone
    sentences: Sequence[str]
    numbers: Sequence[Number]
    panels: Mapping[str, Panel]
    chosen: Mapping[str, float] = field(default_factory=dict)  # values the theory chose for empty controls


def as_list(values: Tensor) -> list[float | None]:
    """Numbers for JSON, which knows no infinity.

    Example:
        >>> import torch
        >>> as_list(torch.tensor([0.5, float("inf")]))
        [0.5, None]
    """
    finite = values.isfinite()
    if bool(finite.all()):
        return list(values.tolist())
    return [value if ok else None for value, ok in zip(values.tolist(), finite.tolist(), strict=True)]
