"""What is said once, before hours are lost: norms that run away, a ReLU under a simplex, a class without examples."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from unhinge.nn import ETFHead, FeatureNormPenalty, UnhingedLoss, class_weights, replace_head
from unhinge.nn import functional as UF


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 4))


def test_a_loss_that_runs_away_warns_once():
    loss, labels = UnhingedLoss(), torch.tensor([0, 1])
    logits = torch.tensor([[3e7, 0.0, 0.0], [0.0, 3e7, 0.0]], requires_grad=True)
    with pytest.warns(UserWarning, match="norms of the features run away"):
        loss(logits, labels).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(logits, labels)
        UnhingedLoss()(logits / 1e4, labels)
        UnhingedLoss(reduction="sum")(logits, labels)
    with pytest.warns(UserWarning, match="loss is nan"):
        UnhingedLoss()(logits * torch.nan, labels)


def test_a_batch_in_which_every_example_is_ignored_says_nothing_about_norms() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = UnhingedLoss()(torch.randn(3, 4), torch.full((3,), -100))
    assert loss.isnan()  # as cross-entropy


def test_nothing_is_read_under_vmap():
    loss = UnhingedLoss()
    actual = torch.vmap(lambda z: loss(z, torch.tensor(0)))(torch.full((2, 3), -1e9))
    assert actual.shape == (2,)


def test_a_relu_that_stays_under_a_simplex_is_told():
    with pytest.warns(UserWarning, match="remove_last_relu=True"):
        replace_head(network(), ETFHead)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace_head(network(), ETFHead, remove_last_relu=True)
        replace_head(network(), nn.Linear)
        replace_head(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)), ETFHead)


def test_a_class_without_examples_is_told():
    with pytest.warns(UserWarning, match="1 of 3 classes have no examples and get weight 0, the first of them class 1"):
        assert class_weights([5, 0, 3])[1] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        class_weights([5, 1, 3])


@pytest.mark.parametrize("weight", [[1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0]), (1, 2, 3)])
def test_weights_may_come_in_a_list_or_an_array(weight):
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = UnhingedLoss(weight=torch.tensor([1.0, 2.0, 3.0]))(logits, labels)
    torch.testing.assert_close(UnhingedLoss(weight=weight)(logits, labels), expected)


@pytest.mark.parametrize(
    ("weight", "said"), [({0: 1.0}, "got dict"), ("balanced", "needs the class counts"), ([1.0, 2.0], r"got \(2,\)")]
)
def test_other_weights_are_refused_in_our_words(weight, said):
    with pytest.raises(ValueError, match=said):
        UnhingedLoss(weight=weight)(torch.randn(2, 3), torch.tensor([0, 1]))


@pytest.mark.parametrize("logits", [np.zeros((2, 3)), [[0.0, 1.0, 2.0]]])
def test_logits_of_another_library_are_refused_in_our_words(logits):
    with pytest.raises(ValueError, match=r"logits must be a torch.Tensor, got (ndarray|list)"):
        UnhingedLoss()(logits, torch.tensor([0, 1]))


ARRAY = np.ones((2, 3))
NOT_TENSORS = {
    "features": lambda: UF.unhinged_loss_from_features(ARRAY, torch.ones(3, 3), torch.tensor([0, 1])),
    "weight": lambda: UF.unhinged_loss_from_features(torch.ones(2, 3), ARRAY, torch.tensor([0, 1])),
    "logits": lambda: UF.posterior(ARRAY, 10.0),
    "posterior": lambda: UF.balanced_decision(ARRAY, [1, 2, 3]),
}


@pytest.mark.parametrize("name", NOT_TENSORS)
def test_what_is_no_tensor_is_named(name: str):
    with pytest.raises(ValueError, match=f"{name} must be a torch.Tensor, got ndarray"):
        NOT_TENSORS[name]()


def test_counts_may_be_lists_and_arrays():
    logits, counts = torch.tensor([[1.0, 0.0]]), [90, 10]
    expected = UF.adjust_logits(logits, torch.tensor(counts))
    assert torch.equal(UF.adjust_logits(logits, counts), expected)
    assert torch.equal(UF.adjust_logits(logits, np.array(counts)), expected)
    with pytest.raises(ValueError, match=r"prior must hold one number per class.*got dict"):
        UF.adjust_logits(logits, {0: 90, 1: 10})


@pytest.mark.parametrize("strength", ["strong", None, [1.0]])
def test_a_strength_that_is_no_number_is_named(strength: object):
    with pytest.raises(ValueError, match=f"strength must be a number, got {type(strength).__name__}"):
        FeatureNormPenalty(strength)
