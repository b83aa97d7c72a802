"""Angles keep their digits where the arccosine of a cosine has none left."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from unhinge.metrics import neural_collapse
from unhinge.nn import separation, simplex_etf
from unhinge.nn.angles import smallest_angle, unit_rows
from unhinge.training.measure import prototype_record


def angle_by_mpmath(a: torch.Tensor, b: torch.Tensor) -> float:
    with mpmath.workdps(50):
        x, y = ([mpmath.mpf(value) for value in row.tolist()] for row in (a, b))
        dot = mpmath.fsum(i * j for i, j in zip(x, y, strict=True))
        lengths = mpmath.sqrt(mpmath.fsum(i * i for i in x) * mpmath.fsum(j * j for j in y))
        return float(mpmath.acos(dot / lengths))


@pytest.mark.parametrize("angle", [1e-12, 1e-8, 1e-3, 1.0, math.pi - 1e-8, math.pi - 1e-3])
def test_two_rows_at_any_angle(angle):
    rows = torch.tensor([[2.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert smallest_angle(rows).item() == pytest.approx(angle_by_mpmath(*rows), rel=1e-15 + 1e-15 / angle, abs=1e-15)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_lengths_do_not_matter_at_any_scale(scale):
    rows = torch.randn(7, 5, dtype=torch.float64)
    pairs = [(i, j) for i in range(7) for j in range(i)]
    expected = min(angle_by_mpmath(rows[i], rows[j]) for i, j in pairs)
    assert smallest_angle(scale * rows).item() == pytest.approx(expected, rel=1e-13)
    torch.testing.assert_close(unit_rows(scale * rows).norm(dim=1), torch.ones(7, dtype=torch.float64))


def test_many_rows_are_compared_in_blocks(monkeypatch):
    rows = torch.randn(50, 6, dtype=torch.float64)
    whole = smallest_angle(rows)
    monkeypatch.setattr("unhinge.nn.angles.BLOCK", 120)
    assert torch.equal(smallest_angle(rows), whole)


def test_the_gradient_is_finite_and_right():
    rows = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(smallest_angle, rows)


@pytest.mark.parametrize("angle", [1e-7, 0.3])
def test_reports_metrics_and_records_say_the_same_angle(angle):
    rows = torch.eye(3, dtype=torch.float64)
    rows[1] = torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=torch.float64)
    expected = separation(rows).smallest_angle
    assert expected == pytest.approx(angle, rel=1e-9)
    features, labels = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 3
    assert neural_collapse(features, rows, labels)["weight_angle_min"].item() == expected
    assert prototype_record(rows)["prototype_angle_min"] == math.degrees(expected)


def test_a_simplex_has_its_angle_and_one_row_has_none():
    frame = simplex_etf(5, 8, dtype=torch.float64)
    assert smallest_angle(frame).item() == pytest.approx(math.acos(-1 / 4), abs=1e-14)
    with pytest.raises(ValueError, match="at least two rows"):
        smallest_angle(frame[:1])
    assert prototype_record(frame[:1])["prototype_angle_min"] == 180.0


def test_two_rows_of_zeros_stand_at_right_angles():
    assert smallest_angle(torch.zeros(3, 2)).item() == pytest.approx(math.pi / 2)
    rows = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    assert smallest_angle(rows).item() == pytest.approx(math.pi / 2)
    smallest_angle(rows).backward()
    assert torch.isfinite(rows.grad).all()


def test_unit_rows_can_be_differentiated_twice_also_where_a_row_is_zero():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad((unit_rows(rows) * torch.tensor([1.0, 2.0])).sum(), rows, create_graph=True)
    assert slope[1].tolist() == [1.0, 2.0]
    (curvature,) = torch.autograd.grad(slope.square().sum(), rows)
    assert curvature.isfinite().all()
    apart = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_rows, apart)
    assert torch.autograd.gradgradcheck(unit_rows, apart)
