"""What the page shows for a state, as one piece of JSON: the work that takes time, and nothing of the server."""

from __future__ import annotations

import numpy as np
import torch

from unhinge.results.json import as_json
from unhinge.web.address import State
from unhinge.web.figures import figure
from unhinge.web.page import answer_html
from unhinge.web.panels import Answer
from unhinge.web.view_free import FREE
from unhinge.web.view_noise import NOISE
from unhinge.web.view_sphere import SPHERE
from unhinge.web.view_young import YOUNG
from unhinge.web.views import View

__all__ = ["VIEWS", "solve", "text_of", "view_of"]

VIEWS: tuple[View, ...] = (FREE, SPHERE, NOISE, YOUNG)


def view_of(state: State) -> View:
    """The view that a state is of."""
    return next(view for view in VIEWS if view.key == state.view)


def solve(state: State) -> Answer:
    """The answer to a state; a ValueError says what is wrong with the state."""
    # A number that overflows is a gap in its curve, not a line in the terminal; and nobody differentiates a picture.
    with np.errstate(all="ignore"), torch.inference_mode():
        return view_of(state).solve(state)


def text_of(state: State, look: str) -> str:
    """Words, figures and code of a state; every number in it is finite, since JSON has no other."""
    solved, slots = solve(state), view_of(state).slots
    panels = solved.panels
    return as_json(
        {
            "told": answer_html(solved),
            "figures": {slot.key: figure(panels[slot.key], slot, look) for slot in slots},
            "titles": {slot.key: panels[slot.key].title or slot.title for slot in slots},
            "code": {key: panel.code for key, panel in panels.items()},
            "chosen": dict(solved.chosen),
        },
        indent=None,
    )
