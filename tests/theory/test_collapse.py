"""Neural-collapse measures of states that are known."""

from __future__ import annotations

import pytest
import torch

from oracles import collapse
from strategies import make_case
from unhinge.theory import State, collapse_measures
from unhinge.theory.collapse import collapse_of_state


def test_a_simplex_frame_has_collapsed():
    classes = 4
    frame = torch.eye(classes, dtype=torch.float64) - 1 / classes
    actual = collapse_measures(frame, 3 * frame, torch.zeros((), dtype=torch.float64), torch.zeros(4, 4).double())
    for key, value in actual.items():
        assert value.item() == pytest.approx(1.0 if key == "alignment" else 0.0, abs=1e-14), key


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_the_measures_of_a_state_are_those_of_its_definition_at_any_scale(scale):
    """[eq: collapse]."""
    case = make_case([4, 3, 2], dim=5)
    state = State(scale * case.features, scale * case.weight)
    expected = collapse(case.features.numpy(), case.weight.numpy(), case.target.numpy())
    measures = collapse_of_state(state, case.target, 3)
    assert set(measures) == set(expected)
    for key, value in expected.items():
        assert measures[key].item() == pytest.approx(value, rel=1e-9, abs=1e-12), key
