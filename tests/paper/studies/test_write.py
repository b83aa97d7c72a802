"""The files of a study show what there is, and how much of it."""

from __future__ import annotations

import pytest

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.report import study_sections
from unhinge.paper.studies.study import Ordering, Study, StudyResult
from unhinge.paper.studies.write import write_study
from unhinge.training import Recipe
from unhinge.training.recipes import Method

PLACE = Column(ratio=100)


def study_of(**accuracies: list[float]) -> StudyResult:
    """A table of one column, with the accuracies of each method, seed by seed."""
    cells = [Cell(Method(name), PLACE, Recipe()) for name in accuracies]
    measured = {
        (cell.row, cell.column, seed): {"accuracy": value, "training": {"interpolated": True}}
        for cell, values in zip(cells, accuracies.values(), strict=True)
        for seed, value in enumerate(values)
    }
    study = Study("tiny", None, "tiny", "table", lambda scale: cells)
    return StudyResult(study, "quick", cells, range(max(map(len, accuracies.values()))), measured)


@pytest.mark.parametrize(
    ("pal", "ce", "row_pal", "row_ce"),
    [
        ([0.5, 0.6], [0.4, 0.4], "55.00 ± 7.07", "40.00 ± 0.00"),
        ([0.5, 0.6], [0.4], "55.00 ± 7.07 (n = 2)", "40.00 (n = 1)"),
    ],
)
def test_cells_say_their_number_of_seeds_where_they_differ_in_it(tmp_path, pal, ce, row_pal, row_ce):
    table = (write_study(study_of(pal=pal, ce=ce), tmp_path, draw=False) / "table.md").read_text(encoding="utf-8")
    assert f"| PAL | {row_pal} |" in table
    assert f"| CE | {row_ce} |" in table
    assert ("n is the number of seeds" in table) == (len(pal) != len(ce))


def test_the_report_has_a_difference_in_its_own_unit(tmp_path):
    cells = [Cell(Method(name), PLACE, Recipe()) for name in ("pal", "ce")]
    measured = {
        (cell.row, cell.column, seed): {"epochs_to_fit": 20 + 2 * slower, "training": {"interpolated": True}}
        for slower, cell in enumerate(cells)
        for seed in range(3)
    }
    ordering = Ordering("PAL is faster", cells[1].method, cells[0].method, "epochs_to_fit")
    study = Study("beyond-normalized", None, "tiny", "table", lambda scale: cells, orderings=(ordering,))
    write_study(StudyResult(study, "quick", cells, range(3), measured), tmp_path, draw=False)
    (section,) = study_sections(tmp_path)
    assert ">+2 epochs, 3 seeds<" in section
