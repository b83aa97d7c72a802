r"""Propagators where the steps do not commute: rates of features and prototypes that are not proportional, a frozen
side, or momentum with unequal decoupled decays  [eq: ordered].

One small matrix per step or panel, multiplied in order by :mod:`unhinge.theory.linear.products`. The limit is read
off the matrix that the schedule settles on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.linear.blocks import Blocks, Rates, survival
from unhinge.theory.linear.commuting import seen, tilts
from unhinge.theory.linear.momentum import Momentum
from unhinge.theory.linear.products import normalized, ordered_products, scan
from unhinge.theory.numerics import LAST_STEP, TINY, falling, safe_divide, safe_sqrt
from unhinge.theory.schedules import Schedule, needs_gradient
from unhinge.theory.types import Number, Time
from unhinge.theory.validation import check_steps, check_times

__all__ = ["DescentSteps", "FlowPanels", "Motion", "Ordered", "flow_matrix"]

STAGES = 8  # Gauss collocation of order 16: panels are as long as the schedules are smooth, and few

# Panels of 2 x 2 systems followed before giving up: some 100 MB at a hundred groups, reached only by times far beyond
# what a schedule without an end can be asked for.
MAX_PANELS = 200_000


class Motion(Protocol):
    """How an optimizer moves all groups: what :class:`Ordered` asks of :class:`FlowPanels`, :class:`DescentSteps`."""

    @property
    def sigma(self) -> Tensor: ...
    @property
    def rates(self) -> Rates: ...
    @property
    def schedules(self) -> tuple[Schedule, Schedule]: ...
    def times(self, time: Time) -> Tensor:
        """Checked times, in the unit of the optimizer."""

    def products(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """From the start to each time: log-scales (*, G) and matrices (*, G, 2, 2)."""

    def tail(self) -> Tail: ...


class Tail(NamedTuple):
    """The motion that is settled on, by its eigenvalues."""

    exponent: Tensor  # (G, d)
    angle: Tensor  # (G, d)
    maps: Tensor  # (G, d, 2, 2), what each makes of the start, divided by exp(log)
    log: Tensor  # ()


@dataclass(frozen=True)
class Ordered:
    """Any schedules: matrices at the asked times by ordered products, limits from the motion that is settled on."""

    motion: Motion
    factor: Tensor  # (G, side, 2), coordinates of the start

    @property
    def requires_grad(self) -> bool:
        rates, schedules = self.motion.rates, self.motion.schedules
        parts = (self.motion.sigma, rates.features, rates.weight, rates.feature_decay, rates.weight_decay)
        return any(part.requires_grad for part in parts) or any(needs_gradient(s.shape) for s in schedules)

    def times(self, time: Time) -> Tensor:
        return self.motion.times(time)

    def blocks(self, time: Tensor) -> Blocks:
        log, matrix = self.motion.products(time)
        lead = log.detach().amax(-1)
        return Blocks(lead, log - lead[..., None], matrix)

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return torch.zeros(time.shape, dtype=torch.float64), blocks.relative()

    @property
    def ends(self) -> float | None:
        return None if _moving(self.motion.schedules) else _settles(self.motion.schedules)

    def lead(self) -> Tensor:
        if self.ends is not None:
            return self.blocks(self.times(math.ceil(self.ends))).relative()
        return _leading(self._tail)

    def growth(self, lr: Number | None) -> Tensor:
        self._check_steady(lr)
        return self._tail.exponent.max()

    def falls(self, lr: Number | None) -> Tensor:
        self._check_steady(lr)
        tail = self._tail
        exponent = tail.exponent
        if _grows_as_time(tail):  # the direction is approached as 1/t is, which no exponent below zero does
            return torch.zeros_like(exponent)
        return torch.where(_leads(tail), -torch.inf, exponent - exponent.max())

    def final(self) -> Tensor:
        # The exponent is the logarithm of an eigenvalue, known to some 1e-15 of the step: what is below 1e-13 is zero.
        tail = self._tail
        survives = survival(tail.exponent.max().item(), neutral=1e-13)
        # What vanishes may turn or change its sign while it does.
        return torch.exp(tail.log) * _leading(tail) if survives else torch.zeros_like(tail.maps[:, 0])

    def _check_steady(self, lr: Number | None) -> None:
        if lr is not None:
            raise ValueError(
                "exponents at another rate are known for proportional, positive rates only, and these are not. Ask "
                "growth() and rate() without lr= of a path whose schedules settle."
            )
        if self.ends is not None:
            raise ValueError(
                "both rates end at zero, so the state stops, and there is no exponent per unit of time. Ask limit() "
                "for where it stops."
            )

    @property
    def _tail(self) -> Tail:
        """The settled motion, without what the start has no part in."""
        tail = self.motion.tail()
        present = seen(tail.maps.detach(), self.factor.detach())
        if not bool(present.any()):
            return tail
        return tail._replace(exponent=torch.where(present, tail.exponent, -torch.inf))


def _leading(tail: Tail) -> Tensor:
    """What the leading eigenvalues make of the start, (G, 2, 2); an error where they turn, or grow as time does."""
    leading = _leads(tail)
    # Eigenvalues come from a general solver, to about 1e-15 of the largest: an angle below 1e-9 is rounding, even
    # of a pair that nearly coincides and so has only half the digits.
    if bool((tail.angle[leading].abs() > 1e-9).any()):
        raise ValueError(
            "Z/|Z| has no limit: the leading eigenvalue of the last steps is not a positive number, so the state "
            "turns or changes sign for ever. The step is too large for the decay: lr * decay must be below 1, and "
            "with momentum m below about (1 - sqrt(m))^2 / (1 - dampening)."
        )
    if _grows_as_time(tail):
        raise _linear_growth()
    return (tail.maps * leading[..., None, None]).sum(1)


def _leads(tail: Tail) -> Tensor:
    """Which eigenvalues have the largest exponent (G, d): what is as close as 1e-12 is one exponent, rounded twice by
    the solver."""
    top = tail.exponent.max()
    return tail.exponent >= top - 1e-12 * max(1.0, abs(top.item()))


def _grows_as_time(tail: Tail) -> bool:
    """Whether the norm grows in proportion to time: a leading pair of equal eigenvalues has one eigenvector.

    The solver then divides by their rounded difference. Entries of 1e8 where others are of order one are not a large
    part of the start.
    """
    leading = _leads(tail)
    size = torch.where(leading[..., None, None], tail.maps, 0.0).abs().amax()
    return not bool(torch.isfinite(size)) or size.item() > 1e7 * max(1.0, tail.maps[leading].abs().median().item())


def _linear_growth() -> ValueError:
    return ValueError(
        "Z/|Z| converges, but not exponentially: one side is frozen and the other has no decay, so its norm grows in "
        "proportion to the integrated rate. Use anchored() for fixed prototypes, or add a decay."
    )


def _tail(matrix: Tensor, log: Tensor, start: Tensor, discrete: bool) -> Tail:
    r"""Eigenvalues of the settled step and what each makes of the state exp(log) `start` (G, d, 2), seen in (x, y).

    The eigensolver is not differentiated: its vectors turn freely. What depends on the step are eigenvalues and
    projectors, whose first derivatives are :math:`\dot\lambda_k = \operatorname{tr} P_k \dot M` and
    :math:`\dot P_k = P_k \dot M S_k + S_k \dot M P_k`, :math:`S_k = \sum_{j \ne k} P_j / (\lambda_k - \lambda_j)`.
    """
    with torch.no_grad():
        values, right = torch.linalg.eig(matrix)
        left, failed = torch.linalg.inv_ex(right)
        if bool(failed.any()):
            # A step that takes a mode to zero in two (lr * decay = 1 with Nesterov) has too few eigenvectors. Next to
            # it is one that has them all; what leads there is the same to 1e-14, unless nothing leads.
            size = matrix.abs().amax((-2, -1), keepdim=True)
            apart = torch.diag(torch.arange(matrix.shape[-1], dtype=torch.float64))
            values, right = torch.linalg.eig(matrix + 1e-14 * size * apart)
            left = torch.linalg.inv(right)
        projectors = torch.einsum("gik,gkj->gkij", right, left)  # (G, d, d, d)
        gaps = values[:, :, None] - values[:, None, :]
        # Equal eigenvalues lead together, and only the sum of their projectors counts. Where two nearly coincide the
        # solver keeps half of the digits, 1e-8: what is closer than 1e-9 counts as equal.
        distinct = gaps.abs() > 1e-9 * values.abs().amax(-1)[:, None, None]
        inverse = torch.where(distinct, 1 / torch.where(distinct, gaps, 1.0), 0.0)
        resolvents = torch.einsum("gkj,gjab->gkab", inverse, projectors)
    if matrix.requires_grad:
        change = (matrix - matrix.detach()).to(values)[:, None]  # zero, with a gradient
        values = values + (projectors @ change).diagonal(dim1=-2, dim2=-1).sum(-1)
        projectors = projectors + projectors @ change @ resolvents + resolvents @ change @ projectors
    scale = log.max()
    start = start * torch.exp(log - scale)[:, None, None]
    maps = (projectors @ start.to(values)[:, None])[..., :2, :].real  # (G, d, 2, 2)
    if discrete:
        exponent, angle = values.abs().clamp(min=TINY).log(), values.detach().angle()
    else:
        exponent, angle = values.real, values.detach().imag
    seen = maps.detach().abs().amax((-2, -1)) > 0
    return Tail(torch.where(seen, exponent, -torch.inf), angle, maps, scale)


def flow_matrix(
    sigma: Tensor, feature_decay: Tensor, weight_decay: Tensor, clock: Tensor, weight_clock: Tensor
) -> tuple[Tensor, Tensor]:
    r""":math:`\exp\begin{pmatrix}-\lambda_1\zeta_1 & \sigma\zeta_1\\ \sigma\zeta_2 & -\lambda_2\zeta_2\end{pmatrix}` as
    (log-scale, matrix), for any clocks, zero included  [eq: phi].

    All sums are of terms of one sign; nothing divides by :math:`\sigma` or by a difference of eigenvalues.
    """
    fade, weight_fade = feature_decay * clock, weight_decay * weight_clock
    half, mean = (fade - weight_fade) / 2, (fade + weight_fade) / 2
    product = sigma**2 * clock * weight_clock
    delta = safe_sqrt(half**2 + product)
    excess = clock * weight_clock * (sigma**2 - feature_decay * weight_decay)
    log = safe_divide(excess, delta + mean)
    up, down = tilts(half, product, delta)
    decayed = torch.exp(-2 * delta)
    spread = falling(2 * delta)
    entries = [
        (down + decayed * up) / 2,
        sigma * clock * spread,
        sigma * weight_clock * spread,
        (up + decayed * down) / 2,
    ]
    matrix = torch.stack(torch.broadcast_tensors(*entries), -1).unflatten(-1, (2, 2))
    return log.expand(matrix.shape[:-2]), matrix


# ---- flow: panels of collocation -------------------------------------------------------------------------------------


@cache
def _gauss() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, weights and integration matrix of Gauss collocation on [0, 1], of order twice the stages."""
    nodes, weights = np.polynomial.legendre.leggauss(STAGES)
    basis = np.polynomial.legendre.legvander(nodes, STAGES - 1)
    integrals = np.stack(
        [np.polynomial.legendre.legval(nodes, np.polynomial.legendre.legint(row, lbnd=-1)) for row in np.eye(STAGES)],
        axis=1,
    )
    return (nodes + 1) / 2, weights / 2, integrals @ np.linalg.inv(basis) / 2


@dataclass(frozen=True)
class FlowPanels:
    r"""Gradient flow under two schedules that are not proportional: 2 x 2 systems, never the large one.

    On each panel :math:`\Phi' = A(t)\Phi` is solved by Gauss collocation; panels are halved where one step and two
    half steps disagree.
    """

    sigma: Tensor  # (G,)
    rates: Rates
    schedules: tuple[Schedule, Schedule]  # of features and prototypes

    @property
    def settles(self) -> float:
        return _settles(self.schedules)

    def _settles(self) -> Tensor:
        """:attr:`settles` with its gradient: the last edge, if that is where the rates settle."""
        edges = [edge for schedule in self.schedules for edge in schedule.shape.edges]
        last = [edge for edge in edges if edge.item() == self.settles]
        return last[0] if last else torch.tensor(self.settles, dtype=torch.float64)

    def times(self, time: Time) -> Tensor:
        return check_times(time)

    def products(self, time: Tensor) -> tuple[Tensor, Tensor]:
        flat = time.reshape(-1)
        stop = min(self.settles, flat.max().item()) if flat.numel() else 0.0
        log, matrix = self._products_before(flat.clamp(max=stop))
        if self.settles < math.inf and bool((flat > self.settles).any()):
            extra = (flat - self._settles()).clamp(min=0)[:, None]
            clocks = (_final_rate(schedule) * extra for schedule in self.schedules)
            tail_log, tail = flow_matrix(self.sigma, self.rates.feature_decay, self.rates.weight_decay, *clocks)
            log, matrix = normalized(log + tail_log, tail @ matrix)
        groups = len(self.sigma)
        return log.reshape(*time.shape, groups), matrix.reshape(*time.shape, groups, 2, 2)

    def tail(self) -> Tail:
        if self.settles == math.inf:
            raise _unsettled()
        end = torch.tensor(self.settles, dtype=torch.float64)
        steady = self._generator(*map(_final_rate, self.schedules))
        return _tail(steady, *self.products(end), discrete=False)

    def _generator(self, features: Tensor, weight: Tensor) -> Tensor:
        """A at rates (*,) of features and prototypes, (*, G, 2, 2)."""
        features, weight = features[..., None], weight[..., None]
        entries = [
            -self.rates.feature_decay * features,
            self.sigma * features,
            self.sigma * weight,
            -self.rates.weight_decay * weight,
        ]
        return torch.stack(torch.broadcast_tensors(*entries), -1).unflatten(-1, (2, 2))

    def _products_before(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Products up to times (m,) at which the rates may still change."""
        edges = self._edges(time.max().item()) if time.numel() and time.max() > 0 else time.new_zeros(1)
        groups = len(self.sigma)
        log = torch.zeros(1, groups, dtype=torch.float64)
        whole = torch.eye(2, dtype=torch.float64).expand(1, groups, 2, 2)
        if len(edges) > 1:
            logs, products = scan(self._panels(edges[:-1], edges[1:]))
            log, whole = torch.cat([log, logs]), torch.cat([whole, products])
        index = (torch.searchsorted(edges.detach(), time.detach(), right=True) - 1).clamp(0, len(edges) - 1)
        last = self._panels(edges[index], time)
        return normalized(log[index], last @ whole[index])

    def _edges(self, stop: float) -> Tensor:
        """Edges of panels on which one and two collocation steps agree."""
        jumps = {edge.item(): edge for schedule in self.schedules for edge in schedule.shape.edges if edge < stop}
        ends = {at: torch.tensor(at, dtype=torch.float64) for at in (0.0, stop)}
        marks = torch.stack([edge for _, edge in sorted((jumps | ends).items())])
        edges = marks.detach()
        left, right, done = edges[:-1], edges[1:], [edges]
        with torch.no_grad():
            while len(left):
                middle = (left + right) / 2
                whole = self._panels(left, right)
                halves = self._panels(middle, right) @ self._panels(left, middle)
                size = halves.abs().amax((-2, -1))
                # Ten eps is what the rounding of two solves and a product leaves: to ask for less would be in vain.
                error = ((whole - halves).abs().amax((-2, -1)) / size).amax(1)
                rough = ~(error < 2e-15) & (middle > left) & (middle < right)
                rough |= size.amax(1) > 1e3  # keep each panel short of overflow
                done.append(middle[rough])
                left, right = torch.cat([left[rough], middle[rough]]), torch.cat([middle[rough], right[rough]])
                if sum(map(len, done)) > MAX_PANELS:
                    raise ValueError(
                        f"following these schedules to time {stop:g} needs more than {MAX_PANELS} panels. "
                        "Use proportional schedules (s * schedule, schedule), which are solved in closed form, or ask "
                        "for an earlier time."
                    )
        edges = torch.cat(done).unique()
        if not marks.requires_grad:
            return edges
        # A jump that moves takes the panels beside it along: each edge keeps its place between two marks.
        place = (torch.searchsorted(marks.detach(), edges, right=True) - 1).clamp(0, len(marks) - 2)
        low, high = marks[place], marks[place + 1]
        share = ((edges - low) / (high - low)).detach()
        return low + share * (high - low)

    def _panels(self, left: Tensor, right: Tensor) -> Tensor:
        """Transition matrices over each panel, (panels, G, 2, 2), by Gauss collocation."""
        nodes, weights, inner = (torch.from_numpy(part) for part in _gauss())
        width = right - left
        times = left[:, None] + width[:, None] * nodes
        a = self._generator(*(schedule(times) for schedule in self.schedules))  # (P, S, G, 2, 2)
        a = a * width[:, None, None, None, None]
        a = a.permute(0, 2, 1, 3, 4)  # (P, G, S, 2, 2)
        coupled = inner[:, :, None, None] * a[:, :, None]  # (P, G, S, S, 2, 2)
        size = 2 * STAGES
        eye = torch.eye(size, dtype=torch.float64)
        system = eye - coupled.permute(0, 1, 2, 4, 3, 5).reshape(*a.shape[:2], size, size)
        ones = torch.eye(2, dtype=torch.float64).repeat(STAGES, 1).expand(*a.shape[:2], size, 2)
        stages = torch.linalg.solve(system, ones).unflatten(-2, (STAGES, 2))
        return torch.eye(2, dtype=torch.float64) + (weights[:, None, None] * (a @ stages)).sum(2)


# ---- descent: one matrix per step ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DescentSteps:
    r"""``torch.optim.SGD`` step by step: on :math:`(x, y)`, with momentum on :math:`(x, y, b_x, b_y)`."""

    sigma: Tensor  # (G,)
    rates: Rates
    schedules: tuple[Schedule, Schedule]  # of features and prototypes
    options: Momentum

    @property
    def settles(self) -> float:
        return _settles(self.schedules)

    def times(self, time: Time) -> Tensor:
        return check_steps(time)

    def products(self, time: Tensor) -> tuple[Tensor, Tensor]:
        log, matrix = self._state(time)
        return normalized(log, matrix[..., :2, :])

    def tail(self) -> Tail:
        if self.settles == math.inf:
            raise _unsettled()
        later = self._later(self._settled, self._settled + 1)[0]
        return _tail(later, *self._state(torch.tensor(max(self._settled, 1))), discrete=True)

    def step(self, rate: Tensor, fresh: float, carried: float) -> Tensor:
        """Matrices of one step at rates (m, 2): buffer = carried * buffer + fresh * gradient, (m, G, d, d)."""
        options, eye = self.options, torch.eye(2, dtype=torch.float64)
        decays = torch.stack([self.rates.feature_decay, self.rates.weight_decay])
        zero = torch.zeros_like(self.sigma)
        pull = torch.stack([zero, -self.sigma, -self.sigma, zero], -1).unflatten(-1, (2, 2))
        gradient = pull if options.decoupled else pull + torch.diag(decays)  # (G, 2, 2)
        keep = eye - torch.diag_embed(rate * decays)[:, None] if options.decoupled else eye
        lr = rate[:, None, :, None]
        if not options.factor:
            return keep - lr * gradient
        buffer = torch.cat([fresh * gradient, (carried * eye).expand_as(gradient)], -1)  # (G, 2, 4)
        used = buffer
        if options.nesterov:
            used = options.factor * buffer + torch.nn.functional.pad(gradient, (0, 2))
        kept = torch.nn.functional.pad(keep, (0, 2)) if options.decoupled else torch.eye(2, 4, dtype=torch.float64)
        moved = kept - lr * used
        return torch.cat([moved, buffer.expand(len(rate), *buffer.shape)], -2)

    @property
    def _settled(self) -> int:
        return math.ceil(min(self.settles, LAST_STEP))

    def _rates(self, start: int, stop: int) -> Tensor:
        steps = torch.arange(start, stop, dtype=torch.float64)
        # A rate that falls for ever is zero from where it settles: what is left of it would drive 1e10 times as many
        # steps away.
        rates = [
            torch.where(steps < schedule.shape.settles, schedule(steps), _final_rate(schedule))
            for schedule in self.schedules
        ]
        return torch.stack(rates, -1)

    def _later(self, start: int, stop: int) -> Tensor:
        """All steps but the first, which alone is not damped and finds no buffer."""
        return self.step(self._rates(start + 1, stop + 1), 1 - self.options.dampening, self.options.factor)

    def _state(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """(log, matrices (*, G, d, 2)) from the start to the state, buffers included."""
        if not _moving(self.schedules):
            time = time.clamp(max=self._settled)
        log, product = ordered_products(self._later, (time - 1).clamp(min=0), max(self._settled - 1, 0))
        first = self.step(self._rates(0, 1), 1.0, 0.0)[0][..., :2]
        log, matrix = normalized(log, product @ first)
        started = (time > 0)[..., None]
        start = torch.eye(first.shape[-2], 2, dtype=torch.float64)
        return torch.where(started, log, 0.0), torch.where(started[..., None, None], matrix, start)


# ---- what two schedules have in common -------------------------------------------------------------------------------


def _settles(schedules: tuple[Schedule, Schedule]) -> float:
    """From when on both rates are constant; one that is zero throughout does not count."""
    return max(schedule.shape.settles if schedule.peak.item() else 0.0 for schedule in schedules)


def _moving(schedules: tuple[Schedule, Schedule]) -> bool:
    """Whether any rate stays above zero."""
    return any(s.peak.item() * _floor(s) > 0 for s in schedules) or _settles(schedules) == math.inf


def _floor(schedule: Schedule) -> float:
    return schedule.shape.floor if math.isfinite(schedule.shape.floor) else 0.0


def _final_rate(schedule: Schedule) -> Tensor:
    """The rate that a schedule ends with; zero where that is not known."""
    return schedule.peak * (schedule.shape.final if math.isfinite(schedule.shape.floor) else 0.0)


def _unsettled() -> ValueError:
    return ValueError(
        "the limit is not known: a learning rate given as a function has no known end. Pass a schedule that settles "
        "(constant, cosine, step, piecewise, warmup), or proportional rates (s * schedule, schedule)."
    )
