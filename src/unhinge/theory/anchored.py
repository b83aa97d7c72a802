r"""Prototypes held fixed: each feature is pulled towards one point  [eq: anchored].

:math:`H(t) = a(t) H_0 + c(t)\, V` with the constant pull :math:`V = M^\top W`; a and c are the same two scalars for all
features, under flow and under every variant of SGD. Here :math:`Z` is :math:`H` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.linear.path import CHUNK, differentiable_time, first_time_below
from unhinge.theory.linear.propagators import safe_sqrt
from unhinge.theory.linear.summary import streamed_away
from unhinge.theory.linear.symbols import Symbol
from unhinge.theory.schedules import Schedule
from unhinge.theory.state import State
from unhinge.theory.targets import HardTargets, Targets

__all__ = ["AnchoredPath"]


@dataclass(frozen=True)
class AnchoredPath:
    """The exact path of the features towards fixed prototypes: `LayerPeeled.anchored` and `anchored_descent`."""

    rows: Tensor  # (r, p), reduced features at the start
    pull: Tensor  # (r, p), reduced V
    scatter: Tensor  # () float64, |H|^2 outside the modes
    weight: Tensor  # (C, p)
    start_bias: Tensor | None  # (C,)
    features: Tensor | None  # (n, p), missing after a streamed pass
    targets: Targets | None
    counts: Tensor  # (C,)
    drive: Tensor  # (C,) float64, constant pull on the biases
    symbols: tuple[Symbol, Symbol]  # of the features and of the biases
    schedules: tuple[Schedule, Schedule]
    decays: tuple[Tensor, Tensor]
    discrete: bool

    def at(self, time: Any) -> State:
        """The state at each time (flow) or after each number of steps (descent)."""
        moments = self._times(time)
        keep, push = self._coefficients(moments)
        zero = torch.zeros_like(keep)
        return State(
            self._assemble(keep, push),
            self.weight.expand(*moments.shape, *self.weight.shape),
            None if self.start_bias is None else self._like(self._bias(moments)),
            self._like(zero),
        )

    def direction(self) -> State:
        r"""The limit of :math:`H / \|H\|`: along the pull, or along the start if the prototypes exert none."""
        self._check_converges()
        pulled = self._plane[0] > 0
        one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        keep, push = (zero, one) if bool(pulled) else (one, zero)
        features = self._assemble(keep, push)
        norm = features.double().norm()
        if norm == 0:
            raise ValueError("features and pull are both zero: H/|H| has no limit.")
        return State(features / norm.to(features), self.weight)

    def limit(self) -> State:
        r"""The limit of :math:`H`: :math:`V / \lambda_1`; an error if it diverges."""
        shape = self.schedules[0].shape
        if shape.floor == 0 and math.isfinite(shape.settles):
            return self.at(math.ceil(shape.settles) if self.discrete else shape.settles)
        self._check_converges()
        decay = self.decays[0]
        if decay.item() == 0 and bool(self._plane[0] > 0):
            raise ValueError(
                "H diverges: without feature decay it grows in proportion to the integrated rate. "
                "Ask direction() for the limit of H/|H|, or set feature_decay."
            )
        zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
        keep, push = (one, zero) if decay.item() == 0 else (zero, 1 / decay)
        return State(self._assemble(keep, push), self.weight, self._bias_limit())

    def loss(self, time: Any) -> Tensor:
        r"""Mean unhinged loss :math:`-\langle V, H\rangle - \kappa^\top b`, without the decay terms."""
        moments = self._times(time)
        size, along, _ = self._plane
        keep, push = self._coefficients(moments)
        value = -size * (push * size + keep * along)
        if self.start_bias is not None:
            value = value - self._bias(moments) @ self.drive
        return self._like(value)

    def accuracy(self, time: Any) -> Tensor:
        """Share of examples whose largest logit is their label's; costs O(n C) per time."""
        if self.features is None or self.targets is None:
            raise streamed_away("accuracy")
        moments = self._times(time)
        head = (self.weight - self.weight.mean(0)).detach().double()
        start = (self.features.detach().double() @ head.mT).cpu()
        target = self.targets.expand(self.pull.detach().double() @ head.mT).cpu()
        labels = self.targets.labels.cpu()
        flat = moments.reshape(-1)
        hits = []
        with torch.no_grad():
            for piece in flat.split(max(1, CHUNK // start.numel())):
                keep, push = self._coefficients(piece)
                logits = keep[:, None, None] * start + push[:, None, None] * target
                if self.start_bias is not None:
                    logits = logits + self._bias(piece)[:, None]
                hits.append((logits.argmax(-1) == labels).double().mean(-1))
        return self._like(torch.cat(hits).reshape(moments.shape))

    def feature_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._like(torch.hypot(*self._position(self._times(time))))

    def weight_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`, a constant."""
        norm = self.weight.double().norm().cpu()
        return self._like(norm.expand(self._times(time).shape))

    def log_norm(self, time: Any) -> Tensor:
        r""":math:`\log\|H\|`."""
        return self._like(torch.hypot(*self._position(self._times(time))).log())

    def distance(self, time: Any) -> Tensor:
        r""":math:`\| H/\|H\| - \text{direction} \|`."""
        self._check_converges()
        return self._like(self._distance(self._times(time)))

    def collapse(self, time: Any) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        if not isinstance(self.targets, HardTargets | None):
            raise ValueError("collapse along an anchored path is defined for integer labels only.")
        moments = self._times(time)
        flat = moments.reshape(-1)
        roots = self.counts.double().sqrt()[:, None]
        stacked = torch.cat([self.rows, self.pull, self.weight]).double().cpu()
        basis = torch.linalg.qr(stacked.mT)[0] if stacked.shape[0] < stacked.shape[1] else None
        small = stacked if basis is None else stacked @ basis
        rows, pull, weight = small.split([len(self.rows), len(self.pull), len(self.weight)])
        size = self.counts.sum().double()
        within = None
        if self.features is not None and self.targets is not None:
            apart = (self.features - self.targets.expand(self.rows)).double().cpu()
            apart = apart if basis is None else apart @ basis
            within = apart.mT @ apart / size
        parts = []
        for piece in flat.split(max(1, CHUNK // (8 * small.numel()))):
            keep, push = (part[:, None, None] for part in self._coefficients(piece))
            spread = keep[:, 0, 0] ** 2 * self.scatter / size
            cover = None if within is None else keep**2 * within
            means = (keep * rows + push * pull) / roots
            parts.append(collapse_measures(means, weight.expand(len(piece), *weight.shape), spread, cover))
        return {key: self._like(torch.cat([part[key] for part in parts]).reshape(moments.shape)) for key in parts[0]}

    def growth(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :math:`\|H\|`: 0, since it converges (with decay) or grows linearly (without)."""
        self._check_converges()
        return self._like(torch.zeros((), dtype=torch.float64))

    def rate(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :meth:`distance`, negative; 0 without feature decay, where it falls as 1 / integrated rate
        [eq: anchored-rate]."""
        self._check_converges()
        return self._like(self._fall(lr))

    def time_to(self, distance: Any) -> Tensor:
        """The first time (or step) at which :meth:`distance` is at most `distance`; infinite if never."""
        self._check_converges()
        shape = self.schedules[0].shape
        horizon = 2.0**62 if self.discrete else 1e300
        if shape.floor == 0 and math.isfinite(shape.settles):
            horizon = float(math.ceil(shape.settles))
        wanted = torch.as_tensor(distance, dtype=torch.float64)
        if bool((wanted <= 0).any()):
            raise ValueError("the distance must be positive; zero is reached only in the limit.")
        found = [self._time_to(value, horizon) for value in wanted.reshape(-1).tolist()]
        return self._like(torch.stack(found).reshape(wanted.shape))

    # ---- reduced coordinates ----------------------------------------------------------------------------------

    def _times(self, time: Any) -> Tensor:
        return self.symbols[0].times(time)

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.rows.device, self.rows.dtype)

    def _coefficients(self, moments: Tensor) -> tuple[Tensor, Tensor]:
        return self.symbols[0].bias(moments, self.schedules[0].peak, self.decays[0])

    def _bias(self, moments: Tensor) -> Tensor:
        assert self.start_bias is not None
        keep, push = self.symbols[1].bias(moments, self.schedules[1].peak, self.decays[1])
        return keep[..., None] * self.start_bias.double().cpu() + push[..., None] * self.drive

    def _bias_limit(self) -> Tensor | None:
        if self.start_bias is None:
            return None
        if self.schedules[1].peak.item() == 0:
            return self.start_bias
        if self.decays[1].item() > 0:
            return self._like(self.drive / self.decays[1])
        bias = self.start_bias.double().cpu()
        return self._like(torch.where(self.drive == 0, bias, torch.sign(self.drive) * torch.inf))

    @cached_property
    @torch.enable_grad()  # kept for later questions, so never cut from the graph by whoever asks first
    def _plane(self) -> tuple[Tensor, Tensor, Tensor]:
        """|V|, the part of the start along V, and the norm of the part across."""
        rows, pull = self.rows.double(), self.pull.double()
        size = safe_sqrt(pull.pow(2).sum())
        noise = 32 * torch.finfo(self.rows.dtype).eps * self.weight.detach().double().norm() / self.counts.sum().sqrt()
        size = torch.where(size > noise, size, 0.0)  # prototypes that cancel but for rounding exert no pull
        unit = pull / torch.where(size > 0, size, 1.0)
        along = torch.where(size > 0, (rows * unit).sum(), 0.0)
        across = safe_sqrt((rows - along * unit).pow(2).sum().cpu() + self.scatter)
        return size.cpu(), along.cpu(), across

    def _position(self, moments: Tensor) -> tuple[Tensor, Tensor]:
        """Components of H along V and across."""
        size, along, across = self._plane
        keep, push = self._coefficients(moments)
        return push * size + keep * along, keep * across

    def _distance(self, moments: Tensor) -> Tensor:
        along, across = self._position(moments)
        if not bool(self._plane[0] > 0):
            return torch.zeros_like(along)
        return 2 * torch.sin(torch.atan2(across.abs(), along) / 2)

    def _time_to(self, wanted: float, horizon: float) -> Tensor:
        def measured(moments: Tensor) -> Tensor:
            return self._distance(self._times(moments))

        with torch.no_grad():
            found = first_time_below(measured, wanted, horizon, self.discrete)
        if self.discrete or not math.isfinite(found) or found == 0:
            return torch.tensor(found, dtype=torch.float64)
        return differentiable_time(measured, found)

    def _fall(self, lr: float | None) -> Tensor:
        schedule, decay = self.schedules[0], self.decays[0]
        if lr is None:
            if not schedule.shape.floor > 0:
                raise ValueError(
                    "the schedule does not end with a constant positive rate, so there is no exponent per unit of "
                    "time. Pass one: rate(lr=...)."
                )
            lr_multiple = torch.tensor(schedule.shape.floor, dtype=torch.float64)
        else:
            lr_multiple = torch.as_tensor(lr, dtype=torch.float64) / schedule.peak
        return self.symbols[0].growth(-schedule.peak * decay, lr_multiple)

    def _check_converges(self) -> None:
        floor = self.schedules[0].shape.floor
        if self.decays[0].item() > 0 and floor > 0 and self._fall(None).item() >= 0:
            rate = self.schedules[0].peak.item() * floor
            raise ValueError(
                f"the step is too large: lr * feature_decay = {rate * self.decays[0].item():g} must be below 2 "
                "(without momentum) for the features to settle. Lower lr or feature_decay."
            )

    def _assemble(self, keep: Tensor, push: Tensor) -> Tensor:
        if self.features is None or self.targets is None:
            raise streamed_away("the full state")
        keep, push = self._like(keep)[..., None, None], self._like(push)[..., None, None]
        return keep * self.features + self.targets.expand(push * self.pull)
