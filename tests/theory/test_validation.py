"""Every bad input is refused at the door: what was expected, what came, what to do."""

from __future__ import annotations

import math
import re

import pytest
import torch

from strategies import make_case
from unhinge import LayerPeeled, summarize

CASE = make_case([2, 2, 2], bias=True)
LABELS = CASE.target
SOFT = torch.full((6, 3), 1 / 3, dtype=torch.float64)
NAN, INF = math.nan, math.inf


def problem(**options):
    return LayerPeeled(options.pop("target", LABELS), options.pop("num_classes", 3), **options)


def with_entry(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.flatten()[1] = value
    return changed


# what is tried, and the words the message must hold: what was expected, what came
PROBLEMS = {
    "label too large": (lambda: problem(target=LABELS + 1), ["0 .. 2", "3"]),
    "label negative": (lambda: problem(target=LABELS - 1), ["0 .. 2", "-1"]),
    "label negative, classes counted from it": (lambda: LayerPeeled([-1, 0]), ["labels must lie in 0", "-1"]),
    "empty class": (lambda: problem(num_classes=4), ["at least one example", "3"]),
    "no labels": (lambda: problem(target=LABELS[:0]), ["empty"]),
    "labels as text": (lambda: problem(target="cat"), ["torch.Tensor", "numpy", "list", "str"]),
    "labels as names": (lambda: problem(target=["cat", "dog"]), ["torch.Tensor", "numpy", "list"]),
    "soft labels as ragged rows": (lambda: problem(target=[[0.5, 0.5], [1.0]]), ["one length"]),
    "labels as booleans": (lambda: problem(target=LABELS > 0), ["bool"]),
    "labels as floats": (
        lambda: LayerPeeled(LABELS.double()),
        ["integers", "float64", "(6,)", ".long()", ".astype(int)"],
    ),
    "integer matrix": (lambda: problem(target=LABELS.reshape(3, 2)), ["(n,)", "(3, 2)"]),
    "soft labels of another width": (lambda: problem(target=SOFT[:, :2]), ["(n, 3)", "(6, 2)"]),
    "soft labels that do not sum to one": (lambda: problem(target=SOFT * 1.01), ["sum to 1", "0.01"]),
    "soft labels with nan": (lambda: problem(target=with_entry(SOFT, NAN)), ["NaN"]),
    "no soft labels": (lambda: problem(target=SOFT[:0]), ["empty"]),
    "one class": (lambda: problem(target=LABELS * 0, num_classes=1), ["num_classes", "at least 2", "1"]),
    "half a class": (lambda: problem(num_classes=2.5), ["num_classes", "2.5"]),
    "classes as text": (lambda: problem(num_classes="3"), ["num_classes"]),
    "gamma negative": (lambda: problem(gamma=-0.1), ["gamma", "negative", "-0.1"]),
    "gamma nan": (lambda: problem(gamma=NAN), ["gamma", "finite", "nan"]),
    "gamma infinite": (lambda: problem(gamma=INF), ["gamma", "finite", "inf"]),
    "gamma as text": (lambda: problem(gamma="large"), ["gamma", "number", "str"]),
    "several gammas": (lambda: problem(gamma=torch.tensor([0.1, 0.2])), ["gamma", "(2,)"]),
    "feature decay negative": (lambda: problem(feature_decay=-1.0), ["feature_decay", "-1"]),
    "feature decay nan": (lambda: problem(feature_decay=NAN), ["feature_decay", "nan"]),
    "weight decay negative": (lambda: problem(weight_decay=-1.0), ["weight_decay", "-1"]),
    "weight decay infinite": (lambda: problem(weight_decay=INF), ["weight_decay", "inf"]),
    "unknown weights": (lambda: problem(class_weight="equal"), ["sqrt", "balanced", "equal"]),
    "weights as names": (lambda: problem(class_weight=["a", "b", "c"]), ["class_weight", "numbers"]),
    "weights too few": (lambda: problem(class_weight=torch.ones(2)), ["class_weight", "3", "(2,)"]),
    "weights of zero": (lambda: problem(class_weight=torch.tensor([0.0, 1.0, 1.0])), ["class_weight", "positive"]),
    "weights with nan": (lambda: problem(class_weight=torch.tensor([NAN, 1.0, 1.0])), ["class_weight", "finite"]),
}


@pytest.mark.parametrize(("attempt", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_that_makes_no_sense_is_refused(attempt, words):
    with pytest.raises(ValueError, match=r".") as raised:
        attempt()
    for word in words:
        assert word in str(raised.value)


STARTS = {
    "features with nan": ({"features": with_entry(CASE.features, NAN)}, ["features", "NaN"]),
    "features with infinity": ({"features": with_entry(CASE.features, INF)}, ["features", "infinite"]),
    "weight with nan": ({"weight": with_entry(CASE.weight, NAN)}, ["weight", "NaN"]),
    "bias with nan": ({"bias": with_entry(CASE.bias, NAN)}, ["bias", "NaN"]),
    "features too few": ({"features": CASE.features[:5]}, ["features", "(6, any)", "(5, 3)"]),
    "features flat": ({"features": CASE.features[:, 0]}, ["features", "(6,)"]),
    "weight of another width": ({"weight": CASE.weight[:, :2]}, ["weight", "(3, 3)", "(3, 2)"]),
    "weight transposed": ({"weight": torch.ones(4, 3).double()}, ["weight", "(3, 3)", "(4, 3)"]),
    "bias too long": ({"bias": torch.zeros(4).double()}, ["bias", "(3,)", "(4,)"]),
    "bias as a column": ({"bias": torch.zeros(3, 1).double()}, ["bias", "(3, 1)"]),
    "features as text": ({"features": "features.npy"}, ["features", "torch.Tensor", "numpy", "str"]),
    "features as nothing": ({"features": None}, ["features", "torch.Tensor", "None"]),
    "features as ragged rows": ({"features": [[1.0, 2.0], [3.0]]}, ["features", "one length"]),
    "weight as an array of integers": ({"weight": CASE.weight.numpy().astype(int)}, ["weight", "float", "int64"]),
    "weight as an array in another dtype": ({"weight": CASE.weight.numpy().astype("float32")}, ["dtype", "float32"]),
    "integer features": ({"features": torch.ones(6, 3).long()}, ["features", "float", "int64"]),
    "complex weight": ({"weight": torch.ones(3, 3).cfloat()}, ["weight", "complex64"]),
    "mixed dtypes": ({"weight": CASE.weight.float()}, ["dtype", "float32", "float64"]),
    "bias in another dtype": ({"bias": CASE.bias.float()}, ["dtype", "float32"]),
    "rate negative": ({"lr": -0.1}, ["lr", "-0.1"]),
    "rate nan": ({"lr": NAN}, ["lr", "nan"]),
    "rate infinite": ({"lr": INF}, ["lr", "inf"]),
    "rate as text": ({"lr": "fast"}, ["lr", "number", "str"]),
    "three rates": ({"lr": (0.1, 0.2, 0.3)}, ["lr", "pair", "3"]),
    "second rate negative": ({"lr": (0.1, -0.2)}, ["lr", "-0.2"]),
    "callable that is negative": ({"lr": lambda t: -1.0 + 0 * t}, ["-1.0", "negative"]),
    "callable that is nan": ({"lr": lambda t: t * NAN}, ["nan", "finite"]),
}


@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "anchored_descent"])
@pytest.mark.parametrize(("changes", "words"), STARTS.values(), ids=STARTS)
def test_a_start_that_makes_no_sense_is_refused(kind, changes, words):
    arguments = {"features": CASE.features, "weight": CASE.weight, "bias": CASE.bias} | changes
    with pytest.raises(ValueError, match=r".") as raised:
        getattr(problem(), kind)(**arguments)
    for word in words:
        assert word in str(raised.value)


MOMENTA = {
    "momentum negative": ({"momentum": -0.1}, ["momentum", "-0.1"]),
    "momentum one": ({"momentum": 1.0}, ["momentum", "1.0"]),
    "momentum nan": ({"momentum": NAN}, ["momentum", "nan"]),
    "dampening negative": ({"momentum": 0.9, "dampening": -0.1}, ["dampening", "-0.1"]),
    "dampening nan": ({"momentum": 0.9, "dampening": NAN}, ["dampening", "nan"]),
    "nesterov alone": ({"nesterov": True}, ["Nesterov", "momentum"]),
    "nesterov dampened": ({"momentum": 0.9, "dampening": 0.1, "nesterov": True}, ["Nesterov", "dampening"]),
}


@pytest.mark.parametrize("kind", ["descent", "anchored_descent"])
@pytest.mark.parametrize(("options", "words"), MOMENTA.values(), ids=MOMENTA)
def test_a_momentum_that_makes_no_sense_is_refused(kind, options, words):
    with pytest.raises(ValueError, match=r".") as raised:
        getattr(problem(), kind)(CASE.features, CASE.weight, **options)
    for word in words:
        assert word in str(raised.value)


QUESTIONS = ["at", "loss", "accuracy", "feature_norm", "weight_norm", "distance", "log_norm", "collapse"]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("kind", ["flow", "anchored", "descent", "anchored_descent"])
@pytest.mark.parametrize("time", [-1.0, NAN, INF, torch.tensor([1.0, -2.0])], ids=str)
def test_a_time_that_makes_no_sense_is_refused(question, kind, time):
    path = getattr(problem(), kind)(CASE.features, CASE.weight)
    with pytest.raises(ValueError, match=r"negative|finite"):
        getattr(path, question)(time)


@pytest.mark.parametrize("kind", ["descent", "anchored_descent"])
@pytest.mark.parametrize("steps", [0.5, -3, torch.tensor([1.0, 2.5]), True], ids=str)
def test_a_number_of_steps_that_is_not_whole_is_refused(kind, steps):
    path = getattr(problem(), kind)(CASE.features, CASE.weight)
    with pytest.raises(ValueError, match=r"steps|negative"):
        path.at(steps)


@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "anchored_descent"])
@pytest.mark.parametrize("time", ["soon", None], ids=str)
def test_a_time_that_is_not_a_number_is_refused(kind, time):
    path = getattr(problem(), kind)(CASE.features, CASE.weight)
    with pytest.raises(ValueError, match=r"time|step"):
        path.at(time)


@pytest.mark.parametrize("steps", [2.0**63, 1e300, torch.tensor([1.0, 1e20])], ids=str)
def test_more_steps_than_can_be_counted_are_not_called_negative(steps):
    with pytest.raises(ValueError, match=r"fewer than 2\^63 steps, got (9.22337e\+18|1e\+300|1e\+20)"):
        CASE.descent().loss(steps)


def test_whole_numbers_of_steps_may_come_as_floats():
    path = problem().descent(CASE.features, CASE.weight)
    assert torch.equal(path.at(7.0).features, path.at(7).features)
    assert torch.equal(path.loss(torch.tensor([3.0, 7.0])), path.loss(torch.tensor([3, 7])))


STREAMS = {
    "no batches": (lambda: summarize([], 3), ["empty"]),
    "labels of another length": (lambda: summarize([(CASE.features, LABELS[:4])], 3), ["length"]),
    "labels as text": (lambda: summarize([(CASE.features, "labels")], 3), ["target", "list", "str"]),
    "one label": (lambda: summarize([(CASE.features, 1)], 3), ["length"]),
    "labels out of range": (lambda: summarize([(CASE.features, LABELS + 1)], 3), ["0 .. 2", "3"]),
    "nan": (lambda: summarize([(with_entry(CASE.features, NAN), LABELS)], 3), ["features", "NaN"]),
    "flat features": (lambda: summarize([(CASE.features[:, 0], LABELS)], 3), ["features", "(6,)"]),
    "hard and soft": (
        lambda: summarize([(CASE.features, LABELS), (CASE.features, SOFT)], 3),
        ["integers", "probabilities"],
    ),
    "another width": (
        lambda: summarize([(CASE.features, LABELS), (CASE.features[:, :2], LABELS)], 3),
        ["features", "3", "2"],
    ),
    "another dtype": (
        lambda: summarize([(CASE.features, LABELS), (CASE.features.float(), LABELS)], 3),
        ["float32", "float64"],
    ),
    "other classes": (
        lambda: summarize([(CASE.features, LABELS)], 3) + summarize([(CASE.features, LABELS)], 4),
        ["3", "4", "num_classes"],
    ),
}


@pytest.mark.parametrize(("attempt", "words"), STREAMS.values(), ids=STREAMS)
def test_a_stream_that_makes_no_sense_is_refused(attempt, words):
    with pytest.raises(ValueError, match=r".") as raised:
        attempt()
    for word in words:
        assert word in str(raised.value)


def test_a_class_missing_from_the_whole_stream_is_refused_when_the_problem_is_made():
    summary = summarize([(CASE.features, LABELS)], 4)
    with pytest.raises(ValueError, match=r"at least one example.*3"):
        LayerPeeled.from_summary(summary)


def test_a_summary_of_other_labels_is_refused():
    other = make_case([3, 2, 1])
    with pytest.raises(ValueError, match="from_summary"):
        problem().flow(summarize([(other.features, other.target)], 3), CASE.weight)


def test_messages_end_with_a_way_out():
    with pytest.raises(ValueError, match=re.escape("Relabel the classes or raise num_classes")):
        problem(target=LABELS + 5)
