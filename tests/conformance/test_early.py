"""The contract of a path, held by the first phase of real losses too."""

from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unhinge.theory import EarlyCrossEntropy, EarlyPath, Linearized

LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
OF_TIME = ("loss", "feature_norm", "weight_norm", "log_norm", "distance", "accuracy", "error_bound")
SMOOTH = ("loss", "feature_norm", "weight_norm", "log_norm", "distance")


def start(dtype: torch.dtype = torch.float64, scale: float = 0.05) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    drawn = scale * torch.randn(9, 4, generator=generator, dtype=torch.float64).to(dtype)
    return drawn[:6], drawn[6:], torch.zeros(3, dtype=dtype)


KINDS: dict[str, Any] = {
    "flow": lambda h, w, b: EarlyCrossEntropy(LABELS, label_smoothing=0.1, temperature=2.0).flow(h, w),
    "descent": lambda h, w, b: EarlyCrossEntropy(LABELS, logit_adjustment="counts").descent(h, w, lr=0.1),
    "descent, biases": lambda h, w, b: EarlyCrossEntropy(LABELS, class_weight="sqrt").descent(h, w, b, lr=0.1),
    "momentum": lambda h, w, b: EarlyCrossEntropy(LABELS).descent(h, w, lr=0.05, momentum=0.9),
    "anchored": lambda h, w, b: EarlyCrossEntropy(LABELS, feature_decay=0.01).anchored(h, w),
    "focal": lambda h, w, b: Linearized(LABELS, loss="focal").descent(h, w, lr=0.1),
}
for_each = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, *given: Any) -> EarlyPath:
    return KINDS[kind](*(given or start()))


def asked(path: EarlyPath, times: Any = (0, 3, 20)) -> dict[str, Tensor]:
    answers = {name: getattr(path, name)(times) for name in OF_TIME}
    return answers | {"horizon": path.horizon(0.1), "learned": path.learned(0.5)}


def identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, equal_nan=True, msg=name)


@for_each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_answers_have_the_dtype_of_the_start_and_never_below_the_exact_bound(kind, dtype):
    rounded = [part.to(dtype) for part in start()]
    path, double = made(kind, *rounded), made(kind, *(part.double() for part in rounded))
    for name, value in asked(path).items():
        assert value.dtype == dtype, name
        assert not value.isnan().any(), name
    bound = path.error_bound([3, 20]).double()
    assert bool((bound >= double.error_bound([3, 20])).all())


@for_each
@pytest.mark.parametrize(
    ("times", "shape"),
    [((), (0,)), (7, ()), ([[1, 2, 3], [4, 5, 6]], (2, 3)), (np.array([1, 2]), (2,)), (torch.tensor([4]), (1,))],
)
def test_answers_have_the_shape_of_the_time(kind, times, shape):
    path = made(kind)
    given = torch.zeros(0, dtype=torch.long) if shape == (0,) else times
    for name in OF_TIME:
        assert getattr(path, name)(given).shape == shape, name
    assert path.at(given).features.shape == (*shape, 6, 4)


@for_each
def test_numpy_and_lists_are_as_good_as_tensors(kind):
    as_numpy = made(kind, *(part.numpy() for part in start()))
    as_lists = made(kind, *(part.tolist() for part in start()))
    answers = asked(made(kind))
    identical(answers, asked(as_numpy))
    for name, value in asked(as_lists).items():
        torch.testing.assert_close(value.double(), answers[name], rtol=1e-5, atol=1e-6, msg=name)


@for_each
@pytest.mark.parametrize("question", SMOOTH)
@pytest.mark.parametrize("special", ["drawn", "collapsed", "zero"])
def test_gradients_by_the_start_are_those_of_differences(kind, question, special):
    features, weight, bias = start()
    features = {"drawn": features, "collapsed": weight[LABELS].clone(), "zero": 0 * features}[special]
    direction = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def value(step: float) -> Tensor:
        return getattr(made(kind, features + step * direction, weight, bias), question)(5)

    moved = features.clone().requires_grad_()
    answer = getattr(made(kind, moved, weight, bias), question)(5)
    if question == "distance" and answer == 0:
        return  # the tip of a cone, which has no slope
    # the norm of fixed prototypes depends on no feature
    slope = torch.autograd.grad(answer, moved)[0] if answer.requires_grad else torch.zeros_like(features)
    step = 1e-6
    expected = (value(step) - value(-step)) / (2 * step)
    torch.testing.assert_close((slope * direction).sum(), expected, rtol=1e-6, atol=1e-8)


def test_gradients_by_the_rate_are_those_of_differences():
    features, weight, _ = start()

    def value(lr: Any) -> Tensor:
        return EarlyCrossEntropy(LABELS, temperature=2.0).flow(features, weight, lr=lr).loss(5.0)

    lr = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(lr), lr)
    torch.testing.assert_close(slope, (value(0.3 + 1e-6) - value(0.3 - 1e-6)) / 2e-6, rtol=1e-6, atol=1e-10)


TEMPERED: dict[str, Any] = {
    "flow": lambda p, h, w, b: p.flow(h, w),
    "descent, biases": lambda p, h, w, b: p.descent(h, w, b, lr=0.1),
    "momentum": lambda p, h, w, b: p.descent(h, w, lr=0.05, momentum=0.9),
    "anchored": lambda p, h, w, b: p.anchored(h, w),
    "kernel": lambda p, h, w, b: p.kernel_flow(h, w, torch.eye(6, dtype=torch.float64)),
}


@pytest.mark.parametrize("kind", TEMPERED)
def test_gradients_by_the_temperature_are_those_of_differences(kind):
    def path(temperature: Any) -> EarlyPath:
        options = {"label_smoothing": 0.1, "class_weight": "sqrt", "feature_decay": 0.02, "weight_decay": 0.01}
        return TEMPERED[kind](EarlyCrossEntropy(LABELS, temperature=temperature, **options), *start())

    given = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    warm = path(given)
    assert warm.error_bound(5) == path(1.5).error_bound(5)
    for question in SMOOTH:
        value, up, down = (getattr(each, question)(5) for each in (warm, path(1.5 + 1e-5), path(1.5 - 1e-5)))
        # the norm of fixed prototypes depends on nothing
        slope = torch.autograd.grad(value, given)[0] if value.requires_grad else torch.zeros_like(given)
        torch.testing.assert_close(slope, (up - down) / 2e-5, rtol=1e-6, atol=1e-9, msg=question)


@for_each
def test_eight_threads_that_ask_one_path_get_what_one_gets(kind):
    alone, shared, gate = asked(made(kind)), made(kind), Barrier(8)

    def ask(_: int) -> dict[str, Tensor]:
        gate.wait()
        return asked(shared)

    with ThreadPoolExecutor(8) as pool:
        for actual in pool.map(ask, range(8)):
            identical(actual, alone)


@for_each
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda path: pickle.loads(pickle.dumps(path))])
def test_a_copy_answers_alike_before_and_after_the_first_question(kind, copied):
    path = made(kind)
    fresh = copied(path)
    answers = asked(path)
    identical(answers, asked(fresh))
    identical(answers, asked(copied(path)))


@for_each
def test_a_first_question_in_inference_mode_spoils_no_gradient(kind):
    features, weight, bias = start()
    moved = features.requires_grad_()
    path = made(kind, moved, weight, bias)
    with torch.inference_mode():
        asked(path)
    (slope,) = torch.autograd.grad(path.loss(5), moved)
    assert bool(slope.isfinite().all())
    assert path.error_bound(5) > 0


@for_each
def test_a_path_is_short_when_printed(kind):
    path = made(kind)
    asked(path)
    assert len(repr(path)) < 400
    assert "tensor(" not in repr(path)


@for_each
@pytest.mark.parametrize("scale", [1e-150, 1e-20, 1.0, 1e20, 1e150])
def test_a_start_of_any_size_has_no_nan(kind, scale):
    path = made(kind, *start(scale=scale))
    for name, value in asked(path).items():
        assert not value.isnan().any(), name
    if scale <= 1e-20 and kind != "descent, biases":
        assert path.error_bound(3) < 1e-10
    if scale >= 1e20 and kind != "anchored":
        assert path.error_bound(3) == math.inf
