r"""A solved path of the free features and prototypes, and every question one can ask it.

Spectrum (labels), summary (start) and propagator (optimizer) meet here and nowhere else. After one pass over the
features each group of modes is known by the three numbers of a triangular factor of its rows (x, y): norms, loss and
distances at any time are algebra on 2 x 2 matrices. The full state is built only by :meth:`LinearPath.at`,
:meth:`~LinearPath.direction` and :meth:`~LinearPath.limit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.linear.propagators import Blocks, Propagator, safe_norm, safe_sqrt
from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.linear.summary import streamed_away
from unhinge.theory.state import State, fitting_scale
from unhinge.theory.targets import HardTargets, Targets

__all__ = ["LinearPath", "Start", "differentiable_time", "first_time_below", "scaled"]

CHUNK = 1 << 22  # numbers held at once by questions that need each example


@dataclass(frozen=True)
class Start:
    """The initial state in the coordinates of the modes; `features` and `targets` are missing after a streamed pass."""

    rows: Tensor  # (r, p), reduced features
    x: Tensor  # (rows, p)
    y: Tensor  # (rows, p)
    group: Tensor  # (rows,), the group of each row
    scatter: Tensor  # () float64, |H|^2 outside the modes
    aside: Tensor | None  # (C, p), prototypes outside the modes
    weight: Tensor  # (C, p)
    bias: Tensor | None  # (C,)
    features: Tensor | None  # (n, p)
    targets: Targets | None
    counts: Tensor  # (C,), examples per class

    @cached_property
    @torch.enable_grad()
    def factor(self) -> Tensor:
        r"""Triangular factor of each group's rows: coordinates of x and y in a plane, shape (G, side, 2).

        Norms and inner products at any time follow from these alone, and without the cancellation of a Gram matrix.
        """
        x, y = self.x.to("cpu", torch.float64), self.y.to("cpu", torch.float64)
        groups = int(self.group.max()) + 1

        def total(per_row: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=torch.float64).index_add(0, self.group, per_row)

        xx, xy = total(torch.linalg.vecdot(x, x)), total(torch.linalg.vecdot(x, y))
        slope = torch.where(xx > 0, xy / torch.where(xx > 0, xx, 1.0), 0.0)
        apart = y - slope[self.group, None] * x
        long, tall = safe_sqrt(xx), safe_sqrt(total(torch.linalg.vecdot(apart, apart)))
        zero = torch.zeros((), dtype=torch.float64)
        factor = torch.stack([long, torch.zeros_like(long), slope * long, tall], -1)
        aside = zero if self.aside is None else safe_sqrt(self.aside.to("cpu", torch.float64).pow(2).sum())
        rest = torch.stack([safe_sqrt(self.scatter), zero, zero, aside])
        result = torch.cat([factor, rest[None]]).unflatten(-1, (2, 2))
        if not torch.isfinite(result.detach()).all():
            raise ValueError(
                "the squared norm of the start overflows. The dynamics is linear: divide features and weight by one "
                "common factor, and the answers scale with it."
            )
        return result


@dataclass(frozen=True)
class LinearPath:
    """The exact path under gradient flow or descent; made by `LayerPeeled.flow` and `LayerPeeled.descent`."""

    spectrum: Spectrum
    propagator: Propagator
    start: Start
    drive: Tensor  # (C,) float64, constant pull on the biases
    weight_decay: Tensor  # ()
    discrete: bool

    # ---- the state ----------------------------------------------------------------------------------------

    def at(self, time: Any) -> State:
        r"""The state at each time (flow) or after each number of steps (descent)."""
        moments = self.propagator.times(time)
        blocks = self._blocks(moments)
        norm = self._log_norm(blocks)
        scale = fitting_scale(norm.detach(), self._dtype)
        matrix = torch.exp(blocks.log + (blocks.lead - scale)[..., None])[..., None, None] * blocks.matrix
        features, weight = self._assemble(matrix)
        return State(features, weight, self._bias(moments), self._like(scale))

    def direction(self) -> State:
        r"""The limit of :math:`Z / \|Z\|` as the integrated rate grows without bound  [eq: direction].

        A schedule that falls to zero stops short of it: there the state itself ends at :meth:`limit`.
        """
        self._check_start()
        features, weight = self._assemble(self._lead)
        return State(features, weight).normalized()

    def limit(self) -> State:
        r"""The limit of :math:`Z` itself; an error if it diverges.

        Biases without decay and with a constant pull run to infinity, and are returned as such.
        """
        ends = self._ends
        if ends is not None:
            return self.at(ends)
        features, weight = self._assemble(self.propagator.final())
        return State(features, weight, self._bias_limit())

    # ---- scalar questions: nothing of size n or p -----------------------------------------------------------

    def loss(self, time: Any) -> Tensor:
        r"""Mean unhinged loss :math:`-\sum_k \sigma_k\langle x_k, y_k\rangle - \kappa^\top b`, without decay terms
        [eq: loss-modes]."""
        moments = self.propagator.times(time)
        blocks = self._blocks(moments)
        rows = blocks.relative() @ self.start.factor
        inner = (rows[..., 0, :] * rows[..., 1, :]).sum(-1)
        total = -(self.spectrum.sigma * inner).sum(-1)
        value = scaled(total, 2 * blocks.lead)
        if self.start.bias is not None:
            value = value - self._bias64(moments) @ self.drive
        return self._like(value)

    def feature_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._side_norm(time, 0)

    def weight_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`."""
        return self._side_norm(time, 1)

    def log_norm(self, time: Any) -> Tensor:
        r""":math:`\log\|Z\|`, finite where :math:`\|Z\|` itself overflows."""
        return self._like(self._log_norm(self._blocks(self.propagator.times(time))))

    def distance(self, time: Any) -> Tensor:
        r""":math:`\| Z/\|Z\| - \text{direction} \|`, accurate however small  [eq: chord]."""
        self._check_start()
        return self._like(self._distance(self.propagator.times(time)))

    def growth(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per unit of time (per step in descent) at a constant rate  [eq: growth].

        Arguments:
            lr: The rate of the prototypes; by default the one the schedule ends with.
        """
        return self._like(self.propagator.growth(lr))

    def rate(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :meth:`distance`: it behaves as :math:`e^{\text{rate} \cdot t}`, so the rate is negative
        [eq: rate].

        Exact for this start: parts that it does not have do not count. Minus infinity if nothing but the direction is
        there.
        """
        self._check_start()
        return self._like(self.propagator.falls(lr).amax())

    def time_to(self, distance: Any) -> Tensor:
        """The first time (or step) at which :meth:`distance` is at most `distance`; infinite if never
        [eq: time-to]."""
        self._check_start()
        ends = self._ends
        horizon = (2.0**62 if self.discrete else 1e300) if ends is None else float(ends)
        wanted = torch.as_tensor(distance, dtype=torch.float64)
        found = [self._time_to(value, horizon) for value in wanted.reshape(-1).tolist()]
        return self._like(torch.stack(found).reshape(wanted.shape))

    # ---- questions that look at classes or examples -----------------------------------------------------------

    def accuracy(self, time: Any) -> Tensor:
        r"""Share of examples whose largest logit is their label's (soft labels: their most probable class).

        Uses prototypes minus their mean, so that a common part that is :math:`10^{16}` times larger does not drown the
        differences. Costs O(n C) per time.
        """
        start = self.start
        if start.features is None or start.targets is None:
            raise streamed_away("accuracy")
        moments = self.propagator.times(time)
        flat = moments.reshape(-1)
        with torch.no_grad():
            parts = [self._accuracy(piece) for piece in flat.split(self._times_at_once())]
        return self._like(torch.cat(parts).reshape(moments.shape))

    def collapse(self, time: Any) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = self.propagator.times(time)
        flat = moments.reshape(-1)
        parts = [self._collapse(piece) for piece in flat.split(max(1, CHUNK // self._collapse_size()))]
        keys = parts[0].keys() if parts else ()
        return {key: self._like(torch.cat([part[key] for part in parts]).reshape(moments.shape)) for key in keys}

    # ---- reduced coordinates ----------------------------------------------------------------------------------

    @property
    def _dtype(self) -> torch.dtype:
        return self.start.x.dtype

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.start.x.device, self._dtype)

    @cached_property
    @torch.enable_grad()  # kept for later questions, so never cut from the graph by whoever asks first
    def _lead(self) -> Tensor:
        return self.propagator.lead()

    def _blocks(self, moments: Tensor) -> Blocks:
        """The matrices at these times; the last ones are kept, since questions come in groups (but no gradients)."""
        if moments.requires_grad or self.propagator.requires_grad:
            return self.propagator.blocks(moments)
        if not (self._recent and torch.equal(self._recent[0][0], moments)):
            self._recent[:] = [(moments.clone(), self.propagator.blocks(moments))]
        return self._recent[0][1]

    @cached_property
    def _recent(self) -> list[tuple[Tensor, Blocks]]:
        return []

    @property
    def _ends(self) -> float | None:
        ends = self.propagator.ends
        return math.ceil(ends) if self.discrete and ends is not None else ends

    def _check_start(self) -> None:
        if not bool((self.start.factor.detach() != 0).any()):
            raise ValueError(
                "the start is zero and stays zero: Z/|Z| has no limit. Start from features or prototypes that are "
                "not all 0."
            )

    def _log_norm(self, blocks: Blocks) -> Tensor:
        squares = (blocks.relative() @ self.start.factor).pow(2).sum((-3, -2, -1))
        positive = squares > 0
        logs = torch.where(positive, squares, 1.0).log() / 2
        return torch.where(positive, blocks.lead + logs, -torch.inf)

    def _side_norm(self, time: Any, side: int) -> Tensor:
        blocks = self._blocks(self.propagator.times(time))
        rows = (blocks.relative() @ self.start.factor)[..., side, :]
        return self._like(scaled(safe_sqrt(rows.pow(2).sum((-2, -1))), blocks.lead))

    def _distance(self, moments: Tensor) -> Tensor:
        final = self._lead @ self.start.factor
        square = final.pow(2).sum()
        share, rest = self.propagator.split(moments, self._blocks(moments))
        rows = rest @ self.start.factor
        along = (rows * final).sum((-3, -2, -1)) / square
        across = safe_norm(rows - along[..., None, None, None] * final, 3)
        angle = torch.atan2(across, (share + along) * square.sqrt())
        return 2 * torch.sin(angle / 2)

    def _time_to(self, wanted: float, horizon: float) -> Tensor:
        def measured(moments: Tensor) -> Tensor:
            return self._distance(self.propagator.times(moments))

        if not wanted > 0:
            raise ValueError(f"the distance must be positive, got {wanted}; it is reached only in the limit.")
        with torch.no_grad():
            found = first_time_below(measured, wanted, horizon, self.discrete)
        if self.discrete or not math.isfinite(found) or found == 0:
            return torch.tensor(found, dtype=torch.float64)
        return differentiable_time(measured, found)

    # ---- biases -------------------------------------------------------------------------------------------------

    def _bias64(self, moments: Tensor) -> Tensor:
        assert self.start.bias is not None
        keep, push = self.propagator.bias(moments)
        return keep[..., None] * self.start.bias.double().cpu() + push[..., None] * self.drive

    def _bias(self, moments: Tensor) -> Tensor | None:
        return None if self.start.bias is None else self._like(self._bias64(moments))

    def _bias_limit(self) -> Tensor | None:
        if self.start.bias is None:
            return None
        decay = self.weight_decay
        if decay.item() > 0:
            return self._like(self.drive / decay)
        bias = self.start.bias.double().cpu()
        return self._like(torch.where(self.drive == 0, bias, torch.sign(self.drive) * torch.inf))

    # ---- the full state ---------------------------------------------------------------------------------------

    def _assemble(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Features and prototypes from the matrices of the groups (*, G, 2, 2)."""
        start = self.start
        if start.features is None or start.targets is None:
            raise streamed_away("the full state")
        small = self._like(matrix)
        x, y = self._rows(small)
        rows, weight = self.spectrum.synthesize(x, y)
        rest = small[..., -1, :, :]
        if start.aside is not None:
            weight = weight + rest[..., 1, 1, None, None] * start.aside
        keep = rest[..., 0, 0, None, None]
        features = keep * start.features + start.targets.expand(rows - keep * start.rows)
        return features, weight

    def _rows(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the modes at the times of `matrix` (*, G, 2, 2)."""
        per_row = matrix[..., self.spectrum.group.to(matrix.device), :, :]
        x, y = self.start.x, self.start.y
        return (
            per_row[..., 0, 0, None] * x + per_row[..., 0, 1, None] * y,
            per_row[..., 1, 0, None] * x + per_row[..., 1, 1, None] * y,
        )

    # ---- classes and examples, in the span of the modes ---------------------------------------------------------

    @cached_property
    @torch.enable_grad()
    def _compressed(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """x, y and the untouched prototypes in an orthonormal basis of their span, and that basis (p, q) if q < p."""
        start = self.start
        aside = start.x.new_zeros(0, start.x.shape[1]) if start.aside is None else start.aside
        stacked = torch.cat([start.x, start.y, aside]).to("cpu", torch.float64)
        basis = None
        if stacked.shape[0] < stacked.shape[1]:
            basis = torch.linalg.qr(stacked.mT)[0]
            stacked = stacked @ basis
        count = len(start.x)
        return stacked[:count], stacked[count : 2 * count], stacked[2 * count :], basis

    @cached_property
    @torch.enable_grad()
    def _residuals(self) -> Tensor:
        """What the modes do not see of each feature, on the basis of the modes: (n, q)."""
        start = self.start
        assert start.features is not None
        assert start.targets is not None
        apart = (start.features - start.targets.expand(start.rows)).to("cpu", torch.float64)
        basis = self._compressed[3]
        return apart if basis is None else apart @ basis

    def _small_state(self, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
        """Reduced features, prototypes on the basis of the modes, and the factor of the residuals; leading scale."""
        x, y, aside, _ = self._compressed
        matrix = blocks.relative()
        per_row = matrix[..., self.spectrum.group, :, :]
        rows, weight = self.spectrum.synthesize(
            per_row[..., 0, 0, None] * x + per_row[..., 0, 1, None] * y,
            per_row[..., 1, 0, None] * x + per_row[..., 1, 1, None] * y,
        )
        if len(aside):
            weight = weight + matrix[..., -1, 1, 1, None, None] * aside
        return rows, weight, matrix[..., -1, 0, 0]

    def _collapse_size(self) -> int:
        width = self._compressed[0].shape[1]
        return 8 * len(self.start.counts) * max(width, len(self.start.counts)) + width * width

    def _collapse(self, moments: Tensor) -> dict[str, Tensor]:
        start = self.start
        if not isinstance(start.targets, HardTargets | None):
            return self._collapse_of_states(moments)
        rows, weight, keep = self._small_state(self._blocks(moments))
        means = rows / start.counts.double().sqrt()[:, None]
        size = start.counts.sum().double()
        within = None
        if start.features is not None:
            residuals = self._residuals
            within = keep[..., None, None] ** 2 * (residuals.mT @ residuals / size)
        return collapse_measures(means, weight, keep**2 * start.scatter / size, within)

    def _collapse_of_states(self, moments: Tensor) -> dict[str, Tensor]:
        """Soft labels: the classes are those of the most probable label, so the state itself is needed."""
        assert self.start.targets is not None
        labels = self.start.targets.labels
        counts = torch.bincount(labels, minlength=len(self.start.weight)).double().clamp(min=1)
        rows = []
        for moment in moments:
            state = self.at(moment).normalized()  # the measures do not depend on the scale
            features, weight = state.features.double().cpu(), state.weight.double().cpu()
            means = torch.zeros_like(weight).index_add(0, labels, features) / counts[:, None]
            apart = features - means[labels]
            within = apart.mT @ apart / len(labels)
            rows.append(collapse_measures(means, weight, within.trace(), within))
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    def _times_at_once(self) -> int:
        count = len(self.start.targets.labels) if self.start.targets is not None else 1
        return max(1, CHUNK // (count * len(self.start.weight)))

    def _accuracy(self, moments: Tensor) -> Tensor:
        start = self.start
        assert start.targets is not None
        x, y, aside, _ = self._compressed
        blocks = self._blocks(moments)
        read_out = self.spectrum.read_out()
        # the prototypes at their own scale: their differences may be far below the common part that leads
        reads = torch.zeros(len(self.spectrum.sigma), dtype=torch.bool)
        reads[self.spectrum.group] = (read_out.abs().amax(0) > 0) & ((x.abs() + y.abs()).amax(1) > 0)
        reads[-1] = len(aside) > 0
        own = torch.where(reads, blocks.log, -torch.inf).amax(-1)
        own = torch.where(torch.isfinite(own), own, 0.0)
        head = torch.exp(torch.where(reads, blocks.log - own[..., None], -torch.inf))[..., None, None] * blocks.matrix
        head = torch.where(reads[:, None, None], head, 0.0)
        per_row = head[..., self.spectrum.group, 1, :]
        weight = read_out @ (per_row[..., 0, None] * x + per_row[..., 1, None] * y)
        if len(aside):
            weight = weight + head[..., -1, 1, 1, None, None] * (aside - aside.mean(0))
        rows, _, keep = self._small_state(blocks)
        logits = start.targets.expand(rows @ weight.mT)
        if bool((keep != 0).any()):
            logits = logits + keep[..., None, None] * (self._residuals @ weight.mT)
        if start.bias is not None:
            bias = self._bias64(moments)
            log = 2 * blocks.lead + own
            logits = torch.exp(log.clamp(max=0))[..., None, None] * logits
            logits = logits + (torch.exp(-log.clamp(min=0))[..., None] * bias)[..., None, :]
        return (logits.argmax(-1) == start.targets.labels.cpu()).double().mean(-1)


def scaled(value: Tensor, log: Tensor) -> Tensor:
    """value * exp(log), infinite where that overflows but never 0 * inf."""
    return torch.where(value == 0, value, value * torch.exp(torch.where(value == 0, 0.0, log)))


def differentiable_time(measured: Callable[[Tensor], Tensor], found: float) -> Tensor:
    """`found` with its derivative in all that `measured` depends on: one Newton step, which leaves the value alone."""
    moment = torch.tensor(found, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(measured(moment).log(), moment)
    now = measured(moment.detach()).log()
    return moment.detach() - (now - now.detach()) / slope


def first_time_below(measured: Callable[[Tensor], Tensor], wanted: float, horizon: float, discrete: bool) -> float:
    """The first time at which `measured` is at most `wanted`, by growing and then dividing a bracket.

    Dips narrower than a 256th of the bracket are not seen.
    """
    start = torch.zeros((), dtype=torch.float64)
    if measured(start) <= wanted:
        return 0.0
    low, high = 0.0, 1.0
    while measured(torch.tensor(min(high, horizon), dtype=torch.float64)) > wanted:
        if high >= horizon:
            return math.inf
        high *= 16
    high = min(high, horizon)
    for _ in range(40):
        grid = torch.linspace(low, high, 257, dtype=torch.float64)
        if discrete:
            grid = grid.round().unique()
        below = measured(grid) <= wanted
        first = int(below.double().argmax())
        low, high = grid[max(first - 1, 0)].item(), grid[first].item()
        if (discrete and high - low <= 1) or high - low <= 4e-16 * high:
            break
    return high
