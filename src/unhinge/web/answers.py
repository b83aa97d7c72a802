"""What the page shows for a state, as one piece of JSON: the work that takes time, and nothing of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from unhinge.results.json import as_json
from unhinge.web.address import State
from unhinge.web.figures import figure
from unhinge.web.page import answer_html
from unhinge.web.panels import Answer, Panel
from unhinge.web.view_free import FREE
from unhinge.web.view_noise import NOISE
from unhinge.web.view_sphere import SPHERE
from unhinge.web.view_young import YOUNG
from unhinge.web.views import PICTURE, View

__all__ = ["VIEWS", "picture_of", "solve", "text_of", "view_of"]

VIEWS: tuple[View, ...] = (FREE, SPHERE, NOISE, YOUNG)


def view_of(state: State) -> View:
    """The view that a state is of."""
    return next(view for view in VIEWS if view.key == state.view)


@contextmanager
def _quietly() -> Iterator[None]:
    # A number that overflows is a gap in its curve, not a line in the terminal; and nobody differentiates a picture.
    with np.errstate(all="ignore"), torch.inference_mode():
        yield


def solve(state: State) -> Answer:
    """The answer to a state; a ValueError says what is wrong with the state."""
    with _quietly():
        return view_of(state).solve(state)


def text_of(state: State, look: str) -> str:
    """Words, curves and code of a state; every number in it is finite, since JSON has no other."""
    with _quietly():
        answer = view_of(state).curves(state)
    told = {"told": answer_html(answer), "chosen": dict(answer.chosen)}
    return as_json(told | _drawn(state, answer.panels, look), indent=None)


def picture_of(state: State, look: str) -> str:
    """The moving picture of a state likewise, where its view has one."""
    picture = view_of(state).picture
    with _quietly():
        panels = {} if picture is None else {PICTURE: picture(state)}
    return as_json(_drawn(state, panels, look), indent=None)


def _drawn(state: State, panels: Mapping[str, Panel], look: str) -> dict[str, object]:
    slots = [slot for slot in view_of(state).slots if slot.key in panels]
    return {
        "figures": {slot.key: figure(panels[slot.key], slot, look) for slot in slots},
        "titles": {slot.key: panels[slot.key].title or slot.title for slot in slots},
        "code": {key: panel.code for key, panel in panels.items()},
    }
