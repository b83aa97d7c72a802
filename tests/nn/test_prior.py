r"""The loss :math:`-z_y + q^\top z` against its definition, on logits and on features."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn import ManyClassHead, UnhingedLoss
from unhinge.nn import functional as UF

CLASSES, SIZE, DIM = 5, 7, 4


def defined(logits: Tensor, target: Tensor, prior: Tensor, weight: Tensor | None, smoothing: float) -> Tensor:
    """sum_c a_c t_c (-z_c + q . z) over torch's denominator, one example and one class at a time."""
    hard = not target.is_floating_point()
    labels = F.one_hot(target, logits.shape[1]).double() if hard else target
    total = 0.0
    for z, row in zip(logits, labels, strict=True):
        for c in range(len(z)):
            share = (1 - smoothing) * row[c] + smoothing / len(z)
            total = total + (1.0 if weight is None else weight[c]) * share * (-z[c] + prior @ z)
    if not hard or weight is None:
        return total / len(logits)
    return total / weight[target].sum()


def inputs(soft: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(SIZE, DIM, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64)
    bias = torch.randn(CLASSES, generator=generator, dtype=torch.float64)
    prior = torch.softmax(torch.randn(CLASSES, generator=generator, dtype=torch.float64), 0)
    target = torch.randint(CLASSES, (SIZE,), generator=generator)
    if soft:
        target = torch.softmax(torch.randn(SIZE, CLASSES, generator=generator, dtype=torch.float64), 1)
    return features, weight, bias, prior, target


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_follow_the_definition(soft: bool, smoothing: float, weighted: bool) -> None:
    features, weight, bias, prior, target = inputs(soft)
    class_weight = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0], dtype=torch.float64) if weighted else None
    variables = [x.requires_grad_() for x in (features, weight, bias)]
    logits = features @ weight.mT + bias
    expected = defined(logits, target, prior, class_weight, smoothing)
    slopes = torch.autograd.grad(expected, variables, retain_graph=True)

    of_logits = UF.unhinged_loss(logits, target, weight=class_weight, label_smoothing=smoothing, prior=prior)
    module = UnhingedLoss(weight=class_weight, label_smoothing=smoothing, prior=prior)(logits, target)
    torch.testing.assert_close(of_logits, expected)
    torch.testing.assert_close(module, expected)
    for cached in (None, (prior @ weight).detach()):
        value = UF.unhinged_loss_from_features(
            features,
            weight,
            target,
            bias=bias,
            class_weight=class_weight,
            label_smoothing=smoothing,
            prior=prior,
            prior_mean=cached,
        )
        torch.testing.assert_close(value, expected)
        for mine, theirs in zip(torch.autograd.grad(value, variables, retain_graph=True), slopes, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_uniform_prior_is_the_default_loss_rescaled() -> None:
    features, weight, bias, _, target = inputs(soft=False)
    logits = features @ weight.mT + bias
    uniform = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    torch.testing.assert_close(
        CLASSES / (CLASSES - 1) * UF.unhinged_loss(logits, target, prior=uniform), UF.unhinged_loss(logits, target)
    )


def test_it_is_the_gradient_of_adjusted_cross_entropy_at_zero() -> None:
    _, _, _, prior, target = inputs(soft=False)
    logits = torch.zeros(SIZE, CLASSES, dtype=torch.float64, requires_grad=True)
    (real,) = torch.autograd.grad(F.cross_entropy(logits + prior.log(), target), logits)
    (linear,) = torch.autograd.grad(UF.unhinged_loss(logits, target, prior=prior), logits)
    torch.testing.assert_close(real, linear)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior": torch.ones(3) / 3}, "5 classes"),
        ({"prior": [0.2] * 5}, "floating tensor"),
        ({"prior": torch.ones(5) / 5, "gamma": 0.1}, "either gamma or prior"),
        ({"prior": torch.ones(5, dtype=torch.int64)}, "floating tensor"),
    ],
)
def test_wrong_priors_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        UF.unhinged_loss(torch.zeros(2, 5), torch.tensor([0, 1]), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("prior", [torch.tensor([30.0, 10.0, 5.0]), torch.tensor([0.5, math.nan, 0.5])])
def test_counts_in_the_place_of_frequencies_are_refused_where_a_prior_is_kept(prior: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must sum to 1, got a sum of (45|nan)"):
        UnhingedLoss(prior=prior)
    with pytest.raises(ValueError, match=r"must sum to 1, got a sum of (45|nan)"):
        ManyClassHead(4, 3, prior=prior)


def test_modules_take_a_prior_as_a_list_too() -> None:
    logits, target, numbers = torch.arange(6.0).reshape(2, 3), torch.tensor([0, 2]), [0.2, 0.3, 0.5]
    expected = UF.unhinged_loss(logits, target, prior=torch.tensor(numbers))
    assert torch.equal(UnhingedLoss(prior=numbers)(logits, target), expected)  # type: ignore[arg-type]
    assert ManyClassHead(4, 3, prior=numbers).loss is not None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prior must hold one number per class"):
        UnhingedLoss(prior="counts")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_rounding_of_a_prior_is_forgiven(dtype: torch.dtype) -> None:
    UnhingedLoss(prior=torch.full((1000,), 1 / 1000, dtype=dtype))


def test_a_cached_mean_needs_its_prior_and_width() -> None:
    features, weight, _, prior, target = inputs(soft=False)
    with pytest.raises(ValueError, match="pass the prior"):
        UF.unhinged_loss_from_features(features, weight, target, prior_mean=prior @ weight)
    with pytest.raises(ValueError, match="prior_mean must have shape"):
        UF.unhinged_loss_from_features(features, weight, target, prior=prior, prior_mean=prior)


def test_the_prior_follows_the_module_but_not_its_state() -> None:
    module = UnhingedLoss(prior=torch.ones(4) / 4)
    assert module.state_dict() == {}
    assert module.double().prior.dtype == torch.float64
    assert "prior" in repr(module)
