r"""How close the proved bound is to the truth while logits are below 0.1: a scan with fixed seeds  [eq: certificate].

Each row names the worst ratio of bound and true error that was seen, rounded up; the promise is ten. Two kinds of
problem are left out because nothing so close is proved for them: trained biases under decays and momentum with long
steps, and steps that overshoot a decay.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unhinge.theory import constant

from theory.early.test_bound import FREQUENCIES, TAIL, check_steps  # isort: skip
from oracles.early import make_young  # isort: skip

SQRT = torch.tensor(TAIL, dtype=torch.float64) ** -0.5
EVEN = [5] * 6
SCAN: list[tuple[str, list[int], dict[str, Any], dict[str, Any], float, list[int], float]] = [
    ("tail", TAIL, {}, {}, 0.05, [1, 10, 100, 400], 2),
    ("tail, biases", TAIL, {"bias": True}, {}, 0.05, [1, 3, 6], 2),
    ("tail, adjusted, biases", TAIL, {"bias": True, "logit_adjustment": FREQUENCIES}, {}, 0.05, [10, 100, 400], 5),
    ("tail, soft labels", TAIL, {"soft": True, "class_weight": SQRT}, {}, 0.05, [10, 100, 400], 2),
    ("focal", TAIL, {"loss": "focal"}, {}, 0.05, [1, 10, 100, 400], 3),
    ("focal, biases", TAIL, {"loss": "focal", "bias": True}, {}, 0.05, [1, 3], 5),
    ("focal, focus 5", EVEN, {"loss": "focal", "focus": 5.0}, {}, 0.05, [1, 100, 300], 5),
    ("binary", TAIL, {"loss": "binary_cross_entropy"}, {}, 0.05, [1, 100, 400], 2),
    ("squared, biases", TAIL, {"loss": "squared_error", "bias": True}, {}, 0.05, [1, 4], 2),
    ("momentum, biases", EVEN, {"bias": True}, {"momentum": 0.9}, 0.01, [1, 10, 100, 300], 3),
    ("Nesterov, biases", EVEN, {"bias": True}, {"momentum": 0.9, "nesterov": True}, 0.01, [1, 10, 100, 300], 3),
]


@pytest.mark.parametrize(
    ("counts", "options", "optimizer", "rate", "steps", "most"), [row[1:] for row in SCAN], ids=[row[0] for row in SCAN]
)
def test_the_bound_is_close(
    counts: list[int], options: dict[str, Any], optimizer: dict[str, Any], rate: float, steps: list[int], most: float
) -> None:
    case = make_young(counts, dim=16, scale=0.01, **options)
    rows = [row for row in check_steps(case, (constant(rate),) * 2, steps, **optimizer) if row[2] < 0.1]
    assert rows, "no step of this row has logits below 0.1: it checks nothing"
    for error, bound, logit in rows:
        assert bound <= most * error, f"at logits of {logit:.2g}, {bound / error:.1f} times the true error"


MOMENTA: dict[str, dict[str, Any]] = {
    "none": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.9, "dampening": 0.5},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize(
    ("name", "rate", "bias"),
    [(name, rate, False) for name in MOMENTA for rate in (0.092, 1.0)]
    + [(name, 0.092, True) for name in ("none", "momentum", "Nesterov")],
)
def test_the_bound_of_a_state_that_shrinks_is_close(name: str, rate: float, bias: bool) -> None:
    """All modes decay, and with momentum they swing: a comparison that stood still was 4,500 times too large, the
    critically damped one 22 times and with Nesterov's step 7,900 times  [eq: swinging]."""
    case = make_young(EVEN, dim=5, scale=0.0036, feature_decay=0.2, weight_decay=0.2, bias=bias)
    rows = check_steps(case, (constant(rate),) * 2, [1, 10, 30, 80, 150], **MOMENTA[name])
    for step, (error, bound, _) in zip((1, 10, 30, 80, 150), rows, strict=True):
        assert bound <= 10 * error, f"after {step} steps {bound / error:.1f} times the true error"
