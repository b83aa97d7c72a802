"""Python that is run and shown from one source: what a panel plots is what its lines compute.

The lines are written by the views from values that were read as numbers or chosen from a list, never from a text that a
person sent: text of an address must not reach :class:`Script`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unhinge.web.panels import Curve, Line, Panel, as_list

__all__ = ["Look", "Script", "call", "panel_of"]


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, "<explorer>", "exec")


class Script:
    """Lines of Python and the names they leave; :meth:`then` runs more of them on a copy, so that panels share a start.

    Example:
        >>> start = Script("a = 2")
        >>> more = start.then("b = a + 1")
        >>> more["b"], more.text, "b" in start.names
        (3, 'a = 2\\nb = a + 1', False)
    """

    def __init__(self, *lines: str, names: Mapping[str, object] | None = None) -> None:
        """Run the lines; `names` are there before."""
        self.names: dict[str, object] = dict(names or {})
        self.text = "\n".join(lines)
        exec(_compiled(self.text), self.names)

    def shown_as(self, *lines: str) -> Script:
        """The same names, shown as the lines by which a person gets them: for a file that lies in memory here."""
        self.text = "\n".join(lines)
        return self

    def then(self, *lines: str) -> Script:
        """These lines after the present ones."""
        more = Script(*lines, names=self.names)
        more.text = f"{self.text}\n{more.text}"
        return more

    @property
    def nbytes(self) -> int:
        """Of all tensors among the names."""
        return sum(value.nbytes for value in self.names.values() if isinstance(value, Tensor))

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


def call(function: str, *arguments: str, **options: object) -> str:
    """A call as Python text; an option that is None is left out, so that only what was chosen is shown.

    Example:
        >>> call("problem.flow", "features", "weight", lr=0.1, bias=None)
        'problem.flow(features, weight, lr=0.1)'
    """
    chosen = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    return f"{function}({', '.join([*arguments, *chosen])})"


class Look(NamedTuple):
    """How a curve is drawn."""

    style: Line = "line"
    color: int = 0  # the place in the palette
    listed: bool = True  # in the legend
    hover: Sequence[str] | None = None


def panel_of(script: Script, xlabel: str, ylabel: str, looks: Mapping[str, Look] | None = None, **more: Any) -> Panel:
    """A panel of the `curves` that a script leaves: a dictionary of pairs (x, y) by the name of the curve.

    Arguments:
        script: What computed them, and what is shown for it.
        xlabel, ylabel: Of the axes.
        looks: By name, where a curve is not simply the next color.
        more: Further fields of :class:`Panel`.
    """
    curves = []
    for place, (name, (x, y)) in enumerate(script["curves"].items()):
        look = (looks or {}).get(name, Look(color=place))
        at = [float(value) for value in torch.as_tensor(x).tolist()]
        values: Tensor = torch.as_tensor(y, dtype=torch.float64)
        if at:
            curves.append(Curve(name, at, as_list(values), look.style, look.color, look.hover, look.listed))
    return Panel(xlabel, ylabel, curves, script.text, **more)
