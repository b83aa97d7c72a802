"""The losses from logits: against loops over examples and classes, and against what cross-entropy does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from oracles.nn import cross_entropy_term, hinge_term, loop_loss, unhinged_term
from unhinge.nn import (
    MultiClassHingeLoss,
    SphericalSoftmaxLoss,
    TaylorSoftmaxLoss,
    UnhingedLoss,
    ZLoss,
    class_weights,
)
from unhinge.nn import functional as UF

GAMMAS = (None, 0.0, 0.3, 2.0)


@dataclass(frozen=True)
class Call:
    """One call of a loss, as plain values."""

    logits: Tensor
    target: Tensor
    axis: int
    options: dict[str, Any]


@st.composite
def calls(draw: st.DrawFn, last: bool = False, soft: bool | None = None) -> Call:
    """Any shape cross-entropy takes, or (..., C) where `last`; class indices or probabilities, all options."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    classes = draw(st.integers(1, 4))
    extra = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=3))
    if last:
        shape, axis = (*extra, classes), len(extra)
    elif not extra:
        shape, axis = (classes,), 0
    else:
        shape, axis = (extra[0], classes, *extra[1:]), 1
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    leading = shape[:axis] + shape[axis + 1 :]
    options: dict[str, Any] = {
        "reduction": draw(st.sampled_from(["none", "mean", "sum"])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "weight": None,
    }
    if draw(st.booleans()):
        options["weight"] = torch.rand(classes, generator=generator, dtype=torch.float64) + 0.1
        options["weight"][0] = draw(st.sampled_from([0.0, 1.0]))
    if draw(st.booleans()) if soft is None else soft:
        target = torch.randn(shape, generator=generator, dtype=torch.float64).softmax(axis)
    else:
        target = torch.randint(classes, leading, generator=generator)
        options["ignore_index"] = draw(st.sampled_from([-100, -100, 0, 255]))
        if draw(st.booleans()):
            target = torch.where(torch.rand(leading, generator=generator) < 0.3, options["ignore_index"], target)
    return Call(logits, target, axis, options)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


# ---- values ----------------------------------------------------------------------------------------------------------


@given(calls())
def test_the_loop_with_the_term_of_cross_entropy_is_cross_entropy(call: Call):
    expected = F.cross_entropy(call.logits, call.target, **call.options)
    close(loop_loss(cross_entropy_term, call.logits, call.target, call.axis, **call.options), expected, 1e-10)


@pytest.mark.filterwarnings("ignore:the unhinged loss is nan")  # of no examples, as that of cross-entropy is
@given(calls(), st.sampled_from(GAMMAS))
def test_the_unhinged_loss_is_the_loop_with_its_own_term(call: Call, gamma: float | None):
    """[eq: unhinged]."""
    expected = loop_loss(unhinged_term(gamma), call.logits, call.target, call.axis, **call.options)
    close(UF.unhinged_loss(call.logits, call.target, gamma, **call.options), expected)
    close(UnhingedLoss(gamma, **call.options)(call.logits, call.target), expected)


@given(calls(last=True, soft=False), st.sampled_from(GAMMAS))
def test_classes_may_be_the_last_axis(call: Call, gamma: float | None):
    expected = loop_loss(unhinged_term(gamma), call.logits, call.target, call.axis, **call.options)
    fits = call.target.shape == call.logits.shape[:1] + call.logits.shape[2:]
    ambiguous = call.logits.ndim > 2 and fits
    close(UF.unhinged_loss(call.logits, call.target, gamma, dim=-1, **call.options), expected)
    if not ambiguous:
        close(UF.unhinged_loss(call.logits, call.target, gamma, **call.options), expected)


@given(calls(last=True, soft=True), st.sampled_from(GAMMAS))
def test_probabilities_along_the_last_axis_are_read_when_asked_for(call: Call, gamma: float | None):
    expected = loop_loss(unhinged_term(gamma), call.logits, call.target, call.axis, **call.options)
    close(UF.unhinged_loss(call.logits, call.target, gamma, dim=-1, **call.options), expected)


@pytest.mark.parametrize("loss", [UnhingedLoss, TaylorSoftmaxLoss, SphericalSoftmaxLoss, ZLoss, MultiClassHingeLoss])
def test_classes_may_be_the_first_of_two_axes(loss: type[nn.Module]):
    logits, target = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.arange(6) % 4
    value = loss(dim=0)(logits, target)
    close(value, loss()(logits.mT, target))
    close(*(torch.autograd.grad(each, logits)[0] for each in (value, loss()(logits.mT, target))))


def test_where_both_readings_fit_the_one_of_cross_entropy_is_taken():
    logits, target = torch.randn(2, 3, 3), torch.randint(3, (2, 3))
    close(UF.unhinged_loss(logits, target), loop_loss(unhinged_term(None), logits, target, 1), 1e-6)
    probabilities = torch.randn(2, 3, 4).softmax(1)
    logits = torch.randn(2, 3, 4)
    close(UF.unhinged_loss(logits, probabilities), loop_loss(unhinged_term(None), logits, probabilities, 1), 1e-6)


def test_the_length_of_the_class_weights_settles_which_axis_holds_the_classes():
    logits, weight = torch.randn(2, 3, 4), torch.rand(4)
    target = torch.randn(2, 3, 4).softmax(-1)
    expected = loop_loss(unhinged_term(None), logits, target, 2, weight=weight)
    close(UF.unhinged_loss(logits, target, weight=weight), expected, 1e-6)


@given(calls(soft=False), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_hinge_loss_is_the_loop_with_its_own_term(call: Call, margin: float):
    options = {name: value for name, value in call.options.items() if name != "label_smoothing"}
    expected = loop_loss(hinge_term(margin), call.logits, call.target, call.axis, **options)
    close(UF.multiclass_hinge_loss(call.logits, call.target, margin, **options), expected)
    close(MultiClassHingeLoss(margin, **options)(call.logits, call.target), expected)


def test_the_hinge_loss_is_the_number_of_classes_times_that_of_torch():
    logits, target = torch.randn(6, 5), torch.randint(5, (6,))
    close(UF.multiclass_hinge_loss(logits, target), 5 * F.multi_margin_loss(logits, target), 1e-6)


def test_far_inside_the_margin_the_hinge_loss_is_the_unhinged_one():
    """[eq: hinge]."""
    logits, target = torch.randn(6, 5), torch.randint(5, (6,))
    unhinged = UF.unhinged_loss(logits, target, reduction="none")
    close(UF.multiclass_hinge_loss(logits, target, 100.0, reduction="none"), 4 * (unhinged + 100), 1e-5)


def test_the_unhinged_loss_has_no_lower_bound():
    logits, target = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0])
    assert UF.unhinged_loss(1e6 * logits, target) < 1e5 * UF.unhinged_loss(logits, target) < 0
    assert "unbounded below" in " ".join(str(UnhingedLoss.__doc__).split())


# ---- degenerate cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2), (2, 3, 0)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_an_empty_batch_gives_what_cross_entropy_gives(shape: tuple[int, ...], reduction: str):
    logits, target = torch.zeros(shape), torch.zeros(shape[:1] + shape[2:], dtype=torch.int64)
    close(UF.unhinged_loss(logits, target, reduction=reduction), F.cross_entropy(logits, target, reduction=reduction))
    soft = torch.zeros(shape)
    close(UF.unhinged_loss(logits, soft, reduction=reduction), F.cross_entropy(logits, soft, reduction=reduction))


@pytest.mark.parametrize("weight", [None, torch.rand(3)])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_a_batch_of_ignored_examples_has_mean_nan_and_gradient_zero_as_in_torch(weight, label_smoothing: float):
    target = torch.full((4,), -100)
    options = {"weight": weight, "label_smoothing": label_smoothing}
    for loss in (F.cross_entropy, UF.unhinged_loss):
        logits = torch.randn(4, 3, requires_grad=True)
        value = loss(logits, target, **options)
        assert value.isnan()
        assert loss(logits, target, reduction="sum", **options) == 0
    value.backward()
    assert torch.equal(logits.grad, torch.zeros(4, 3))


def test_an_ignored_example_may_hold_anything():
    logits = torch.tensor([[1.0, 2.0], [math.nan, math.inf]], requires_grad=True)
    target = torch.tensor([0, -100])
    for loss in (UF.unhinged_loss, UF.multiclass_hinge_loss):
        (gradient,) = torch.autograd.grad(loss(logits, target), logits)
        assert gradient.isfinite().all()
        assert loss(logits, target) == loss(logits[:1], target[:1])


def test_nan_logits_make_a_nan_loss():
    logits = torch.tensor([[1.0, math.nan, 0.0]])
    assert UF.unhinged_loss(logits, torch.tensor([0])).isnan()
    assert UF.multiclass_hinge_loss(logits, torch.tensor([0])).isnan()
    assert UF.unhinged_loss(logits, torch.tensor([[1.0, 0.0, 0.0]])).isnan()


@pytest.mark.parametrize("gamma", GAMMAS)
def test_of_a_single_class_only_its_own_logit_counts(gamma: float | None):
    logits = torch.randn(5, 1, dtype=torch.float64)
    close(UF.unhinged_loss(logits, torch.zeros(5, dtype=torch.int64), gamma), -logits.mean())


@pytest.mark.parametrize("label", [-1, 3, 100])
@pytest.mark.parametrize("loss", [UF.unhinged_loss, UF.multiclass_hinge_loss, F.cross_entropy])
def test_a_label_out_of_range_is_an_index_error(loss, label: int):
    with pytest.raises(IndexError, match=f"{label}"):
        loss(torch.zeros(2, 3), torch.tensor([0, label]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int64])
def test_any_integer_dtype_of_labels_is_welcome(dtype: torch.dtype):
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
    assert UF.unhinged_loss(logits, target.to(dtype)) == UF.unhinged_loss(logits, target)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": torch.zeros(2, 3, dtype=torch.int64)}, r"class indices must have shape \(2,\).*floating dtype"),
        ({"target": torch.zeros(2)}, r"probabilities must have shape \(2, 3\).*integer dtype"),
        ({"target": torch.zeros(2, dtype=torch.bool)}, "bool"),
        ({"target": [0, 1]}, "torch.Tensor"),
        ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, "floating dtype"),
        ({"logits": torch.tensor(1.0), "target": torch.tensor(0)}, "axis of classes"),
        ({"gamma": -0.5}, "not negative"),
        ({"gamma": math.nan}, "finite"),
        ({"gamma": "0.5"}, "number or None"),
        ({"gamma": torch.zeros(2)}, "one number"),
        ({"weight": torch.ones(2)}, r"shape \(3,\)"),
        ({"reduction": "average"}, "reduction"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
        ({"dim": 2}, "dim"),
        ({"target": torch.full((2, 3), 1 / 3), "ignore_index": 1}, "ignore_index"),
    ],
)
def test_a_wrong_call_says_what_was_expected(arguments: dict[str, Any], message: str):
    call: dict[str, Any] = {"logits": torch.zeros(2, 3), "target": torch.tensor([0, 1])} | arguments
    with pytest.raises(ValueError, match=message):
        UF.unhinged_loss(**call)


def test_the_hinge_loss_refuses_probabilities_and_negative_margins():
    with pytest.raises(ValueError, match="integer dtype"):
        UF.multiclass_hinge_loss(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="margin"):
        MultiClassHingeLoss(margin=-1.0)


# ---- derivatives -----------------------------------------------------------------------------------------------------


@given(calls(), st.sampled_from(GAMMAS))
def test_the_gradient_is_that_of_the_loop(call: Call, gamma: float | None):
    logits = call.logits.requires_grad_()
    ours = UF.unhinged_loss(logits, call.target, gamma, **call.options).nan_to_num().sum()
    theirs = loop_loss(unhinged_term(gamma), logits, call.target, call.axis, **call.options).nan_to_num().sum()
    if theirs.requires_grad:
        (expected,) = torch.autograd.grad(theirs, logits, materialize_grads=True)
    else:  # nothing but ignored examples
        expected = torch.zeros_like(logits)
    close(torch.autograd.grad(ours, logits)[0], expected)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 4, 3)])
def test_first_and_second_derivatives_pass_gradcheck(shape: tuple[int, ...], soft: bool):
    logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    axis = 0 if len(shape) == 1 else 1
    target = torch.randn(shape, dtype=torch.float64).softmax(axis) if soft else logits.detach().argmax(axis)
    weight = torch.rand(4, dtype=torch.float64)
    gamma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def loss(z: Tensor, g: Tensor) -> Tensor:
        return UF.unhinged_loss(z**3, target, g, weight=weight, label_smoothing=0.1)

    assert torch.autograd.gradcheck(loss, (logits, gamma))
    assert torch.autograd.gradgradcheck(loss, (logits, gamma))
    if not soft:
        assert torch.autograd.gradcheck(lambda z: UF.multiclass_hinge_loss(z, target), logits)


@pytest.mark.parametrize("loss", [UF.unhinged_loss, UF.multiclass_hinge_loss])
@pytest.mark.parametrize("order", [(0, 3, 1, 2), (1, 3, 2, 0), (3, 2, 1, 0)])
@pytest.mark.parametrize("axis", [1, 3])
def test_the_layout_of_the_logits_in_memory_does_not_matter(loss, order: tuple[int, ...], axis: int):
    spread = torch.randn(2, 3, 4, 5, dtype=torch.float64).permute(order).requires_grad_()
    packed = spread.detach().contiguous().requires_grad_()
    target = packed.detach().argmin(axis)
    values = [loss(x, target, dim=axis) for x in (spread, packed)]
    close(*values)
    close(*(torch.autograd.grad(value, x)[0] for value, x in zip(values, (spread, packed), strict=True)))


@pytest.mark.parametrize("soft", [False, True])
def test_vmap_over_examples_gives_each_its_own_gradient(soft: bool):
    logits = torch.randn(5, 4, dtype=torch.float64)
    target = torch.rand(5, 4, dtype=torch.float64) if soft else torch.tensor([0, 1, 3, 3, 2])
    each = vmap(grad(lambda z, y: UF.unhinged_loss(z, y, label_smoothing=0.1)))(logits, target)
    together = grad(lambda z: UF.unhinged_loss(z, target, label_smoothing=0.1, reduction="sum"))(logits)
    close(each, together)
    hinge = vmap(UF.multiclass_hinge_loss)(logits, torch.tensor([0, 1, 3, 3, 2]))
    close(hinge, UF.multiclass_hinge_loss(logits, torch.tensor([0, 1, 3, 3, 2]), reduction="none"))


def test_a_module_compiles_to_one_graph():
    torch._dynamo.reset()
    criterion = UnhingedLoss(weight=torch.rand(4), label_smoothing=0.1)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for target in (torch.tensor([0, 1, -100, 3, 2]), torch.rand(5, 4)):
        logits = torch.randn(5, 4, requires_grad=True)
        close(compiled(logits, target), criterion(logits, target), 1e-6)
        (ours,) = torch.autograd.grad(compiled(logits, target), logits)
        close(ours, torch.autograd.grad(criterion(logits, target), logits)[0], 1e-6)


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("soft", [False, True])
def test_the_result_has_the_dtype_cross_entropy_gives(dtype: torch.dtype, soft: bool):
    logits = torch.randn(4, 3).to(dtype)
    target = torch.full((4, 3), 1 / 3, dtype=dtype) if soft else torch.tensor([0, 1, 2, 2])
    assert UF.unhinged_loss(logits, target).dtype == F.cross_entropy(logits, target).dtype == dtype
    with torch.autocast("cpu"):
        assert UF.unhinged_loss(logits, target).dtype == F.cross_entropy(logits, target).dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("soft", [False, True])
def test_half_precision_sums_over_many_classes_are_as_good_as_the_logits(dtype: torch.dtype, soft: bool):
    logits = (100 + torch.randn(4, 10_000)).to(dtype)  # their sum is far beyond float16
    target = torch.tensor([0, 17, 9_999, 5])
    aim = F.one_hot(target, 10_000).to(dtype) if soft else target
    exact = UF.unhinged_loss(logits.double(), aim.double() if soft else aim, reduction="none")
    with torch.autocast("cpu"):
        close(UF.unhinged_loss(logits, aim, reduction="none").double(), exact, 1e-4)
    close(UF.unhinged_loss(logits, aim, reduction="none"), exact.to(dtype), torch.finfo(dtype).eps)


def test_autocast_trains_a_linear_classifier_as_float32_does():
    model, batch, target = nn.Linear(6, 3), torch.randn(8, 6), torch.randint(3, (8,))
    UnhingedLoss()(model(batch), target).backward()
    expected = model.weight.grad.clone()
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = UnhingedLoss()(model(batch), target)
    assert loss.dtype == torch.float32
    loss.backward()
    torch.testing.assert_close(model.weight.grad, expected, rtol=0.02, atol=0.01)


# ---- modules and weights ---------------------------------------------------------------------------------------------


def test_a_loss_has_no_state_but_its_weights_follow_it():
    criterion = UnhingedLoss(weight=torch.ones(3))
    assert not criterion.state_dict()
    assert not list(criterion.parameters())
    assert criterion.double().weight.dtype == torch.float64


def test_the_representation_tells_what_was_changed():
    assert repr(UnhingedLoss()) == "UnhingedLoss()"
    assert repr(UnhingedLoss(gamma=0.5, reduction="sum")) == "UnhingedLoss(gamma=0.5, reduction='sum')"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8).filter(any), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_class_weights_are_powers_of_the_counts_with_mean_one_over_the_examples(counts: list[int], power: float):
    """[eq: class-weights]."""
    weights = class_weights(torch.tensor(counts, dtype=torch.float64), power)
    seen = [c for c, n in enumerate(counts) if n > 0]
    for a in seen:
        for b in seen:
            ratio = (counts[a] / counts[b]) ** -power
            assert weights[a].item() == pytest.approx(weights[b].item() * ratio, rel=1e-12)
    assert sum(n * w.item() for n, w in zip(counts, weights, strict=True)) == pytest.approx(sum(counts), rel=1e-12)
    assert all(weights[c] == 0 for c, n in enumerate(counts) if n == 0)


def test_class_weights_come_in_the_default_dtype_or_in_that_of_fractional_counts():
    assert class_weights([3, 1]).dtype == torch.get_default_dtype()
    assert class_weights(torch.tensor([3, 1])).dtype == torch.get_default_dtype()
    assert class_weights(torch.tensor([3.0, 1.0], dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("counts", [[], [0, 0], [1, -1], [math.inf, 1.0], [[1, 2]], [True, False]])
def test_impossible_counts_are_refused(counts: Any):
    with pytest.raises(ValueError, match="counts must"):
        class_weights(counts)


def test_a_power_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="power"):
        class_weights([1, 2], power=math.nan)


def test_square_root_weights_give_the_gradient_of_balanced_classes_to_the_scaled_means():
    # theory: with a_c ~ n_c^(-1/2), d loss / d w_c = A x_c with x_c = sqrt(n_c) mean_c and A that of balanced classes
    counts, dim, gamma = [9, 4, 1], 3, 0.4
    target = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    means = torch.randn(3, dim, dtype=torch.float64)
    weight = torch.randn(3, dim, dtype=torch.float64, requires_grad=True)
    UF.unhinged_loss(means[target] @ weight.T, target, gamma, weight=class_weights(counts)).backward()
    scaled = means * torch.tensor(counts).sqrt()[:, None]
    balanced = -((1 + gamma) * scaled - gamma * scaled.sum(0))
    factor = weight.grad.norm() / balanced.norm()
    torch.testing.assert_close(weight.grad, factor * balanced, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("loss", [UnhingedLoss, TaylorSoftmaxLoss, ZLoss, SphericalSoftmaxLoss])
def test_gradients_of_single_examples_are_mapped_with_class_weights_too(loss):
    logits, target = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 3, 2, 4])
    weighted = loss(weight=torch.rand(5, dtype=torch.float64), reduction="sum")
    torch.testing.assert_close(vmap(grad(weighted))(logits, target), grad(weighted)(logits, target))
