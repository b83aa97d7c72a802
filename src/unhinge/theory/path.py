r"""What a solved path is: the questions that all of them answer, and those that are written once for all.

:class:`Path` is the interface. ``LinearPath``, ``AnchoredPath``, ``KernelPath`` and ``SphericalPath`` satisfy it and do
not know each other; what they would repeat are the functions below, which take what they need as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_of_state
from unhinge.theory.numerics import CHUNK, HUGE, LAST_STEP, differentiable_time, first_time_below
from unhinge.theory.state import State
from unhinge.theory.types import Number, Time
from unhinge.theory.validation import check_distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Path",
    "collapse_of_states",
    "concatenated",
    "described",
    "first_passages",
    "first_time",
    "horizon_of",
    "in_pieces",
    "passages",
    "share_of",
    "zero_start",
]


class Path(Protocol):
    r"""A solved path, exact at any time. :math:`Z` is :math:`(H, W)`, or :math:`H` alone under fixed prototypes.

    `time` is a time of a flow or a number of steps of a descent: one number, or a tensor, an array or a list of them.
    Answers have its shape, written :math:`(*)`, and the dtype and device of the features that the path was solved from.

    Example:
        >>> from unhinge import LayerPeeled
        >>> def last_distance(path: Path) -> float:
        ...     return path.distance(100.0).item()
        >>> features = torch.eye(4, 3, dtype=torch.float64)
        >>> weight = torch.eye(2, 3, dtype=torch.float64)
        >>> problem = LayerPeeled([0, 0, 1, 1])
        >>> [
        ...     f"{last_distance(path):.3g}"
        ...     for path in (
        ...         problem.flow(features, weight),
        ...         problem.anchored(features, weight),
        ...     )
        ... ]
        ['0.00164', '0.24']
    """

    @property
    def discrete(self) -> bool:
        """Whether time is counted in steps of a descent."""

    # ---- the state ---------------------------------------------------------------------------------------------------

    def at(self, time: Time) -> State:
        r"""The state: features :math:`(*, n, p)`, weight :math:`(*, C, p)`, bias :math:`(*, C)`. O(n p) a time."""

    def direction(self) -> State:
        r"""The limit of :math:`Z / \|Z\|` as the integrated rate grows without bound, or an error that names what is
        missing."""

    def limit(self) -> State:
        r"""The limit of :math:`Z` itself, or an error that says how it diverges."""

    # ---- scalar questions --------------------------------------------------------------------------------------------

    def loss(self, time: Time) -> Tensor:
        r"""Mean unhinged loss, without the decay terms."""

    def feature_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""

    def weight_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`."""

    def log_norm(self, time: Time) -> Tensor:
        r""":math:`\log\|Z\|`, finite where :math:`\|Z\|` itself overflows."""

    def distance(self, time: Time) -> Tensor:
        r""":math:`\| Z/\|Z\| - \text{direction} \|`, accurate however small."""

    def growth(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per unit of time at a constant rate `lr`, by default the one the schedule ends
        with."""

    def rate(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :meth:`distance` per unit of time at a constant rate, so it is negative."""

    def time_to(self, distance: Time) -> Tensor:
        """The first time at which :meth:`distance` is at most `distance`; infinite if never."""

    # ---- questions that look at classes or examples ------------------------------------------------------------------

    @property
    def labels(self) -> Tensor:
        """The class of each example, the most probable one of soft labels: (n,) int64."""

    def correct(self, time: Time) -> Tensor:
        r"""Whether the largest logit of each example is its label's, :math:`(*, n)` bool."""

    def accuracy(self, time: Time) -> Tensor:
        r"""The share of examples that are :meth:`correct`. Costs O(n C) a time."""

    def learned(self, fraction: float = 0.5) -> Tensor:
        r"""The first time (or step) at which that share of each class is :meth:`correct`, :math:`(C,)`; infinite if
        never. Costs some hundred questions of :meth:`accuracy`."""

    def collapse(self, time: Time) -> dict[str, Tensor]:
        """Neural-collapse measures: see :func:`unhinge.theory.collapse.collapse_measures`."""

    # ---- as a picture -----------------------------------------------------------------------------------------------

    def plot(self, times: Time | None = None) -> Figure:
        """Distance, norms, loss and accuracy over time as a matplotlib figure: see
        :func:`unhinge.theory.plotting.plot_path`."""


# ---- times and pieces of them ----------------------------------------------------------------------------------------


def in_pieces(question: Callable[[Tensor], Tensor], moments: Tensor, size: int) -> Tensor:
    """`question` of any number of times, asked for so many at once that about `CHUNK` numbers are held.

    Arguments:
        question: From times (m,) to answers (m, ...).
        moments: Times of any shape.
        size: The numbers that one time needs.
    """
    pieces = [question(piece) for piece in moments.reshape(-1).split(max(1, CHUNK // max(1, size)))]
    answers = torch.cat(pieces)
    return answers.reshape((*moments.shape, *answers.shape[1:]))


def share_of(correct: Callable[[Tensor], Tensor], moments: Tensor, size: int) -> Tensor:
    """The share of examples that are right, float64, from which of them are: `correct` turns (m,) into (m, n) bool."""
    return in_pieces(lambda piece: correct(piece).double().mean(-1), moments, size)


def concatenated(parts: list[dict[str, Tensor]], moments: Tensor, like: Tensor) -> dict[str, Tensor]:
    """Measures of several pieces of the times, each (m,), as measures of all of them, in the dtype of `like`."""
    return {key: torch.cat([part[key] for part in parts]).reshape(moments.shape).to(like) for key in parts[0]}


def collapse_of_states(
    state_at: Callable[[Tensor], State], moments: Tensor, labels: Tensor, num_classes: int
) -> list[dict[str, Tensor]]:
    """Measures of one state after the other, where a path knows no shorter way: each example may differ."""
    asked = moments.reshape(-1)
    some = asked if len(asked) else torch.zeros(1, dtype=asked.dtype)  # no times have measures too, of shape (0,)
    measures = [collapse_of_state(state_at(moment), labels, num_classes) for moment in some]
    return [{key: value[None][: len(asked)] for key, value in measure.items()} for measure in measures]


# ---- first passages --------------------------------------------------------------------------------------------------


def horizon_of(ends: float | None, discrete: bool) -> float:
    """The last time worth asking about: where the rates end, or as far as steps (int64) and times (float64) count."""
    if ends is None or not math.isfinite(ends):
        return float(LAST_STEP) if discrete else HUGE
    return float(math.ceil(ends)) if discrete else ends


def passages(
    distance: Time,
    measured: Callable[[Tensor], Tensor],
    ends: float | None,
    discrete: bool,
    speed: float = math.inf,
) -> Tensor:
    """The first time at which `measured` is at most each distance, in the shape of `distance`; infinite if never.

    Arguments:
        measured: From times to distances, float64.
        ends: The time after which all rates are zero; None if some rate stays positive.
        speed: What it cannot fall faster than, per unit of time.
    """
    horizon = horizon_of(ends, discrete)
    return first_passages(distance, lambda wanted: first_time(measured, wanted, horizon, discrete, speed))


def first_time(
    measured: Callable[[Tensor], Tensor], wanted: float, horizon: float, discrete: bool, speed: float = math.inf
) -> Tensor:
    """The first time at which `measured` is at most `wanted`, with its gradient where time is continuous."""
    with torch.no_grad():
        time = first_time_below(measured, wanted, horizon, discrete, speed)
    return torch.tensor(time, dtype=torch.float64) if discrete else differentiable_time(measured, time)


def first_passages(distance: Time, first: Callable[[float], Tensor]) -> Tensor:
    """`first` of each distance, in the shape of `distance`; a distance that cannot be reached is refused."""
    wanted = check_distances(distance)
    times = [first(value) for value in wanted.reshape(-1).tolist()]
    return torch.stack(times).reshape(wanted.shape) if times else torch.zeros_like(wanted)


def described(name: str, kind: str, **facts: float) -> str:
    """A path in one line: what it is, and the numbers that cost nothing."""
    return f"{name}({kind}, {', '.join(f'{key}={value:g}' for key, value in facts.items())})"


def zero_start() -> ValueError:
    """The error of a start that stays where it is."""
    return ValueError(
        "the start is zero and stays zero: Z/|Z| has no limit. Start from features or prototypes that are not all 0."
    )
