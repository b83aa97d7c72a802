"""Runs of one recipe are taken together by seed, and the best score of each set is marked."""

from __future__ import annotations

import math

import pytest

from unhinge.ood.comparison import compare_scores, comparison_markdown, comparison_records


def rows(**auroc):
    return [
        {"score": score, "data": data, "distance": "far", "auroc": value, "aupr_in": 0.5, "fpr95": 1 - value}
        for score, value in auroc.items()
        for data in ("svhn", "far")
    ]


def test_seeds_are_taken_together_and_the_best_is_first():
    table = compare_scores([("CE", 0, rows(softmax=0.6, vim=0.9)), ("CE", 1, rows(softmax=0.8, vim=0.7))])
    assert [(row.score, row.data) for row in table] == [("vim", "svhn"), ("softmax", "svhn")]
    assert table[0].mean("auroc") == pytest.approx(0.8)
    assert table[0].spread("auroc") == pytest.approx(math.sqrt(0.02))
    assert "| CE | 2 | svhn | 70.0 ± 14.1 | **80.0 ± 14.1** |" in comparison_markdown(table)


def test_one_seed_has_no_spread():
    record = comparison_records(compare_scores([("PAL", 3, rows(norm=0.7))]))[0]
    assert record["auroc"] == 0.7
    assert record["auroc_std"] == ""


def test_a_run_named_twice_is_refused():
    with pytest.raises(ValueError, match="same seed"):
        compare_scores([("CE", 0, rows(norm=0.7)), ("CE", 0, rows(norm=0.7))])
