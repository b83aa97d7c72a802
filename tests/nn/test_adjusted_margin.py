"""The adjusted loss on the sphere: the corrected formula, the antipode, and what stays unchanged."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from oracles.nn import adjusted_margin, adjusted_shift, spherical_gradient
from unhinge.nn import AdjustedMarginLoss
from unhinge.nn import functional as UF


def simplex(classes: int, scale: float = 1.0) -> Tensor:
    """Prototypes of mean zero and equal norm, shape (C, C)."""
    centered = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return scale * centered * math.sqrt(classes / (classes - 1))


def at_angle(w: Tensor, theta: float, norm: float, seed: int = 0) -> Tensor:
    """A feature of the given norm at the given angle to w."""
    side = torch.randn(len(w), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    side = side - w * (side @ w) / (w @ w)
    unit = -w / w.norm() if theta == math.pi else math.cos(theta) * w / w.norm() + math.sin(theta) * side / side.norm()
    return norm * unit


def gradient(features: Tensor, weight: Tensor, target: Tensor, **options: object) -> Tensor:
    features = features.detach().requires_grad_()
    loss = UF.adjusted_margin_loss(features, weight, target, **options)
    return torch.autograd.grad(loss.sum(), features)[0]


@given(
    classes=st.integers(2, 6),
    theta=st.floats(0.01, math.pi - 1e-3),
    norm=st.sampled_from([0.1, 1.0, 30.0]),
    gamma=st.sampled_from([0.0, 0.2, 1.5]),
    epsilon=st.sampled_from([0.001, 0.05, 0.5, 0.99]),
    seed=st.integers(0, 1000),
)
def test_value_and_gradient_are_those_of_the_corrected_formula(
    classes: int, theta: float, norm: float, gamma: float, epsilon: float, seed: int
):
    """[eq: adjusted-margin]."""
    weight = simplex(classes, 1.7)
    y = seed % classes
    h = at_angle(weight[y], theta, norm, seed)
    value, slope = adjusted_margin(h, weight, y, gamma, epsilon)
    ours = UF.adjusted_margin_loss(h, weight, torch.tensor(y), gamma, epsilon)
    torch.testing.assert_close(ours, value, rtol=1e-9, atol=1e-12)
    slope_here = gradient(h, weight, torch.tensor(y), gamma=gamma, epsilon=epsilon)
    # the oracle's sqrt(1 - c^2) loses half the digits that c next to -1 has lost: closer to the antipode it is no judge
    torch.testing.assert_close(slope_here, slope, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("theta", [math.pi, math.pi - 1e-12, math.pi - 1e-6, math.pi - 1e-3, math.pi - 0.1])
def test_inside_the_zone_the_gradient_has_the_norm_the_theory_gives(theta: float, epsilon: float):
    """[eq: adjusted-margin]."""
    weight, gamma, norm = simplex(5, 2.0), 0.25, 3.0
    h = at_angle(weight[1], theta, norm)
    g = gradient(h, weight, torch.tensor(1), gamma=gamma, epsilon=epsilon)
    tangent = math.tan(math.acos(1 - epsilon))
    inside = math.cos(theta) < -1 + epsilon
    expected = (1 + gamma) * 2.0 * (abs(math.cos(theta)) * tangent if inside else math.sin(theta)) / norm
    assert g.norm().item() == pytest.approx(expected, rel=1e-9)
    assert abs((g @ h).item()) < 1e-12, "the gradient of a normalized feature is perpendicular to it"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_gradient_at_the_exact_antipode_is_finite_and_not_zero(dtype: torch.dtype, axis: int):
    weight = torch.cat([torch.eye(3), -torch.eye(3)]).to(dtype)  # mean zero, and exact in every dtype
    g = gradient(-4 * weight[axis : axis + 1], weight, torch.tensor([axis]))
    assert g.isfinite().all()
    assert g.norm() > 0.05
    assert g[0, axis] == 0


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_an_example_leaves_the_antipode_and_ends_at_its_prototype(classes: int):
    weight, target = simplex(classes), torch.arange(classes)
    features = -weight.clone()
    stuck = (-weight).requires_grad_()
    UF.unhinged_loss_from_features(F.normalize(stuck), weight, target).backward()
    assert stuck.grad.norm() < 1e-12, "the unadjusted loss does not move at all"
    for _ in range(300):
        features = features - 0.5 * gradient(features, weight, target, reduction="sum")
    torch.testing.assert_close(F.normalize(features), weight, rtol=0, atol=1e-6)


@given(st.integers(0, 1000), st.sampled_from([None, 0.0, 0.7]))
def test_the_value_is_that_of_the_unhinged_loss_on_normalized_features_for_any_prototypes(
    seed: int, gamma: float | None
):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    features = torch.cat([torch.randn(6, 3, generator=generator, dtype=torch.float64), -weight])
    target = torch.cat([torch.randint(4, (6,), generator=generator), torch.arange(4)])
    expected = UF.unhinged_loss(F.normalize(features) @ weight.T, target, gamma, reduction="none")
    actual = UF.adjusted_margin_loss(features, weight, target, gamma, epsilon=0.5, reduction="none")
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_prototypes_that_are_not_centred_have_their_own_antipode_and_it_is_left_too():
    weight = torch.tensor([[1.0, 0.0], [3.0, 4.0], [1.0, 2.0]], dtype=torch.float64)
    gamma = 0.5
    v = (1 + gamma) * weight[0] - gamma * weight.sum(0)
    assert spherical_gradient(v, -v).norm() < 1e-12
    g = gradient(-v, weight, torch.tensor(0), gamma=gamma)
    assert g.norm().item() == pytest.approx(math.tan(math.acos(0.95)), rel=1e-9)


def test_the_adjusted_prototype_has_the_cosine_of_the_threshold():
    # the oracle judged by the property that defines it
    w = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    for theta in (math.pi - 1e-3, math.pi - 0.1, math.pi - 0.3):
        unit = at_angle(w, theta, 1.0)
        moved = w + adjusted_shift(w, unit, 0.05)
        assert (moved @ unit / moved.norm()).item() == pytest.approx(-0.95, abs=1e-9)


def test_outside_the_zone_first_and_second_derivatives_pass_gradcheck():
    weight = simplex(3).requires_grad_()
    features = torch.tensor([[0.5, 1.0, 0.1], [1.0, -0.2, 0.3]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1, 0])
    assert torch.autograd.gradcheck(lambda h, w: UF.adjusted_margin_loss(h, w, target), (features, weight))
    assert torch.autograd.gradgradcheck(lambda h, w: UF.adjusted_margin_loss(h, w, target), (features, weight))


def test_inside_the_zone_the_gradient_of_the_prototypes_is_that_of_the_unhinged_loss():
    weight = simplex(3).requires_grad_()
    features, target = -weight.detach() + 0.01, torch.arange(3)
    (ours,) = torch.autograd.grad(UF.adjusted_margin_loss(features, weight, target), weight)
    (plain,) = torch.autograd.grad(UF.unhinged_loss(F.normalize(features) @ weight.T, target), weight)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_only_the_direction_of_a_feature_counts_at_any_scale(scale: float):
    weight, target = simplex(3).float(), torch.tensor([0, 1])
    features = torch.tensor([[1.0, 2.0, 0.5], [0.2, -3.0, 1.0]])
    expected = UF.adjusted_margin_loss(features, weight, target)
    torch.testing.assert_close(UF.adjusted_margin_loss(scale * features, weight, target), expected)


def test_a_zero_feature_has_no_loss_and_is_pulled_to_its_prototype():
    weight, target = simplex(3), torch.tensor([0])
    features = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss = UF.adjusted_margin_loss(features, weight, target, gamma=0.5)
    assert loss == 0
    (g,) = torch.autograd.grad(loss, features, create_graph=True)
    torch.testing.assert_close(g, -1.5 * weight[:1])
    assert torch.autograd.grad(g.sum(), features)[0].isfinite().all()


def test_a_zero_pull_is_no_pull():
    features = torch.tensor([[1.0, 2.0]], requires_grad=True)
    loss = UF.adjusted_margin_loss(features, torch.zeros(3, 2), torch.tensor([1]))
    assert loss == 0
    assert torch.equal(torch.autograd.grad(loss, features)[0], torch.zeros(1, 2))


def test_in_one_dimension_the_antipode_stays_and_nothing_is_nan():
    g = gradient(torch.tensor([[-2.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([0]))
    assert torch.equal(g, torch.zeros(1, 1))


def test_weights_ignored_labels_and_reductions_are_those_of_cross_entropy():
    weight, class_weight = simplex(3), torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    features, target = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 7, 1, 2])
    each = UF.adjusted_margin_loss(
        features, weight, target, class_weight=class_weight, ignore_index=7, reduction="none"
    )
    assert each[2] == 0
    plain = UF.adjusted_margin_loss(features, weight, target, ignore_index=7, reduction="none")
    torch.testing.assert_close(each, plain * torch.tensor([0.5, 2.0, 0.0, 2.0, 1.0], dtype=torch.float64))
    criterion = AdjustedMarginLoss(weight=class_weight, ignore_index=7)
    torch.testing.assert_close(criterion(features, weight, target), each.sum() / 5.5)
    assert AdjustedMarginLoss()(features[:0], weight, target[:0]).isnan()


def test_leading_axes_the_cached_sum_and_vmap_change_nothing():
    weight = torch.randn(4, 3, dtype=torch.float64)
    features, target = torch.randn(2, 5, 3, dtype=torch.float64), torch.randint(4, (2, 5))
    features[0, 0] = -2 * ((1 + 1 / 3) * weight[1] - weight.sum(0) / 3)
    target[0, 0] = 1
    flat = UF.adjusted_margin_loss(features.flatten(0, 1), weight, target.flatten(), reduction="none")
    each = UF.adjusted_margin_loss(features, weight, target, weight_sum=weight.sum(0), reduction="none")
    torch.testing.assert_close(each.flatten(), flat)
    mapped = vmap(vmap(grad(lambda h, y: UF.adjusted_margin_loss(h, weight, y))))(features, target)
    torch.testing.assert_close(mapped, gradient(features, weight, target, reduction="sum"))


def test_the_module_compiles_to_one_graph():
    torch._dynamo.reset()
    criterion = AdjustedMarginLoss()
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    weight, target = simplex(3), torch.tensor([0, 1])
    features = torch.cat([-weight[:1], weight[2:]]).requires_grad_()
    (ours,) = torch.autograd.grad(compiled(features, weight, target), features)
    torch.testing.assert_close(ours, torch.autograd.grad(criterion(features, weight, target), features)[0])


def test_autocast_keeps_single_precision():
    weight, target = simplex(4).float(), torch.tensor([0, 1, 2])
    features = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = AdjustedMarginLoss()(features, weight, target)
    assert loss == AdjustedMarginLoss()(features, weight, target)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, math.nan])
def test_an_epsilon_outside_of_zero_and_one_is_refused(epsilon: float):
    with pytest.raises(ValueError, match="epsilon"):
        AdjustedMarginLoss(epsilon=epsilon)


def test_wrong_shapes_and_labels_are_refused():
    weight = simplex(3)
    with pytest.raises(ValueError, match="rows of one length"):
        UF.adjusted_margin_loss(torch.zeros(2, 4), weight, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="integer dtype"):
        UF.adjusted_margin_loss(torch.zeros(2, 3), weight, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="weight_sum"):
        UF.adjusted_margin_loss(torch.zeros(2, 3), weight, torch.tensor([0, 1]), weight_sum=torch.zeros(2))
    with pytest.raises(IndexError):
        UF.adjusted_margin_loss(torch.ones(1, 3), weight, torch.tensor([3]))
