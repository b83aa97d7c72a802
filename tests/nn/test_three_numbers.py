"""Taylor softmax, spherical softmax and Z-loss from logits: against loops over examples and classes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from nn.test_losses import Call, calls, close
from oracles.nn import loop_loss
from unhinge.nn import SphericalSoftmaxLoss, TaylorSoftmaxLoss, UnhingedLoss, ZLoss
from unhinge.nn import functional as UF


def taylor_term(z: Tensor, y: int) -> Tensor:
    """From the series of the exponential, class by class."""
    likely = [1 + zc + zc * zc / 2 for zc in z]
    return -torch.log(likely[y] / sum(likely))


def spherical_term(epsilon: float):
    def term(z: Tensor, y: int) -> Tensor:
        likely = [zc**2 + epsilon for zc in z]
        return -torch.log(likely[y] / sum(likely))

    return term


def z_term(slope: float, offset: float):
    def term(z: Tensor, y: int) -> Tensor:
        mean = sum(z) / len(z)
        spread = torch.sqrt(sum((zc - mean) ** 2 for zc in z) / len(z))
        return torch.log(1 + torch.exp(slope * (offset - (z[y] - mean) / spread))) / slope

    return term


FAMILY = {
    "taylor": (taylor_term, TaylorSoftmaxLoss, UF.taylor_softmax_loss, {}),
    "spherical": (spherical_term(0.3), SphericalSoftmaxLoss, UF.spherical_softmax_loss, {"epsilon": 0.3}),
    "spherical, default": (spherical_term(1.0), SphericalSoftmaxLoss, UF.spherical_softmax_loss, {}),
    "z": (z_term(0.7, 1.5), ZLoss, UF.z_loss, {"slope": 0.7, "offset": 1.5}),
}
members = pytest.mark.parametrize("name", FAMILY)


@members
@given(call=calls())
def test_each_loss_is_the_loop_with_its_own_term(name: str, call: Call):
    """[eq: three-numbers]: with the shapes, weights, ignored labels, smoothing and reductions of cross-entropy."""
    term, module, function, options = FAMILY[name]
    if name == "z" and call.logits.shape[call.axis] == 1:
        return  # one logit has no spread: see the test of equal logits
    expected = loop_loss(term, call.logits, call.target, call.axis, **call.options)
    # The variance of two near logits is small and the 1e-12 added to it shows: that is the judge's 1e-8.
    tolerance = 1e-8 if name == "z" else 1e-12
    close(function(call.logits, call.target, **options, **call.options), expected, tolerance)
    close(module(**options, **call.options)(call.logits, call.target), expected, tolerance)


@members
def test_gradients_are_right(name: str):
    _, module, _, options = FAMILY[name]
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 5, 5, 2])
    assert torch.autograd.gradcheck(lambda z: module(**options)(z, target), logits)
    assert torch.autograd.gradgradcheck(lambda z: module(**options)(z, target), logits)


@members
def test_per_sample_gradients_by_vmap(name: str):
    _, _, function, options = FAMILY[name]
    logits, target = torch.randn(3, 5, dtype=torch.float64), torch.tensor([0, 4, 2])
    single = vmap(grad(lambda z, y: function(z, y, **options)))(logits, target)
    whole = logits.clone().requires_grad_()
    function(whole, target, reduction="sum", **options).backward()
    close(single, whole.grad)


@members
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_single(name: str, dtype: torch.dtype):
    _, module, _, options = FAMILY[name]
    logits, target = (30 * torch.randn(8, 4000)).to(dtype), torch.arange(8)
    actual = module(reduction="none", **options)(logits, target)
    assert actual.dtype == dtype
    exact = module(reduction="none", **options)(logits.double(), target)
    assert torch.equal(actual, exact.to(dtype)) or torch.allclose(
        actual.double(), exact, rtol=2 * torch.finfo(dtype).eps
    )


@members
def test_equal_logits_give_finite_values_and_gradients(name: str):
    _, module, _, options = FAMILY[name]
    for value in (0.0, 3.0):
        logits = torch.full((2, 5), value, requires_grad=True)
        module(**options)(logits, torch.tensor([1, 3])).backward()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("loss", [TaylorSoftmaxLoss(), SphericalSoftmaxLoss()])
def test_the_probabilities_of_all_classes_sum_to_one(loss):
    logits = 4 * torch.randn(1, 7, dtype=torch.float64).expand(7, 7)
    each = type(loss)(reduction="none")(logits, torch.arange(7))
    close(each.neg().exp().sum(), torch.ones((), dtype=torch.float64))


@given(st.integers(2, 6), st.integers(0, 50))
def test_near_zero_the_taylor_softmax_is_softmax_up_to_third_order(classes: int, seed: int):
    """Half the logits, an eighth of the difference."""
    logits = torch.randn(4, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    target = torch.arange(4) % classes

    def gap(scale: float) -> float:
        z = scale * logits
        return (
            UF.taylor_softmax_loss(z, target, reduction="none") - F.cross_entropy(z, target, reduction="none")
        ).norm()

    assert gap(1e-3) <= gap(2e-3) / 7.5 + 1e-15


def test_at_zero_the_slope_of_the_taylor_softmax_is_that_of_the_unhinged_loss():
    logits, target = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 4])
    (slope,) = torch.autograd.grad(TaylorSoftmaxLoss()(logits, target), logits)
    (first,) = torch.autograd.grad(UnhingedLoss(gamma=0.25)(logits, target), logits)
    close(slope, 4 / 5 * first)  # 1 - 1/C of it


def test_the_z_loss_does_not_see_shift_and_scale():
    logits, target = torch.randn(4, 9, dtype=torch.float64), torch.tensor([0, 2, 4, 8])
    loss = ZLoss(slope=0.5, offset=3.0)
    close(loss(7 * logits + 1e4, target), loss(logits, target), 1e-9)


def test_the_z_loss_in_single_precision_survives_a_large_common_shift():
    logits, target = torch.randn(4, 9), torch.tensor([0, 2, 4, 8])
    shifted = (logits + 1024.0).float()
    torch.testing.assert_close(
        ZLoss()(shifted, target).double(), ZLoss()(shifted.double(), target), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: SphericalSoftmaxLoss(epsilon=0.0), "epsilon must be positive"),
        (lambda: ZLoss(slope=0.0), "slope must be positive"),
        (lambda: ZLoss(offset=math.inf), "offset must be finite"),
        (lambda: TaylorSoftmaxLoss(reduction="average"), "reduction must be"),
        (lambda: TaylorSoftmaxLoss(label_smoothing=2.0), "label_smoothing must lie"),
        (lambda: TaylorSoftmaxLoss(ignore_index=3)(torch.ones(1, 4), torch.ones(1, 4) / 4), "names a class"),
    ],
)
def test_impossible_settings_are_refused(make, what):
    with pytest.raises(ValueError, match=what):
        make()


def test_what_is_not_default_is_told():
    assert repr(TaylorSoftmaxLoss()) == "TaylorSoftmaxLoss()"
    assert repr(ZLoss(slope=0.5)) == "ZLoss(slope=0.5, offset=10.0)"


@pytest.mark.parametrize("scale", [1e-150, 1e-7, 1e150])
def test_the_z_loss_does_not_see_a_common_factor_of_the_logits(scale):
    logits, target = torch.tensor([[3.0, 1.0, -2.0]], dtype=torch.float64), torch.tensor([0])
    near, far = logits, scale * logits
    slopes = [grad(lambda z: UF.z_loss(z, target))(z) for z in (near, far)]
    torch.testing.assert_close(UF.z_loss(far, target), UF.z_loss(near, target))
    torch.testing.assert_close(scale * slopes[1], slopes[0])


@pytest.mark.parametrize("name", ["taylor", "spherical", "spherical, default"])
@pytest.mark.parametrize("size", [1e4, 1e19, 1e25, 3e38])
def test_logits_whose_squares_overflow_have_a_loss_and_a_slope(name: str, size: float):
    term, _, function, options = FAMILY[name]
    logits = size * torch.tensor([[1.0, -0.5, 0.0], [0.0, 1e-3, 1.0], [1.0, 1.0, 1.0]])
    target = torch.tensor([1, 0, 2])
    exact = logits.double().requires_grad_()  # in float64 these squares fit
    expected = loop_loss(term, exact, target, 1, reduction="sum")
    expected.backward()
    logits.requires_grad_()
    actual = function(logits, target, reduction="sum", **options)
    actual.backward()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=0.0)
    # In units of the logits: a slope of 1 / 3e38 is below the normal numbers of float32.
    torch.testing.assert_close(size * logits.grad.double(), size * exact.grad, rtol=1e-5, atol=1e-5)
    soft = function(logits.detach(), F.one_hot(target, 3).float(), reduction="sum", **options)
    torch.testing.assert_close(soft, actual.detach())
