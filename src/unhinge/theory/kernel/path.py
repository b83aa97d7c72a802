r"""Features that share parameters: gradient flow through a constant kernel (Theorem 5, replaced)  [eq: kernel-flow].

A network moves its features by :math:`\mathrm{vec}(H)' = -\eta_1 K \nabla_H` with the neural tangent kernel
:math:`K`; where K stays constant the flow is linear: :math:`h' = \eta_1 K(m w - \lambda_1 h)`,
:math:`w' = \eta_2(m^\top h - \lambda_2 w)`, :math:`m` the action of the targets :math:`M^\top` on prototypes.

An example kernel :math:`K_x \otimes I_p` moves all p columns of the features alike, so its modes are those of a C-by-C
matrix with p columns  [eq: kernel-example]; a full kernel has pC modes with one column. Singular K is fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.kernel.modes import Coordinates, RelativeMotion, relative_motion
from unhinge.theory.kernel.products import Coupling, as_kernel, check_symmetric, couple, kernel_kind, multiply
from unhinge.theory.kernel.reduction import Reduction, reduce_damped, reduce_free, reduce_held
from unhinge.theory.learned import learned
from unhinge.theory.linear.biases import Biases
from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.linear.summary import HardSummary, SoftSummary
from unhinge.theory.linear.symbols import FlowSymbol
from unhinge.theory.numerics import EPS, NOISE, safe_norm, scaled, unit_of, widened
from unhinge.theory.path import (
    collapse_of_states,
    concatenated,
    described,
    in_pieces,
    passages,
    share_of,
    zero_start,
)
from unhinge.theory.schedules import Schedule, steady_rate
from unhinge.theory.state import State, fitting_scale
from unhinge.theory.targets import Targets
from unhinge.theory.types import Kernel, Matrix, Number, Time, Vector
from unhinge.theory.validation import as_tensors, check_alike, check_shape, check_start, check_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KernelPath", "solve_kernel"]


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelPath:
    """The exact path of features that move through a constant kernel; made by `LayerPeeled.kernel_flow`.

    `Z` is (H, W) as everywhere. Answers are differentiable in the initial features, prototypes and biases, in gamma,
    the decays and the rates; the kernel is a constant. Solving costs one pass over the kernel, C p products with an
    operator; a time then costs O(n p C) for the state and O(p C^2) for scalar questions. Feature decay needs the
    eigenvectors of the whole kernel, O(n^3), and a time then costs O(n^2 p).

    Example:
        >>> from unhinge import LayerPeeled
        >>> kernel = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
        >>> path = LayerPeeled([0, 1]).kernel_flow(
        ...     [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], kernel, lr=1.0
        ... )
        >>> path
        KernelPath(flow, examples=2, classes=2, dim=2, modes=2)
        >>> path.growth()
        tensor(1., dtype=torch.float64)
    """

    reduction: Reduction
    coupling: Coupling
    features: Tensor  # (n, p), at the start
    weight: Tensor  # (C, p), at the start
    biases: Biases | None
    schedule: Schedule  # of the prototypes; of the features where the prototypes are held
    unit: float  # a power of two that features and weight were divided by; 1 unless squares would not fit

    discrete = False  # only the flow through a kernel is offered

    def __repr__(self) -> str:
        (classes, dim), modes = self.weight.shape, self.reduction.basis.shape[1]
        return described("KernelPath", "flow", examples=len(self.features), classes=classes, dim=dim, modes=modes)

    # ---- the state ---------------------------------------------------------------------------------------------------

    def at(self, time: Time) -> State:
        r"""The state at each time."""
        moments = check_times(time)
        log, state = self._state(moments)
        scale = fitting_scale(self._log_norm(log, state).detach(), self.features.dtype)
        features, weight = self.reduction.assemble(state.times(self.unit * torch.exp(log - scale)))
        bias = None if self.biases is None else self.biases.at(moments).to(self.features)
        return State(features, weight, bias, scale.to(self.features))

    def predict(self, cross_kernel: Kernel, features: Matrix, time: Time) -> Tensor:
        r"""Features of unseen inputs, :math:`h_\text{new}(t) = h_\text{new}(0) + K_\text{new,train}\,P\,j(t)`
        [eq: kernel-prediction].

        Arguments:
            cross_kernel: :math:`K_\text{new,train}` in the form of `kernel`: shape :math:`(n', n)` or
                :math:`(n' p, n p)`, or an operator that turns rows (n, p) into rows (n', p).
            features: Initial features of the unseen inputs, shape :math:`(n', p)`.
            time: When; a scalar or a tensor.

        Returns:
            Shape :math:`(*, n', p)`, where the training state overflows on the scale of :meth:`at`: divided by the
            exponential of its `log_scale`.

        Example:
            >>> from unhinge import LayerPeeled
            >>> x = torch.tensor([[0.0], [1.0], [5.0], [6.0]], dtype=torch.float64)
            >>> kernel = torch.exp(-(torch.cdist(x, x) ** 2))
            >>> problem = LayerPeeled(torch.tensor([0, 0, 1, 1]), num_classes=2)
            >>> weight = torch.eye(2, dtype=torch.float64)
            >>> path = problem.kernel_flow(
            ...     torch.zeros(4, 2, dtype=torch.float64), weight, kernel, lr=0.1
            ... )
            >>> new = torch.tensor([[0.4], [5.7]], dtype=torch.float64)
            >>> moved = path.predict(
            ...     torch.exp(-(torch.cdist(new, x) ** 2)),
            ...     torch.zeros(2, 2, dtype=torch.float64),
            ...     20.0,
            ... )
            >>> (moved @ path.at(20.0).weight.mT).argmax(1)
            tensor([0, 1])
        """
        size, dim = self.features.shape
        _, new = as_tensors({"features": self.features, "new features": features})
        check_shape("features", new, (None, dim))
        check_alike(features=self.features, new=new)
        cross = as_kernel(cross_kernel, self.features)
        kernel_kind(cross, self.features, new=len(new))
        moments = check_times(time)
        clock, modes = self.schedule.integral(moments), self.reduction.modes
        scale = fitting_scale(self._log_norm(*self._state(moments)).detach(), self.features.dtype).clamp(min=0)
        # from the modes themselves: what stands still may cancel in the training features, but not in these
        factor = torch.exp(modes.exponent * clock[..., None] - scale[..., None])[..., None]
        pulls = self.reduction.pulls(self.unit * factor * modes.motion(clock)[0]).reshape(-1, size, dim)
        shifts = [multiply(cross, rows, len(new)) for rows in pulls]
        shift = torch.stack(shifts) if shifts else new.new_zeros(0)
        kept = torch.exp(-scale).to(self.features)[..., None, None] * new
        return kept + shift.reshape(*moments.shape, *new.shape)

    def direction(self) -> State:
        r"""The limit of :math:`Z / \|Z\|` as the integrated rate grows without bound: the top eigenspace of G that the
        start has a part in."""
        self._check_start()
        lead = self._motion.lead()
        size = safe_norm(torch.cat(self.reduction.sides(lead)), 1)
        return State(*self.reduction.assemble(lead.times(1 / size)))

    def limit(self) -> State:
        r"""The limit of :math:`Z` itself; an error if it diverges."""
        if self._ends is not None:
            return self.at(self._ends)
        growth = self._motion.reference
        if growth > 0 or self._motion.linear:
            how = f"exp({growth.item():.6g} x integrated rate)" if growth > 0 else "the integrated rate"
            raise ValueError(f"Z diverges: its norm grows as {how}. Ask direction() for the limit of Z/|Z|.")
        features, weight = self.reduction.assemble(self._motion.lead().times(self.unit * (growth == 0).double()))
        return State(features, weight, None if self.biases is None else self.biases.limit().to(self.features))

    # ---- scalar questions: nothing of size n -------------------------------------------------------------------------

    def loss(self, time: Time) -> Tensor:
        r"""Mean unhinged loss :math:`-\langle M H, W\rangle - \kappa^\top b`, without the decay terms."""
        moments = check_times(time)
        log, state = self._state(moments)
        base, through = self._pulled
        pulled = state.carry(lambda part: part.start[..., None, None] * base + through @ part.features)
        weight = state.carry(lambda part: self.reduction.basis @ part.weight)
        value = scaled(-(pulled * weight).sum((-2, -1)), 2 * log)
        value = self.unit * (self.unit * value)
        if self.biases is not None:
            value = value - self.biases.at(moments) @ self.biases.drive
        return value.to(self.features)

    def feature_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._side_norm(time, 0)

    def weight_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`."""
        return self._side_norm(time, 1)

    def log_norm(self, time: Time) -> Tensor:
        r""":math:`\log\|Z\|`, finite where :math:`\|Z\|` itself overflows."""
        return self._log_norm(*self._state(check_times(time))).to(self.features)

    def distance(self, time: Time) -> Tensor:
        r""":math:`\| Z/\|Z\| - \text{direction} \|`, accurate however small."""
        self._check_start()
        return self._distance(check_times(time)).to(self.features)

    def growth(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per unit of time at a constant rate; without decay
        :math:`\sqrt{s g}\,\eta_2` for the largest eigenvalue g of G that the start has a part in.

        Arguments:
            lr: The rate of the prototypes; by default the one the schedule ends with.
        """
        return (self._motion.reference * steady_rate(self.schedule, lr)).to(self.features)

    def rate(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :meth:`distance`, negative; 0 where it falls only as 1 over the integrated rate, minus
        infinity if nothing but the direction is there."""
        self._check_start()
        return (self._motion.fall() * steady_rate(self.schedule, lr)).to(self.features)

    def time_to(self, distance: Time) -> Tensor:
        """The first time at which :meth:`distance` is at most `distance`; infinite if never."""
        self._check_start()
        return passages(distance, self._distance, self._ends, discrete=False).to(self.features)

    # ---- questions that look at classes or examples ------------------------------------------------------------------

    @property
    def labels(self) -> Tensor:
        """The class of each example, the most probable one of soft labels: (n,) int64."""
        return self.coupling.targets.labels

    def correct(self, time: Time) -> Tensor:
        r"""Whether the largest logit of each example is its label's, :math:`(*, n)` bool.

        Uses prototypes minus their mean, at their own scale, so that a common part does not drown the differences.
        """
        return in_pieces(self._correct, check_times(time), self.features.numel())

    def accuracy(self, time: Time) -> Tensor:
        r"""Share of examples whose largest logit is their label's: the mean of :meth:`correct`."""
        return share_of(self._correct, check_times(time), self.features.numel()).to(self.features)

    def learned(self, fraction: float = 0.5) -> Tensor:
        r"""The first time at which that share of each class is right, :math:`(C,)`; infinite if never
        [eq: learned]. See :func:`unhinge.theory.learned.learned`."""
        return learned(self, len(self.weight), fraction, self._ends).to(self.features)

    def collapse(self, time: Time) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = check_times(time)
        parts = collapse_of_states(self.at, moments, self.labels, len(self.weight))
        return concatenated(parts, moments, like=self.features)

    def plot(self, times: Time | None = None) -> Figure:
        """Distance, norms, loss and accuracy over time, as a matplotlib figure."""
        from unhinge.theory.plotting import plot_path

        return plot_path(self, times)

    # ---- reduced coordinates: kept with their gradients, whoever asks first ------------------------------------------

    @kept
    def _motion(self) -> RelativeMotion:
        parts = self.reduction.modes.parts()
        constant = self.reduction.standing(parts.constant, parts.blur)
        linear = any(side.any() for side in self.reduction.sides(parts.linear))
        return relative_motion(self.reduction.modes, parts, constant, linear)

    @kept
    def _pulled(self) -> tuple[Tensor, Tensor]:
        r""":math:`M H` of the start and of each mode's features, in the layout of the prototypes."""
        side, response = len(self.reduction.basis), self.reduction.response
        both = widened(self.features), response.left.double().reshape(len(self.features), -1)
        base, through = (self.coupling.gather(rows).cpu().reshape(side, -1) for rows in both)
        return base, through if response.right is None else through @ response.right.double().cpu()

    def _state(self, moments: Tensor) -> tuple[Tensor, Coordinates]:
        """A logarithmic scale, and the state divided by it."""
        return self._motion.at(self.schedule.integral(moments))

    def _log_norm(self, log: Tensor, state: Coordinates) -> Tensor:
        squares = torch.cat(self.reduction.sides(state), -1).pow(2).sum(-1)
        positive = squares > 0
        logs = torch.where(positive, squares, 1.0).log() / 2 + math.log(self.unit)
        return torch.where(positive, log + logs, -torch.inf)

    def _side_norm(self, time: Time, side: int) -> Tensor:
        log, state = self._state(check_times(time))
        return (self.unit * scaled(safe_norm(self.reduction.sides(state)[side], 1), log)).to(self.features)

    def _distance(self, moments: Tensor) -> Tensor:
        clock = self.schedule.integral(moments)
        final = torch.cat(self.reduction.sides(self._motion.lead()), -1)
        square = final.pow(2).sum()
        rest = torch.cat(self.reduction.sides(self._motion.rest(clock)), -1)
        along = (rest * final).sum(-1) / square
        across = safe_norm(rest - along[..., None] * final, 1)
        share = clock if self._motion.linear else torch.ones_like(clock)
        return 2 * torch.sin(torch.atan2(across, (share + along) * square.sqrt()) / 2)

    @torch.no_grad()
    def _correct(self, moments: Tensor) -> Tensor:
        """Whether each example is right at each of the times (m,): (m, n) bool."""
        basis = self.reduction.basis
        wide = basis.reshape(len(self.weight), -1)
        centered = (wide - wide.mean(0)).reshape(basis.shape)
        seen = centered.norm(dim=0) > NOISE * EPS * basis.norm(dim=0)
        log, state = self._state(moments)
        own, weight = self._motion.weight(self.schedule.integral(moments), seen)
        features = self.reduction.assemble(state)[0].double()
        head = (torch.where(seen, centered, 0.0) @ weight).reshape(-1, *self.weight.shape)
        logits = features @ head.to(features).mT
        if self.biases is not None:
            scale, bias = (log + own + 2 * math.log(self.unit)).to(logits), self.biases.apart(moments).to(logits)
            logits = torch.exp(scale.clamp(max=0))[:, None, None] * logits
            logits = logits + (torch.exp(-scale.clamp(min=0))[:, None] * bias)[:, None]
        return logits.argmax(-1) == self.labels.to(logits.device)

    # ---- rates and checks --------------------------------------------------------------------------------------------

    @property
    def _ends(self) -> float | None:
        """The time after which the rate is zero; None if it stays positive."""
        shape = self.schedule.shape
        return shape.settles if shape.floor == 0 else None

    def _check_start(self) -> None:
        if not bool(self.features.any() or self.weight.any()):
            raise zero_start()


def solve_kernel(
    targets: Targets | None,
    spectrum: Spectrum,
    drive: Tensor,
    decays: tuple[Tensor, Tensor],
    features: Matrix,
    weight: Matrix,
    kernel: Kernel,
    schedules: tuple[Schedule, Schedule],
    bias: Vector | None,
) -> KernelPath:
    """Check the input, find the modes, and hand out the path: what `LayerPeeled.kernel_flow` calls."""
    if targets is None or isinstance(features, HardSummary | SoftSummary):
        raise ValueError(
            "a kernel joins single examples, so kernel_flow needs labels and features in memory: "
            "make the problem with LayerPeeled(target, num_classes) and pass features (n, p)."
        )
    rows, prototypes, start_bias = check_start(features, weight, bias, targets.size, targets.num_classes)
    clock, ratio = _clock(schedules)
    operator = as_kernel(kernel, rows)
    kind = kernel_kind(operator, rows)
    if isinstance(operator, Tensor):
        check_symmetric("kernel", operator.detach(), torch.finfo(operator.dtype).eps)
    coupling = couple(targets, spectrum)
    unit = unit_of(rows, prototypes)
    scaled_rows, scaled_weight = (rows, prototypes) if unit == 1 else (rows / unit, prototypes / unit)
    feature_decay, weight_decay = decays
    start = operator, kind, coupling, scaled_rows, scaled_weight
    if ratio is None:
        reduction = reduce_held(*start, feature_decay)
    elif ratio.item() == 0 or (feature_decay.item() == 0 and not feature_decay.requires_grad):
        reduction = reduce_free(*start, ratio, weight_decay)
    else:
        reduction = reduce_damped(*start, ratio, (feature_decay, weight_decay))
    biases = None
    if start_bias is not None:
        biases = Biases(
            start=start_bias,
            drive=drive,
            rate=schedules[1].peak,
            decay=weight_decay,
            symbol=FlowSymbol(schedules[1].shape),
        )
    return KernelPath(
        reduction=reduction,
        coupling=coupling,
        features=scaled_rows,
        weight=scaled_weight,
        biases=biases,
        schedule=clock,
        unit=unit,
    )


def _clock(schedules: tuple[Schedule, Schedule]) -> tuple[Schedule, Tensor | None]:
    """The schedule whose integral is time, and the constant ratio s of the two rates, None for held prototypes."""
    features, weight = (schedule.peak for schedule in schedules)
    for side, rate in (("features", features), ("prototypes", weight)):
        if rate.item() == 0 and rate.requires_grad:
            raise ValueError(
                f"kernel_flow has no slope by a rate of zero, and that of the {side} asks for one. Pass the number 0, "
                "or a small rate."
            )
    if features.item() == 0:
        return schedules[1], torch.zeros_like(features)
    if weight.item() == 0:
        return schedules[0], None
    if not schedules[0].proportional_to(schedules[1]):
        raise ValueError(
            "kernel_flow needs proportional rates for features and prototypes, but the two schedules have different "
            "shapes. Pass one schedule, or multiples of one: lr=(2 * schedule, schedule)."
        )
    return schedules[1], features / weight
