"""Finishing: softmax over a shortlist with a second-order tail, against all logits and dense SGD."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn import ManyClassHead

F64 = torch.float64


def oracle(logits: Tensor, target: Tensor, shortlist: Tensor) -> Tensor:
    """One example at a time: which classes are looked at, and the moments of the rest, from all logits."""
    losses = []
    for z, y, near in zip(logits, target.tolist(), shortlist.tolist(), strict=True):
        looked_at = sorted({y, *near})
        rest = [c for c in range(len(z)) if c not in looked_at]
        whole = z[looked_at].exp().sum()
        if rest:
            mean = z[rest].mean()
            whole = whole + len(rest) * mean.exp() * (1 + ((z[rest] - mean) ** 2).mean() / 2)
        losses.append(whole.log() - z[y])
    return torch.stack(losses)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [1, 4, 12])
def test_forty_steps_equal_dense_sgd_on_the_same_loss(k, bias):
    """[eq: shortlist-softmax]. Shortlists hold the true class now and then, and classes twice."""
    generator = torch.Generator().manual_seed(0)
    head = ManyClassHead(5, 13, "taylor_softmax", weight=draw(0, 13, 5), weight_decay=0.01, bias=bias)
    linear = head.linear()
    sgd = torch.optim.SGD(linear.parameters(), lr=0.3, weight_decay=0.01)
    for seed in range(40):
        ours, theirs = (draw(seed, 7, 5).requires_grad_() for _ in range(2))
        target = torch.randint(13, (7,), generator=generator)
        shortlist = torch.randint(13, (7, k), generator=generator)
        loss = head(ours, target, shortlist=shortlist)
        loss.backward()
        head.step(0.3)
        sgd.zero_grad()
        expected = oracle(linear(theirs), target, shortlist).mean()
        expected.backward()
        sgd.step()
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(head.dense(), linear.weight.detach(), rtol=1e-9, atol=1e-10)


def test_with_every_class_on_the_shortlist_it_is_cross_entropy():
    head = ManyClassHead(4, 6, "z", weight=draw(1, 6, 4))
    features, target = draw(2, 3, 4), torch.tensor([0, 5, 2])
    everyone = torch.arange(6).expand(3, 6)
    torch.testing.assert_close(
        head(features, target, shortlist=everyone), F.cross_entropy(features @ head.dense().T, target)
    )


def test_both_kinds_of_passes_add_up_in_one_step():
    head = ManyClassHead(4, 6, "taylor_softmax", weight=draw(1, 6, 4))
    parts = [ManyClassHead(4, 6, "taylor_softmax", weight=draw(1, 6, 4)) for _ in range(2)]
    features, target = draw(2, 3, 4), torch.tensor([0, 5, 2])
    near = torch.tensor([[1, 2], [0, 1], [3, 4]])
    for one in (head, parts[0]):
        one(features, target).backward()
    for one in (head, parts[1]):
        one(2 * features, target, shortlist=near).backward()
    for one in (head, *parts):
        one.step(0.1)
    start = draw(1, 6, 4)
    torch.testing.assert_close(head.dense() - start, sum(one.dense() - start for one in parts))


def test_neighbors_are_the_other_rows_with_the_largest_products():
    head = ManyClassHead(4, 30, "taylor_softmax", weight=draw(1, 30, 4))
    rows = head.dense()
    products = (rows @ rows.T).fill_diagonal_(-torch.inf)
    assert torch.equal(head.neighbors(5), products.topk(5, dim=1).indices)
    assert head.neighbors(29).shape == (30, 29)
    with pytest.raises(ValueError, match="number of other classes"):
        head.neighbors(30)


@pytest.mark.parametrize(
    ("loss", "shortlist", "what"),
    [
        ("unhinged", torch.zeros(2, 3, dtype=torch.int64), "needs the sum of squares"),
        ("z", torch.zeros(3, 3, dtype=torch.int64), "shortlist must have shape"),
        ("z", torch.zeros(2, dtype=torch.int64), "shortlist must have shape"),
        ("z", torch.zeros(2, 3), "shortlist must hold class indices"),
        ("z", torch.full((2, 3), 9), "labels must lie in"),
    ],
)
def test_an_impossible_shortlist_is_refused(loss, shortlist, what):
    with pytest.raises(ValueError, match=what):
        ManyClassHead(4, 6, loss)(torch.ones(2, 4), torch.tensor([0, 1]), shortlist=shortlist)


# ---- rows from class means ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", ["taylor_softmax", "unhinged"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_restarted_head_is_a_new_one_with_centred_class_means(loss, bias, dtype):
    """[eq: restart], after steps that have turned the rows, and with a backward pass that is forgotten."""
    means = 3 + draw(5, 13, 4).to(dtype)
    head = ManyClassHead(4, 13, loss, weight=draw(6, 13, 4).to(dtype), bias=bias, weight_decay=0.1)
    for seed in range(3):
        head(draw(seed, 6, 4).to(dtype), torch.arange(6)).backward()
        head.step(0.5)
    head(draw(9, 6, 4).to(dtype), torch.arange(6)).backward()
    head.restart(means, strength=3.0)
    before = head.dense()
    head.step(0.5)
    assert torch.equal(head.dense(), before)

    center = means.double().mean(0)
    rows = means.double() - center
    rows = rows * 3.0 * math.log(13) / (rows**2).sum(1).mean()
    offsets = -(rows @ center) if bias else torch.zeros(13, dtype=F64)
    queries = draw(7, 5, 4).to(dtype)
    expected = queries.double() @ rows.T + offsets
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(head.logits(queries).double(), expected, rtol=tolerance, atol=tolerance * 30)
    torch.testing.assert_close(head.weight_sum.double(), rows.sum(0), rtol=0.0, atol=tolerance * 30)
    if bias:
        true_logits = head.logits(means).diagonal().double().mean().item()
        assert true_logits == pytest.approx(3.0 * math.log(13), rel=tolerance * 10)

    fresh = ManyClassHead(4, 13, loss, weight=head.dense(), bias=False, weight_decay=0.1)
    if not bias:  # and it goes on as that one does, to the bit
        for one in (head, fresh):
            one(draw(8, 6, 4).to(dtype), torch.arange(6)).backward()
            one.step(0.5)
        assert torch.equal(head.dense(), fresh.dense())


@pytest.mark.parametrize(
    ("means", "what"),
    [
        (torch.zeros(6, 4), r"shape \(7, 4\)"),
        (torch.ones(7, 4), "all the same"),
        (torch.full((7, 4), torch.nan), "without an example"),
    ],
)
def test_means_that_make_no_rows_are_refused_and_change_nothing(means, what):
    head = ManyClassHead(4, 7, "taylor_softmax")
    before = head.dense()
    with pytest.raises(ValueError, match=what):
        head.restart(means)
    with pytest.raises(ValueError, match="strength"):
        head.restart(torch.eye(7, 4), strength=0.0)
    assert torch.equal(head.dense(), before)


def test_neighbors_are_those_of_the_rows_whatever_the_biases():
    head = ManyClassHead(2, 3, bias=True)
    head.store.replace(torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.1, 0.0, 5.0]]))
    assert head.neighbors(1).flatten().tolist() == [1, 0, 0]
