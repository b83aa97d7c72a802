"""Accuracy by training frequency against a loop over the examples."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unhinge.metrics import shot_accuracy

BORDERS = [1, 19, 20, 21, 99, 100, 101, 5000]


@st.composite
def evaluations(draw):
    counts = draw(st.lists(st.sampled_from(BORDERS), min_size=1, max_size=6))
    label = st.integers(0, len(counts) - 1)
    rows = draw(st.lists(st.tuples(label, label), min_size=1, max_size=30))
    return [guess for guess, _ in rows], [y for _, y in rows], counts


def group_of(count: int) -> str:
    return "many" if count > 100 else "few" if count < 20 else "medium"


def oracle(guesses, target, counts, average) -> dict[str, float]:
    result = {}
    for name in ("all", "many", "medium", "few"):
        classes = [c for c in range(len(counts)) if name in ("all", group_of(counts[c]))]
        right = {c: [int(g == y) for g, y in zip(guesses, target, strict=True) if y == c] for c in classes}
        if average == "class":
            values = [Fraction(sum(x), len(x)) for x in right.values() if x]
        else:
            values = [Fraction(one) for x in right.values() for one in x]
        result[name] = float(sum(values) / len(values)) if values else math.nan
    return result


@pytest.mark.parametrize("average", ["example", "class"])
@given(case=evaluations())
def test_each_group_is_judged_by_its_own_examples(average, case):
    actual = shot_accuracy(*case, average=average)
    expected = oracle(*case, average)
    assert list(actual) == ["all", "many", "medium", "few"]
    for key, value in expected.items():
        assert actual[key] == pytest.approx(value, rel=1e-14, nan_ok=True), key


def test_twenty_and_a_hundred_are_medium():
    actual = shot_accuracy(torch.tensor([0, 1, 0, 0]), torch.tensor([0, 1, 2, 3]), torch.tensor([20, 100, 19, 101]))
    assert actual == {"all": 0.5, "many": 0.0, "medium": 1.0, "few": 0.0}


def test_the_thresholds_can_be_moved():
    actual = shot_accuracy([0, 1, 2], [0, 1, 0], [5, 2, 9], many=4, few=3)
    assert (actual["many"], actual["few"], math.isnan(actual["medium"])) == (0.5, 1.0, True)


def test_logits_are_predictions_too():
    logits = torch.randn(30, 4)
    target, counts = torch.randint(4, (30,)), torch.tensor([500, 50, 30, 3])
    assert shot_accuracy(logits, target, counts) == shot_accuracy(logits.argmax(1), target, counts)
    assert shot_accuracy(logits.bfloat16(), target, counts)["all"] == pytest.approx(
        (logits.bfloat16().argmax(1) == target).double().mean().item()
    )


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([], [], [5, 5]), {}, "predictions is empty"),
        (([0, 1], [0], [5, 5]), {}, r"target must have shape \(2,\)"),
        (([0], [2], [5, 5]), {}, r"0 \.\. 1"),
        (([3], [1], [5, 5]), {}, r"predictions must lie in 0 \.\. 1"),
        (([0], [0], [5, -1]), {}, "negative"),
        (([0], [0.0], [5, 5]), {}, "integer labels"),
        ((torch.zeros(2, 3), [0, 1], [5, 5]), {}, r"logits must have shape \(n, 2\)"),
        (([0], [0], [5, 5]), {"few": 200}, "above many"),
        (([0], [0], [5, 5]), {"average": "macro"}, "example"),
    ],
)
def test_input_that_makes_no_sense_is_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        shot_accuracy(*arguments, **options)
