"""The tables in results/small are those of the runs beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from unhinge.paper.studies import run, write
from unhinge.paper.studies.registry import STUDIES

SMALL = Path(__file__).parents[3] / "results" / "small"


def test_every_table_is_that_of_the_runs_that_are_there(tmp_path, monkeypatch):
    """`unhinge reproduce trained --scale small --collect --out results/small` makes them again."""
    if not SMALL.is_dir():
        pytest.skip("there are no results here, as in an installed package")
    monkeypatch.setattr(write, "draw_study", lambda *_: None)
    shutil.copytree(SMALL / "runs", tmp_path / "runs", ignore=lambda _, names: [n for n in names if ".json" not in n])
    run.reproduce_studies(list(STUDIES.values()), "small", tmp_path, train=False)
    made = sorted(path.relative_to(tmp_path) for path in (*tmp_path.glob("*/table.md"), tmp_path / "verdicts.md"))
    stale = [str(name) for name in made if (tmp_path / name).read_text() != (SMALL / name).read_text()]
    assert not stale
    assert len(made) > 30
