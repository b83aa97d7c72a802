r"""From logits to probabilities and decisions: what distinguishes the classes, and what their frequencies ask for.

Training adds to all prototypes a common vector, and to all features another, which no class owns. The first changes no
decision but can be large enough to drown the differences in rounding; the second does change decisions
[eq: centered-logits].

Under a long tail the class of the largest posterior is right most often, and rare classes are hardly ever chosen. To be
right equally often in all classes, divide the posterior by the training frequencies: additively in the logits of a
cross-entropy head (:func:`adjust_logits`), multiplicatively where the logits themselves are the posterior
(:func:`posterior`, :func:`balanced_decision`)  [eq: posterior].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn.contract import as_class_weight, as_tensor, check_floating, check_positive, check_widths, read
from unhinge.nn.precision import widened
from unhinge.theory.validation import check_number

__all__ = ["adjust_logits", "balanced_decision", "centered_logits", "posterior"]


def centered_logits(
    features: Tensor, weight: Tensor, bias: Tensor | None = None, *, feature_mean: Tensor | None = None
) -> Tensor:
    r"""Logits :math:`(w_c - \bar w)^\top (h - \bar h) + b_c` from centred prototypes, shape :math:`(*, C)`.

    Centring the prototypes moves all logits of an example by the same amount: the predicted class stays (up to
    rounding), and logits of different examples become comparable. Of a shift :math:`\Delta` common to all features, the
    term :math:`w_c^\top\Delta` is left, which favours some classes; pass the mean feature of the (balanced) training
    set as `feature_mean` to remove it.

    Arguments:
        features: :math:`h`, shape :math:`(*, p)`.
        weight: Prototypes, shape :math:`(C, p)`.
        bias: Shape :math:`(C)`, added as it is.
        feature_mean: :math:`\bar h`, shape :math:`(p)`; `None` leaves the features as they are.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[1.0, 5.0], [-1.0, 5.0]])
        >>> centered_logits(torch.tensor([[2.0, 1.0]]), weight)
        tensor([[ 2., -2.]])
    """
    check_floating("features", features, "p")
    check_floating("weight", weight, "p")
    check_widths(features, weight)
    wide = weight.to(widened(weight.dtype))
    centered = (wide - wide.mean(0)).to(weight.dtype)
    if feature_mean is not None:
        if as_tensor("feature_mean", feature_mean).shape != weight.shape[1:]:
            raise ValueError(
                f"feature_mean must have shape {tuple(weight.shape[1:])}, got {tuple(feature_mean.shape)}."
            )
        features = features - feature_mean.to(features.dtype)
    return F.linear(features, centered, bias)


def posterior(logits: Tensor, radius: float, class_weight: Tensor | None = None) -> Tensor:
    r"""Class probabilities without softmax, for a fixed simplex head and features of a given radius  [eq: posterior].

    With a penalty that asks for the radius :math:`r`, the unhinged loss on a fixed simplex is a squared error towards
    :math:`r\,w_y`. The best feature is then :math:`h^*(x) = r\sum_c P(c\,|\,x)\,w_c`, and its logits are affine in the
    posterior:

    .. math:: \hat P_c = \tfrac1C + \tfrac{C-1}C\,\tfrac{z_c}r,

    clamped at zero and divided by the sum. The softmax of these logits is no probability of anything: its sharpness
    depends on the radius.

    **Class weights** :math:`a` change what the best feature is. If the penalty has them too, the formula gives
    :math:`a_c P_c` up to a common factor. If the loss alone has them, each class has its own radius :math:`a_c r`, and
    all values are shifted by an unknown that differs between examples. Pass `class_weight` then: since the posterior
    sums to one, the shift can be solved for, and the result is :math:`P` itself.

    Arguments:
        logits: :math:`z`, shape :math:`(*, C)`, of a head whose prototypes have length 1. For length :math:`s` (the
            `scale` of an :class:`~unhinge.nn.ETFHead`) pass :math:`r s` as the radius.
        radius: :math:`r > 0`, that of :meth:`FeatureNormPenalty.for_radius
            <unhinge.nn.FeatureNormPenalty.for_radius>`.
        class_weight: :math:`a > 0`, shape :math:`(C)`, where the loss was trained with class weights and the penalty
            without; their mean over the training examples is 1, as :func:`~unhinge.nn.class_weights` makes it.

    Returns:
        Probabilities of shape :math:`(*, C)`, at least float32. Where all of them would be clamped to zero, which no
        simplex head does, they are uniform. Infinite logits give the limit, NaN gives NaN.

    Example:
        >>> posterior(torch.tensor([[10.0, -5.0, -5.0], [2.5, 2.5, -5.0]]), radius=10.0)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000]])
    """
    check_floating("logits", logits, "C")
    reason = ". It is the norm the features were trained to have: that of FeatureNormPenalty.for_radius(radius, ...)."
    check_positive("radius", radius, reason)
    classes = logits.shape[-1]
    wide = logits.to(widened(logits.dtype))
    largest = torch.finfo(wide.dtype).max
    # C P r / (C - 1) = level + z, times a power of two with which no sum overflows and which rounds nothing: the
    # quotient at the end does not see a factor. An infinite logit counts as the largest number, which has its limit.
    small = 2.0 ** -(math.frexp(largest)[1] // 2)
    level = small * radius / max(classes - 1, 1)
    raw = level + small * wide.clamp(-largest, largest)
    if class_weight is not None:
        # raw = a P + shift with one shift for an example; sum(P) = 1 gives it.
        weights = _per_class("class_weight", class_weight, raw, "class_weights(counts)").to(raw.dtype)
        shift = ((raw / weights).sum(-1, keepdim=True) - classes * level) / (1 / weights).sum()
        raw = (raw - shift) / weights
    positive = raw.clamp(min=0)
    total = positive.sum(-1, keepdim=True)
    # Not `total > 0`: a logit that is not a number must not become a probability.
    return torch.where(total == 0, 1 / classes, positive / torch.where(total == 0, 1, total))


def adjust_logits(logits: Tensor, prior: Tensor | Sequence[float], strength: float = 1.0) -> Tensor:
    r"""Logits of a balanced world, :math:`z_c - \tau\log\pi_c` (Menon et al., 2021)  [eq: adjusted-logits].

    For heads trained with cross-entropy, where :math:`z` is :math:`\log P(c\,|\,x)` up to a constant: the largest
    adjusted logit is the class that is right equally often for all classes. Nothing is trained again.

    Arguments:
        logits: :math:`z`, shape :math:`(*, C)`.
        prior: Training frequencies :math:`\pi`, shape :math:`(C)`, or counts; all positive.
        strength: :math:`\tau`; 0 leaves the logits as they are. Choose it on a validation split with
            :func:`unhinge.metrics.strength_curve`.

    Example:
        >>> adjust_logits(torch.tensor([[1.0, 0.0]]), prior=[0.9, 0.1]).argmax(1)
        tensor([1])
    """
    check_floating("logits", logits, "C")
    frequencies = _frequencies(prior, logits)
    _check_exponent("strength", strength)
    return logits - strength * frequencies.log().to(logits.dtype)


def balanced_decision(
    posterior: Tensor, prior: Tensor | Sequence[float], strength: float = 1.0, floor: float = 0.0
) -> Tensor:
    r"""The class :math:`\arg\max_c \hat P_c / \pi_c^{\tau}`, shape :math:`(*)`  [eq: balanced-decision].

    For the probabilities of :func:`posterior`: with :math:`\tau = 1` the decision that is right equally often for all
    classes. A network trained with class weights :math:`n_c^{-1/2}` has its posterior divided by :math:`\pi^{1/2}`
    already, so that :math:`\tau = \tfrac12` remains.

    Arguments:
        posterior: :math:`\hat P`, shape :math:`(*, C)`, not negative.
        prior: Training frequencies :math:`\pi`, shape :math:`(C)`, or counts; all positive.
        strength: :math:`\tau`; 0 decides by the posterior alone.
        floor: Posteriors below it count as zero. A rare class divides by so little that the noise in an estimate of
            zero would be enough to choose it. Where no posterior reaches the floor, all of them count.

    Example:
        >>> balanced_decision(torch.tensor([[0.8, 0.2], [0.95, 0.05]]), [0.9, 0.1])
        tensor([1, 0])
    """
    check_floating("posterior", posterior, "C")
    frequencies = _frequencies(prior, posterior)
    _check_exponent("strength", strength)
    check_number("floor", floor)
    if not 0 <= floor < 1:
        raise ValueError(f"floor must lie in [0, 1), got {floor}: it is a probability too small to be believed.")
    wide = posterior.to(widened(posterior.dtype))
    if read((wide >= 0).all()) == 0:  # NaN too
        raise ValueError(
            "posterior must hold probabilities, but some are negative or NaN. If these are logits, pass "
            "posterior(logits, radius), or take adjust_logits(logits, prior).argmax(-1)."
        )
    kept = torch.where(wide < floor, 0.0, wide)
    kept = torch.where((kept > 0).any(-1, keepdim=True), kept, wide)
    # In logarithms: a frequency of 1e-50 is zero in float32, and its quotient with a probability of zero is none.
    return (kept.log() - strength * frequencies.log().to(wide.dtype)).argmax(-1)


def _check_exponent(name: str, value: float) -> None:
    check_number(name, value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}. 1 is the full adjustment, 0 is none.")


def _frequencies(prior: Tensor | Sequence[float], like: Tensor) -> Tensor:
    """The prior in float64, summing to 1."""
    wide = _per_class("prior", prior, like, "torch.bincount(labels)")
    return wide / wide.sum()


def _per_class(name: str, numbers: object, like: Tensor, maker: str) -> Tensor:
    """Positive numbers, one for each class, in float64."""
    if isinstance(numbers, str):
        raise ValueError(f"{name} must hold one number per class, such as {maker}, got the word {numbers!r}.")
    value = as_class_weight(numbers, name, torch.float64)
    if value is None or value.shape != like.shape[-1:]:
        came = None if value is None else tuple(value.shape)
        raise ValueError(
            f"{name} must have shape ({like.shape[-1]},), one number per class, got {came}. {maker} makes one."
        )
    wide = value.detach().to(like.device, torch.float64)
    if not bool(((wide > 0) & wide.isfinite()).all()):
        raise ValueError(
            f"{name} must be positive and finite in every class: a class that was never seen in training has no "
            "posterior to be divided. Leave such classes out."
        )
    return wide
