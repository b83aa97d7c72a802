"""Singular values against those of the target matrix in fifty digits."""

from __future__ import annotations

import pytest
import torch

from oracles import assert_exact, singular_values, worst
from strategies import make_case, named_cases

NAMED = named_cases()


SOFT = {name: case for name, case in NAMED.items() if case.target.is_floating_point()}


@pytest.mark.parametrize("gamma", [None, 0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [7, 2, 2, 1], [300, 5, 1, 1]], ids=str)
@pytest.mark.parametrize("weights", [None, "sqrt", torch.tensor([0.3, 1.0, 2.0, 5.0])], ids=["none", "sqrt", "given"])
def test_singular_values_are_those_of_the_target_matrix(counts, gamma, weights):
    """[eq: secular]."""
    case = make_case(counts, gamma=gamma, class_weight=weights)
    values = torch.tensor(singular_values(case), dtype=torch.float64)
    assert_exact(case.problem().singular_values, values, 16)
    assert worst(case.problem().critical_decay, values[0]) <= 16


@pytest.mark.parametrize("name", SOFT)
def test_singular_values_of_soft_labels_are_those_of_the_target_matrix(name):
    """[eq: reduced-target]."""
    values = torch.tensor(singular_values(SOFT[name]), dtype=torch.float64)
    assert_exact(SOFT[name].problem().singular_values, values, 16)
