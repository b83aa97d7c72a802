"""What stands beside a figure of trained networks is what is drawn in it."""

from __future__ import annotations

import pytest

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.draw import DRAWN
from unhinge.paper.studies.study import Study, StudyResult
from unhinge.training import Recipe
from unhinge.training.recipes import Method


def result_of(kind: str, cells: list[Cell], fitted: bool = True) -> StudyResult:
    run = {"accuracy": 0.5, "training": {"interpolated": fitted}, "curves": {"test_accuracy": [0.4, 0.5]}}
    study = Study("tiny", None, "tiny", kind, lambda scale: cells)
    return StudyResult(study, "quick", cells, range(1), {(cell.row, cell.column, 0): run for cell in cells})


@pytest.mark.parametrize("fitted", [True, False])
def test_hollow_dots_are_explained_where_there_are_any(fitted):
    figure = DRAWN["table"](result_of("table", [Cell(Method("pal"), Column(ratio=100), Recipe())], fitted))
    assert ("Hollow" in figure.get_supxlabel()) == (not fitted)


@pytest.mark.parametrize("fitted", [True, False])
def test_a_curve_says_whether_its_networks_fit_their_images(fitted):
    figure = DRAWN["curves"](result_of("curves", [Cell(Method("pal"), Column(), Recipe())], fitted))
    (name,) = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert name == ("PAL" if fitted else "PAL †")
    assert ("†" in figure.get_supxlabel()) == (not fitted)


def test_the_best_rate_of_a_method_is_called_a_rate():
    figure = DRAWN["rates"](result_of("rates", [Cell(Method("ce"), Column(ratio=1, lr=2.0), Recipe())]))
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["CE, lr 2"]
