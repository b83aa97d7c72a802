"""Solved paths are values: they can be sent to another process and give the same answers there."""

from __future__ import annotations

import pickle

import pytest
import torch

from strategies import make_case
from unhinge import Spherical, cosine, warmup

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
