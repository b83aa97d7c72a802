"""The step that does not grow with the classes is the step of dense SGD, for every loss of three numbers."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from unhinge.nn import ManyClassHead, SphericalSoftmaxLoss, TaylorSoftmaxLoss, UnhingedLoss, ZLoss

F64 = torch.float64


def onehot(logits: Tensor, target: Tensor) -> Tensor:
    return F.one_hot(target, logits.shape[1]).to(logits.dtype)


def odd_rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int) -> Tensor:
    """A loss that nobody has a name for."""
    return torch.tanh(total / num_classes) * own - own + squares.sqrt() / 3


def shares(classes: int) -> Tensor:
    """A prior that is not uniform."""
    return F.normalize(torch.arange(1.0, classes + 1, dtype=F64), p=1, dim=0)


def options_of(name: str, classes: int) -> dict[str, Any]:
    options = dict(LOSSES[name][0])
    return options | {"prior": shares(classes)} if "prior" in options else options


# Options of the head, and the loss of each example from all logits.
LOSSES = {
    "unhinged": ({"loss": "unhinged"}, lambda z, y: UnhingedLoss(reduction="none")(z, y)),
    "gamma": ({"loss": "unhinged", "gamma": 0.7}, lambda z, y: UnhingedLoss(0.7, reduction="none")(z, y)),
    "prior": (
        {"loss": "unhinged", "prior": shares},
        lambda z, y: (z * shares(z.shape[1])).sum(1) - (z * onehot(z, y)).sum(1),
    ),
    "taylor": ({"loss": "taylor_softmax"}, lambda z, y: TaylorSoftmaxLoss(reduction="none")(z, y)),
    "spherical": (
        {"loss": "spherical_softmax", "epsilon": 0.5},
        lambda z, y: SphericalSoftmaxLoss(0.5, reduction="none")(z, y),
    ),
    "z": (
        {"loss": "z", "slope": 0.5, "offset": 2.0},
        lambda z, y: ZLoss(slope=0.5, offset=2.0, reduction="none")(z, y),
    ),
    "squared": ({"loss": "squared"}, lambda z, y: (z - onehot(z, y)).square().sum(1)),
    "custom": (
        {"loss": odd_rule},
        lambda z, y: odd_rule((z * onehot(z, y)).sum(1), z.sum(1), (z * z).sum(1), z.shape[1]),
    ),
}
RATES = {"squared": 0.02}  # where 0.1 diverges, for the dense weight as well
every_loss = pytest.mark.parametrize("name", LOSSES)
second_order = pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("unhinged", "gamma", "prior")])


def counted(head: ManyClassHead) -> Tensor:
    """What each row counts in the head's sum."""
    return head.store.shares(torch.arange(head.num_classes))


def assert_within(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """``torch.testing.assert_close``, which takes as long as a step, only where it has something to say."""
    if not torch.allclose(actual, expected, rtol=tolerance, atol=tolerance):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class Pair:
    """A head and a dense Linear under torch.optim.SGD, fed the same batches."""

    def __init__(
        self, name: str, classes: int, dim: int, decay: float, seed: int = 0, bias: bool = False, scale: float = 0.3
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        options, self.losses = options_of(name, classes), LOSSES[name][1]
        start = scale * self.normal(classes, dim)
        self.head = ManyClassHead(dim, classes, weight_decay=decay, weight=start, bias=bias, **options)
        self.linear = self.head.linear()
        self.sgd = torch.optim.SGD(self.linear.parameters(), lr=0.1, weight_decay=decay)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=F64)

    def labels(self, size: int) -> Tensor:
        return torch.randint(self.head.num_classes, (size,), generator=self.generator)

    def step(self, features: Tensor, target: Tensor, lr: float) -> None:
        ours, theirs = features.clone().requires_grad_(), features.clone().requires_grad_()
        loss = self.head(ours, target)
        loss.backward()
        self.head.step(lr)
        self.sgd.zero_grad()
        self.sgd.param_groups[0]["lr"] = lr
        expected = self.losses(self.linear(theirs), target).mean()
        expected.backward()
        self.sgd.step()
        assert_within(loss, expected, 1e-9)
        assert_within(ours.grad, theirs.grad, 1e-9)

    def error(self) -> float:
        """Largest difference of weights, biases and sums, in units of the largest entry."""
        weight = self.linear.weight.detach()
        errors = [
            (self.head.dense() - weight).abs().max(),
            (self.head.weight_sum - counted(self.head) @ weight).abs().max() / len(weight),
        ]
        if self.linear.bias is not None:
            errors.append((self.head.biases(torch.arange(len(weight))) - self.linear.bias.detach()).abs().max())
        return max(error.item() for error in errors) / max(1e-3, weight.abs().max().item())


@every_loss
@pytest.mark.parametrize("decay", [0.0, 5e-4, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_a_hundred_and_twenty_steps_equal_dense_sgd(name, decay, bias):
    """[eq: three-numbers-step], [eq: many-classes]. The rate follows a cosine; labels repeat within a batch of 9."""
    pair = Pair(name, classes=23, dim=5, decay=decay, bias=bias)
    for k in range(120):
        lr = RATES.get(name, 0.1) * (1 + math.cos(math.pi * k / 120))
        pair.step(pair.normal(9, 5), pair.labels(9), lr)
    assert pair.error() < 1e-9


@every_loss
@given(
    st.integers(2, 12),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.01, 0.9]),
    st.lists(st.sampled_from([0.0, 1e-3, 0.02, 0.05]), min_size=1, max_size=8),
    st.integers(0, 100),
)
def test_any_shape_and_schedule_equals_dense_sgd(name, classes, dim, batch, decay, rates, seed):
    """One example, more examples than dimensions, fewer classes than dimensions, a rate of zero."""
    if name == "z" and classes == 2:
        return  # of two logits the score is 1 or -1: the loss is flat and its gradient 0/0 up to rounding
    pair = Pair(name, classes, dim, decay, seed)
    for lr in rates:
        pair.step(pair.normal(batch, dim), pair.labels(batch), lr)
    assert pair.error() < 1e-9
    index = pair.labels(3)
    torch.testing.assert_close(pair.head.rows(index), pair.head.dense()[index], rtol=1e-15, atol=1e-15)


@every_loss
def test_a_class_many_times_in_one_batch_gets_every_pull(name):
    pair = Pair(name, 6, 3, 0.01)
    for _ in range(5):
        pair.step(pair.normal(8, 3), torch.tensor([2, 2, 2, 5, 2, 5, 2, 2]), RATES.get(name, 0.1))
    assert pair.error() < 1e-11


@every_loss
@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_single_precision_stays_within_a_thousandth_of_double_over_twelve_thousand_examples(name, decay):
    """And the sums stay those of the stored rows to the last digits of float64, although these are rounded.

    What rounds is the storing of a row. 500 steps of 24 examples store about as many rows as 2,000 of 6, and with four
    times the rate they go as far, in a quarter of the time. With decay the spherical softmax, which does not tell z
    from -z, parts two runs that differ by a rounding: there dense float32 SGD may be further away than the bound.
    """
    options, losses = options_of(name, 50), LOSSES[name][1]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, 8, generator=generator) / 3
    single, double = (ManyClassHead(8, 50, weight_decay=decay, weight=w, **options) for w in (start, start.double()))
    dense = start.clone().requires_grad_()
    rate = 0.2 if name in ("squared", "custom") else 2.0
    sgd = torch.optim.SGD([dense], lr=rate, weight_decay=decay)
    parted = name == "spherical" and decay > 0
    for _ in range(500):
        features, target = torch.randn(24, 8, generator=generator), torch.randint(50, (24,), generator=generator)
        for head, dtype in ((single, torch.float32), (double, F64)):
            head(features.to(dtype), target).backward()
            head.step(rate)
        if parted:
            sgd.zero_grad()
            losses(features @ dense.T, target).mean().backward()
            sgd.step()
    truth = double.dense()
    size = truth.abs().max().item()
    assert size < 100
    ours, theirs = ((one.detach().double() - truth).abs().max().item() for one in (single.dense(), dense))
    assert ours < (max(1e-3 * size, theirs) if parted else 1e-3 * size)
    for head in (single, double):
        rows = head.store.rows(torch.arange(50))
        assert (head.store.total - counted(head) @ rows).abs().max().item() < 1e-12 * 50 * size
        if head.loss.quadratic:
            assert (head.store.gram - rows.T @ rows).abs().max().item() < 1e-12 * 50 * size**2


def test_the_sum_of_single_precision_rows_does_not_drift():
    generator = torch.Generator().manual_seed(0)
    head = ManyClassHead(16, 1000, gamma=0.01, generator=generator)
    for _ in range(3000):
        features = torch.randn(32, 16, generator=generator)
        head(features, torch.randint(1000, (32,), generator=generator)).backward()
        head.step(0.5)
    rows = head.store.rows(torch.arange(1000))
    assert (head.store.total - rows.sum(0)).abs().max() < 1e-12 * rows.abs().sum(0).max()


# ---- folding --------------------------------------------------------------------------------------------------------


def test_a_decay_far_below_the_smallest_float_is_folded_away():
    """After 1,200 steps the starts have decayed by 1e-361: kept as a product, that scale is zero."""
    pair = Pair("gamma", 6, 2, 0.5)
    for _ in range(1200):
        pair.step(pair.normal(2, 2), torch.tensor([0, 1]), 1.0)
    assert 20 < pair.head.store.folds.item() < 60  # once per 40 halvings
    pair.step(pair.normal(2, 2), torch.tensor([4, 5]), 1.0)  # rows that were never touched
    assert pair.error() < 1e-13
    assert pair.head.dense().isfinite().all()


@every_loss
@pytest.mark.parametrize("lr", [2.0, 2.5, 3.9])
def test_a_decay_that_wipes_out_or_turns_around_the_rows_is_that_of_dense_sgd(name, lr):
    """A rate of 2 with a decay of 1/2 multiplies every row by zero: U is singular and has to be folded."""
    pair = Pair(name, 6, 3, 0.5)
    for rate in (0.01, lr, 0.01, lr, lr):
        features = 1e-3 * pair.normal(3, 3) if rate == lr else pair.normal(3, 3)  # else the losses themselves explode
        pair.step(features, pair.labels(3), rate)
    assert pair.error() < 1e-9


def test_a_step_that_makes_a_direction_vanish_is_folded_at_once():
    """The squared loss at the rate that is exact for one example: E has a zero eigenvalue along its feature."""
    pair = Pair("squared", 7, 3, 0.0)
    feature = torch.tensor([[0.6, 0.0, 0.8]], dtype=F64)
    pair.step(feature, torch.tensor([2]), 0.5)
    assert pair.head.store.folds.item() == 1
    assert pair.error() < 1e-15
    torch.testing.assert_close(pair.head.logits(feature), onehot(torch.zeros(1, 7, dtype=F64), torch.tensor([2])))


def condition(head: ManyClassHead) -> float:
    """The worst ratio, over all rows, of |v| |U| to the largest row: what a rounding of V is multiplied by."""
    store = head.store
    return ((store.own.double().abs() @ store.mix.abs()).max() / head.dense().abs().max()).item()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2**5.75), (F64, 8.0)])
def test_rows_are_folded_when_and_only_when_the_condition_number_asks_for_it(dtype, bound):
    """Features in one direction only squeeze U along it, step by step, until it is folded and starts again."""
    head = ManyClassHead(4, 40, "squared", generator=torch.Generator().manual_seed(0), dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    direction = torch.nn.functional.normalize(torch.ones(4), dim=0)
    seen = []
    for k in range(400):
        features = direction + 0.3 * torch.randn(8, 4, generator=generator)
        head(features.to(dtype), torch.randint(40, (8,), generator=generator)).backward()
        folds = head.store.folds.item()
        head.step(0.2)
        seen.append(condition(head))
        if head.store.folds.item() > folds:
            assert k > 0
            assert torch.equal(head.store.mix, torch.eye(4, dtype=F64))
    assert head.store.folds.item() >= 1
    assert max(seen) < 4 * bound
    rows = head.dense().double()
    eps = torch.finfo(dtype).eps
    assert (head.store.gram - rows.T @ rows).abs().max() < 100 * eps * head.store.gram.abs().max()


def test_the_more_classes_the_rarer_a_fold():
    """The Taylor softmax: what turns U is of the order of 1/C, so the mean cost of folding does not grow with C."""

    def folds(classes: int) -> int:
        generator = torch.Generator().manual_seed(0)
        head = ManyClassHead(8, classes, "taylor_softmax", generator=generator)
        for _ in range(300):
            features = 1 + torch.randn(16, 8, generator=generator)
            head(features, torch.randint(classes, (16,), generator=generator)).backward()
            head.step(2.0)
        return int(head.store.folds)

    few, many = folds(30), folds(3000)
    assert few > 4
    assert many <= few / 4


@second_order
def test_folding_by_hand_changes_nothing_but_rounding(name):
    one, other = Pair(name, 9, 4, 0.01), Pair(name, 9, 4, 0.01)
    for k in range(40):
        for pair in (one, other):
            pair.step(pair.normal(5, 4), pair.labels(5), RATES.get(name, 0.1))
        if k % 7 == 0:
            other.head.store.fold()
    torch.testing.assert_close(one.head.dense(), other.head.dense(), rtol=1e-11, atol=1e-12)


# ---- what is differentiated is what is stepped ----------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("way", ["sum", "weighted", "scaled", "accumulated", "twice"])
def test_the_step_follows_the_objective(name, way):
    pair = Pair(name, 9, 4, 0.05)
    features, target = pair.normal(6, 4), pair.labels(6)
    weights = torch.rand(6, generator=pair.generator, dtype=F64)
    expected = pair.losses(pair.linear(features), target)
    if way == "sum":
        pair.head(features, target, reduction="sum").backward()
        expected.sum().backward()
    elif way == "weighted":
        (weights * pair.head(features, target, reduction="none")).sum().backward()
        (weights * expected).sum().backward()
    elif way == "scaled":
        (128 * pair.head(features, target)).backward()
        (128 * expected.mean()).backward()
    elif way == "accumulated":
        for part in (slice(0, 2), slice(2, 6)):
            pair.head(features[part], target[part], reduction="sum").backward()
        expected.sum().backward()
    else:
        loss = pair.head(features, target)
        loss.backward(retain_graph=True)
        loss.backward()
        (2 * expected.mean()).backward()
    pair.head.step(1e-3)
    pair.sgd.param_groups[0]["lr"] = 1e-3
    pair.sgd.step()
    assert pair.error() < 1e-12


def test_leading_axes_are_examples():
    pair = Pair("taylor", 9, 4, 0.0)
    features, target = pair.normal(2, 3, 4), pair.labels(6).view(2, 3)
    assert pair.head(features, target, reduction="none").shape == (2, 3)
    pair.head(features, target).backward()
    pair.losses(pair.linear(features.view(6, 4)), target.view(6)).mean().backward()
    pair.head.step(0.1)
    pair.sgd.step()
    assert pair.error() < 1e-13


@every_loss
def test_the_gradient_of_the_features_is_right(name):
    head = ManyClassHead(4, 9, weight=torch.randn(9, 4, dtype=F64), **options_of(name, 9))
    features = torch.randn(3, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: head(h, torch.tensor([0, 8, 8])), features)


@pytest.mark.parametrize("way", ["backward", "grad"])
@pytest.mark.parametrize("loss", ["unhinged", "taylor_softmax"])
def test_a_second_derivative_is_refused_and_never_left_out(loss, way):
    head, network = ManyClassHead(4, 9, loss), torch.nn.Linear(3, 4)
    inputs = torch.randn(5, 3, requires_grad=True)
    value = head(network(inputs), torch.arange(5))
    (slope,) = torch.autograd.grad(value, inputs, create_graph=True)
    penalized = value + slope.square().sum()
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        penalized.backward() if way == "backward" else torch.autograd.grad(penalized, network.weight)


def test_a_step_between_forward_and_backward_does_not_change_the_gradient():
    """The loss was that of the rows before."""
    pair = Pair("taylor", 9, 4, 0.0)
    features, target = pair.normal(5, 4).requires_grad_(), pair.labels(5)
    late = pair.head(features, target)
    expected = pair.losses(pair.linear(features), target).mean()
    (wanted,) = torch.autograd.grad(expected, features)
    pair.head(pair.normal(5, 4), pair.labels(5)).backward()
    pair.head.step(1.0)
    late.backward()
    torch.testing.assert_close(features.grad, wanted)


def test_a_network_in_front_under_autocast_learns_with_the_head():
    torch.manual_seed(0)
    network, head = torch.nn.Linear(10, 6), ManyClassHead(6, 30, "taylor_softmax")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    inputs, target = torch.randn(64, 10), torch.arange(64) % 30
    losses = []
    for _ in range(150):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = head(network(inputs), target)
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        head.step(2.0)
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    # Only the network in front is rounded: on its features the loss is that of full precision.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = network(inputs)
        inside = head(features, target)
    assert features.dtype == torch.bfloat16
    exact = TaylorSoftmaxLoss()(features.double() @ head.dense().double().T, target)
    torch.testing.assert_close(inside.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["unhinged", "taylor"])
def test_without_a_backward_pass_a_step_changes_nothing(name):
    """As SGD does with a parameter that has no gradient: no decay either."""
    head = ManyClassHead(3, 5, weight_decay=0.1, **options_of(name, 5))
    before = head.dense()
    with torch.no_grad():
        head(torch.randn(2, 3), torch.tensor([0, 1]))
    head.step(0.1)
    head(torch.randn(2, 3), torch.tensor([0, 1])).backward()
    head.zero_grad()
    head.step(0.1)
    assert torch.equal(head.dense(), before)


@pytest.mark.parametrize("name", ["unhinged", "taylor"])
def test_an_empty_batch_only_decays(name):
    head = ManyClassHead(3, 5, weight_decay=0.1, **options_of(name, 5))
    before = head.dense()
    assert head(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).isnan()
    head(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), reduction="sum").backward()
    head.step(1.0)
    torch.testing.assert_close(head.dense(), 0.9 * before)


@pytest.mark.parametrize("name", ["gamma", "taylor"])
def test_a_step_never_touches_the_rows_of_other_classes(name):
    """The stored rows of all other classes keep their bits, although the weight of each of them moves."""
    head = ManyClassHead(3, 1000, weight_decay=0.1, **options_of(name, 1000))
    stored, before = head.store.own.clone(), head.dense()
    head(torch.randn(2, 3), torch.tensor([10, 20])).backward()
    head.step(0.5)
    changed = (head.store.own != stored).any(1).nonzero().flatten().tolist()
    assert changed == [10, 20]
    assert ((head.dense() - before).abs().sum(1) > 0).all()


# ---- asking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["taylor", "spherical"])
@pytest.mark.parametrize("bias", [False, True])
def test_log_probabilities_are_those_of_the_logits_and_sum_to_one(name, bias):
    pair = Pair(name, 11, 4, 0.01, bias=bias)
    for _ in range(5):
        pair.step(pair.normal(6, 4), pair.labels(6), 0.3)
    features = pair.normal(1, 4).expand(11, 4)
    actual = pair.head.log_prob(features, torch.arange(11))
    torch.testing.assert_close(actual, -pair.losses(pair.linear(features), torch.arange(11)))
    torch.testing.assert_close(actual.exp().sum(), torch.ones((), dtype=F64))
    assert not pair.head._pending


@pytest.mark.parametrize("name", ["unhinged", "z", "squared", "custom"])
def test_where_the_loss_is_no_probability_there_is_none(name):
    with pytest.raises(ValueError, match="not that of a probability"):
        ManyClassHead(3, 5, **options_of(name, 5)).log_prob(torch.ones(1, 3), torch.tensor([0]))


@every_loss
@pytest.mark.parametrize("bias", [False, True])
def test_predictions_are_the_largest_logits(name, bias):
    pair = Pair(name, 31, 4, 0.01, bias=bias)
    for _ in range(20):
        pair.step(pair.normal(6, 4), pair.labels(6), 0.02)
    features = pair.normal(2, 3, 4)
    near = pair.head.predict(features, k=4)
    expected = (features @ pair.linear.weight.T + (pair.linear.bias if bias else 0)).topk(4, dim=-1)
    assert torch.equal(near.classes, expected.indices)
    torch.testing.assert_close(near.scores, expected.values.detach())
    torch.testing.assert_close(pair.head.logits(features), pair.linear(features).detach())
    with pytest.raises(ValueError, match="k must lie between 1 and"):
        pair.head.predict(features, k=32)


# ---- as a module ----------------------------------------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("way", ["torch", "safetensors", "deepcopy"])
def test_saving_in_the_middle_changes_nothing(name, way):
    """Killed after five steps and resumed from the file: the same bits as never killed."""
    first, second = Pair(name, 9, 4, 0.05, bias=True), Pair(name, 9, 4, 0.05, bias=True)
    for pair in (first, second):
        for _ in range(5):
            pair.step(pair.normal(3, 4), pair.labels(3), 0.02)
    new = ManyClassHead(4, 9, weight_decay=0.05, bias=True, dtype=F64, **options_of(name, 9))
    if way == "torch":
        file = io.BytesIO()
        torch.save(first.head.state_dict(), file)
        file.seek(0)
        new.load_state_dict(torch.load(file, weights_only=True))
    elif way == "safetensors":
        new.load_state_dict(load(save(first.head.state_dict())))
    else:
        new = copy.deepcopy(first.head)
    first.head = new
    for pair in (first, second):
        for _ in range(5):
            pair.step(pair.normal(3, 4), pair.labels(3), 0.02)
    assert torch.equal(first.head.dense(), second.head.dense())
    assert all(torch.equal(a, b) for a, b in zip(first.head.buffers(), second.head.buffers(), strict=True))
    assert first.error() < 1e-11


@pytest.mark.parametrize("name", ["unhinged", "taylor"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_keep_what_is_common_in_full(name, dtype):
    head = ManyClassHead(4, 9, weight_decay=0.1, **options_of(name, 9))
    for _ in range(50):
        head(torch.randn(3, 4), torch.tensor([0, 1, 2])).backward()
        head.step(0.1)
    mix = head.store.mix.clone()
    head = head.to(dtype)
    assert (head.store.own.dtype, head.store.mix.dtype, head.store.total.dtype) == (dtype, F64, F64)
    assert torch.equal(head.store.mix, mix)
    loss = head(torch.randn(3, 4).to(dtype), torch.tensor([0, 1, 8]))
    loss.backward()
    head.step(0.1)
    assert loss.dtype == dtype
    # The sum belongs to the rounded rows: only the rounding of `dense` itself is between them.
    rows = head.store.rows(torch.arange(9))
    torch.testing.assert_close(head.store.total, rows.sum(0), rtol=1e-12, atol=1e-12)


def test_half_precision_features_meet_single_precision_rows():
    head = ManyClassHead(4, 9, "taylor_softmax")
    features = torch.randn(3, 4).half().requires_grad_()
    head(features, torch.tensor([0, 1, 8])).backward()
    assert features.grad.dtype == torch.float16
    head.step(0.1)
    assert head.store.own.dtype == torch.float32


def test_the_start_is_that_of_a_linear_and_the_generator_decides_it():
    first, second = (ManyClassHead(16, 100, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first.dense(), second.dense())
    assert 0.24 < first.dense().abs().max() <= 0.25
    torch.testing.assert_close(first.logits(torch.ones(1, 16)), first.dense().sum(1)[None])


def test_one_class_alone_can_be_trained():
    pair = Pair("taylor", 1, 2, 0.1)
    pair.step(pair.normal(3, 2), torch.zeros(3, dtype=torch.int64), 0.1)
    assert pair.error() < 1e-12


def test_a_batch_with_nan_is_refused_and_changes_nothing():
    head = ManyClassHead(3, 5, "taylor_softmax", weight_decay=0.1)
    before = head.dense()
    features = torch.tensor([[1.0, math.nan, 0.0], [1.0, 0.0, 0.0]])
    head(features, torch.tensor([0, 1])).backward()
    with pytest.raises(ValueError, match=r"NaN or infinity.*Nothing was changed"):
        head.step(0.1)
    assert torch.equal(head.dense(), before)
    head.step(0.1)  # the batch is forgotten
    assert torch.equal(head.dense(), before)


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
        ({"loss": "softmax"}, "did you mean taylor_softmax"),
        ({"loss": 3}, "must be a name"),
        ({"loss": "taylor_softmax", "gamma": 0.1}, "gamma is not an option of the loss 'taylor_softmax'"),
        ({"loss": "z", "slope": -1.0}, "slope must be positive"),
        ({"loss": "spherical_softmax", "epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_impossible_settings_are_refused(options, what):
    with pytest.raises(ValueError, match=what):
        ManyClassHead(3, 5, **options)


def test_a_loss_function_that_does_not_return_one_loss_per_example_is_refused():
    head = ManyClassHead(3, 5, lambda own, total, squares, num_classes: own.sum())
    with pytest.raises(ValueError, match="one loss per example"):
        head(torch.ones(2, 3), torch.tensor([0, 1]))


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


def test_a_decay_that_takes_all_rows_to_zero_at_once_is_one_step_as_any_other():
    """Then the matrix that all rows share is singular, and nothing can be stored relative to it."""
    start = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    head = ManyClassHead(2, 3, "squared", weight_decay=1.0, weight=start)
    features, target = torch.ones(1, 2), torch.tensor([0])
    head(features, target).backward()
    head.step(1.0)
    logits = start @ features[0]
    slopes = 2 * (logits - F.one_hot(target, 3)[0])
    torch.testing.assert_close(head.dense(), -slopes[:, None] * features)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_rows_that_are_rounded_when_they_are_loaded_are_those_of_the_rounded_rows(dtype):
    wide = ManyClassHead(8, 1000, "z", weight=torch.randn(1000, 8, generator=torch.Generator().manual_seed(0)))
    narrow = ManyClassHead(8, 1000, "z", dtype=dtype)
    narrow.load_state_dict(wide.state_dict())
    rows = narrow.dense().double()
    torch.testing.assert_close(narrow.store.total, rows.sum(0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(narrow.store.gram, rows.T @ rows, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_classes": 10.0}, "num_classes must be a whole number"),
        ({"num_classes": True}, "num_classes must be a whole number"),
        ({"weight": [[1.0, 2.0]] * 3}, r"weight must be a torch\.Tensor"),
        ({"weight": torch.ones(3, 2, dtype=torch.long)}, "weight must be a floating tensor"),
        ({"dtype": torch.int32}, "dtype must be a floating one"),
    ],
)
def test_what_is_no_head_is_named(options, told):
    with pytest.raises(ValueError, match=told):
        ManyClassHead(**({"in_features": 2, "num_classes": 3} | options))


def test_what_are_no_examples_is_named():
    head = ManyClassHead(2, 3, "taylor_softmax")
    with pytest.raises(ValueError, match=r"target must be a torch\.Tensor"):
        head(torch.ones(2, 2), [0, 1])
    with pytest.raises(ValueError, match=r"features must be a torch\.Tensor"):
        head(np.ones((2, 2)), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"shortlist must be a torch\.Tensor"):
        head(torch.ones(2, 2), torch.tensor([0, 1]), shortlist=[[1], [2]])
    with pytest.raises(ValueError, match="labels must lie in"):
        head.biases(torch.tensor([99]))
    with pytest.raises(ValueError, match="what the loss function returns"):
        ManyClassHead(2, 3, lambda *_: None)(torch.ones(2, 2), torch.tensor([0, 1]))


@pytest.mark.parametrize("options", [{"bias": True}, {"loss": "taylor_softmax"}, {"prior": [0.2, 0.3, 0.5]}], ids=str)
def test_a_head_without_memory_gets_it_from_to_empty_and_its_numbers_from_a_state(options):
    """As large models are loaded: shapes first, on the meta device."""
    head = ManyClassHead(4, 3, **options)
    features, target = torch.randn(5, 4), torch.arange(5) % 3
    head(features, target).backward()
    head.step(0.1)
    empty = ManyClassHead(4, 3, device="meta", **options)
    assert empty.store.own.is_meta
    loaded = empty.to_empty(device="cpu")
    loaded.load_state_dict(head.state_dict())
    assert torch.equal(loaded.dense(), head.dense())
    assert torch.equal(loaded(features, target), head(features, target))
