"""The fastest gamma, against all others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies import make_case
from unhinge.theory import best_gamma


@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.3, 0.3), (0.5, 0.1)], ids=str)
def test_the_best_gamma_has_the_fastest_rate(classes, ratio, decays):
    case = make_case([2] * classes, feature_decay=decays[0], weight_decay=decays[1], lr=(0.1 * ratio, 0.1))
    best = case.problem().best_gamma(ratio=ratio)
    fastest = case.change(gamma=best).flow().rate().item()
    for other in np.linspace(0.3, 1.7, 15) / (classes - 1):
        assert fastest <= case.change(gamma=float(other)).flow().rate().item() + 1e-12
    if ratio * decays[0] == decays[1]:
        assert best == pytest.approx(1 / (classes - 1), rel=1e-12)
    else:
        assert 1 / (classes - 1) < best < 1 / (classes - 2)


@pytest.mark.parametrize("classes", [3, 5, 100])
def test_the_best_gamma_solves_the_equation_of_theory_2_3(classes):
    """[eq: best-gamma]."""
    unit, ratio, one, two = 1 / (classes * math.sqrt(7)), 2.0, 0.4, 0.1
    u = 1 + best_gamma(classes, unit, one, two, ratio)
    v = (classes - 1) * u - classes
    e = abs(ratio * one - two) / (2 * math.sqrt(ratio) * unit)
    assert u * math.hypot(e, v) == pytest.approx((classes - 1) * v * math.hypot(e, u), rel=1e-9)


def test_the_best_gamma_of_imbalanced_labels_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="sqrt"):
        make_case([3, 2, 1]).problem().best_gamma()
