"""What acts on the features: the penalty and its radius, the rescaled gradient, and the centred decision."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from unhinge import Spherical
from unhinge.nn import FeatureNormPenalty, RescaledGradient, UnhingedLoss, class_weights
from unhinge.nn import functional as UF


def simplex(classes: int, scale: float = 1.0) -> Tensor:
    return scale * (torch.eye(classes, dtype=torch.float64) - 1 / classes) * math.sqrt(classes / (classes - 1))


# ---- the penalty -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([0.0, 0.3, 2.0]), st.integers(0, 100))
def test_the_penalty_is_the_strength_times_the_squared_norms(shape: list[int], strength: float, seed: int):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(shape, generator=generator, dtype=torch.float64)
    rows = features.reshape(-1, shape[-1])
    squares = [sum(x.item() ** 2 for x in row) for row in rows]
    assert FeatureNormPenalty(strength)(features).item() == pytest.approx(strength * sum(squares), rel=1e-12)
    mean = FeatureNormPenalty(strength, reduction="mean")(features).item()
    assert mean == pytest.approx(strength * sum(squares) / len(rows), rel=1e-12)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_penalty_passes_gradcheck(reduction: str):
    features = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    penalty = FeatureNormPenalty(0.3, reduction)
    assert torch.autograd.gradcheck(penalty, features)
    assert torch.autograd.gradgradcheck(penalty, features)


def test_a_summed_penalty_is_batch_size_times_the_mean_one():
    features = torch.randn(16, 3)
    summed, mean = FeatureNormPenalty(0.1)(features), FeatureNormPenalty(0.1, "mean")(features)
    torch.testing.assert_close(summed, 16 * mean)


@pytest.mark.parametrize("gamma", [None, 0.0, 0.7])
@pytest.mark.parametrize("norm", [1.0, 2.5])
@pytest.mark.parametrize(
    ("loss_reduction", "reduction"), [("mean", "mean"), ("mean", "sum"), ("sum", "sum"), ("sum", "mean")]
)
def test_the_radius_asked_for_is_the_radius_features_are_trained_to(
    gamma: float | None, norm: float, loss_reduction: str, reduction: str
):
    weight, target, radius = simplex(4, norm), torch.tensor([0, 1, 1, 2, 3, 3]), 3.5
    penalty = FeatureNormPenalty.for_radius(
        radius, 4, gamma, norm, reduction, batch_size=6, loss_reduction=loss_reduction
    )
    features = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)

    def objective() -> Tensor:
        return UF.unhinged_loss(features @ weight.T, target, gamma, reduction=loss_reduction) + penalty(features)

    # a quadratic: one Newton step finds its minimum from anywhere
    (slope,) = torch.autograd.grad(objective(), features)
    scale = 2 * penalty.strength / (1 if reduction == "sum" else 6)
    features.data -= slope / scale
    assert torch.autograd.grad(objective(), features)[0].abs().max() < 1e-12
    torch.testing.assert_close(features.detach(), radius * F.normalize(weight)[target])


def test_loss_and_penalty_together_are_a_squared_error():
    """[eq: radius]."""
    weight, target = simplex(5), torch.tensor([0, 3])
    penalty = FeatureNormPenalty.for_radius(2.0, 5)

    def gap(features: Tensor) -> Tensor:
        both = UnhingedLoss()(features @ weight.T, target) + penalty(features)
        return both - penalty.strength * (features - 2.0 * weight[target]).square().sum(1).mean()

    a, b = torch.randn(2, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(gap(a), gap(b))


def test_the_strength_of_the_digits_example_is_the_one_measured():
    # theory: a mean penalty of 0.1 with gamma 1/9 predicts the radius 5.56
    assert UF.penalty_strength(5.0 / 0.9, num_classes=10) == pytest.approx(0.1)
    assert UF.penalty_strength(5.0 / 0.9, gamma=1 / 9, reduction="sum", batch_size=50) == pytest.approx(0.002)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_squares_of_half_precision_features_do_not_overflow(dtype: torch.dtype):
    features = torch.full((4, 8), 1000.0, dtype=dtype, requires_grad=True)
    value = FeatureNormPenalty(1e-3)(features)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(32_000, rel=1e-2)
    value.backward()
    torch.testing.assert_close(features.grad, torch.full_like(features, 2.0))


def test_weights_of_examples_count_them_more_than_once():
    """A weight of 2 is the example given twice, in the sum and in the mean."""
    features = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    twice = features[[0, 1, 1, 2]]
    weight = torch.tensor([1.0, 2.0, 1.0])
    for reduction in ("sum", "mean"):
        penalty = FeatureNormPenalty(0.3, reduction)
        torch.testing.assert_close(penalty(features, weight), penalty(twice))
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(10,\)"):
        FeatureNormPenalty(0.3)(features, torch.ones(10))


def test_an_empty_batch_costs_nothing_in_sum():
    assert FeatureNormPenalty(1.0)(torch.zeros(0, 3)) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeatureNormPenalty(-1.0), "strength"),
        (lambda: FeatureNormPenalty(math.inf), "strength"),
        (lambda: FeatureNormPenalty(1.0, "none"), "reduction"),
        (lambda: FeatureNormPenalty.for_radius(0.0, 10), "radius"),
        (lambda: FeatureNormPenalty.for_radius(1.0), "num_classes"),
        (lambda: FeatureNormPenalty.for_radius(1.0, 10, prototype_norm=-1.0), "prototype_norm"),
        (lambda: FeatureNormPenalty.for_radius(1.0, 10, reduction="sum"), "batch_size"),
        (lambda: FeatureNormPenalty(1.0)(torch.tensor(1.0)), "features"),
        (lambda: RescaledGradient()(torch.tensor([1, 2])), "features"),
        (lambda: UF.centered_logits(torch.zeros(2, 3), torch.zeros(4, 2)), "rows of one length"),
        (lambda: UF.centered_logits(torch.zeros(2, 3), torch.zeros(4, 3), feature_mean=torch.zeros(2)), "feature_mean"),
    ],
)
def test_a_wrong_call_says_what_was_expected(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


# ---- the rescaled gradient -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 100))
def test_forward_changes_nothing_and_backward_multiplies_by_the_norm_of_each_row(shape: list[int], seed: int):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(shape, generator=generator, dtype=torch.float64)
    out = RescaledGradient()(features)
    assert torch.equal(out, features)
    (out * probe).sum().backward()
    for slope, h, g in zip(*(x.reshape(-1, shape[-1]) for x in (features.grad, features, probe)), strict=True):
        norm = math.sqrt(sum(x.item() ** 2 for x in h))
        torch.testing.assert_close(slope, norm * g, rtol=1e-12, atol=0)


def test_descent_with_it_is_the_rescaled_descent_of_the_theory():
    """[eq: rescaled-rate]."""
    generator = torch.Generator().manual_seed(1)
    weight, target, lr = simplex(3), torch.tensor([0, 1, 2, 0]), 0.7
    start = 3 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
    features = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([features], lr=lr)
    for _ in range(20):
        optimizer.zero_grad()
        unit = F.normalize(RescaledGradient()(features), dim=-1)
        UnhingedLoss()(unit @ weight.T, target).backward()
        optimizer.step()
    expected = Spherical(target, weight).descent(start, lr=lr, rescaled=True).at(20).features
    torch.testing.assert_close(features.detach(), expected, rtol=1e-10, atol=1e-10)


def test_a_zero_feature_gets_gradient_zero():
    features = torch.zeros(2, 3, requires_grad=True)
    (g,) = torch.autograd.grad((UF.rescale_gradient(features) ** 2 + UF.rescale_gradient(features)).sum(), features)
    assert torch.equal(g, torch.zeros(2, 3))


def test_the_second_backward_pass_differentiates_the_rescaled_gradient():
    features = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(UF.rescale_gradient, features)


def test_vmap_rescales_each_example_by_its_own_norm():
    features = torch.randn(5, 3, dtype=torch.float64)
    each = vmap(grad(lambda h: UF.rescale_gradient(h).sum()))(features)
    torch.testing.assert_close(each, features.norm(dim=1, keepdim=True).expand(5, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_keep_their_dtype_and_norms_do_not_overflow(dtype: torch.dtype):
    features = torch.full((1, 16), 6e4, dtype=dtype, requires_grad=True)  # their norm is beyond float16, too
    with torch.autocast("cpu"):
        (1e-3 * UF.rescale_gradient(features)).sum().backward()
    assert features.grad.dtype == dtype
    torch.testing.assert_close(features.grad, torch.full_like(features, 240.0), rtol=1e-2, atol=0)


def test_it_compiles_to_one_graph_within_a_model():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 3), RescaledGradient(), nn.ReLU(inplace=True))
    batch = torch.randn(5, 4)
    model(batch).sum().backward()
    expected = model[0].weight.grad.clone()
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend="aot_eager")(batch).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, expected)


# ---- the centred decision --------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.booleans())
def test_centred_logits_are_products_with_prototypes_less_their_mean(seed: int, biased: bool):
    """[eq: centered-logits]."""
    generator = torch.Generator().manual_seed(seed)
    features, weight, bias = (
        torch.randn(s, generator=generator, dtype=torch.float64) for s in ((2, 3, 4), (5, 4), (5,))
    )
    actual = UF.centered_logits(features, weight, bias if biased else None)
    for i in range(2):
        for j in range(3):
            for c in range(5):
                expected = 0.0
                for k in range(4):
                    expected += features[i, j, k].item() * (weight[c, k].item() - sum(w[k].item() for w in weight) / 5)
                assert actual[i, j, c].item() == pytest.approx(expected + biased * bias[c].item(), abs=1e-12)
    assert torch.equal(actual.argmax(-1), F.linear(features, weight, bias if biased else None).argmax(-1))


def test_a_common_shift_of_features_and_prototypes_is_undone():
    # the example of the appendix: features moved by one vector and prototypes by a multiple of it
    weight = simplex(4)
    features = weight[torch.arange(8) % 4] + 0.1 * torch.randn(8, 4, dtype=torch.float64)
    features = features - features.mean(0)
    clean = UF.centered_logits(features, weight)
    shift = 5 * weight[2]
    moved, shifted = features + shift, weight + 3 * shift
    assert not torch.equal((moved @ shifted.T).argmax(1), clean.argmax(1))
    repaired = UF.centered_logits(moved, shifted, feature_mean=moved.mean(0))
    torch.testing.assert_close(repaired, clean)


def test_centring_saves_decisions_that_rounding_would_lose():
    weight = simplex(3).float() + 3e4
    features = torch.tensor([[1.0, 0.9, 0.8], [0.8, 1.0, 0.9]])
    exact = F.linear(features.double(), weight.double()).argmax(1)
    assert torch.equal(UF.centered_logits(features, weight).argmax(1), exact)


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e-44])
def test_gradients_of_very_long_and_very_short_features_are_rescaled(size):
    generator = torch.Generator().manual_seed(0)
    features = (size * torch.randn(4, 5, generator=generator)).requires_grad_()
    UF.rescale_gradient(features).sum().backward()
    norms = features.detach().double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(features.grad.double(), norms.expand(4, 5), rtol=1e-6, atol=1e-45)


@pytest.mark.parametrize(("radius", "classes"), [("a", 10), (5.0, 0), (5.0, 1), (5.0, 2.5)])
def test_a_radius_needs_a_number_and_classes(radius, classes):
    with pytest.raises(ValueError, match="must be"):
        FeatureNormPenalty.for_radius(radius, num_classes=classes)


def test_a_word_is_no_count_of_classes():
    with pytest.raises(ValueError, match="the word 'sqrt'"):
        class_weights("sqrt")


@pytest.mark.parametrize(("counts", "power"), [([1_000_000, 1], 60.0), ([1000, 10], 160.0), ([100, 1], -200.0)])
def test_weights_of_any_power_are_finite_and_have_mean_one(counts, power):
    weights = class_weights(torch.tensor(counts, dtype=torch.float64), power)
    exact = [Fraction(1), Fraction(counts[1], counts[0]) ** int(-power)]
    mean = sum(Fraction(n) * a for n, a in zip(counts, exact, strict=True)) / sum(counts)
    expected = torch.tensor([float(a / mean) for a in exact], dtype=torch.float64)
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-300)


def test_arrays_and_whole_numbers_are_refused_in_words():
    features = np.ones((2, 3))
    for part in (FeatureNormPenalty(0.1), RescaledGradient()):
        with pytest.raises(ValueError, match=r"features must be a torch.Tensor, got ndarray. Convert"):
            part(features)
        with pytest.raises(ValueError, match=r"floating tensor of shape \(..., p\), got \(2, 3\) of torch.int64"):
            part(torch.ones(2, 3, dtype=torch.int64))
    for weight in (np.ones(2), [1.0, 1.0]):
        with pytest.raises(ValueError, match=r"weight must be a torch.Tensor"):
            FeatureNormPenalty(0.1)(torch.ones(2, 3), weight)
    for call in (UF.centered_logits, lambda h, w: UF.centered_logits(w, w, feature_mean=h)):
        with pytest.raises(ValueError, match=r"must be a torch.Tensor, got list"):
            call([[1.0, 2.0]], torch.ones(3, 2))
    with pytest.raises(ValueError, match="floating"):
        UF.centered_logits(torch.ones(1, 2, dtype=torch.int64), torch.ones(3, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64])
def test_the_dtype_of_the_example_weights_does_not_matter(dtype):
    features, weight = torch.randn(3, 2), torch.tensor([1.0, 2.0, 4.0])
    for reduction in ("sum", "mean"):
        penalty = FeatureNormPenalty(0.1, reduction)
        assert torch.equal(penalty(features, weight.to(dtype)), penalty(features, weight))
