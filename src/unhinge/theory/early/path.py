r"""The first phase of a real loss, as a path that knows how far it can be trusted  [eq: early-path]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.theory.early.certificate import Certificate
from unhinge.theory.numerics import LARGEST_EXPONENT
from unhinge.theory.path import Path
from unhinge.theory.state import State
from unhinge.theory.types import Number, Time
from unhinge.theory.validation import check_number, check_steps, check_times, scalar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EarlyPath"]

ROUNDING = 64  # units in the last place that a state may be off: what the exact path itself promises
LATEST = 1e15  # of the times looked at: 1e15 + 1 is still another float64


@dataclass(frozen=True, kw_only=True, repr=False)
class EarlyPath:
    r"""The path of a loss linearized at zero logits; made by `EarlyCrossEntropy` and `Linearized`.

    It answers every question of :class:`~unhinge.theory.path.Path` exactly for the linear loss. :meth:`error_bound` and
    :meth:`horizon` say how far that is from the real loss; later answers, such as :meth:`direction`, are about the
    linear loss alone.
    """

    linear: Path
    scale: Tensor  # (), of the linear loss
    base: float  # the real loss at zero logits
    discrete: bool
    certificate: Certificate | None  # None: nothing is proved

    # ---- how far to trust it -----------------------------------------------------------------------------------------

    def error_bound(self, time: Time) -> Tensor:
        r"""A proved upper bound of the relative error of the state, shape of `time`; infinite where nothing is proved
        [eq: certificate].

        With :math:`X` the state (features, weight and bias) that the real loss reaches from the same start under the
        same optimizer, and :math:`\hat X` that of :meth:`at`: the bound of :math:`\|X - \hat X\| / \|\hat X\|`, where
        :math:`\|\hat X\|` is that of features and weight. It holds in exact arithmetic; the computed number is rounded
        upwards, and 64 units in the last place of the state's dtype are added for the rounding of the state itself. The
        first call costs one pass over the features and some hundred small matrix products, later ones nothing in n.

        Example:
            >>> from unhinge.theory import EarlyCrossEntropy
            >>> generator = torch.Generator().manual_seed(0)
            >>> features = 0.01 * torch.randn(
            ...     12, 8, generator=generator, dtype=torch.float64
            ... )
            >>> weight = 0.01 * torch.randn(3, 8, generator=generator, dtype=torch.float64)
            >>> path = EarlyCrossEntropy(torch.arange(12) % 3).descent(
            ...     features, weight, lr=0.1
            ... )
            >>> path.error_bound([0, 10, 10000]) < 0.001
            tensor([ True,  True, False])
        """
        moments = check_steps(time) if self.discrete else check_times(time)
        bounds = torch.tensor(self._bounds(moments.reshape(-1).tolist()), dtype=torch.float64)
        return self._upwards(bounds.reshape(moments.shape))

    def horizon(self, tolerance: float = 0.1) -> Tensor:
        """The last time (or step) at which :meth:`error_bound` is at most `tolerance`.

        Infinite if all rates fall to zero before; 0 if nothing is proved. Where growth is many
        thousands of times slower than a decay, the proof is given up after some seconds, and the horizon is how far it
        had come. So it is after 262,144 steps at a rate that is given as a function.
        """
        check_number("the tolerance", tolerance)
        if not tolerance > 0:
            raise ValueError(f"the tolerance must be positive, got {tolerance}: it is a relative error.")
        certificate = self.certificate
        if certificate is None:
            return self._like(torch.zeros((), dtype=torch.float64))
        certificate.extend(LATEST)
        nodes, bounds = certificate.ladder()
        held = [k for k, bound in enumerate(self._all_relative(nodes, bounds)) if bound <= tolerance]
        last = held[-1] if held else 0
        if last == len(nodes) - 1:
            return self._downwards(math.inf if certificate.resting else nodes[-1])
        low, high = nodes[last], nodes[last + 1]
        while high - low > (1 if self.discrete else 1e-12 * high):  # the last digits of a bound mean nothing
            middle = math.floor((low + high) / 2) if self.discrete else (low + high) / 2
            low, high = (middle, high) if self._bounds([middle])[0] <= tolerance else (low, middle)
        return self._downwards(low)

    def learned(self, fraction: float = 0.5) -> Tensor:
        r"""The first time (or step) at which that share of each class is right, :math:`(C,)`; infinite if never
        [eq: learned].

        See :func:`unhinge.theory.learned.learned`. A time beyond :meth:`horizon` is the linear loss's, not the real
        one's.
        """
        return self.linear.learned(fraction)

    def loss(self, time: Time) -> Tensor:
        r"""The real loss to first order in the logits: its value at zero, plus the linear loss.

        Example:
            >>> from unhinge.theory import EarlyCrossEntropy
            >>> features = torch.zeros(4, 2, dtype=torch.float64)
            >>> weight = torch.eye(2, dtype=torch.float64)
            >>> EarlyCrossEntropy([0, 0, 1, 1]).flow(features, weight).loss(0.0).exp()
            tensor(2., dtype=torch.float64)
        """
        linear = self.linear.loss(time)
        return (self.base + self.scale * linear).to(linear)

    # ---- the questions of every path ---------------------------------------------------------------------------------

    def at(self, time: Time) -> State:
        """The state at each time (flow) or after each number of steps (descent)."""
        return self.linear.at(time)

    def direction(self) -> State:
        r"""The limit of :math:`Z / \|Z\|` under the linear loss: where the real one leaves to."""
        return self.linear.direction()

    def limit(self) -> State:
        r"""The limit of :math:`Z` under the linear loss; an error if it diverges."""
        return self.linear.limit()

    def feature_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self.linear.feature_norm(time)

    def weight_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`."""
        return self.linear.weight_norm(time)

    def log_norm(self, time: Time) -> Tensor:
        r""":math:`\log\|Z\|`, finite where :math:`\|Z\|` itself overflows."""
        return self.linear.log_norm(time)

    def distance(self, time: Time) -> Tensor:
        r""":math:`\| Z/\|Z\| - \text{direction} \|`."""
        return self.linear.distance(time)

    def growth(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per unit of time at a constant rate of the real loss."""
        return self.linear.growth(None if lr is None else self.scale * scalar("lr", lr))

    def rate(self, lr: Number | None = None) -> Tensor:
        """Exponent of :meth:`distance` per unit of time at a constant rate of the real loss."""
        return self.linear.rate(None if lr is None else self.scale * scalar("lr", lr))

    def time_to(self, distance: Time) -> Tensor:
        """The first time at which :meth:`distance` is at most `distance`; infinite if never."""
        return self.linear.time_to(distance)

    @property
    def labels(self) -> Tensor:
        """The class of each example, the most probable one of soft labels: (n,) int64."""
        return self.linear.labels

    def correct(self, time: Time) -> Tensor:
        r"""Whether the largest logit of each example is its label's, :math:`(*, n)` bool."""
        return self.linear.correct(time)

    def accuracy(self, time: Time) -> Tensor:
        """Share of examples whose largest logit is their label's."""
        return self.linear.accuracy(time)

    def collapse(self, time: Time) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        return self.linear.collapse(time)

    def plot(self, times: Time | None = None) -> Figure:
        """Distance, norms, loss and accuracy over time, with the horizon of a tenth as a line."""
        from unhinge.theory.plotting import plot_path

        figure = plot_path(self, times)
        horizon = self.horizon(0.1).item()
        for axes in figure.axes:
            low, high = axes.get_xlim()
            if low < horizon < high:
                axes.axvline(horizon, color="0.4", linestyle=":")
        return figure

    def __repr__(self) -> str:
        return f"EarlyPath({self.linear!r}, scale={self.scale.item():.4g})"

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def _bounds(self, times: list[float]) -> list[float]:
        certificate = self.certificate
        if certificate is None or not times:
            return [math.inf] * len(times)
        certificate.extend(max(times))
        return self._all_relative(times, [certificate.bound(float(time)) for time in times])

    def _all_relative(self, times: list[float], bounds: list[float]) -> list[float]:
        """Bounds at these times over the norms of the state there, of which nothing is asked where none is proved:
        biases may have left the range of floats."""
        assert self.certificate is not None
        proved = [k for k, bound in enumerate(bounds) if math.isfinite(bound)]
        relative = [math.inf] * len(bounds)
        moments = torch.tensor([times[k] for k in proved], dtype=torch.float64)
        logs = self.certificate.log_norm(moments).tolist()
        biases = getattr(self.linear, "biases", None)
        lengths = [0.0] * len(proved)
        if biases is not None:
            lengths = biases.at(biases.symbol.times(moments)).detach().norm(dim=-1).tolist()
        unit = ROUNDING * torch.finfo(self._like(torch.zeros(())).dtype).eps
        # of features and prototypes, and of biases, which may be far longer
        for k, log, length in zip(proved, logs, lengths, strict=True):
            relative[k] = self._relative(bounds[k], log) + unit + self._relative(unit * length, log)
        return relative

    @staticmethod
    def _relative(absolute: float, log: float) -> float:
        """An absolute bound over a norm given by its logarithm, rounded upwards."""
        if absolute == 0:
            return 0.0
        if not math.isfinite(absolute) or not -LARGEST_EXPONENT < log < LARGEST_EXPONENT:
            return math.inf
        return absolute / math.exp(log) * (1 + 1e-9)  # above the rounding of a logarithm of 700, 1e-13

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.linear.log_norm(0))

    def _upwards(self, bounds: Tensor) -> Tensor:
        """In the dtype of the state, never below the value."""
        rounded = self._like(bounds)
        up = torch.nextafter(rounded, torch.full_like(rounded, math.inf))
        return torch.where(rounded.double() < bounds.to(rounded.device), up, rounded)

    def _downwards(self, time: float) -> Tensor:
        """In the dtype of the state, never above the value: a little later the bound would be above the tolerance."""
        rounded = self._like(torch.tensor(time, dtype=torch.float64))
        return torch.nextafter(rounded, torch.zeros_like(rounded)) if rounded.item() > time else rounded
