"""The numbers on the page of measured results are those of the tables beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs import results_page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results" / "small" / "README.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="there are no results here, as in an installed package")


def test_the_tables_of_the_page_are_filled():
    """`python docs/results_page.py` fills them."""
    text = PAGE.read_text(encoding="utf-8")
    assert results_page.fill(text, PAGE.parent) == text


def test_every_answered_question_of_the_page_is_that_of_a_table():
    found = set()
    for path in PAGE.parent.glob("*/recipe.json"):
        for one in json.loads(path.read_text(encoding="utf-8")).get("orderings", []):
            if one["interval"] is not None:
                interval = " to ".join(f"{100 * end:+.2f}" for end in one["interval"])
                found.add((f"{100 * one['difference']:+.2f}", interval, str(one["seeds"]), _p(one["p_value"])))
    said = [
        tuple(cell.strip() for cell in line.split("|")[2:6])
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| [^|]+\| [+-]\d+\.\d+ \| [+-]\d", line)
    ]
    assert len(said) > 20
    assert [row for row in said if row not in found] == []


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


@pytest.mark.parametrize(
    ("row", "filled"),
    [
        ("| CE | 0 | 0 |", "| CE | 50.0 | 29.0 † ¹ |"),
        ("| CE, adjusted | | |", "| CE, adjusted | 55.0 | |"),
        ("| PAL, λ = 5e-7 | 1.0 | 2.0 ² |", "| PAL, λ = 5e-7 | 30.0 † ¹ | 2.0 ² |"),
        ("| PAL, λ = 5e-7, adjusted | | |", "| PAL, λ = 5e-7, adjusted | | |"),
    ],
)
def test_a_row_is_filled_from_the_runs_with_its_marks(tmp_path, row, filled):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "runs.csv").write_text(
        "row,column,seed,accuracy,decided_accuracy,adjusted_accuracy.1\n"
        'CE,"long-tailed, ρ=100",0,0.4,0.5,0.5\n'
        'CE,"long-tailed, ρ=100",1,0.6,0.6,0.6\n'
        'CE,"step, ρ=10",0,0.2895,,\n'
        '"PAL, λ=5e-7","long-tailed, ρ=100",0,0.3,0.3,\n',
        encoding="utf-8",
    )
    (tmp_path / "one" / "table.csv").write_text(
        'row,column,interpolated\nCE,"long-tailed, ρ=100",yes\nCE,"step, ρ=10",no\n'
        '"PAL, λ=5e-7","long-tailed, ρ=100",no\n',
        encoding="utf-8",
    )
    head = "<!-- numbers of one -->\n\n| | 100 : 1 | step 10 : 1 |\n|---|---|---|\n"
    assert results_page.fill(f"{head}{row}\n", tmp_path) == f"{head}{filled}\n"


def test_a_row_that_no_study_has_is_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "runs.csv").write_text("row,column,seed,accuracy\n", encoding="utf-8")
    (tmp_path / "one" / "table.csv").write_text("row,column,interpolated\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'XE'"):
        results_page.fill("<!-- numbers of one -->\n| | a |\n|---|---|\n| XE | 1 |\n", tmp_path)
