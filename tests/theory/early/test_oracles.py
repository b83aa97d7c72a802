"""The oracles' losses, written out, are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from oracles.early import make_young, value

WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
OFFSETS = torch.tensor([0.3, -1.0, 0.0, 0.7], dtype=torch.float64)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_torchs(soft: bool, weight: torch.Tensor | None, smoothing: float) -> None:
    case = make_young(
        [3, 2, 4, 1],
        scale=1.0,
        bias=True,
        soft=soft,
        class_weight=weight,
        label_smoothing=smoothing,
        logit_adjustment=OFFSETS,
        temperature=2.5,
    )
    logits = case.features @ case.weight.mT + case.bias
    theirs = F.cross_entropy(logits / 2.5 + OFFSETS, case.target, weight=weight, label_smoothing=smoothing)
    torch.testing.assert_close(value(case, case.features, case.weight, case.bias), theirs)


def test_the_other_losses_are_torchs() -> None:
    case = make_young([3, 2, 4, 1], scale=1.0)
    logits, one_hot = case.features @ case.weight.mT, F.one_hot(case.target, 4).double()

    def ours(loss: str, focus: float = 2.0) -> torch.Tensor:
        other = make_young([3, 2, 4, 1], scale=1.0, loss=loss, focus=focus)
        return value(other, other.features, other.weight, None)

    binary = F.binary_cross_entropy_with_logits(logits, one_hot, reduction="none").sum(1).mean()
    torch.testing.assert_close(ours("binary_cross_entropy"), binary)
    torch.testing.assert_close(ours("squared_error"), F.mse_loss(logits, one_hot, reduction="none").sum(1).mean() / 2)
    torch.testing.assert_close(ours("focal", 0.0), F.cross_entropy(logits, case.target))
