"""Solved paths are values: they have one face, and can be sent to another process."""

from __future__ import annotations

import math
import pickle
from contextlib import suppress

import pytest
import torch

from strategies import make_case
from unhinge import LayerPeeled, Spherical, cosine, warmup
from unhinge.theory import Path

CASE = make_case([3, 2, 2], bias=True, gamma=0.3, feature_decay=0.01)
UNRELATED = (cosine(0.2, total=50, end=0.05), warmup(0.1, duration=3))
PATHS = {
    "flow": lambda: CASE.flow(),
    "descent": lambda: CASE.descent(),
    "momentum": lambda: CASE.descent(momentum=0.9),
    "unrelated flow": lambda: CASE.flow(lr=UNRELATED),
    "unrelated descent": lambda: CASE.descent(lr=UNRELATED, momentum=0.5),
    "anchored": lambda: CASE.problem().anchored(CASE.features, CASE.weight, CASE.bias),
    "kernel": lambda: CASE.problem().kernel_flow(CASE.features, CASE.weight, torch.eye(7).double()),
    "sphere": lambda: Spherical(CASE.target, CASE.weight).descent(CASE.features),
}


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("make", PATHS.values(), ids=PATHS)
def test_a_path_can_be_pickled(make, asked_before):
    path = make()
    times = torch.tensor([0, 4, 90])
    if asked_before:
        path.loss(times), path.distance(times), path.accuracy(times)
    again = pickle.loads(pickle.dumps(path))
    for question in ("loss", "distance", "accuracy", "log_norm"):
        assert torch.equal(getattr(again, question)(times), getattr(path, question)(times))
    assert torch.equal(again.direction().features, path.direction().features)


QUESTIONS = [name for name in vars(Path) if not name.startswith("_")]


@pytest.mark.parametrize("make", PATHS.values(), ids=PATHS)
def test_every_path_answers_every_question_of_the_protocol(make):
    """mypy compares the signatures (tests/theory/test_types.py); here they are asked, with a tensor of times."""
    path, times = make(), torch.tensor([[0, 3], [5, 70]])
    assert len(QUESTIONS) == 18
    for question in QUESTIONS:
        asked = getattr(path, question)
        if question in ("discrete", "labels"):
            continue
        if question == "limit":
            with suppress(ValueError):  # a state that diverges has none
                asked()
        elif question in ("direction", "growth", "rate", "plot"):
            asked()
        elif question == "time_to":
            assert asked([0.5, 0.1]).shape == (2,)
        elif question == "learned":
            assert asked(0.5).shape == (int(path.labels.max()) + 1,)
        else:
            answer = asked(times)
            shapes = {
                "at": lambda state: state.features.shape[:2],
                "correct": lambda right: right.shape[:2],
                "collapse": lambda measures: measures["nc3"].shape,
            }
            assert shapes.get(question, lambda values: values.shape)(answer) == times.shape, question


def test_biases_end_where_their_own_schedule_ends():
    """Features that go on for ever and biases that stop, and the other way round."""
    problem = make_case([3, 2, 1], feature_decay=0.5, weight_decay=0.1).problem()
    features, weight, bias = CASE.features[:6], CASE.weight, CASE.bias
    stopping = problem.anchored(features, weight, bias, lr=(0.3, cosine(0.2, total=40)))
    torch.testing.assert_close(stopping.limit().bias, stopping.at(40.0).bias)
    frozen = problem.anchored(features, weight, bias, lr=(0.3, 0.0))
    torch.testing.assert_close(frozen.limit().bias, bias)
    decaying = problem.anchored(features, weight, bias, lr=0.3)
    torch.testing.assert_close(decaying.limit().bias, decaying.at(1e4).bias)


def test_a_class_that_is_right_for_a_decade_is_seen_on_a_path_that_settles_slowly():
    """Fixed prototypes without decay: the distance falls as 1/t, so the path ends at a million times its own scale."""
    generator = torch.Generator().manual_seed(52)
    target = torch.tensor([0] * 7 + [1] * 3 + [2] * 2 + [3])
    features, weight = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (13, 4))
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    path = LayerPeeled(target).anchored(features, weight, bias, lr=0.3)
    times = torch.logspace(-2, 6, 2000, dtype=torch.float64)
    right = path.correct(times)
    for c, found in enumerate(path.learned().tolist()):
        share = right[:, target == c].double().mean(1)
        first = times[int((share >= 0.5).double().argmax())].item() if bool((share >= 0.5).any()) else math.inf
        assert found <= first * (1 + 1e-9)
