"""The strength of an adjustment, chosen by the mean of the class accuracies."""

from __future__ import annotations

import pytest
import torch

from unhinge.metrics import strength_curve, strength_plot
from unhinge.nn import functional as UF
from unhinge.nn import simplex_etf


def test_the_curve_of_a_simplex_head_goes_by_its_posterior():
    frame, prior = simplex_etf(3, 4, dtype=torch.float64), torch.tensor([0.8, 0.15, 0.05], dtype=torch.float64)
    target = torch.arange(300) % 3
    fair = (torch.nn.functional.one_hot(target, 3) + torch.rand(300, 3)).double()
    p = fair * prior
    p = p / p.sum(1, keepdim=True)
    logits = 6 * p @ frame @ frame.mT
    curve = strength_curve(logits, target, prior, radius=6.0)
    expected = [(UF.balanced_decision(p, prior, s) == target).double().mean() for s in curve.strengths.tolist()]
    torch.testing.assert_close(curve.example_accuracy, torch.stack(expected))
    assert curve.balanced_accuracy.max() > 0.99 > curve.balanced_accuracy[0]
    axes = strength_plot(curve, title="three classes")
    assert axes.get_title(loc="left").startswith("three classes")
    assert len(axes.lines) == 3


def test_classes_without_examples_are_left_out_of_the_mean():
    curve = strength_curve([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 1], prior=[1, 1, 1], strengths=[0.0])
    assert curve.balanced_accuracy.tolist() == [1.0]


def test_the_mean_counts_classes_and_not_examples():
    """Nine examples of the frequent class, one of the rare one: adjusting loses three of the nine and wins the one."""
    logits = torch.tensor([[4.0, 0.0]] * 6 + [[1.0, 0.0]] * 3 + [[1.0, 0.0]])
    curve = strength_curve(logits, [0] * 9 + [1], prior=[9, 1], strengths=[0.0, 1.0])
    assert curve.example_accuracy.tolist() == pytest.approx([0.9, 0.7])
    assert curve.balanced_accuracy.tolist() == pytest.approx([0.5, (6 / 9 + 1) / 2])
    assert curve.best == 1.0


def test_among_ties_the_middle_is_taken():
    curve = strength_curve([[1.0, 0.0], [0.0, 1.0]], [0, 1], prior=[1, 1], strengths=[0.0, 0.5, 1.0, 1.5, 2.0])
    assert curve.best == 1.0
