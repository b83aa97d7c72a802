r"""A solved path of the free features and prototypes, and every question one can ask it.

Spectrum (labels), summary (start) and propagator (optimizer) meet here and nowhere else. After one pass over the
features each group of modes is known by the three numbers of a triangular factor of its rows (x, y): norms, loss and
distances at any time are algebra on 2 x 2 matrices. The full state is built only by :meth:`LinearPath.at`,
:meth:`~LinearPath.direction` and :meth:`~LinearPath.limit`.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.keeping import kept
from unhinge.theory.learned import learned
from unhinge.theory.linear.biases import Biases
from unhinge.theory.linear.blocks import Blocks
from unhinge.theory.linear.commuting import Commuting
from unhinge.theory.linear.decisions import Decisions
from unhinge.theory.linear.propagators import Propagator
from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.linear.start import Start
from unhinge.theory.linear.summary import streamed_away
from unhinge.theory.numerics import CHUNK, safe_norm, scaled, spanned, widened
from unhinge.theory.path import (
    collapse_of_states,
    concatenated,
    described,
    in_pieces,
    passages,
    share_of,
    zero_start,
)
from unhinge.theory.state import State, fitting_scale
from unhinge.theory.targets import combined
from unhinge.theory.types import Number, Time
from unhinge.theory.validation import check_distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LinearPath", "Reduced"]

ROUNDED = 1e-13  # of the distance along an ordered product of matrices; 3e-16 was seen, and it grows with the steps


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The state on the q directions of feature space that the modes span, in float64: nothing of size n or p.

    Features are reduced rows (scaled class means, for integer labels) plus `keep` times what :attr:`LinearPath.outside`
    holds of each example.
    """

    rows: Tensor  # (*, r, q)
    weight: Tensor  # (*, C, q)
    keep: Tensor  # (*,)
    bias: Tensor | None  # (*, C)


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearPath:
    r"""The exact path under gradient flow or descent; made by `LayerPeeled.flow` and `LayerPeeled.descent`.

    In the coordinates of the modes a state is :math:`(x_k(t), y_k(t)) = \Phi(\sigma_k, t)\,(x_k(0), y_k(0))`
    [eq: propagator]. Scalar questions cost O(G) per time for G groups of modes, whatever n and p.

    Example:
        >>> from unhinge import LayerPeeled
        >>> path = LayerPeeled([0, 0, 1, 1]).flow(
        ...     [[1.0, 0], [0, 1], [0, 2], [1, 3]], [[1.0, 0], [0, 1]], lr=0.1
        ... )
        >>> path
        LinearPath(flow, examples=4, classes=2, dim=2, growth=0.0707107,
         rate=-0.0707107)
        >>> path.accuracy([0, 20])
        tensor([0.7500, 1.0000], dtype=torch.float64)
        >>> path.time_to(0.01)
        tensor(73.6141, dtype=torch.float64)
    """

    spectrum: Spectrum
    propagator: Propagator
    start: Start
    biases: Biases | None
    discrete: bool

    def __repr__(self) -> str:
        classes, dim = self.start.weight.shape
        exponents = {}
        # A closed form tells its exponents at once, where its rate does not fall to zero; an ordered product would have
        # to be multiplied first.
        if isinstance(self.propagator, Commuting) and self.propagator.symbol.shape.floor > 0:
            exponents["growth"] = self.growth().item()
            with suppress(ValueError):  # a start of zero comes near to nothing
                exponents["rate"] = self.rate().item()
        kind = "descent" if self.discrete else "flow"
        size = round(self.start.counts.sum().item())
        return described("LinearPath", kind, examples=size, classes=classes, dim=dim, **exponents)

    # ---- the state ---------------------------------------------------------------------------------------------------

    def at(self, time: Time) -> State:
        r"""The state at each time (flow) or after each number of steps (descent)."""
        moments = self.propagator.times(time)
        blocks = self._blocks(moments)
        norm = self._log_norm(blocks)
        scale = fitting_scale(norm.detach(), self.start.like.dtype)
        lead = blocks.lead - scale
        # A start of zeros has no scale, and infinity times zero is NaN: only its slope grows, as far as numbers go.
        room = 0.9 * math.log(torch.finfo(self.start.like.dtype).max)
        lead = torch.where(torch.isneginf(norm), lead.clamp(max=room), lead)
        features, weight = blocks.carry(lambda matrix: self._assemble(matrix, self.start.unit), lead[..., None])
        bias = None if self.biases is None else self.biases.at(moments).to(self.start.like)
        return State(features, weight, bias, scale.to(self.start.like))

    def direction(self) -> State:
        r"""The limit of :math:`Z / \|Z\|` as the integrated rate grows without bound  [eq: direction].

        A schedule that falls to zero stops short of it: there the state itself ends at :meth:`limit`.
        """
        self._check_start()
        lead = self._lead
        return State(*self._assemble(lead / safe_norm(lead @ self.start.factor, 3)))

    def limit(self) -> State:
        r"""The limit of :math:`Z` itself; an error if it diverges.

        Biases without decay and with a constant pull run to infinity, and are returned as such.
        """
        ends = self._ends
        if ends is not None:
            return self.at(ends)
        features, weight = self._assemble(self.propagator.final(), self.start.unit)
        return State(features, weight, None if self.biases is None else self.biases.limit().to(self.start.like))

    def reduced(self, time: Time) -> Reduced:
        """The state in reduced coordinates, for norms that must not cost anything in n or p."""
        moments = self.propagator.times(time)
        blocks = self._blocks(moments)
        rows, weight, keep = self._small_state(blocks)
        scale = self.start.unit * torch.exp(blocks.lead)
        wide = scale[..., None, None]
        bias = None if self.biases is None else self.biases.at(moments)
        return Reduced(rows=wide * rows, weight=wide * weight, keep=scale * keep, bias=bias)

    @property
    def outside(self) -> tuple[Tensor, Tensor | None] | None:
        """What the modes do not see of each feature at the start, (n, p) float64, and the directions (p, q) of
        :meth:`reduced`, if they are fewer than p; None after a streamed pass."""
        start = self.start
        if start.features is None or start.targets is None:
            return None
        apart = (widened(start.features) - start.targets.expand(start.rows)).cpu()
        return start.unit * apart, self._compressed[3]

    # ---- scalar questions: nothing of size n or p --------------------------------------------------------------------

    def loss(self, time: Time) -> Tensor:
        r"""Mean unhinged loss :math:`-\sum_k \sigma_k\langle x_k, y_k\rangle - \kappa^\top b`, without decay terms
        [eq: loss-modes]."""
        moments = self.propagator.times(time)
        blocks = self._blocks(moments)
        rows = blocks.act(self.start.factor)
        inner = (rows[..., 0, :] * rows[..., 1, :]).sum(-1)
        total = -(self.spectrum.sigma * inner).sum(-1)
        value = self.start.unit * (self.start.unit * scaled(total, 2 * blocks.lead))
        if self.biases is not None:
            value = value - self.biases.at(moments) @ self.biases.drive
        return value.to(self.start.like)

    def feature_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._side_norm(time, 0)

    def weight_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`."""
        return self._side_norm(time, 1)

    def log_norm(self, time: Time) -> Tensor:
        r""":math:`\log\|Z\|`, finite where :math:`\|Z\|` itself overflows."""
        return self._log_norm(self._blocks(self.propagator.times(time))).to(self.start.like)

    def distance(self, time: Time) -> Tensor:
        r""":math:`\| Z/\|Z\| - \text{direction} \|`, accurate however small (but see :meth:`time_to`)  [eq: chord]."""
        self._check_start()
        return self._distance(self.propagator.times(time)).to(self.start.like)

    def growth(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per unit of time (per step in descent) at a constant rate  [eq: growth].

        Arguments:
            lr: The rate of the prototypes; by default the one the schedule ends with.
        """
        return self.propagator.growth(lr).to(self.start.like)

    def rate(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :meth:`distance`: it behaves as :math:`e^{\text{rate} \cdot t}`, so the rate is negative
        [eq: rate].

        Exact for this start: parts that it does not have do not count. Minus infinity if nothing but the direction is
        there.
        """
        self._check_start()
        return self.propagator.falls(lr).amax().to(self.start.like)

    def time_to(self, distance: Time) -> Tensor:
        """The first time (or step) at which :meth:`distance` is at most `distance`; infinite if never
        [eq: time-to].

        Where the rates of features and prototypes are not proportional, a distance below :data:`ROUNDED` is refused:
        products of many matrices are rounded, and :meth:`distance` never falls below that.
        """
        self._check_start()
        wanted = check_distances(distance)
        if not isinstance(self.propagator, Commuting) and bool((wanted < ROUNDED).any()):
            raise ValueError(
                f"time_to() needs a distance of at least {ROUNDED:g} here, got {wanted.min().item():g}: the rates of "
                "features and prototypes are not proportional, and what is below is rounding. Ask for a larger one and "
                "add log(larger / smaller) / -rate()."
            )

        def measured(time: Tensor) -> Tensor:
            return self._distance(self.propagator.times(time))

        return passages(distance, measured, self._ends, self.discrete, speed=self._turning).to(self.start.like)

    # ---- questions that look at classes or examples ------------------------------------------------------------------

    @property
    def labels(self) -> Tensor:
        """The class of each example, the most probable one of soft labels: (n,) int64."""
        if self.start.targets is None:
            raise streamed_away("the label of each example")
        return self.start.targets.labels

    def correct(self, time: Time) -> Tensor:
        r"""Whether the largest logit of each example is its label's, :math:`(*, n)` bool.

        Uses prototypes minus their mean, so that a common part that is :math:`10^{16}` times larger does not drown the
        differences. Costs O(n C) per time.
        """
        moments = self.propagator.times(time)
        return in_pieces(self._correct, moments, self._numbers_per_time()).to(self.start.like.device)

    def accuracy(self, time: Time) -> Tensor:
        r"""Share of examples whose largest logit is their label's (soft labels: their most probable class):
        the mean of :meth:`correct`."""
        moments = self.propagator.times(time)
        size = self._numbers_per_time()
        return share_of(self._correct, moments, size).to(self.start.like)

    def learned(self, fraction: float = 0.5) -> Tensor:
        r"""The first time (or step) at which that share of each class is right, :math:`(C,)`; infinite if never
        [eq: learned]. See :func:`unhinge.theory.learned.learned`."""
        return learned(self, len(self.start.weight), fraction, self._ends, self._correct_of).to(self.start.like)

    def collapse(self, time: Time) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = self.propagator.times(time)
        if not self.start.by_class:
            # soft labels: the classes are those of the most probable label, so the states themselves are needed
            parts = collapse_of_states(self.at, moments, self.labels, len(self.start.weight))
        else:
            pieces = moments.reshape(-1).split(max(1, CHUNK // self._collapse_size()))
            parts = [self._collapse(piece) for piece in pieces]
        return concatenated(parts, moments, like=self.start.like)

    def plot(self, times: Time | None = None) -> Figure:
        """Distance, norms, loss and accuracy over time, as a matplotlib figure."""
        from unhinge.theory.plotting import plot_path

        return plot_path(self, times)

    # ---- reduced coordinates -----------------------------------------------------------------------------------------

    @kept
    def _lead(self) -> Tensor:
        return self.propagator.lead()

    def _blocks(self, moments: Tensor) -> Blocks:
        """The matrices at these times; the last ones are kept, since questions come in groups (but no gradients)."""
        if moments.requires_grad or self.propagator.requires_grad:
            return self.propagator.blocks(moments)
        # One entry that is read and replaced as a whole: threads may overwrite it, but never mix it.
        recent: tuple[Tensor, Blocks] | None = self.__dict__.get("_recent")
        if recent is None or not torch.equal(recent[0], moments):
            with torch.inference_mode(False), torch.no_grad():
                recent = moments.clone(), self.propagator.blocks(moments)
            self.__dict__["_recent"] = recent
        return recent[1]

    @property
    def _ends(self) -> float | None:
        ends = self.propagator.ends
        return math.ceil(ends) if self.discrete and ends is not None else ends

    @property
    def _turning(self) -> float:
        r"""What :math:`Z/\|Z\|` cannot turn faster than, per unit of time: the norm of the generator; infinite if not
        known."""
        if not isinstance(self.propagator, Commuting) or self.discrete:
            return math.inf
        rates = self.propagator.rates
        fastest = max(rates.features.item(), rates.weight.item()) * self.propagator.symbol.shape.highest
        decay = max(rates.feature_decay.item(), rates.weight_decay.item())
        return fastest * (self.spectrum.sigma.max().item() + decay)

    def _check_start(self) -> None:
        if not bool((self.start.factor.detach() != 0).any()):
            raise zero_start()

    def _log_norm(self, blocks: Blocks) -> Tensor:
        squares = blocks.act(self.start.factor).pow(2).sum((-3, -2, -1))
        positive = squares > 0
        logs = torch.where(positive, squares, 1.0).log() / 2 + math.log(self.start.unit)
        return torch.where(positive, blocks.lead + logs, -torch.inf)

    def _side_norm(self, time: Time, side: int) -> Tensor:
        blocks = self._blocks(self.propagator.times(time))
        rows = blocks.act(self.start.factor)[..., side, :]
        return (self.start.unit * scaled(safe_norm(rows, 2), blocks.lead)).to(self.start.like)

    @kept
    def _target(self) -> tuple[Tensor, Tensor]:
        """What the leading matrices make of the start, (G, 2, 2), and its square."""
        final = self._lead @ self.start.factor
        return final, final.pow(2).sum()

    def _distance(self, moments: Tensor) -> Tensor:
        final, square = self._target
        share, rest = self.propagator.split(moments, self._blocks(moments))
        rows = rest @ self.start.factor
        along = (rows * final).sum((-3, -2, -1)) / square
        across = safe_norm(rows - along[..., None, None, None] * final, 3)
        angle = torch.atan2(across, (share + along) * square.sqrt())
        return 2 * torch.sin(angle / 2)

    # ---- the full state ----------------------------------------------------------------------------------------------

    def _assemble(self, matrix: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Features and prototypes from the matrices of the groups (*, G, 2, 2), times a factor."""
        start = self.start
        if start.features is None or start.targets is None:
            raise streamed_away("the full state")
        small = matrix.to(start.x.device)
        per_row = small[..., self.spectrum.group.to(small.device), :, :]
        rows, weight = self.spectrum.synthesize(*_mixed(per_row, start.x, start.y))
        rest = small[..., -1, :, :]
        if start.aside is not None:
            weight = weight + rest[..., 1, 1, None, None] * start.aside
        keep = rest[..., 0, 0, None, None]
        features = combined(start.targets, keep, start.features, rows - keep * start.rows, factor)
        return features, (factor * weight).to(start.like)

    # ---- classes and examples, in the span of the modes --------------------------------------------------------------

    @kept
    def _compressed(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """x, y and the untouched prototypes in an orthonormal basis of their span, and that basis (p, q) if q < p."""
        start = self.start
        aside = start.x.new_zeros(0, start.x.shape[1]) if start.aside is None else start.aside
        stacked, basis = spanned(torch.cat([start.x, start.y, aside]).to("cpu", torch.float64))
        count = len(start.x)
        return stacked[:count], stacked[count : 2 * count], stacked[2 * count :], basis

    @kept
    def _residuals(self) -> Tensor:
        """What the modes do not see of each feature, on the basis of the modes: (n, q)."""
        start = self.start
        assert start.features is not None
        assert start.targets is not None
        apart = (widened(start.features) - start.targets.expand(start.rows)).cpu()
        basis = self._compressed[3]
        return apart if basis is None else apart @ basis

    def _small_state(self, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
        """Reduced features, prototypes on the basis of the modes, and the factor of the residuals; leading scale."""
        x, y, aside, _ = self._compressed

        def carried(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            rows, weight = self.spectrum.synthesize(*_mixed(matrix[..., self.spectrum.group, :, :], x, y))
            if len(aside):
                weight = weight + matrix[..., -1, 1, 1, None, None] * aside
            return rows, weight, matrix[..., -1, 0, 0]

        rows, weight, keep = blocks.carry(carried)
        return rows, weight, keep

    def _collapse_size(self) -> int:
        width = self._compressed[0].shape[1]
        return 8 * len(self.start.counts) * max(width, len(self.start.counts)) + width * width

    def _collapse(self, moments: Tensor) -> dict[str, Tensor]:
        start = self.start
        rows, weight, keep = self._small_state(self._blocks(moments))
        means = rows / start.counts.double().sqrt()[:, None]
        size = start.counts.sum().double()
        within = None
        if start.features is not None:
            residuals = self._residuals
            within = keep[..., None, None] ** 2 * (residuals.mT @ residuals / size)
        return collapse_measures(means, weight, (keep * start.spread) ** 2 / size, within)

    # ---- which examples are right ------------------------------------------------------------------------------------

    def _numbers_per_time(self) -> int:
        if self.start.features is None or self.start.targets is None:
            raise streamed_away("accuracy")
        return len(self.start.features) * len(self.start.weight)

    @kept
    def _decisions(self) -> Decisions:
        x, y, aside, _ = self._compressed
        assert self.start.targets is not None
        return Decisions(
            spectrum=self.spectrum,
            targets=self.start.targets,
            x=x.detach(),
            y=y.detach(),
            aside=aside.detach(),
            residuals=self._residuals.detach(),
        )

    def _correct_of(self, time: Tensor, some: Tensor) -> Tensor:
        """:meth:`correct` of some examples, at times (m,): (m, k) bool."""
        moments, size = self.propagator.times(time), len(some) * len(self.start.weight)
        return in_pieces(lambda piece: self._correct(piece, some), moments, size)

    @torch.no_grad()
    def _correct(self, moments: Tensor, some: Tensor | None = None) -> Tensor:
        """Whether each example, or each of some, is right at each of the times (m,): (m, n) bool."""
        biases = None if self.biases is None else self.biases.apart(moments)
        blocks = self._blocks(moments)
        # biases have a scale of their own, so here the unit of the start counts
        return self._decisions.correct(replace(blocks, lead=blocks.lead + math.log(self.start.unit)), biases, some)


def _mixed(matrix: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (*, rows, p) of features and prototypes after each row's matrix (*, rows, 2, 2)."""
    return (
        matrix[..., 0, 0, None] * x + matrix[..., 0, 1, None] * y,
        matrix[..., 1, 0, None] * x + matrix[..., 1, 1, None] * y,
    )
