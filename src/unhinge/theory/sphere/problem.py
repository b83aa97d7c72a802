r"""Normalized features and fixed prototypes: two scalars per example (Theorem 4)  [eq: sphere].

The loss is the mean unhinged loss of the logits :math:`W h/\|h\|`, which is :math:`-\sum_i v_i^\top \hat h_i` with the
pull :math:`v_i = \frac1n\big((1+\gamma) w_{y_i} - \gamma\sum_j w_j\big)`. A gradient step moves :math:`h_i` in the
plane of its start and :math:`v_i`, and what decides is :math:`\alpha = \eta\|v\|/\|h\|^\nu`, :math:`\nu = 2` plain and
1 when gradients are rescaled by :math:`\|h\|`. At a constant rate and without decay all three motions are geometric in
one variable, :math:`E_k = E_0\,\rho^k`, which starts as :math:`\tan(\theta/2)`:

- flow: :math:`E = \tan(\theta/2)`, :math:`\rho = e^{-\alpha}` per unit of time, exactly;
- rescaled descent: a Moebius map, exactly, for steps of any size;
- plain descent: a series in :math:`\alpha`, to rounding for :math:`\alpha \le 1/160`; larger steps one by one.
"""

from __future__ import annotations

from torch import Tensor

from unhinge.theory.keeping import durable
from unhinge.theory.schedules import Schedule, as_schedule, constant
from unhinge.theory.sphere.motion import SphereDescent, SphereFlow
from unhinge.theory.sphere.path import SphericalPath
from unhinge.theory.sphere.planes import find_planes, find_pulls
from unhinge.theory.types import Labels, Matrix, Number, OneRate
from unhinge.theory.validation import (
    as_label_tensor,
    as_tensors,
    check_alike,
    check_num_classes,
    check_shape,
    scalar,
)

__all__ = ["Spherical"]


class Spherical:
    r"""Features on rays, classified by fixed prototypes: mean unhinged loss of :math:`W h/\|h\|`, solved exactly.

    Arguments:
        target: Integer labels :math:`(n,)` in any order, or soft labels :math:`(n, C)` whose rows sum to 1.
        weight: Fixed prototypes :math:`W`, shape :math:`(C, p)`; any, their mean need not be zero.
        gamma: Weight :math:`\gamma \ge 0` of the other logits; `None` means :math:`1/(C-1)`.
        feature_decay: :math:`\lambda`, of the term :math:`\frac\lambda2\|H\|^2`.

    Answers are differentiable in the prototypes, the features, gamma, the decay and the rate.

    Example:
        >>> import torch
        >>> weight = torch.eye(3, dtype=torch.float64)
        >>> features = torch.tensor(
        ...     [[1.0, 2, 0], [0, 1, 1], [2, 0, 0]], dtype=torch.float64
        ... )
        >>> path = Spherical(torch.tensor([0, 1, 2]), weight).descent(features, lr=1.0)
        >>> path.distance(torch.tensor([0, 10, 100, 1000]))
        tensor([2.4978e+00, 1.3092e+00, 8.1043e-04, 1.8111e-34], dtype=torch.float64)
    """

    def __init__(
        self,
        target: Labels,
        weight: Matrix,
        gamma: Number | None = None,
        feature_decay: Number = 0.0,
    ) -> None:
        self.weight = check_shape("weight", as_tensors({"weight": weight})[0], (None, None)).clone()
        self.num_classes = check_num_classes(len(self.weight))
        self.gamma = scalar("gamma", 1 / (self.num_classes - 1) if gamma is None else gamma)
        self.feature_decay = scalar("feature_decay", feature_decay)
        self.pulls = durable(find_pulls, as_label_tensor(target).clone(), self.weight, self.gamma)

    def __repr__(self) -> str:
        size, dim = len(self.pulls.rows), self.weight.shape[1]
        return (
            f"Spherical(examples={size}, num_classes={self.num_classes}, dim={dim}, gamma={self.gamma.item():g}, "
            f"feature_decay={self.feature_decay.item():g})"
        )

    def flow(self, features: Matrix, lr: OneRate = 0.1, rescaled: bool = False) -> SphericalPath:
        r"""Gradient flow, :math:`\tan\frac\theta2 = e^{-\kappa}\tan\frac{\theta_0}2`; the norm only decays, by
        :math:`e^{-\lambda\zeta}`  [eq: sphere-flow].

        Arguments:
            features: Initial features :math:`(n, p)`, none of them zero.
            lr: A rate, a :class:`Schedule` or a function of time.
            rescaled: Multiply the loss gradient of each example by :math:`\|h\|` (the decay is not rescaled).
        """
        return durable(Spherical._solved, self, SphereFlow, self._start(features), _schedule(lr), rescaled)

    def descent(self, features: Matrix, lr: OneRate = 0.1, rescaled: bool = False) -> SphericalPath:
        r"""The iterates of gradient descent on the features: ``at(k)`` is the state after k steps, step k uses
        ``lr(k)``.

        Arguments are those of :meth:`flow`. Steps of any size are right, those that cross the target included.
        """
        return durable(Spherical._solved, self, SphereDescent, self._start(features), _schedule(lr), rescaled)

    def _start(self, features: Matrix) -> Tensor:
        start = as_tensors({"weight": self.weight, "features": features})[1]
        check_shape("features", start, (len(self.pulls.rows), self.weight.shape[1]))
        check_alike(features=start, weight=self.weight)
        return start

    def _solved(
        self, kind: type[SphereFlow] | type[SphereDescent], start: Tensor, schedule: Schedule, rescaled: bool
    ) -> SphericalPath:
        motion = kind(find_planes(start, self.pulls), schedule, self.feature_decay, 1 if rescaled else 2)
        return SphericalPath(start.clone(), self.weight, motion)


def _schedule(lr: OneRate) -> Schedule:
    schedule = as_schedule(lr)
    moves = schedule.peak.item() > 0 or schedule.peak.requires_grad
    return schedule if moves else constant(0.0)  # whatever its shape, nothing ever moves
