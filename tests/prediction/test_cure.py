"""Counts in, the cure out, with the numbers that decided it."""

from __future__ import annotations

import math

import pytest
import torch

from unhinge import LayerPeeled
from unhinge.nn import class_weights
from unhinge.prediction import cure_for, measure_arrays, predict, recommend


def test_the_numbers_are_those_of_the_modes():
    counts = [60, 20, 5, 1]
    target = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    sigma = torch.linalg.svdvals(dense(target, 4))
    cure = cure_for(counts, lr=0.05)
    assert cure.leading == pytest.approx(sigma[0].item(), rel=1e-12)
    assert cure.following == pytest.approx(sigma[1].item(), rel=1e-12)
    assert cure.separation_time == pytest.approx(math.log(2) / (0.05 * (sigma[0] - sigma[1]).item()), rel=1e-9)
    assert cure.class_weight == class_weights(torch.tensor(counts).double()).tolist()
    assert "60 times" in cure.reason
    assert f"{math.ceil(cure.separation_time):,} steps" in cure.reason


def dense(target: torch.Tensor, classes: int) -> torch.Tensor:
    """M of the unhinged loss at gamma = 1/(C-1), column by column, from the gradient of the mean loss."""
    z = torch.zeros(len(target), classes, dtype=torch.float64, requires_grad=True)
    own = z.gather(1, target[:, None]).sum()
    loss = (-(1 + 1 / (classes - 1)) * own + z.sum() / (classes - 1)) / len(target)
    return -torch.autograd.grad(loss, z)[0].mT


def test_the_weights_close_the_gap():
    counts = torch.tensor([60, 20, 5, 1])
    target = torch.repeat_interleave(torch.arange(4), counts)
    weighted = LayerPeeled(target, 4, class_weight=torch.tensor(cure_for(counts).class_weight, dtype=torch.float64))
    values = weighted.singular_values
    torch.testing.assert_close(values[:3], values[:1].expand(3), rtol=1e-9, atol=0)


def test_equal_counts_need_nothing_and_ties_are_told():
    cure = cure_for([7, 7, 7])
    assert (cure.class_weight, cure.strength_with_weights, cure.separation_time) == (None, 0.0, math.inf)
    assert "nothing to cure" in cure.reason
    tied = cure_for([50, 50, 50, 2])
    assert tied.separation_time == math.inf
    assert "tie" in tied.reason


@pytest.mark.parametrize("wrong", [[5], [5, 0], [5, 1.5], [math.nan, 2]])
def test_counts_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="counts"):
        cure_for(wrong)


def test_advice_and_findings_name_the_decision_and_the_time():
    counts = torch.tensor([40, 10, 4])
    target = torch.repeat_interleave(torch.arange(3), counts)
    measured = measure_arrays(torch.randn(54, 6).double(), target, weight=torch.randn(3, 6).double())
    advice = recommend(measured)
    assert advice.decision_strength == 0.5
    assert "to the power 0.5" in advice.reasons["decision"]
    assert f"{cure_for(counts).leading:.4g}" in advice.reasons["class_weight"]
    said = predict(measured).findings
    limits = [sentence for sentence in said if "%" in sentence and "right" in sentence]
    assert limits
    assert all("step" in sentence or "from the start" in sentence or "never" in sentence for sentence in limits)
    assert any("UF.balanced_decision" in sentence for sentence in said)
    even = measure_arrays(torch.randn(12, 6).double(), torch.arange(12) % 3)
    assert recommend(even).decision_strength == 0.0
