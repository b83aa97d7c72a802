"""Each ordering in one line, also those of which nothing has run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unhinge.paper.studies.registry import STUDIES
from unhinge.paper.studies.verdicts import write_verdicts
from unhinge.results.sealed import SealError

STUDY = STUDIES["beyond-long-tailed-rates"]
JUDGED = {
    "statement": STUDY.orderings[0].statement,
    "claimed_by": "the paper",
    "column": "lr 0.01",
    "text": "+1.00 points, 3 seeds",
}


def lines_of(folder: Path) -> list[str]:
    text = write_verdicts([STUDY, STUDIES["beyond-gamma"]], folder).read_text(encoding="utf-8")
    assert "beyond-gamma" not in text  # it claims no ordering
    return [line for line in text.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        ("confirmed", "**confirmed**"),
        ("not confirmed", "**not confirmed**"),
        ("undecided", "undecided"),
        ("regime not reached", "regime not reached"),
    ],
)
def test_only_what_is_decided_is_bold(tmp_path: Path, verdict: str, shown: str):
    (tmp_path / STUDY.id).mkdir()
    (tmp_path / STUDY.id / "recipe.json").write_text(json.dumps({"orderings": [JUDGED | {"verdict": verdict}]}))
    (line,) = lines_of(tmp_path)
    assert line == f"- {JUDGED['statement']} (lr 0.01; claimed by the paper): {shown}; +1.00 points, 3 seeds"


@pytest.mark.parametrize(("verdict", "rows"), [("confirmed", 1), ("not confirmed", 1), ("undecided", 0)])
def test_what_is_decided_stands_first_in_a_table_of_its_own(tmp_path: Path, verdict: str, rows: int):
    (tmp_path / STUDY.id).mkdir()
    (tmp_path / STUDY.id / "recipe.json").write_text(json.dumps({"orderings": [JUDGED | {"verdict": verdict}]}))
    first, _, _ = write_verdicts([STUDY], tmp_path).read_text(encoding="utf-8").partition(f"## {STUDY.id}")
    assert f"Of 1 questions: {int(verdict == 'confirmed')} confirmed, {int(verdict == 'not confirmed')} not" in first
    assert first.count(f"| {STUDY.id}, lr 0.01 |") == rows


def test_the_head_of_a_study_says_how_much_of_it_has_run(tmp_path: Path):
    (tmp_path / STUDY.id).mkdir()
    (tmp_path / STUDY.id / "recipe.json").write_text(json.dumps({"orderings": [], "runs": 3, "runs_wanted": 9}))
    assert f"## {STUDY.id}: 3 of 9 runs" in write_verdicts([STUDY], tmp_path).read_text(encoding="utf-8")


def test_each_figure_and_table_of_the_paper_says_where_ours_is_and_how_much_of_it(tmp_path: Path):
    cells = [{"interpolated": reached} for reached in (True, False, None, True)]
    record = {"runs": 3, "runs_wanted": 4, "cells": cells, "orderings": [JUDGED | {"verdict": "undecided"}]}
    (tmp_path / "ood-penalty-cifar10").mkdir()
    (tmp_path / "ood-penalty-cifar10" / "recipe.json").write_text(json.dumps(record))
    studies = [STUDIES[id] for id in ("ood-penalty-cifar10", "behaviour-imagenet100", "beyond-gamma")]
    text = write_verdicts(studies, tmp_path).read_text(encoding="utf-8")
    names = "Figure 3, Figure 16, Figure 17, Figure 18, Table 6"
    link = "[ood-penalty-cifar10](ood-penalty-cifar10/table.md)"
    assert f"| {names} | {link} | 3 of 4 | 2 of 3 | 1 undecided |" in text
    assert "| Figure 14 | behaviour-imagenet100 | none | | |" in text
    assert "beyond-gamma" not in text


@pytest.mark.parametrize("content", [None, "{}", '{"orderings": [1]}'])
def test_what_has_not_run_is_said_to_be_missing(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / STUDY.id).mkdir()
        (tmp_path / STUDY.id / "recipe.json").write_text(content)
    assert lines_of(tmp_path) == [f"- {one.statement}: not run yet" for one in STUDY.orderings]


@pytest.mark.parametrize("content", ["{", "[]", '{"orderings": [], "crc32": "00000000"}'])
def test_what_is_damaged_is_an_error_that_says_how_it_is_made_again(tmp_path: Path, content: str):
    (tmp_path / STUDY.id).mkdir()
    (tmp_path / STUDY.id / "recipe.json").write_text(content)
    with pytest.raises(SealError, match=rf"unhinge reproduce {STUDY.id} .*--collect"):
        lines_of(tmp_path)
