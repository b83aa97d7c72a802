"""What every detector and every decision owes its user: any dtype, scale, thread, input; copies; short errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from unhinge.metrics import ood_scores
from unhinge.nn import functional as UF
from unhinge.ood import CollapseDetector
from unhinge.ood.collapse import SCORES

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
PRIOR = torch.tensor([50, 10, 5])


def training(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    target = torch.arange(90) % 3
    weight = torch.randn(3, 6, generator=g, dtype=torch.float64)
    features = scale * (2 * weight[target] + torch.randn(90, 6, generator=g, dtype=torch.float64))
    return features.to(dtype), target, weight.to(dtype), torch.randn(3, generator=g, dtype=torch.float64).to(dtype)


def detector_of(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> CollapseDetector:
    return CollapseDetector.fit(*training(dtype, scale), neighbors=5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_those_of_float64_on_the_same_numbers(dtype):
    """Half precision holds the numbers; the arithmetic is float64, so only the answer is rounded."""
    features, target, weight, bias = training(dtype)
    scores = CollapseDetector.fit(features, target, weight, bias, neighbors=5).scores(features[:20])
    wide = CollapseDetector.fit(features.double(), target, weight.double(), bias.double(), neighbors=5)
    answer = torch.float64 if dtype == torch.float64 else torch.float32
    for name, values in wide.scores(features[:20].double()).items():
        assert scores[name].dtype == answer
        eps = torch.finfo(answer).eps
        torch.testing.assert_close(scores[name].double(), values, rtol=64 * eps, atol=64 * eps)


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
@pytest.mark.parametrize("name", ["mahalanobis", "neco", "fdbd", "knn"])
def test_scores_without_a_unit_do_not_depend_on_the_scale(name, scale):
    """Without bias all four are ratios; only rounding may differ."""
    features, target, weight, _ = training()
    plain = CollapseDetector.fit(features, target, weight, neighbors=5).scores(features, [name])[name]
    scaled = CollapseDetector.fit(scale * features, target, weight, neighbors=5).scores(scale * features, [name])[name]
    torch.testing.assert_close(scaled, plain, rtol=1e-9, atol=1e-9)


def test_eight_threads_get_their_own_answers():
    detector = detector_of()
    rows = [torch.randn(7, 6, dtype=torch.float64) for _ in range(64)]
    alone = detector_of()
    expected = [alone.scores(h) for h in rows]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(detector.scores, rows))  # the first ones race for what is computed once
    for answer, wanted in zip(answers, expected, strict=True):
        assert all(torch.equal(answer[name], wanted[name]) for name in SCORES)


def test_inference_mode_first_then_a_gradient():
    features, target, weight, bias = training()
    with torch.inference_mode():
        detector = CollapseDetector.fit(features, target, weight, bias, neighbors=5)
        detector.scores(features)
    h = features[:4].clone().requires_grad_()
    for name in SCORES:
        (slope,) = torch.autograd.grad(detector.scores(h, [name])[name].sum(), h)
        assert slope.isfinite().all()
    assert torch.equal(pickle.loads(pickle.dumps(detector)).scores(features)["vim"], detector.scores(features)["vim"])


@pytest.mark.parametrize("as_given", [lambda x: x.numpy(), lambda x: x.tolist()], ids=["numpy", "lists"])
def test_numpy_and_lists_at_the_door(as_given):
    features, target, weight, bias = training()
    given = CollapseDetector.fit(*map(as_given, (features, target, weight, bias)))
    expected = CollapseDetector.fit(features, target, weight, bias).scores(features)
    for name, values in given.scores(as_given(features)).items():
        torch.testing.assert_close(values, expected[name])


def test_twins_and_a_short_repr():
    detector = detector_of()
    for twin in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        assert torch.equal(twin.scores(training()[0])["vim"], detector.scores(training()[0])["vim"])
    assert len(repr(detector)) < 200
    assert np.isfinite(detector.vim_scale)


def test_plain_scores_agree_with_the_functions_of_logits():
    features, _, weight, bias = training()
    scores, plain = detector_of().scores(features), ood_scores(features @ weight.mT + bias, features)
    for name in plain:
        torch.testing.assert_close(scores[name], plain[name], rtol=1e-12, atol=1e-12)


DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "posterior": lambda z: UF.posterior(z, 5.0),
    "adjust_logits": lambda z: UF.adjust_logits(z, PRIOR),
    "balanced_decision": lambda z: UF.balanced_decision(z.softmax(-1), PRIOR),
}


@pytest.mark.parametrize("shape", [(3,), (0, 3), (4, 3), (2, 5, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_take_any_leading_axes_and_dtype(name, dtype, shape):
    z = torch.randn(shape).to(dtype)
    answer = DECISIONS[name](z)
    assert answer.shape == (shape[:-1] if name == "balanced_decision" else shape)
    assert torch.isfinite(answer.double()).all()
    if len(shape) > 1 and shape[0]:
        assert torch.equal(answer[0], DECISIONS[name](z[0]))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_at_any_scale_are_finite(name, scale):
    assert torch.isfinite(DECISIONS[name](scale * torch.randn(50, 3)).double()).all()
