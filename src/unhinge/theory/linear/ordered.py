r"""Propagators where the steps do not commute: rates of features and prototypes that are not proportional, a frozen
side, or momentum with unequal decoupled decays  [eq: ordered].

One small matrix per step or panel, multiplied in order by :mod:`unhinge.theory.linear.products`. The limit is read
off the matrix that the schedule settles on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.linear.momentum import Momentum, MomentumSymbol
from unhinge.theory.linear.products import normalized, ordered_products, scan
from unhinge.theory.linear.propagators import Blocks, Rates, safe_sqrt, survival
from unhinge.theory.linear.symbols import DescentSymbol, FlowSymbol, falling
from unhinge.theory.schedules import Schedule
from unhinge.theory.validation import check_steps, check_times

__all__ = ["Ordered", "flow_matrix", "ordered_descent", "ordered_flow"]

STAGES = 8
MAX_PANELS = 200_000


@dataclass(frozen=True)
class Ordered:
    """Matrices of all groups at the asked times, by functions that know the optimizer."""

    times: Callable[[object], Tensor]
    products: Callable[[Tensor], tuple[Tensor, Tensor]]  # (log (*, G), matrix (*, G, 2, 2))
    bias: Callable[[Tensor], tuple[Tensor, Tensor]]
    settles: float
    moving: bool  # whether any rate stays above zero
    requires_grad: bool
    tail: Callable[[], tuple[Tensor, Tensor, Tensor]]  # per eigenvalue: exponent, angle (G, d), state maps (G, d, 2, 2)

    def blocks(self, time: Tensor) -> Blocks:
        log, matrix = self.products(time)
        lead = log.detach().amax(-1)
        return Blocks(lead, log - lead[..., None], matrix)

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return torch.zeros(time.shape, dtype=torch.float64), blocks.relative()

    @property
    def ends(self) -> float | None:
        return None if self.moving else self.settles

    def lead(self) -> Tensor:
        if not self.moving:
            return self.blocks(self.times(math.ceil(self.settles))).relative()
        exponent, angle, maps = self.tail()
        top = exponent.max()
        leading = exponent >= top - 1e-12 * max(1.0, abs(top.item()))
        if bool((angle[leading].abs() > 1e-9).any()):
            raise ValueError(
                "Z/|Z| has no limit: the leading eigenvalue of the last steps is not a positive number, so the state "
                "turns or changes sign for ever. The step is too large for the decay; take lr * decay < 1."
            )
        size = torch.where(leading[..., None, None], maps, 0.0).abs().amax()
        if not bool(torch.isfinite(size)) or size.item() > 1e7 * max(1.0, maps[leading].abs().median().item()):
            raise _linear_growth()
        return (maps * leading[..., None, None]).sum(1)

    def growth(self, lr: float | None) -> Tensor:
        return self._exponents(lr).max()

    def falls(self, lr: float | None) -> Tensor:
        exponent = self._exponents(lr)
        top = exponent.max()
        behind = exponent < top - 1e-12 * max(1.0, abs(top.item()))
        return torch.where(behind, exponent - top, -torch.inf)

    def final(self) -> Tensor:
        return survival(self.growth(None).item(), 1e-13) * self.lead()

    def _exponents(self, lr: float | None) -> Tensor:
        if lr is not None or not self.moving:
            raise ValueError(
                "exponents at another rate are known for proportional rates only: here features and prototypes follow "
                "schedules of different shape. Ask growth() and rate() of a path whose schedules settle."
            )
        return self.tail()[0]


def _linear_growth() -> ValueError:
    return ValueError(
        "Z/|Z| converges, but not exponentially: one side is frozen and the other has no decay, so its norm grows in "
        "proportion to the integrated rate. Use anchored() for fixed prototypes, or add a decay."
    )


def _spectral_maps(matrix: Tensor, start: Tensor, discrete: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of the settled step and what each makes of the state at `start` (G, d, 2), seen in (x, y)."""
    values, right = torch.linalg.eig(matrix)
    left = torch.linalg.inv(right)
    maps = (right[:, :2, :].mT[..., :, None] * (left @ start.to(left))[..., None, :]).real  # (G, d, 2, 2)
    if discrete:
        exponent, angle = values.abs().clamp(min=1e-300).log(), values.angle()
    else:
        exponent, angle = values.real, values.imag
    seen = maps.abs().amax((-2, -1)) > 0
    return torch.where(seen, exponent, -torch.inf), angle, maps


def flow_matrix(
    sigma: Tensor, feature_decay: Tensor, weight_decay: Tensor, clock: Tensor, weight_clock: Tensor
) -> tuple[Tensor, Tensor]:
    r""":math:`\exp\begin{pmatrix}-\lambda_1\zeta_1 & \sigma\zeta_1\\ \sigma\zeta_2 & -\lambda_2\zeta_2\end{pmatrix}` as
    (log-scale, matrix), for any clocks, zero included  [eq: phi].

    All sums are of terms of one sign; nothing divides by :math:`\sigma` or by a difference of eigenvalues.
    """
    one, two = feature_decay * clock, weight_decay * weight_clock
    half, mean = (one - two) / 2, (one + two) / 2
    product = sigma**2 * clock * weight_clock
    delta = safe_sqrt(half**2 + product)
    excess = clock * weight_clock * (sigma**2 - feature_decay * weight_decay)
    total = delta + mean
    log = torch.where(total == 0, 0.0, excess / torch.where(total == 0, 1.0, total))
    ratio = torch.where(delta == 0, 0.0, half / torch.where(delta == 0, 1.0, delta))
    square = torch.where(delta == 0, 1.0, product / torch.where(delta == 0, 1.0, delta) ** 2)
    up = torch.where(ratio >= 0, 1 + ratio, square / (1 - ratio))
    down = torch.where(ratio <= 0, 1 - ratio, square / (1 + ratio))
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


def _panel_matrices(generator: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """Transition matrices of :math:`\\Phi' = A\\Phi` over each panel, (panels, G, 2, 2), by Gauss collocation."""
    nodes, weights, inner = (torch.from_numpy(part) for part in _gauss())
    width = right - left
    a = generator(left[:, None] + width[:, None] * nodes)  # (P, S, G, 2, 2)
    a = a * width[:, None, None, None, None]
    a = a.permute(0, 2, 1, 3, 4)  # (P, G, S, 2, 2)
    coupled = inner[:, :, None, None] * a[:, :, None]  # (P, G, S, S, 2, 2)
    size = 2 * STAGES
    system = torch.eye(size, dtype=torch.float64) - coupled.permute(0, 1, 2, 4, 3, 5).reshape(*a.shape[:2], size, size)
    ones = torch.eye(2, dtype=torch.float64).repeat(STAGES, 1).expand(*a.shape[:2], size, 2)
    stages = torch.linalg.solve(system, ones).unflatten(-2, (STAGES, 2))
    eye = torch.eye(2, dtype=torch.float64)
    return eye + (weights[:, None, None] * (a @ stages)).sum(2)


def ordered_flow(sigma: Tensor, rates: Rates, schedules: tuple[Schedule, Schedule]) -> Ordered:
    """Gradient flow under two schedules that are not proportional (theory: the 2 x 2 systems, never the large one)."""
    features, weight = schedules
    settles = max(
        features.shape.settles if features.peak.item() else 0.0, weight.shape.settles if weight.peak.item() else 0.0
    )
    decays = rates.feature_decay, rates.weight_decay

    def generator(time: Tensor) -> Tensor:
        fast, slow = features(time)[..., None], weight(time)[..., None]
        entries = [
            -decays[0] * fast * torch.ones_like(sigma),
            sigma * fast,
            sigma * slow,
            -decays[1] * slow * torch.ones_like(sigma),
        ]
        return torch.stack(entries, -1).unflatten(-1, (2, 2))

    def panels(stop: float) -> Tensor:
        """Edges of panels on which one and two collocation steps agree."""
        marks = {0.0, stop, *(at for s in schedules for at in s.shape.breaks if at < stop)}
        edges = torch.tensor(sorted(marks), dtype=torch.float64)
        left, right, done = edges[:-1], edges[1:], [edges]
        with torch.no_grad():
            while len(left):
                middle = (left + right) / 2
                whole = _panel_matrices(generator, left, right)
                halves = _panel_matrices(generator, middle, right) @ _panel_matrices(generator, left, middle)
                size = halves.abs().amax((-2, -1))
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
        return torch.cat(done).unique()

    def before(time: Tensor) -> tuple[Tensor, Tensor]:
        edges = panels(time.max().item()) if time.numel() and time.max() > 0 else torch.zeros(1, dtype=torch.float64)
        groups = len(sigma)
        log = torch.zeros(1, groups, dtype=torch.float64)
        whole = torch.eye(2, dtype=torch.float64).expand(1, groups, 2, 2)
        if len(edges) > 1:
            logs, products = scan(_panel_matrices(generator, edges[:-1], edges[1:]))
            log, whole = torch.cat([log, logs]), torch.cat([whole, products])
        index = (torch.searchsorted(edges, time, right=True) - 1).clamp(0, len(edges) - 1)
        last = _panel_matrices(generator, edges[index], time)
        return normalized(log[index], last @ whole[index])

    def products(time: Tensor) -> tuple[Tensor, Tensor]:
        flat = time.reshape(-1)
        stop = min(settles, flat.max().item()) if flat.numel() else 0.0
        log, matrix = before(flat.clamp(max=stop))
        if settles < math.inf and bool((flat > settles).any()):
            extra = (flat - settles).clamp(min=0)[:, None]
            floors = features.peak * _floor(features), weight.peak * _floor(weight)
            tail_log, tail = flow_matrix(sigma, *decays, floors[0] * extra, floors[1] * extra)
            log, matrix = normalized(log + tail_log, tail @ matrix)
        return log.reshape(*time.shape, -1), matrix.reshape(*time.shape, -1, 2, 2)

    moving = any(s.peak.item() * _floor(s) > 0 for s in schedules)

    def tail() -> tuple[Tensor, Tensor, Tensor]:
        if settles == math.inf:
            raise _unsettled()
        log, start = products(torch.tensor(settles, dtype=torch.float64))
        start = start * torch.exp(log - log.max())[:, None, None]
        return _spectral_maps(generator(torch.tensor(settles, dtype=torch.float64)), start, discrete=False)

    symbol = FlowSymbol(weight.shape)
    return Ordered(
        check_times,
        products,
        lambda time: symbol.bias(time, rates.weight, rates.weight_decay),
        settles,
        moving or settles == math.inf,
        _requires_grad(sigma, rates),
        tail,
    )


def ordered_descent(
    sigma: Tensor,
    rates: Rates,
    schedules: tuple[Schedule, Schedule],
    momentum: Momentum,
) -> Ordered:
    r"""``torch.optim.SGD`` step by step: on :math:`(x, y)`, with momentum on :math:`(x, y, b_x, b_y)`."""
    features, weight = schedules
    settles = max(s.shape.settles if s.peak.item() else 0.0 for s in schedules)
    settled = math.ceil(min(settles, 2.0**62))
    moving = any(s.peak.item() * _floor(s) > 0 for s in schedules) or settles == math.inf
    size = 4 if momentum.factor else 2
    decays = torch.stack([rates.feature_decay, rates.weight_decay])
    zero = torch.zeros_like(sigma)
    pull = torch.stack([zero, -sigma, -sigma, zero], -1).unflatten(-1, (2, 2))
    gradient = pull if momentum.decoupled else pull + torch.diag(decays)  # (G, 2, 2)
    eye = torch.eye(2, dtype=torch.float64)

    def step(rate: Tensor, fresh: float, carried: float) -> Tensor:
        """Matrices of one step at rates (m, 2): buffer = carried * buffer + fresh * gradient."""
        lr = rate[:, None, :, None]
        keep = eye - torch.diag_embed(rate * decays)[:, None] if momentum.decoupled else eye
        if not momentum.factor:
            return keep - lr * gradient
        buffer = torch.cat([fresh * gradient, (carried * eye).expand_as(gradient)], -1)  # (G, 2, 4)
        used = buffer
        if momentum.nesterov:
            used = momentum.factor * buffer + torch.nn.functional.pad(gradient, (0, 2))
        kept = torch.nn.functional.pad(keep, (0, 2)) if momentum.decoupled else torch.eye(2, 4, dtype=torch.float64)
        moved = kept - lr * used
        return torch.cat([moved, buffer.expand(len(rate), *buffer.shape)], -2)

    def rate(start: int, stop: int) -> Tensor:
        steps = torch.arange(start, stop, dtype=torch.float64)
        return torch.stack([features(steps), weight(steps)], -1)

    def later(start: int, stop: int) -> Tensor:
        return step(rate(start + 1, stop + 1), 1 - momentum.dampening, momentum.factor)

    def state(time: Tensor) -> tuple[Tensor, Tensor]:
        """(log, matrices (*, G, d, 2)) from the start to the state, buffers included."""
        if not moving:
            time = time.clamp(max=settled)
        log, product = ordered_products(later, (time - 1).clamp(min=0), max(settled - 1, 0))
        first = step(rate(0, 1), 1.0, 0.0)[0][..., :2]
        log, matrix = normalized(log, product @ first)
        started = (time > 0)[..., None]
        start = torch.eye(size, 2, dtype=torch.float64)
        return torch.where(started, log, 0.0), torch.where(started[..., None, None], matrix, start)

    def products(time: Tensor) -> tuple[Tensor, Tensor]:
        log, matrix = state(time)
        return normalized(log, matrix[..., :2, :])

    def tail() -> tuple[Tensor, Tensor, Tensor]:
        if settles == math.inf:
            raise _unsettled()
        log, start = state(torch.tensor(max(settled, 1)))
        start = start * torch.exp(log - log.max())[:, None, None]
        return _spectral_maps(later(settled, settled + 1)[0], start, discrete=True)

    symbol: DescentSymbol | MomentumSymbol = DescentSymbol(weight.shape)
    if momentum.factor:
        symbol = MomentumSymbol(weight.shape, momentum, rates.weight_decay)
    return Ordered(
        check_steps,
        products,
        lambda time: symbol.bias(time, rates.weight, rates.weight_decay),
        settles,
        moving,
        _requires_grad(sigma, rates),
        tail,
    )


def _requires_grad(sigma: Tensor, rates: Rates) -> bool:
    parts = (sigma, rates.features, rates.weight, rates.feature_decay, rates.weight_decay)
    return any(part.requires_grad for part in parts)


def _floor(schedule: Schedule) -> float:
    return schedule.shape.floor if math.isfinite(schedule.shape.floor) else 0.0


def _unsettled() -> ValueError:
    return ValueError(
        "the limit is not known: a learning rate given as a function has no known end. Pass a schedule that settles "
        "(constant, cosine, step, piecewise, warmup), or proportional rates (s * schedule, schedule)."
    )
