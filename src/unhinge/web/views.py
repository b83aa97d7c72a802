"""What a view is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from unhinge.web.address import State
from unhinge.web.controls import Control
from unhinge.web.panels import Answer, Panel, Slot

__all__ = ["PICTURE", "View"]

PICTURE = "moving"  # the key of the slot that a picture goes to


@dataclass(frozen=True)
class View:
    """One page: its controls, the places of its panels, and the functions that answer.

    A moving picture has a function of its own. It takes a quarter of the time, and whoever drags a slider looks at the
    curves: the page asks for it when the slider rests.
    """

    key: str
    title: str
    help: str
    equation: str  # in the symbols of the controls
    controls: Sequence[Control]
    slots: Sequence[Slot]
    curves: Callable[[State], Answer]
    picture: Callable[[State], Panel] | None = None

    def solve(self, state: State) -> Answer:
        """The answer with its picture."""
        answer = self.curves(state)
        if self.picture is None:
            return answer
        return replace(answer, panels={**answer.panels, PICTURE: self.picture(state)})
