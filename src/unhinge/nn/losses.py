"""Module shells for the losses."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import ClassVar

from torch import Tensor, nn

from unhinge.nn.contract import (
    as_class_weight,
    check_gamma,
    check_not_negative,
    check_prior,
    check_prior_sum,
    check_reduction,
    check_smoothing,
    read,
)
from unhinge.nn.hinge import multiclass_hinge_loss
from unhinge.nn.margins import adjusted_margin_loss, check_epsilon
from unhinge.nn.spherical_softmax import EPSILON, check_offset_of_squares, spherical_softmax_loss
from unhinge.nn.taylor_softmax import taylor_softmax_loss
from unhinge.nn.unhinged import unhinged_loss
from unhinge.nn.z_loss import OFFSET, SLOPE, check_z, z_loss

__all__ = [
    "AdjustedMarginLoss",
    "MultiClassHingeLoss",
    "SphericalSoftmaxLoss",
    "TaylorSoftmaxLoss",
    "UnhingedLoss",
    "ZLoss",
]


RUNAWAY = 1e6  # minus the mean loss: with features and prototypes of a useful size it is below a hundred


class _ClassLoss(nn.Module):
    """What all these losses take as ``nn.CrossEntropyLoss`` does: weights, a label to ignore, reduction, smoothing."""

    weight: Tensor | None
    shown: ClassVar[tuple[str, ...]] = ()  # options of which `repr` tells the value even where it is the default

    def __init__(
        self,
        weight: Tensor | None,
        ignore_index: int,
        reduction: str,
        label_smoothing: float = 0.0,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        check_smoothing(label_smoothing)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.dim = dim
        self.register_buffer("weight", as_class_weight(weight), persistent=False)

    @property
    def common(self) -> tuple[Tensor | None, int, str, float]:
        """In the order in which the functions take them."""
        return self.weight, self.ignore_index, self.reduction, self.label_smoothing

    def extra_repr(self) -> str:
        """The options that are not what they are by default, and `shown`, as `name=value`."""
        defaults = {name: option.default for name, option in inspect.signature(type(self)).parameters.items()}
        values = {name: getattr(self, name) for name in defaults}
        told = (name for name, value in values.items() if name in self.shown or not _same(value, defaults[name]))
        return ", ".join(f"{name}={values[name]!r}" for name in told)


class UnhingedLoss(_ClassLoss):
    r"""The unhinged loss :math:`-z_y + \gamma\sum_{j\ne y} z_j`, to be used as ``nn.CrossEntropyLoss`` is.

    .. warning::
        **It is unbounded below.** It is linear in the logits: nothing in it ever says that an example is right enough,
        and on a free network the norms of features and classifier grow exponentially until training breaks. Pair it
        with one of

        - a fixed simplex-ETF head and a penalty on the features: :class:`~unhinge.nn.ETFHead` with
          :meth:`FeatureNormPenalty.for_radius <unhinge.nn.FeatureNormPenalty.for_radius>`. This is the recommended
          recipe;
        - a fixed head on normalized features: ``ETFHead(..., normalize=True)``, possibly with
          :class:`~unhinge.nn.RescaledGradient`. The loss then lies between :math:`\pm(1+\gamma)\|w\|`;
        - decay of features and classifier at or above the critical one: growth stops when their product reaches the
          square of :attr:`LayerPeeled.critical_decay <unhinge.LayerPeeled.critical_decay>`.

    Its value is no measure of accuracy, and validation should report accuracy instead; what it does imply is in
    [eq: loss-bounds] and [eq: etf-threshold].

    Arguments:
        gamma: Weight of the other logits; `None` means :math:`1/(C-1)`, the fastest to converge. From
            :math:`2/(C-2)` on, classes collapse onto each other.
        weight: Weight of each class, shape :math:`(C)`; for imbalanced data :func:`~unhinge.nn.class_weights`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"`` (divided by the total weight of the examples), ``"sum"`` or ``"none"``.
        label_smoothing: Share of the target spread over all classes.
        dim: The axis of the classes; `None` reads the shapes as :func:`~unhinge.nn.functional.unhinged_loss` explains.
        prior: A vector q of shape :math:`(C)` that sums to 1, in the place of gamma: the loss is then
            :math:`-z_y + q^\top z`.

    The loss has no state: class weights and prior move with the module but are not part of its ``state_dict``.

    Example:
        >>> import torch
        >>> loss = UnhingedLoss()
        >>> loss(torch.tensor([[3.0, 1.0, 1.0]]), torch.tensor([0]))
        tensor(-2.)
    """

    prior: Tensor | None

    def __init__(
        self,
        gamma: float | None = None,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        dim: int | None = None,
        prior: Tensor | None = None,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, label_smoothing, dim)
        check_gamma(gamma)
        prior = as_class_weight(prior, "prior")
        check_prior(prior, None, gamma)
        check_prior_sum(prior)
        self.gamma = gamma
        self._told = False
        self.register_buffer("prior", prior, persistent=False)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        loss = unhinged_loss(logits, target, self.gamma, *self.common, dim=self.dim, prior=self.prior)
        self._warn_of_runaway(loss, target)
        return loss

    def _warn_of_runaway(self, loss: Tensor, target: Tensor) -> None:
        """Warn once where the loss has run away: without a radius norms grow until they overflow, silently."""
        if self._told or self.reduction != "mean" or not isinstance(loss, Tensor):
            return
        value = read(loss)
        if value is None:
            return
        if math.isnan(value) and bool((target == self.ignore_index).all()):
            return  # the mean of no example, as in cross-entropy
        if not value > -RUNAWAY:  # NaN too
            self._told = True
            # Without the number itself: Python shows one text once, however many losses are made.
            state = "is nan" if math.isnan(value) else f"is below {-RUNAWAY:g}"
            warnings.warn(
                f"the unhinged loss {state}: it has no lower bound, and the norms of the features run away. Add "
                "FeatureNormPenalty.for_radius(...), normalize the features (ETFHead(..., normalize=True)), or use "
                "decay.",
                stacklevel=3,
            )


class AdjustedMarginLoss(_ClassLoss):
    r"""Unhinged loss of normalized features, with a gradient at the antipode of the prototype too.

    It takes the features themselves and the prototypes, and normalizes the features; see
    :func:`~unhinge.nn.functional.adjusted_margin_loss`. Prototypes are meant to be fixed (an
    :class:`~unhinge.nn.ETFHead`); if they are trained, they need a decay or a normalization of their own, since the
    loss is linear in them.

    Arguments:
        gamma: Weight of the other logits; `None` means :math:`1/(C-1)`.
        epsilon: Size of the adjusted zone, cosines below :math:`-1+\varepsilon`.
        weight: Weight of the examples of each class, shape :math:`(C)`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> loss = AdjustedMarginLoss()
        >>> prototypes = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> loss(torch.tensor([[3.0, 4.0]]), prototypes, torch.tensor([0]))
        tensor(-1.2000)
    """

    shown = ("epsilon",)

    def __init__(
        self,
        gamma: float | None = None,
        epsilon: float = 0.05,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        check_gamma(gamma)
        check_epsilon(epsilon)
        self.gamma = gamma
        self.epsilon = epsilon

    def forward(self, features: Tensor, weight: Tensor, target: Tensor, weight_sum: Tensor | None = None) -> Tensor:
        return adjusted_margin_loss(
            features,
            weight,
            target,
            self.gamma,
            self.epsilon,
            class_weight=self.weight,
            weight_sum=weight_sum,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class MultiClassHingeLoss(_ClassLoss):
    r"""The multi-class hinge loss :math:`\sum_{j\ne y}\max(0,\; z_j - z_y + m)`, summed over the classes.

    See :func:`~unhinge.nn.functional.multiclass_hinge_loss`.

    Arguments:
        margin: :math:`m \ge 0`.
        weight: Weight of each class, shape :math:`(C)`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        dim: The axis of the classes, as in :class:`UnhingedLoss`.

    Example:
        >>> import torch
        >>> loss = MultiClassHingeLoss()
        >>> loss(torch.tensor([[3.0, 2.5, 1.0]]), torch.tensor([0]))
        tensor(0.5000)
    """

    shown = ("margin",)

    def __init__(
        self,
        margin: float = 1.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        dim: int | None = None,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, dim=dim)
        check_not_negative("margin", margin)
        self.margin = margin

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return multiclass_hinge_loss(
            logits, target, self.margin, self.weight, self.ignore_index, self.reduction, dim=self.dim
        )


class TaylorSoftmaxLoss(_ClassLoss):
    r"""Negative log-likelihood of the Taylor softmax, :math:`-\log\frac{1 + z_y + z_y^2/2}{\sum_c(1 + z_c + z_c^2/2)}`.

    See :func:`~unhinge.nn.functional.taylor_softmax_loss`. For many classes :class:`~unhinge.nn.ManyClassHead` with
    ``loss="taylor_softmax"`` trains a classifier under it without forming the logits.

    Arguments:
        weight: Weight of each class, shape :math:`(C)`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: Share of the target spread over all classes.
        dim: The axis of the classes, as in :class:`UnhingedLoss`.

    Example:
        >>> import torch
        >>> # -log(5/6)
        >>> TaylorSoftmaxLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1823)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        dim: int | None = None,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, label_smoothing, dim)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return taylor_softmax_loss(logits, target, *self.common, dim=self.dim)


class SphericalSoftmaxLoss(_ClassLoss):
    r"""Negative log-likelihood of the spherical softmax :math:`-\log\frac{z_y^2 + \epsilon}{\sum_c(z_c^2 + \epsilon)}`.

    See :func:`~unhinge.nn.functional.spherical_softmax_loss`; from features, :class:`~unhinge.nn.ManyClassHead` with
    ``loss="spherical_softmax"``.

    Arguments:
        epsilon: :math:`\epsilon > 0`, the square of the scale of the logits.
        weight: Weight of each class, shape :math:`(C)`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: Share of the target spread over all classes.
        dim: The axis of the classes, as in :class:`UnhingedLoss`.

    Example:
        >>> import torch
        >>> # -log(5/6)
        >>> SphericalSoftmaxLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1823)
    """

    shown = ("epsilon",)

    def __init__(
        self,
        epsilon: float = EPSILON,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        dim: int | None = None,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, label_smoothing, dim)
        check_offset_of_squares(epsilon)
        self.epsilon = epsilon

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return spherical_softmax_loss(logits, target, self.epsilon, *self.common, dim=self.dim)


class ZLoss(_ClassLoss):
    r"""The Z-loss :math:`\frac1a\mathrm{softplus}(a(b - u))`, :math:`u` the true logit in standard deviations of all.

    See :func:`~unhinge.nn.functional.z_loss`; from features, :class:`~unhinge.nn.ManyClassHead` with ``loss="z"``.

    Arguments:
        slope: :math:`a > 0`, how sharply the loss bends at the offset.
        offset: :math:`b`, the score that is enough; no score exceeds :math:`\sqrt{C-1}`.
        weight: Weight of each class, shape :math:`(C)`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: Share of the target spread over all classes.
        dim: The axis of the classes, as in :class:`UnhingedLoss`.

    Example:
        >>> import torch
        >>> # u = 1
        >>> ZLoss(slope=1.0, offset=1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.6931)
    """

    shown = ("slope", "offset")

    def __init__(
        self,
        slope: float = SLOPE,
        offset: float = OFFSET,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        dim: int | None = None,
    ) -> None:
        super().__init__(weight, ignore_index, reduction, label_smoothing, dim)
        check_z(slope, offset)
        self.slope = slope
        self.offset = offset

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return z_loss(logits, target, self.slope, self.offset, *self.common, dim=self.dim)


def _same(value: object, default: object) -> bool:
    return value is default or (not isinstance(value, Tensor) and value == default)
