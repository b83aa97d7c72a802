"""The ETF head is a Linear in all but its weight."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_safe
from safetensors.torch import save as save_safe
from torch import nn

from unhinge.nn import functional as UF
from unhinge.nn.frames import prototypes, simplex_etf
from unhinge.nn.heads import ETFHead

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def naive_unit(row: torch.Tensor) -> torch.Tensor:
    length = sum(x * x for x in row.double().tolist()) ** 0.5
    return row.double() / length if length else row.double()


@given(
    st.integers(2, 9),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), max_size=3),
    st.booleans(),
    st.floats(0.1, 10),
    st.integers(0, 99),
)
def test_logits_are_inner_products_with_a_scaled_frame(classes, spare, leading, normalize, scale, seed):
    dim = classes - 1 + spare
    head = ETFHead(dim, classes, normalize, scale, generator=seeded(seed), dtype=torch.float64)
    features = torch.randn(*leading, dim, generator=seeded(seed + 1), dtype=torch.float64)
    frame = simplex_etf(classes, dim, seeded(seed), dtype=torch.float64)
    logits = head(features)
    assert logits.shape == (*leading, classes)
    for h, z in zip(features.reshape(-1, dim), logits.reshape(-1, classes), strict=True):
        used = naive_unit(h) if normalize else h
        expected = torch.stack([scale * torch.dot(w, used) for w in frame])
        torch.testing.assert_close(z, expected, rtol=1e-13, atol=1e-13 * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_weight_is_built_in_float64_and_rounded_once(dtype):
    head = ETFHead(12, 7, scale=3.0, generator=seeded(), dtype=dtype)
    assert head.weight.dtype == dtype
    assert torch.equal(head.weight, (3.0 * simplex_etf(7, 12, seeded(), dtype=torch.float64)).to(dtype))


def test_the_default_dtype_is_that_of_torch():
    assert ETFHead(4, 3).weight.dtype == torch.get_default_dtype()


def test_a_fixed_head_has_no_parameters_and_the_state_dict_of_a_linear():
    head = ETFHead(8, 5)
    assert list(head.parameters()) == []
    assert list(head.state_dict()) == list(nn.Linear(8, 5, bias=False).state_dict())
    assert (head.in_features, head.out_features, head.num_classes, head.bias) == (8, 5, 5, None)
    assert not head.weight.requires_grad


def test_a_trainable_head_starts_as_the_frame_and_moves():
    head = ETFHead(8, 5, trainable=True, scale=4.0, generator=seeded())
    torch.testing.assert_close(head.weight.detach(), 4.0 * simplex_etf(5, 8, seeded(), dtype=torch.float32))
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    before = head.weight.detach().clone()
    head(torch.randn(3, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, head.weight)
    torch.testing.assert_close(head.weight_sum, head.weight.sum(0))
    assert head.weight_sum.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (2, 5), (3, 2), (10, 10), (100, 512), (513, 512)])
def test_the_cached_sum_of_a_frame_is_exactly_zero(dtype, classes, dim):
    head = ETFHead(dim, classes, generator=seeded(), dtype=dtype)
    assert torch.equal(head.weight_sum, torch.zeros(dim, dtype=dtype))
    assert head.weight_sum is head.weight_sum


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_from_features_is_that_of_the_logits(normalize):
    head = ETFHead(16, 10, normalize, generator=seeded(), dtype=torch.float64)
    features, target = torch.randn(7, 16, dtype=torch.float64), torch.arange(7)
    direct = UF.unhinged_loss_from_features(
        head.embed(features), head.weight, target, gamma=0.3, weight_sum=head.weight_sum
    )
    torch.testing.assert_close(direct, UF.unhinged_loss(head(features), target, gamma=0.3), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("how", ["a buffer that asks for a gradient", "a parameter"])
def test_fixed_prototypes_that_are_freed_get_their_whole_gradient_at_every_step(how):
    head = ETFHead(6, 4, generator=seeded(), dtype=torch.float64)
    if how == "a parameter":
        frame = head.weight
        del head.weight
        head.weight = nn.Parameter(frame)
    head.weight.requires_grad_()
    features, target = torch.randn(3, 6, dtype=torch.float64), torch.arange(3)
    (wanted,) = torch.autograd.grad(UF.unhinged_loss(head(features), target), head.weight)
    for _ in range(2):
        loss = UF.unhinged_loss_from_features(features, head.weight, target, weight_sum=head.weight_sum)
        torch.testing.assert_close(torch.autograd.grad(loss, head.weight)[0], wanted)


# ---- loading and moving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [False, True])
def test_a_linear_without_bias_loads_into_the_head_and_back(trainable):
    linear, head = nn.Linear(6, 4, bias=False), ETFHead(6, 4, trainable=trainable)
    head.load_state_dict(linear.state_dict())
    features = torch.randn(3, 6)
    assert torch.equal(head(features), linear(features))
    torch.testing.assert_close(head.weight_sum, linear.weight.sum(0))
    other = nn.Linear(6, 4, bias=False)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.weight, linear.weight)


@pytest.mark.parametrize("assign", [False, True])
def test_the_sum_follows_what_is_loaded_inside_a_larger_model(assign):
    model = nn.Sequential(nn.Linear(3, 6), ETFHead(6, 4))
    other = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 4, bias=False))
    model.load_state_dict(other.state_dict(), assign=assign)
    torch.testing.assert_close(model[1].weight_sum, other[1].weight.sum(0).detach())


@pytest.mark.parametrize("how", ["copy_", "mul_", "replaced", "inference"])
def test_the_sum_follows_whatever_changes_the_prototypes(how):
    head, other = ETFHead(6, 4), torch.randn(4, 6)
    assert torch.equal(head.weight_sum, torch.zeros(6))
    if how == "copy_":
        head.weight.copy_(other)
    elif how == "mul_":
        head.weight[0] *= 3
    elif how == "replaced":
        head.weight = other
    else:
        with torch.inference_mode():
            head.weight = other.clone()
            head.weight.mul_(2)
    torch.testing.assert_close(head.weight_sum, head.weight.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["torch", "safetensors", "deepcopy"])
def test_a_head_survives_saving_and_copying(way):
    head = ETFHead(6, 4, normalize=True, scale=2.0, generator=seeded(1))
    if way == "deepcopy":
        other = copy.deepcopy(head)
        assert other.weight is not head.weight
    else:
        other = ETFHead(6, 4, normalize=True, scale=2.0, generator=seeded(2))
        if way == "torch":
            file = io.BytesIO()
            torch.save(head.state_dict(), file)
            file.seek(0)
            other.load_state_dict(torch.load(file, weights_only=True))
        else:
            other.load_state_dict(load_safe(save_safe(head.state_dict())))
    features = torch.randn(5, 6)
    assert torch.equal(other(features), head(features))
    assert torch.equal(other.weight_sum, head.weight_sum)


@pytest.mark.parametrize("dtype", DTYPES)
def test_to_moves_weight_and_sum_together(dtype):
    head = ETFHead(6, 4).to(dtype)
    assert head.weight.dtype == head.weight_sum.dtype == dtype
    assert head(torch.randn(2, 6).to(dtype)).dtype == dtype


def test_a_head_can_be_made_without_memory_and_filled_later():
    with torch.device("meta"):
        head = ETFHead(6, 4)
    assert head.weight.is_meta
    head = head.to_empty(device="cpu")
    reference = ETFHead(6, 4, generator=seeded())
    head.load_state_dict(reference.state_dict())
    assert torch.equal(head.weight_sum, torch.zeros(6))


def test_the_representation_says_what_it_is():
    assert repr(ETFHead(6, 4, True, 2.5)) == (
        "ETFHead(in_features=6, out_features=4, normalize=True, scale=2.5, trainable=False)"
    )


# ---- normalised features --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_feature_gives_zero_logits_and_a_finite_gradient(dtype):
    head = ETFHead(6, 4, normalize=True, dtype=dtype)
    features = torch.zeros(2, 6, dtype=dtype)
    features[1, 2] = 3
    features.requires_grad_()
    logits = head(features)
    assert torch.equal(logits[0], torch.zeros(4, dtype=dtype))
    logits.sum().backward()
    logits = head(features)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), features)
    assert gradient.isfinite().all()
    assert gradient.abs().max() <= 1


@pytest.mark.parametrize(("dtype", "sizes"), [(torch.float32, (1e-30, 1e30)), (torch.float16, (1e-6, 3e4))])
def test_the_size_of_a_feature_never_matters(dtype, sizes):
    head = ETFHead(6, 4, normalize=True, dtype=dtype, generator=seeded())
    direction = torch.tensor([0.5, -1.0, 0.25, 0.0, 1.0, -0.5], dtype=dtype)
    for size in sizes:
        torch.testing.assert_close(head(direction * size), head(direction), rtol=0, atol=0.03 if size < 1e-5 else 2e-3)


def test_the_gradient_of_normalised_logits_is_right():
    head = ETFHead(5, 4, normalize=True, dtype=torch.float64)
    features = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, features)


def test_an_empty_batch_gives_no_logits():
    assert ETFHead(5, 4, normalize=True)(torch.zeros(0, 5)).shape == (0, 4)


def test_autocast_gives_half_precision_logits():
    with torch.autocast("cpu", torch.bfloat16):
        assert ETFHead(5, 4, normalize=True)(torch.randn(2, 5)).dtype == torch.bfloat16


# ---- what it refuses ------------------------------------------------------------------------------------------------


def test_more_classes_than_a_frame_has_need_other_prototypes():
    with pytest.raises(ValueError, match="prototypes"):
        ETFHead(4, 6)
    head = ETFHead(4, 20, scale=2.0, weight=prototypes(20, 4, seeded()))
    torch.testing.assert_close(head.weight.norm(dim=1), torch.full((20,), 2.0))
    assert torch.equal(head.weight_sum, torch.zeros(4))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_length_must_be_positive(scale):
    with pytest.raises(ValueError, match="scale"):
        ETFHead(4, 3, scale=scale)


def test_prototypes_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3, 4\)"):
        ETFHead(4, 3, weight=torch.ones(4, 3))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="num_classes"):
        ETFHead(4, 1)


def test_a_head_that_normalizes_in_training_keeps_lengths_in_evaluation():
    """T2FNorm: the same decision in both modes, and logits that grow with the feature when it is used."""
    head = ETFHead(8, 4, normalize="training", generator=torch.Generator().manual_seed(0))
    always = ETFHead(8, 4, normalize=True, weight=head.weight)
    never = ETFHead(8, 4, weight=head.weight)
    features = 7 * torch.randn(20, 8)
    torch.testing.assert_close(head(features), always(features))
    head.eval()
    torch.testing.assert_close(head(features), never(features))
    assert torch.equal(head(features).argmax(1), always(features).argmax(1))
    assert "normalize=training" in repr(head)
    with pytest.raises(ValueError, match='True, False or "training"'):
        ETFHead(8, 4, normalize="sometimes")


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ((4.0, 3), {}, "in_features must be a whole number"),
        ((4, True), {}, "num_classes must be a whole number"),
        ((4, 3), {"weight": [[1.0] * 4] * 3}, "weight must be a torch.Tensor"),
        ((4, 3), {"dtype": torch.int32}, "dtype must be a floating one"),
    ],
)
def test_what_is_no_head_is_said_in_our_words(arguments, options, told):
    with pytest.raises(ValueError, match=told):
        ETFHead(*arguments, **options)


def test_sizes_may_be_whole_numbers_of_numpy():
    assert ETFHead(np.int64(4), np.int32(3)).weight.shape == (3, 4)
