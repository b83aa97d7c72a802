"""What every metric owes its user: any dtype and scale, numpy and lists, threads; errors that say what came."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unhinge import metrics

F64 = torch.float64
DTYPES = [F64, torch.float32, torch.float16, torch.bfloat16]
CLASSES = 3


@dataclass(frozen=True)
class Inputs:
    """What goes into a metric: tensors, arrays or lists."""

    features: Any
    weight: Any
    logits: Any
    probabilities: Any
    target: Any
    counts: Any
    known: Any
    unknown: Any

    def each(self, function: Callable[[Any], Any], *names: str) -> Inputs:
        chosen = names or [field.name for field in fields(self)]
        return replace(self, **{name: function(getattr(self, name)) for name in chosen})


def inputs() -> Inputs:
    g = torch.Generator().manual_seed(0)
    target = torch.arange(24) % CLASSES
    weight = torch.randn(CLASSES, 4, generator=g, dtype=F64)
    features = 2 * weight[target] + torch.randn(24, 4, generator=g, dtype=F64)
    logits = features @ weight.mT
    counts = torch.tensor([200, 50, 5])
    # sixteenths that sum to 1: bfloat16 holds them too
    probabilities = torch.tensor([[10, 4, 2], [3, 12, 1], [5, 5, 6], [16, 0, 0]], dtype=F64).repeat(6, 1) / 16
    return Inputs(features, weight, logits, probabilities, target, counts, features[:, 0], features[:, 1] - 1)


INPUTS = inputs()
FLOATS = ("features", "weight", "logits", "probabilities", "known", "unknown")


def collapse_of_two_parts(given: Inputs) -> dict[str, Tensor]:
    batches = [(given.features[part], given.target[part]) for part in (slice(0, 7), slice(7, None))]
    return metrics.summarize_collapse(batches, CLASSES).measures(given.weight)


METRICS: dict[str, Callable[[Inputs], Any]] = {
    "neural_collapse": lambda x: metrics.neural_collapse(x.features, x.weight, x.target),
    "neural_collapse, no weight": lambda x: metrics.neural_collapse(x.features, None, x.target),
    "summarize_collapse": collapse_of_two_parts,
    "CollapseSummary": lambda x: metrics.CollapseSummary.of(x.features, x.target, CLASSES).measures(),
    "ood_scores": lambda x: metrics.ood_scores(x.logits, x.features),
    "ood_metrics": lambda x: metrics.ood_metrics(x.known, x.unknown),
    "reliability": lambda x: metrics.reliability(x.probabilities, x.target),
    "classwise_reliability": lambda x: metrics.classwise_reliability(x.probabilities, x.target, bins=4),
    "expected_calibration_error": lambda x: metrics.expected_calibration_error(x.probabilities, x.target),
    "classwise_calibration_error": lambda x: metrics.classwise_calibration_error(x.probabilities, x.target),
    "shot_accuracy": lambda x: metrics.shot_accuracy(x.logits, x.target, x.counts),
    "strength_curve": lambda x: metrics.strength_curve(x.logits, x.target, x.counts),
    "fit_temperature": lambda x: metrics.fit_temperature(x.logits, x.target),
    "after_temperature": lambda x: metrics.after_temperature(x.logits, x.target, bins=4),
    "strength_curve, radius": lambda x: metrics.strength_curve(x.logits, x.target, x.counts, radius=5.0),
}
# Pictures of the above: their numbers are tested there, and what they draw in tests/metrics/test_plots.py.
DRAWN = {"reliability_diagram", "score_histogram", "strength_plot"}
# Values that some of the functions return, and are made by no one else.
RETURNED = {"AfterTemperature", "Reliability", "StrengthCurve"}
every_metric = pytest.mark.parametrize("name", METRICS)

# What goes up with the scale of features and prototypes; everything else of neural_collapse stays.
LENGTHS = {"feature_norm_mean", "weight_norm_min"}


def flat(answer: Any) -> dict[str, Tensor]:
    """Whatever a metric returns, as named tensors."""
    if is_dataclass(answer):
        answer = {field.name: getattr(answer, field.name) for field in fields(answer)}
    answer = answer if isinstance(answer, dict) else {"": answer}
    return {name: torch.as_tensor(value) for name, value in answer.items()}


def agree(found: Any, expected: Any, eps: float) -> None:
    for name, value in flat(expected).items():
        own = flat(found)[name].double()
        torch.testing.assert_close(own, value.double(), rtol=eps, atol=eps, equal_nan=True, msg=lambda m, n=name: n + m)


def test_every_public_name_is_asked():
    asked = {name.split(",")[0] for name in METRICS}
    assert asked | DRAWN | RETURNED == set(metrics.__all__)


@every_metric
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_metric_is_that_of_float64_on_the_same_numbers(name, dtype):
    """Half precision holds the numbers; sums are float64, and answers at least float32."""
    given = INPUTS.each(lambda x: x.to(dtype), *FLOATS)
    found, wide = METRICS[name](given), METRICS[name](given.each(lambda x: x.double(), *FLOATS))
    eps = torch.finfo(F64 if dtype == F64 else torch.float32).eps
    agree(found, wide, 64 * eps)
    for value in flat(found).values():
        assert value.dtype not in (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("scale", [1e-160, 1e-150, 1e-30, 1e30, 1e150])
@pytest.mark.parametrize("name", [name for name in METRICS if "ollapse" in name])
def test_collapse_does_not_depend_on_the_scale(name, scale):
    factor = 2.0 ** round(math.log2(scale))  # rounds nothing
    given = INPUTS.each(lambda x: factor * x, "features", "weight")
    found, plain = flat(METRICS[name](given)), flat(METRICS[name](INPUTS))
    agree({key: value / factor if key in LENGTHS else value for key, value in found.items()}, plain, 1e-12)


@pytest.mark.parametrize("scale", [1e-160, 1e-30, 1e30, 1e150])
def test_collapse_of_parts_of_very_different_scale_is_finite(scale):
    batches = [(INPUTS.features, INPUTS.target), (scale * INPUTS.features, INPUTS.target)]
    measures = metrics.summarize_collapse(batches, CLASSES).measures(INPUTS.weight)
    assert all(value.isfinite() for value in measures.values())


@pytest.mark.parametrize(
    ("dtype", "scale"), [(F64, 1e-160), (F64, 1e150), (torch.float32, 1e-30), (torch.float32, 1e30)]
)
def test_the_norm_as_a_score_has_all_its_digits_at_any_scale(dtype, scale):
    features = (scale * INPUTS.features).to(dtype)
    norms = metrics.ood_scores(INPUTS.logits, features)["norm"].double() / scale
    torch.testing.assert_close(norms, INPUTS.features.norm(dim=1), rtol=1e-5 if dtype != F64 else 1e-12, atol=0.0)


@pytest.mark.parametrize("scale", [1e-160, 1e150])
@pytest.mark.parametrize("name", ["ood_scores", "ood_metrics", "shot_accuracy", "strength_curve"])
def test_scores_and_decisions_are_finite_at_any_scale(name, scale):
    given = INPUTS.each(lambda x: scale * x, "features", "logits", "known", "unknown")
    assert all(value.isfinite().all() for value in flat(METRICS[name](given)).values())


@pytest.mark.parametrize("scale", [1e-160, 1e150])
def test_detection_and_accuracy_do_not_depend_on_the_scale(scale):
    given = INPUTS.each(lambda x: scale * x, "logits", "known", "unknown")
    for name in ("ood_metrics", "shot_accuracy"):
        assert METRICS[name](given) == METRICS[name](INPUTS)


@every_metric
@pytest.mark.parametrize("as_given", [lambda x: x.numpy(), lambda x: x.tolist()], ids=["numpy", "lists"])
def test_numpy_and_lists_give_what_tensors_give(name, as_given):
    agree(METRICS[name](INPUTS.each(as_given)), METRICS[name](INPUTS), 0.0)


@every_metric
def test_no_examples_are_an_error_that_says_so(name):
    with pytest.raises(ValueError, match=r"empty|at least one"):
        METRICS[name](INPUTS.each(lambda x: x[:0], *FLOATS[:1], *FLOATS[2:], "target"))


@every_metric
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_is_an_error_that_says_so(name, value):
    def spoiled(x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[1] = value
        return x

    with pytest.raises(ValueError, match="NaN or infinite"):
        METRICS[name](INPUTS.each(spoiled, *FLOATS))


@every_metric
@pytest.mark.parametrize("value", [None, "cat", ["cat"], [0.5] * 24, object()], ids=lambda value: type(value).__name__)
def test_labels_that_are_none_are_an_error_that_names_them(name, value):
    if name == "ood_metrics" or name == "ood_scores":
        return  # they take no labels
    with pytest.raises((ValueError, TypeError), match=r"target|subscriptable"):
        METRICS[name](replace(INPUTS, target=value))


@every_metric
def test_one_class_is_answered_or_refused_by_name(name):
    one = INPUTS.each(lambda x: x[:, :1], "logits", "probabilities").each(lambda x: x[:1], "weight", "counts")
    one = replace(one, probabilities=torch.ones_like(one.probabilities), target=torch.zeros_like(INPUTS.target))
    if "ollapse" in name:
        with pytest.raises(ValueError, match=r"at least 2 classes|shape"):
            METRICS[name](one)
    else:
        values = {key: value for key, value in flat(METRICS[name](one)).items() if key not in ("medium", "few")}
        assert all(value.isfinite().all() for value in values.values())


@every_metric
def test_eight_threads_get_the_same_answer(name):
    expected = METRICS[name](INPUTS)
    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda _: METRICS[name](INPUTS), range(32)):
            agree(answer, expected, 0.0)
