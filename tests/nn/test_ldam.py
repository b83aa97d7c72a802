"""The baseline of long tails, from its paper, one example at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unhinge.nn.ldam import LDAMLoss, ldam_loss, ldam_margins

COUNTS = torch.tensor([500, 50, 5, 5])


def by_hand(cosines: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None) -> list[float]:
    rarest = min(COUNTS.tolist())
    losses = []
    for z, y in zip(cosines.double().tolist(), target.tolist(), strict=True):
        margin = 0.5 * (rarest / COUNTS[y].item()) ** 0.25
        scores = [30 * (value - (margin if c == y else 0.0)) for c, value in enumerate(z)]
        top = max(scores)
        loss = math.log(sum(math.exp(s - top) for s in scores)) + top - scores[y]
        losses.append(loss * (1.0 if weight is None else weight[y].item()))
    return losses


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_the_loss_of_the_paper(dtype, weighted):
    cosines, target = (2 * torch.rand(9, 4) - 1).to(dtype), torch.arange(9) % 4
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0]) if weighted else None
    expected = torch.tensor(by_hand(cosines, target, weight), dtype=torch.float64)
    budget = 1e-12 if dtype == torch.float64 else 1e-5
    each = LDAMLoss(COUNTS, weight=weight, reduction="none")(cosines, target)
    torch.testing.assert_close(each.double(), expected, rtol=budget, atol=budget)
    total = 9.0 if weight is None else weight[target].double().sum()
    mean = LDAMLoss(COUNTS, weight=weight)(cosines, target)
    torch.testing.assert_close(mean.double(), expected.sum() / total, rtol=budget, atol=budget)


def test_margins_fall_with_the_fourth_root_and_ignored_examples_count_for_nothing():
    torch.testing.assert_close(ldam_margins(COUNTS), 0.5 * torch.tensor([0.01, 0.1, 1.0, 1.0]).double() ** 0.25)
    cosines, target = torch.rand(4, 4), torch.tensor([0, -100, 2, -100])
    kept = ldam_loss(cosines[::2], target[::2], ldam_margins(COUNTS))
    torch.testing.assert_close(ldam_loss(cosines, target, ldam_margins(COUNTS)), kept)


def test_without_margin_it_is_cross_entropy_and_it_has_the_right_gradient():
    cosines, target = torch.rand(5, 4, dtype=torch.float64, requires_grad=True), torch.arange(5) % 4
    plain = torch.nn.functional.cross_entropy(7 * cosines, target)
    torch.testing.assert_close(ldam_loss(cosines, target, torch.zeros(4), scale=7.0), plain)
    assert torch.autograd.gradcheck(lambda z: ldam_loss(z, target, ldam_margins(COUNTS)), cosines)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ldam_margins(torch.tensor([3, 0])), "counts must be positive"),
        (lambda: ldam_margins(COUNTS, -1.0), "finite and not negative"),
        (lambda: ldam_loss(torch.rand(2, 4), torch.zeros(3).long(), torch.zeros(4)), r"target \(n,\)"),
        (lambda: ldam_loss(torch.rand(2, 4), torch.zeros(2).long(), torch.zeros(3)), "margins must be"),
        (lambda: LDAMLoss(COUNTS, reduction="median"), "reduction"),
        (lambda: LDAMLoss([1.0, math.inf]), "counts must be positive and finite"),
        (lambda: ldam_loss(torch.ones(2, 4).long(), torch.zeros(2).long(), torch.zeros(4)), "cosines must be a float"),
    ],
)
def test_mistakes_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("counts", [[100, 10, 1], np.array([100, 10, 1])], ids=["list", "array"])
def test_counts_and_weights_may_be_lists_and_labels_short_integers(counts):
    cosines, target = torch.randn(6, 3), torch.arange(6) % 3
    expected = LDAMLoss(torch.tensor([100, 10, 1]), weight=torch.tensor([1.0, 2.0, 3.0]))(cosines, target)
    assert torch.equal(LDAMLoss(counts, weight=[1.0, 2.0, 3.0])(cosines, target.to(torch.int32)), expected)


@pytest.mark.parametrize(
    "options", [{"scale": math.nan}, {"scale": -1.0}, {"largest": math.inf}, {"weight": "sqrt"}], ids=str
)
def test_what_has_no_meaning_is_refused(options):
    with pytest.raises(ValueError, match=r"must be|needs"):
        LDAMLoss(torch.tensor([100, 10, 1]), **options)


def test_soft_labels_are_refused():
    with pytest.raises(ValueError, match="class indices"):
        LDAMLoss(torch.tensor([3, 2, 1]))(torch.randn(4, 3), torch.rand(4))


@pytest.mark.parametrize("label", [-1, 3])
def test_an_impossible_label_is_the_error_it_is_in_cross_entropy(label):
    cosines, target = torch.randn(2, 3), torch.tensor([0, label])
    with pytest.raises(IndexError, match=f"{label}"):
        torch.nn.functional.cross_entropy(cosines, target)
    with pytest.raises(IndexError, match=f"{label}"):
        LDAMLoss([3, 2, 1])(cosines, target)
