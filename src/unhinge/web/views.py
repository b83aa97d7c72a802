"""What a view is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unhinge.web.address import State
from unhinge.web.controls import Control
from unhinge.web.panels import Answer, Slot

__all__ = ["View"]


@dataclass(frozen=True)
class View:
    """One page: its controls, the places of its panels, and the function that answers."""

    key: str
    title: str
    help: str
    equation: str  # in the symbols of the controls
    controls: Sequence[Control]
    slots: Sequence[Slot]
    solve: Callable[[State], Answer]
