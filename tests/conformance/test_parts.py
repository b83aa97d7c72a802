"""What every loss and head owes its user: any dtype and scale, empty batches, copies, threads, short errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from unhinge.nn import ETFHead, ManyClassHead, SphericalSoftmaxLoss, TaylorSoftmaxLoss, UnhingedLoss, ZLoss

F64 = torch.float64
DTYPES = [F64, torch.float32, torch.bfloat16, torch.float16]
CLASSES, DIM, BATCH = 7, 5, 6
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "unhinged": UnhingedLoss,
    "taylor": TaylorSoftmaxLoss,
    "z": ZLoss,
    "spherical": SphericalSoftmaxLoss,
}


def own_rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int) -> Tensor:
    return torch.nn.functional.softplus(total / num_classes - own) + squares / 10


HEADS = ["unhinged", "prior", "taylor_softmax", "z", "squared", "spherical_softmax", "callable"]
every_loss = pytest.mark.parametrize("name", LOSSES)
every_head = pytest.mark.parametrize("name", HEADS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def many(name: str, dtype: torch.dtype = F64) -> ManyClassHead:
    weight = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype)
    if name == "prior":
        shares = torch.arange(1.0, CLASSES + 1, dtype=F64)
        return ManyClassHead(DIM, CLASSES, weight=weight, prior=shares / shares.sum())
    return ManyClassHead(DIM, CLASSES, own_rule if name == "callable" else name, weight=weight)


def drawn(width: int, dtype: torch.dtype = F64, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    numbers = scale * torch.randn(BATCH, width, generator=generator, dtype=F64)
    return numbers.to(dtype), torch.arange(BATCH) % CLASSES


# ---- losses from logits ---------------------------------------------------------------------------------------------


@every_loss
@every_dtype
def test_a_loss_is_that_of_float64_on_the_same_logits(name, dtype):
    """Half precision holds the logits; the sums are taken in float32 at least."""
    logits, target = drawn(CLASSES, dtype)
    actual, wide = LOSSES[name]()(logits, target), LOSSES[name]()(logits.double(), target)
    assert actual.dtype in (dtype, torch.float32)
    eps = max(torch.finfo(actual.dtype).eps, torch.finfo(torch.float32).eps if dtype != F64 else 0.0)
    torch.testing.assert_close(actual.double(), wide, rtol=8 * eps, atol=8 * eps)


@every_loss
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30, 1e150])
def test_a_loss_and_its_gradient_are_finite_at_any_scale(name, scale):
    logits, target = drawn(CLASSES, scale=scale)
    logits.requires_grad_()
    loss = LOSSES[name]()(logits, target)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@every_loss
def test_the_gradient_is_that_of_finite_differences(name):
    logits, target = drawn(CLASSES)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name]()(z, target), (logits.requires_grad_(),))


@every_loss
def test_an_empty_batch_sums_to_zero(name):
    logits = torch.zeros(0, CLASSES, requires_grad=True)
    loss = LOSSES[name]()
    loss.reduction = "sum"
    actual = loss(logits, torch.zeros(0, dtype=torch.int64))
    assert actual.item() == 0
    actual.backward()


@every_loss
@pytest.mark.parametrize(
    ("logits", "target"),
    [
        (torch.zeros(2, CLASSES), torch.tensor([0, 1, 2])),
        (torch.zeros(2, CLASSES, dtype=torch.int64), torch.tensor([0, 1])),
    ],
    ids=["length", "integers"],
)
def test_wrong_input_of_a_loss_is_a_value_error(name, logits, target):
    with pytest.raises(ValueError, match=r".{15,}"):
        LOSSES[name]()(logits, target)


@every_loss
@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_out_of_range_is_what_it_is_for_cross_entropy(name, label):
    logits, target = torch.zeros(2, CLASSES), torch.tensor([0, label])
    with pytest.raises(IndexError) as theirs:
        nn.CrossEntropyLoss()(logits, target)
    with pytest.raises(IndexError) as ours:
        LOSSES[name]()(logits, target)
    assert str(ours.value) == str(theirs.value)


@every_loss
def test_copies_and_inference_mode_give_the_same_loss(name):
    logits, target = drawn(CLASSES)
    loss = LOSSES[name]()
    expected = loss(logits, target)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(other(logits, target), expected)
    with torch.inference_mode():
        assert torch.equal(loss(logits, target), expected)


# ---- the head of many classes ---------------------------------------------------------------------------------------


@every_head
@every_dtype
def test_a_head_computes_in_float64_whatever_its_rows_are(name, dtype):
    features, target = drawn(DIM, dtype)
    head = many(name, dtype)
    wide = many(name)
    wide.store.own.copy_(head.store.own.double())
    wide.store.recount()
    actual, expected = head(features, target), wide(features.double(), target)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-9)
    actual.backward()
    head.step(0.01)
    assert head.dense().dtype == dtype
    assert head.dense().isfinite().all()


@every_head
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_a_head_is_finite_at_any_scale_of_the_features(name, scale):
    features, target = drawn(DIM, scale=scale)
    features.requires_grad_()
    head = many(name)
    loss = head(features, target)
    loss.backward()
    assert loss.isfinite()
    assert features.grad.isfinite().all()


@every_head
def test_the_gradient_of_the_features_is_that_of_finite_differences(name):
    features, target = drawn(DIM)
    head = many(name)
    assert torch.autograd.gradcheck(lambda h: head(h, target), (features.requires_grad_(),))


@every_head
def test_an_empty_batch_changes_nothing(name):
    head = many(name)
    before = head.dense()
    features = torch.zeros(0, DIM, dtype=F64, requires_grad=True)
    loss = head(features, torch.zeros(0, dtype=torch.int64), "sum")
    assert loss.item() == 0
    loss.backward()
    head.step(1.0)
    torch.testing.assert_close(head.dense(), before, rtol=0, atol=1e-15)
    assert head.predict(features.detach(), 2).classes.shape == (0, 2)


@every_head
@pytest.mark.parametrize(
    ("features", "target"),
    [
        (torch.zeros(2, DIM), torch.tensor([0, CLASSES])),
        (torch.zeros(2, DIM), torch.tensor([0, -1])),
        (torch.zeros(2, DIM + 1), torch.tensor([0, 1])),
        (torch.zeros(2, DIM), torch.tensor([0.0, 1.0])),
        (torch.zeros(2, DIM, dtype=torch.int64), torch.tensor([0, 1])),
        (torch.zeros(()), torch.tensor(0)),
    ],
    ids=["above", "below", "width", "float labels", "integers", "scalar"],
)
def test_wrong_input_of_a_head_is_a_value_error(name, features, target):
    with pytest.raises(ValueError, match=r".{15,}"):
        many(name)(features, target)


@every_head
def test_features_that_are_not_finite_change_no_row(name):
    """The step is refused, and after `zero_grad` the head goes on as before."""
    head = many(name)
    before = head.dense()
    features, target = drawn(DIM)
    broken = features.clone()
    broken[0, 0] = torch.nan
    head(broken, target).backward()
    with pytest.raises(ValueError, match="Nothing was changed"):
        head.step(0.1)
    head.zero_grad()
    assert torch.equal(head.dense(), before)
    head(features, target).backward()
    head.step(0.01)
    assert head.dense().isfinite().all()


@every_head
def test_copies_of_a_head_go_on_alone_and_alike(name):
    features, target = drawn(DIM)
    head = many(name)
    head(features, target).backward()
    head.step(0.05)
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        for one in (other, many(name)):
            one.load_state_dict(head.state_dict())
            one(features, target).backward()
            one.step(0.05)
        assert not torch.equal(other.dense(), head.dense())
        assert torch.equal(other.dense(), one.dense())


@every_head
def test_reading_works_in_inference_mode_and_in_threads(name):
    features, target = drawn(DIM)
    head = many(name)
    head(features, target).backward()
    head.step(0.05)
    expected, near = head(features, target), head.predict(features, 3)
    with torch.inference_mode():
        assert torch.equal(head(features, target), expected)
        assert torch.equal(head.predict(features, 3).classes, near.classes)

    def ask(_: int) -> bool:
        with torch.no_grad():
            return torch.equal(head(features, target), expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(32)))


@every_head
@every_dtype
def test_a_restart_is_that_of_float64_and_goes_on(name, dtype):
    means = drawn(DIM, dtype)[0][torch.arange(CLASSES) % BATCH] + torch.arange(CLASSES)[:, None].to(dtype)
    head, wide = many(name, dtype), many(name)
    head.restart(means)
    wide.restart(means.double())
    assert head.dense().dtype == dtype
    limit = 8 * torch.finfo(dtype).eps * wide.dense().abs().max().item()
    torch.testing.assert_close(head.dense().double(), wide.dense(), rtol=0, atol=limit)
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(other.dense(), head.dense())
    features, target = drawn(DIM, dtype)
    head(features, target).backward()
    head.step(0.001)
    assert head.dense().isfinite().all()


@every_head
@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_a_restart_makes_the_same_logits_at_any_scale_of_the_features(name, scale):
    means = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(3), dtype=F64)
    head, scaled = many(name), many(name)
    head.restart(means)
    scaled.restart(scale * means)
    torch.testing.assert_close(scaled.dense() * scale, head.dense(), rtol=1e-12, atol=1e-12)


@every_head
@pytest.mark.parametrize(
    "means",
    [
        [[0.0] * DIM] * CLASSES,
        torch.arange(CLASSES * DIM).view(CLASSES, DIM),
        torch.zeros(DIM, CLASSES),
        torch.full((CLASSES, DIM), torch.nan),
        torch.full((CLASSES, DIM), 2.0),
        torch.zeros(CLASSES, DIM),
    ],
    ids=["list", "integers", "transposed", "nan", "all the same", "zeros"],
)
def test_a_wrong_restart_is_a_value_error_and_changes_no_row(name, means):
    head = many(name)
    before = head.dense()
    with pytest.raises(ValueError, match=r"^(the class )?means .{15,}"):
        head.restart(means)
    assert torch.equal(head.dense(), before)


# ---- the simplex ----------------------------------------------------------------------------------------------------


@every_dtype
@pytest.mark.parametrize("normalize", [False, True])
def test_the_simplex_gives_the_logits_of_float64(dtype, normalize):
    features, _ = drawn(DIM + 3, dtype)
    head = ETFHead(DIM + 3, CLASSES, normalize=normalize, generator=torch.Generator().manual_seed(0)).to(dtype)
    actual, wide = head(features), copy.deepcopy(head).double()(features.double())
    assert actual.dtype == dtype
    torch.testing.assert_close(
        actual.double(), wide, rtol=0, atol=16 * torch.finfo(dtype).eps * wide.abs().max().item()
    )


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e150])
def test_normalized_features_have_no_scale(scale):
    features, _ = drawn(DIM + 3)
    head = ETFHead(DIM + 3, CLASSES, normalize=True).double()
    torch.testing.assert_close(head(scale * features), head(features), rtol=1e-12, atol=1e-12)


def test_the_simplex_takes_empty_batches_copies_and_inference_mode():
    head = ETFHead(DIM + 3, CLASSES, normalize=True)
    features = torch.randn(BATCH, DIM + 3)
    assert head(features[:0]).shape == (0, CLASSES)
    expected = head(features)
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(other(features), expected)
    with torch.inference_mode():
        assert torch.equal(head(features), expected)
