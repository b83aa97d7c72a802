"""Settings that must be numbers: whatever else comes is named in our words, at the door."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unhinge import EarlyCrossEntropy, LayerPeeled
from unhinge.metrics import expected_calibration_error
from unhinge.nn import (
    AdjustedMarginLoss,
    ETFHead,
    FeatureNormPenalty,
    LDAMLoss,
    ManyClassHead,
    SphericalSoftmaxLoss,
    UnhingedLoss,
    ZLoss,
    class_weights,
    simplex_etf,
)
from unhinge.nn import functional as UF

LOGITS, TARGET = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([0])
START = torch.eye(3, 4), torch.eye(3, 4)
EARLY = EarlyCrossEntropy([0, 1, 2]).flow(0.01 * START[0], 0.01 * START[1])

# by the name of the setting in the message: a call with some value for it
CALLS: dict[str, Callable[[object], object]] = {
    "label_smoothing": lambda value: UnhingedLoss(label_smoothing=value)(LOGITS, TARGET),
    "epsilon": lambda value: AdjustedMarginLoss(epsilon=value)(LOGITS, torch.eye(3), TARGET),
    "epsilon ": lambda value: SphericalSoftmaxLoss(epsilon=value)(LOGITS, TARGET),
    "strength": FeatureNormPenalty,
    "radius ": lambda value: FeatureNormPenalty.for_radius(value, num_classes=3),
    "prototype_norm": lambda value: FeatureNormPenalty.for_radius(2.0, num_classes=3, prototype_norm=value),
    "slope": lambda value: ZLoss(slope=value)(LOGITS, TARGET),
    "offset": lambda value: ZLoss(offset=value)(LOGITS, TARGET),
    "scale": lambda value: ETFHead(4, 3, scale=value),
    "scale ": lambda value: LDAMLoss([3, 2, 1], scale=value),
    "lr": lambda value: ManyClassHead(4, 3).step(value),
    "weight_decay": lambda value: ManyClassHead(4, 3, weight_decay=value),
    "power": lambda value: class_weights([1, 2], power=value),
    "radius": lambda value: UF.posterior(LOGITS, value),
    "strength ": lambda value: UF.adjust_logits(LOGITS, [0.2, 0.3, 0.5], strength=value),
    "floor": lambda value: UF.balanced_decision(LOGITS.softmax(1), [0.2, 0.3, 0.5], floor=value),
    "margin": lambda value: UF.multiclass_hinge_loss(LOGITS, TARGET, margin=value),
    "dim": lambda value: simplex_etf(3, value),
    "momentum": lambda value: LayerPeeled([0, 1, 2]).descent(*START, momentum=value),
    "dampening": lambda value: LayerPeeled([0, 1, 2]).descent(*START, momentum=0.5, dampening=value),
    "label_smoothing ": lambda value: EarlyCrossEntropy([0, 1], label_smoothing=value),
    "temperature": lambda value: EarlyCrossEntropy([0, 1], temperature=value),
    "tolerance": EARLY.horizon,
    "fraction": EARLY.learned,
    "bins": lambda value: expected_calibration_error(LOGITS.softmax(1), TARGET, bins=value),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", [None, "0.5", [0.5, 0.5], torch.ones(2)], ids=["None", "text", "list", "tensor"])
def test_what_is_no_number_is_named(name: str, value: object):
    with pytest.raises(ValueError, match=f"{name.strip()} must be "):
        CALLS[name](value)


@pytest.mark.parametrize(("gamma", "batch_size"), [("0.5", 8), (0.5, 8.0)], ids=["gamma", "batch_size"])
def test_a_strength_for_a_radius_names_what_else_it_was_given(request, gamma, batch_size):
    wrong = request.node.callspec.id
    with pytest.raises(ValueError, match=f"{wrong} must be "):
        FeatureNormPenalty.for_radius(2.0, gamma=gamma, reduction="sum", batch_size=batch_size)


def test_a_float_that_is_whole_is_no_dimension():
    with pytest.raises(ValueError, match=r"dim must be a whole number of at least 1, got 4\.0"):
        simplex_etf(3, 4.0)
