"""The table says what the measures say, and OpenOOD's columns what OpenOOD's evaluator would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from unhinge.metrics import ood_metrics
from unhinge.ood.benchmark import (
    detection_records,
    detections,
    distance_of,
    leaderboard_records,
    openood_records,
)

NAMES = ("softmax", "norm")


@pytest.fixture
def scores() -> tuple[dict, dict]:
    known = {name: torch.randn(300).double() + 1.5 for name in NAMES}
    unknown = {
        data: {name: torch.randn(200).double() + shift for name in NAMES}
        for data, shift in (("cifar100", 0.8), ("svhn", 0.0), ("noise", -1.0))
    }
    return known, unknown


def rows_of(scores) -> list:
    known, unknown = scores
    return detections(known, unknown, {data: distance_of("cifar10", data) for data in unknown}, resamples=40)


def test_every_score_meets_every_set_and_the_means_follow(scores):
    known, unknown = scores
    table = rows_of(scores)
    assert [(row.score, row.data) for row in table] == [
        (name, data) for name in NAMES for data in ("cifar100", "svhn", "noise", "near", "far")
    ]
    by = {(row.score, row.data): row for row in table}
    for name in NAMES:
        for data in unknown:
            row = by[name, data]
            assert row.measures == ood_metrics(known[name], unknown[data][name])
            assert all(low <= row.measures[key] <= high for key, (low, high) in row.intervals.items() if key != "fpr95")
        for key in ("auroc", "fpr95"):
            far = by[name, "far"].measures[key]
            assert far == pytest.approx(np.mean([by[name, data].measures[key] for data in ("svhn", "noise")]))
            assert by[name, "near"].measures[key] == by[name, "cifar100"].measures[key]
        low, high = by[name, "far"].intervals["auroc"]
        wide = [by[name, data].intervals["auroc"] for data in ("svhn", "noise")]
        assert high - low < max(b - a for a, b in wide)  # a mean is surer than its parts


def test_openoods_columns_are_what_its_evaluator_computes(scores):
    """roc_curve and precision_recall_curve with the unknown inputs as positive, written out as OpenOOD has them."""
    known, unknown = scores
    for row in openood_records(rows_of(scores), accuracy=0.9123):
        name, data = row["postprocessor"], row["dataset"]
        if data in ("nearood", "farood"):
            continue
        confidence = torch.cat([known[name], unknown[data][name]]).numpy()
        is_unknown = np.r_[np.zeros(300), np.ones(200)]
        fpr, tpr, _ = roc_curve(is_unknown, -confidence)
        assert row["FPR@95"] == pytest.approx(100 * fpr[np.argmax(tpr >= 0.95)], abs=0.006)
        assert row["AUROC"] == pytest.approx(100 * auc(fpr, tpr), abs=0.006)
        for key, positive, values in (("AUPR_IN", 1 - is_unknown, confidence), ("AUPR_OUT", is_unknown, -confidence)):
            precision, recall, _ = precision_recall_curve(positive, values)
            assert row[key] == pytest.approx(100 * auc(recall, precision), abs=1.0)
        assert row["ACC"] == 91.23


def test_records_for_tables_and_the_leaderboard(scores):
    table = rows_of(scores)
    record = detection_records(table)[0]
    assert list(record)[:4] == ["score", "data", "distance", "auroc"]
    assert record["auroc_low"] < record["auroc"] < record["auroc_high"]
    board = leaderboard_records(table, 0.9, training="pal")
    assert [row["Postprocessor"] for row in board] == list(NAMES)
    assert list(board[0]) == [
        "Training",
        "Postprocessor",
        "Near-OOD AUROC",
        "Far-OOD AUROC",
        "ID ACC",
        "cifar100",
        "svhn",
        "noise",
    ]
    assert board[0]["Near-OOD AUROC"] == board[0]["cifar100"]


def test_near_and_far_are_openoods():
    assert distance_of("cifar10", "cifar100") == distance_of("cifar100", "cifar10") == "near"
    assert distance_of("cifar10", "svhn") == distance_of("digits", "noise") == "far"
    with pytest.raises(ValueError, match="at least one unknown set"):
        detections({"norm": torch.ones(3)}, {})


def test_a_distance_that_is_neither_near_nor_far_is_named(scores):
    with pytest.raises(ValueError, match=r"distances must be \"near\" or \"far\", got 'middling' for 'svhn'"):
        detections(*scores, {"svhn": "middling"}, resamples=2)
