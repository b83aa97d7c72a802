"""Pictures: written where they help, finite, and with the right form on top of the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unhinge.paper.claims import claims, find
from unhinge.paper.claims.pictures import PICTURES
from unhinge.paper.claims.plots import draw, draw_all
from unhinge.paper.claims.registry import Record

SLOW = "lemma-1-value", "theorem-3-zero-decay"  # their references are descents and solvers


def test_every_picture_belongs_to_a_claim():
    assert set(PICTURES) <= {statement.id for statement in claims()}


@pytest.mark.parametrize("id", [id for id in PICTURES if id not in SLOW])
def test_the_right_form_ends_on_the_reference(id: str):
    lines = {line.role: line for line in PICTURES[id](0).lines}
    assert all(len(line.x) == len(line.y) for line in lines.values())
    if "reference" in lines and "ours" in lines:
        ours, reference = lines["ours"], lines["reference"]
        end = np.interp(reference.x[-1], ours.x, ours.y)
        assert np.isclose(end, reference.y[-1], rtol=0.02)


def test_a_picture_and_its_residuals_are_written_as_png(tmp_path: Path):
    path = draw(find("theorem-2-bias")[0].run(), tmp_path)
    assert path == tmp_path / "theorem-2-bias.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_form_without_a_value_can_be_drawn(tmp_path: Path):
    assert draw(find("theorem-2-default")[0].run(), tmp_path) is not None


def test_a_yes_or_no_without_a_picture_is_not_drawn(tmp_path: Path):
    statement = find("corollary-2-etf-dimension")[0]
    assert draw_all([Record(statement, (0.0,), (0.0,), "")], tmp_path) == []
    assert not list(tmp_path.iterdir())
