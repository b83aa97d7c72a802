"""The step that does not grow with the classes is the step of dense SGD."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unhinge.nn.many import ManyClassHead

F64 = torch.float64


def dense_loss(features: Tensor, weight: Tensor, target: Tensor, gamma: float) -> Tensor:
    """From the definition, with all logits."""
    logits = features @ weight.T
    true = torch.arange(len(weight)) == target[:, None]
    return torch.where(true, -logits, gamma * logits).sum(1)


class Pair:
    """A head and a dense weight under torch.optim.SGD, fed the same batches."""

    def __init__(self, classes: int, dim: int, gamma: float | None, decay: float, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        start = self.normal(classes, dim)
        self.gamma = 1 / (classes - 1) if gamma is None else gamma
        self.head = ManyClassHead(dim, classes, gamma, decay, weight=start)
        self.weight = start.clone().requires_grad_()
        self.sgd = torch.optim.SGD([self.weight], lr=0.1, weight_decay=decay)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=F64)

    def labels(self, size: int) -> Tensor:
        return torch.randint(self.head.num_classes, (size,), generator=self.generator)

    def step(self, features: Tensor, target: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """Gradients of the features, ours and theirs."""
        ours, theirs = features.clone().requires_grad_(), features.clone().requires_grad_()
        loss = self.head(ours, target)
        loss.backward()
        self.head.step(lr)
        self.sgd.zero_grad()
        self.sgd.param_groups[0]["lr"] = lr
        expected = dense_loss(theirs, self.weight, target, self.gamma).mean()
        expected.backward()
        self.sgd.step()
        torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-11 * self.weight.abs().max().item())
        return ours.grad, theirs.grad

    def error(self) -> float:
        """Largest difference of the weights and of their sums, in eps of the largest entry."""
        weight, size = self.weight.detach(), self.weight.abs().max().item()
        rows = (self.head.dense() - weight).abs().max().item()
        total = (self.head.weight_sum - weight.sum(0)).abs().max().item() / math.sqrt(len(weight))
        return max(rows, total) / (size * 2**-52)


@pytest.mark.parametrize("gamma", [None, 0.0, 0.04, 0.7])
@pytest.mark.parametrize("decay", [0.0, 5e-4, 0.1])
def test_hundreds_of_steps_equal_dense_sgd(gamma, decay):
    """[eq: many-classes]."""
    pair = Pair(classes=23, dim=5, gamma=gamma, decay=decay)
    for k in range(200):
        lr = 0.5 * (1 + math.cos(math.pi * k / 200))
        ours, theirs = pair.step(pair.normal(7, 5), pair.labels(7), lr)
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    assert pair.error() < 200


@given(
    st.integers(2, 12),
    st.integers(1, 4),
    st.integers(0, 9),
    st.sampled_from([None, 0.0, 0.3, 2.0]),
    st.sampled_from([0.0, 0.01, 0.9]),
    st.lists(st.sampled_from([0.0, 1e-3, 0.1, 1.0]), min_size=1, max_size=8),
    st.integers(0, 100),
)
def test_any_shape_and_schedule_equals_dense_sgd(classes, dim, batch, gamma, decay, rates, seed):
    pair = Pair(classes, dim, gamma, decay, seed)
    for lr in rates:
        if batch:
            ours, theirs = pair.step(pair.normal(batch, dim), pair.labels(batch), lr)
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    assert pair.error() < 100
    index = pair.labels(3)
    torch.testing.assert_close(pair.head.rows(index), pair.head.dense()[index], rtol=0, atol=0)


def test_a_class_many_times_in_one_batch_gets_every_pull():
    pair = Pair(6, 3, 0.2, 0.01)
    for _ in range(5):
        pair.step(pair.normal(8, 3), torch.tensor([2, 2, 2, 5, 2, 5, 2, 2]), 0.3)
    assert pair.error() < 50


def test_decay_far_below_the_smallest_float_leaves_the_common_part_exact():
    """After 1,200 steps the starts have decayed by 1e-361: the scale that a product would keep is zero."""
    pair = Pair(6, 2, 0.3, 0.5)
    for _ in range(1200):
        pair.step(pair.normal(2, 2), torch.tensor([0, 1]), 1.0)
    assert pair.head.exponent.item() < -1100
    pair.step(pair.normal(2, 2), torch.tensor([4, 5]), 1.0)  # rows that were never touched
    assert pair.error() < 50
    assert pair.head.dense().isfinite().all()


@pytest.mark.parametrize("lr", [2.0, 2.5, 3.9])
def test_a_decay_that_wipes_out_or_turns_around_the_rows_is_that_of_dense_sgd(lr):
    pair = Pair(6, 3, 0.2, 0.5)
    for rate in (0.1, lr, 0.1, lr, lr):
        pair.step(pair.normal(3, 3), pair.labels(3), rate)
    assert pair.error() < 50


def test_single_precision_is_as_good_as_dense_single_precision():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, 8, generator=generator)
    head = ManyClassHead(8, 50, weight_decay=1e-3, weight=start)
    exact = Pair(50, 8, None, 1e-3)
    exact.head = ManyClassHead(8, 50, weight_decay=1e-3, weight=start.double())
    dense = start.clone().requires_grad_()
    sgd = torch.optim.SGD([dense], lr=0.5, weight_decay=1e-3)
    for _ in range(100):
        features, target = torch.randn(6, 8, generator=generator), torch.randint(50, (6,), generator=generator)
        for one, dtype in ((head, torch.float32), (exact.head, F64)):
            one(features.to(dtype), target).backward()
            one.step(0.5)
        sgd.zero_grad()
        logits = features @ dense.T
        true = logits.gather(1, target[:, None]).squeeze(1)
        (logits.sum(1) / 49 - 50 / 49 * true).mean().backward()
        sgd.step()
    truth = exact.head.dense()
    ours, theirs = ((one.double() - truth).abs().max().item() for one in (head.dense(), dense.detach()))
    assert ours < 2 * theirs + 1e-7


# ---- what is differentiated is what is stepped ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sum", "weighted", "scaled", "accumulated"])
def test_the_step_follows_the_objective(way):
    pair = Pair(9, 4, 0.3, 0.05)
    features, target = pair.normal(6, 4), pair.labels(6)
    weights = torch.rand(6, generator=pair.generator, dtype=F64)
    expected = dense_loss(features, pair.weight, target, 0.3)
    if way == "sum":
        pair.head(features, target, reduction="sum").backward()
        expected.sum().backward()
    elif way == "weighted":
        (weights * pair.head(features, target, reduction="none")).sum().backward()
        (weights * expected).sum().backward()
    elif way == "scaled":
        (128 * pair.head(features, target)).backward()
        (128 * expected.mean()).backward()
    else:
        for part in (slice(0, 2), slice(2, 6)):
            pair.head(features[part], target[part], reduction="sum").backward()
        expected.sum().backward()
    pair.head.step(0.1)
    pair.sgd.step()
    assert pair.error() < 20


def test_leading_axes_are_examples():
    pair = Pair(9, 4, 0.3, 0.0)
    features, target = pair.normal(2, 3, 4), pair.labels(6).view(2, 3)
    assert pair.head(features, target, reduction="none").shape == (2, 3)
    pair.head(features, target).backward()
    dense_loss(features.view(6, 4), pair.weight, target.view(6), 0.3).mean().backward()
    pair.head.step(0.1)
    pair.sgd.step()
    assert pair.error() < 20


def test_the_gradient_of_the_features_is_right():
    head = ManyClassHead(4, 9, weight=torch.randn(9, 4, dtype=F64))
    features = torch.randn(3, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: head(h, torch.tensor([0, 8, 8])), features)


def test_without_a_backward_pass_a_step_changes_nothing():
    """As SGD does with a parameter that has no gradient: no decay either."""
    head = ManyClassHead(3, 5, weight_decay=0.1)
    before = head.dense()
    with torch.no_grad():
        head(torch.randn(2, 3), torch.tensor([0, 1]))
    head.step(0.1)
    head(torch.randn(2, 3), torch.tensor([0, 1])).backward()
    head.zero_grad()
    head.step(0.1)
    assert torch.equal(head.dense(), before)


def test_an_empty_batch_only_decays():
    head = ManyClassHead(3, 5, weight_decay=0.1)
    before = head.dense()
    assert head(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).isnan()
    head(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), reduction="sum").backward()
    head.step(1.0)
    torch.testing.assert_close(head.dense(), 0.9 * before)


def test_a_step_never_touches_the_rows_of_other_classes():
    """The stored rows of all other classes keep their bits, although the weight of each of them moves."""
    head = ManyClassHead(3, 1000, gamma=0.1, weight_decay=0.1)
    stored, before = head.own.clone(), head.dense()
    head(torch.randn(2, 3), torch.tensor([10, 20])).backward()
    head.step(0.5)
    changed = (head.own != stored).any(1).nonzero().flatten().tolist()
    assert changed == [10, 20]
    assert ((head.dense() - before).abs().sum(1) > 0).all()


# ---- as a module ----------------------------------------------------------------------------------------------------


def test_saving_in_the_middle_changes_nothing():
    first, second = Pair(9, 4, 0.2, 0.05), Pair(9, 4, 0.2, 0.05)
    for pair in (first, second):
        for _ in range(5):
            pair.step(pair.normal(3, 4), pair.labels(3), 0.2)
    file = io.BytesIO()
    torch.save(first.head.state_dict(), file)
    file.seek(0)
    first.head = ManyClassHead(4, 9, 0.2, 0.05, dtype=F64)
    first.head.load_state_dict(torch.load(file, weights_only=True))
    second.head = copy.deepcopy(second.head)
    for pair in (first, second):
        for _ in range(5):
            pair.step(pair.normal(3, 4), pair.labels(3), 0.2)
    assert torch.equal(first.head.dense(), second.head.dense())
    assert first.error() < 50


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_keep_their_decay_in_full(dtype):
    head = ManyClassHead(4, 9, weight_decay=0.1)
    for _ in range(50):
        head(torch.randn(3, 4), torch.tensor([0, 1, 2])).backward()
        head.step(0.1)
    decay = head.scale.item()
    head = head.to(dtype)
    assert (head.own.dtype, head.scale.dtype, head.row_scale.dtype) == (dtype, F64, F64)
    assert head.scale.item() == decay
    loss = head(torch.randn(3, 4).to(dtype), torch.tensor([0, 1, 8]))
    loss.backward()
    head.step(0.1)
    assert loss.dtype == dtype
    assert head.dense().isfinite().all()


def test_half_precision_features_meet_single_precision_rows():
    head = ManyClassHead(4, 9)
    features = torch.randn(3, 4).half().requires_grad_()
    head(features, torch.tensor([0, 1, 8])).backward()
    assert features.grad.dtype == torch.float16
    head.step(0.1)
    assert head.own.dtype == torch.float32


def test_the_start_is_that_of_a_linear_and_the_generator_decides_it():
    first, second = (ManyClassHead(16, 100, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first.dense(), second.dense())
    assert 0.24 < first.dense().abs().max() <= 0.25
    torch.testing.assert_close(first.logits(torch.ones(1, 16)), first.dense().sum(1)[None])


def test_one_class_alone_can_be_trained():
    pair = Pair(1, 2, 0.0, 0.1)
    pair.step(pair.normal(3, 2), torch.zeros(3, dtype=torch.int64), 0.1)
    assert pair.error() < 10


@pytest.mark.parametrize("label", [-1, 5, -100])
def test_a_label_out_of_range_is_refused(label):
    with pytest.raises(ValueError, match=rf"0 .. 4, got values from {label} to {label}"):
        ManyClassHead(3, 5)(torch.ones(1, 3), torch.tensor([label]))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"gamma": -0.5}, "gamma"),
        ({"momentum": 0.9}, "momentum is not supported"),
        ({"weight": torch.ones(3, 5)}, "shape"),
    ],
)
def test_impossible_settings_are_refused(options, what):
    with pytest.raises(ValueError, match=what):
        ManyClassHead(3, 5, **options)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
def test_an_impossible_step_is_refused(lr):
    with pytest.raises(ValueError, match="lr"):
        ManyClassHead(3, 5, weight_decay=0.5).step(lr)


@pytest.mark.parametrize(
    ("features", "target"),
    [
        (torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)),
        (torch.ones(2, 3), torch.zeros(3, dtype=torch.int64)),
        (torch.ones(2, 3), torch.zeros(2)),
    ],
)
def test_shapes_and_kinds_that_do_not_fit_are_refused(features, target):
    with pytest.raises(ValueError, match=r"features must have shape|integer dtype"):
        ManyClassHead(3, 5)(features, target)
