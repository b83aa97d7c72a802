"""Calibration against a loop over bins in rational numbers, with confidences that sit on the edges."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unhinge.metrics import (
    Reliability,
    classwise_calibration_error,
    classwise_reliability,
    expected_calibration_error,
    neural_collapse,
    ood_metrics,
    reliability,
)

NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def bin_of(confidence: float, bins: int, dtype: torch.dtype) -> int:
    """The first bin whose right edge, as the dtype has it, is not below the confidence."""
    for b in range(1, bins):
        edge = float(NUMPY[dtype](float(Fraction(b, bins))))
        if Fraction(confidence) <= Fraction(edge):
            return b - 1
    return bins - 1


def oracle(confidences: list[float], right: list[bool], bins: int, dtype: torch.dtype) -> Fraction:
    """Collect the members of each bin, then compare two averages, exactly."""
    members: dict[int, list[tuple[Fraction, int]]] = {}
    for confidence, hit in zip(confidences, right, strict=True):
        members.setdefault(bin_of(confidence, bins, dtype), []).append((Fraction(confidence), int(hit)))
    error = Fraction(0)
    for rows in members.values():
        accuracy = Fraction(sum(hit for _, hit in rows), len(rows))
        confidence = sum(value for value, _ in rows) / len(rows)
        error += Fraction(len(rows), len(confidences)) * abs(accuracy - confidence)
    return error


@st.composite
def predictions(draw):
    """Two to five classes; many of the probabilities are multiples of 1/15, that is on an edge."""
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    classes = draw(st.integers(2, 5))
    rows = []
    for _ in range(draw(st.integers(1, 20))):
        if draw(st.booleans()):
            cuts = sorted(draw(st.lists(st.integers(0, 15), min_size=classes - 1, max_size=classes - 1)))
            rows.append([(b - a) / 15 for a, b in zip([0, *cuts], [*cuts, 15], strict=True)])
        else:
            parts = draw(st.lists(st.floats(0.01, 1), min_size=classes, max_size=classes))
            rows.append([part / sum(parts) for part in parts])
    target = draw(st.lists(st.integers(0, classes - 1), min_size=len(rows), max_size=len(rows)))
    return torch.tensor(rows, dtype=dtype), torch.tensor(target), draw(st.sampled_from([1, 2, 10, 15, 15, 15, 20]))


@given(predictions())
def test_the_error_is_that_of_the_definition(case):
    """[eq: calibration]."""
    p, y, bins = case
    guesses = [row.index(max(row)) for row in p.tolist()]
    right = [guess == label for guess, label in zip(guesses, y.tolist(), strict=True)]
    expected = oracle([max(row) for row in p.tolist()], right, bins, p.dtype)
    assert expected_calibration_error(p, y, bins) == pytest.approx(float(expected), rel=1e-12, abs=1e-15)


@given(predictions())
def test_the_classwise_error_is_the_mean_of_one_against_the_rest(case):
    p, y, bins = case
    classes = p.shape[1]
    errors = [oracle(p[:, c].tolist(), (y == c).tolist(), bins, p.dtype) for c in range(classes)]
    expected = float(sum(errors) / classes)
    assert classwise_calibration_error(p, y, bins) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert classwise_reliability(p, y, bins).errors.tolist() == pytest.approx(list(map(float, errors)), abs=1e-14)


@given(predictions(), st.integers(1, 7))
def test_batches_add_up_to_the_whole(case, size):
    p, y, bins = case
    whole, parts = reliability(p, y, bins), Reliability.empty(bins)
    each, classwise = classwise_reliability(p, y, bins), Reliability.empty(bins, num_classes=p.shape[1])
    for rows, labels in zip(p.split(size), y.split(size), strict=True):
        parts, classwise = (
            parts + reliability(rows, labels, bins),
            classwise + classwise_reliability(rows, labels, bins),
        )
    for actual, expected in ((parts, whole), (classwise, each)):
        assert torch.equal(actual.counts, expected.counts)
        assert torch.equal(actual.hits, expected.hits)
        torch.testing.assert_close(actual.totals, expected.totals, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("bins", [10, 15, 20, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", ["divided", "rounded", "beyond", "before"])
def test_an_edge_belongs_to_the_bin_on_its_left(dtype, bins, way):
    """The k-th edge, whether divided in the dtype or rounded to it; its two neighbours are told apart from it."""
    ks = torch.arange(0, bins + 1)
    edges = ks.to(dtype) / bins if way == "divided" else (ks.double() / bins).to(dtype)
    places = (ks - 1).clamp(min=0)
    if way == "beyond":
        edges, places = torch.nextafter(edges, torch.ones_like(edges)), ks.clamp(max=bins - 1)
    if way == "before":
        edges = torch.nextafter(edges, torch.zeros_like(edges))
    rows = torch.stack([edges, 1 - edges], 1)
    actual = classwise_reliability(rows, torch.zeros(len(rows), dtype=torch.int64), bins)
    assert actual.counts[0].tolist() == torch.bincount(places, minlength=bins).tolist()


def test_certainty_lies_in_the_last_bin_and_impossibility_in_the_first():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    actual = classwise_reliability(p, torch.tensor([0, 1]))
    assert actual.counts[0].tolist() == [1] + [0] * 13 + [1]
    assert reliability(p, torch.tensor([0, 1])).counts.tolist() == [0] * 14 + [2]
    assert expected_calibration_error(p, torch.tensor([0, 1])) == 0.0
    assert expected_calibration_error(p, torch.tensor([1, 0])) == 1.0


def test_a_confidence_rounded_above_one_stays_in_the_last_bin():
    p = torch.tensor([[1.0000001, 0.0]])
    assert reliability(p, torch.tensor([0])).counts.tolist() == [0] * 14 + [1]


def test_empty_bins_add_nothing_and_show_as_nan():
    actual = reliability(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]), bins=4)
    assert actual.counts.tolist() == [0, 0, 2, 0]
    assert actual.accuracy.tolist() == pytest.approx([math.nan, math.nan, 0.5, math.nan], nan_ok=True)
    assert actual.confidence.tolist() == pytest.approx([math.nan, math.nan, 0.75, math.nan], nan_ok=True)
    assert actual.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert actual.error == 0.25


def test_of_equal_probabilities_the_first_is_the_prediction():
    assert reliability(torch.full((3, 2), 0.5), torch.tensor([0, 0, 1])).hits.sum() == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_summed_in_double(dtype):
    """Half a million confidences: a float32 sum is off in the fifth digit, a float16 one overflows."""
    p = torch.tensor([[0.9, 0.1]]).to(dtype).repeat(500_000, 1)
    actual = expected_calibration_error(p, torch.zeros(500_000, dtype=torch.int64))
    assert actual == pytest.approx(1 - float(p[0, 0]), abs=1e-10)


def test_a_softmax_in_any_precision_is_accepted():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        p = (5 * torch.randn(64, 1000)).to(dtype).softmax(1)
        assert 0 <= expected_calibration_error(p, torch.randint(1000, (64,))) <= 1


def test_a_gradient_of_the_probabilities_does_no_harm():
    p = torch.randn(5, 3, requires_grad=True).softmax(1)
    assert isinstance(expected_calibration_error(p, torch.zeros(5, dtype=torch.int64)), float)


@pytest.mark.parametrize("measure", [expected_calibration_error, classwise_calibration_error, reliability])
@pytest.mark.parametrize(
    ("p", "y", "words"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), "empty"),
        (torch.tensor([[0.5, 0.6]]), torch.tensor([0]), r"sum to 1.*logits\.softmax"),
        (torch.tensor([[1.5, -0.5]]), torch.tensor([0]), r"one is -0\.5"),
        (torch.tensor([[math.nan, 0.6]]), torch.tensor([0]), "NaN"),
        (torch.tensor([0.5, 0.5]), torch.tensor([0, 1]), r"\(n, C\)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), r"0 \.\. 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-100]), r"0 \.\. 1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), r"\(1,\)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), "integer labels"),
        (torch.randn(4, 5), torch.zeros(4, dtype=torch.int64), "softmax"),
        (np.ma.masked_array([[0.5, 0.5]], [[True, False]]), torch.tensor([0]), "has 1 masked entry"),
        (torch.full((3, 2), 0.5), np.ma.masked_array([0, 1, 0], [True, False, True]), "has 2 masked entries.*Leave"),
    ],
)
def test_what_is_not_a_prediction_is_refused(measure, p, y, words):
    with pytest.raises(ValueError, match=words):
        measure(p, y)


@pytest.mark.parametrize("bins", [0, -1, 2.5, True, "15", math.nan, math.inf])
def test_bins_are_a_whole_number(bins):
    with pytest.raises(ValueError, match="bins must be a"):
        expected_calibration_error(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), bins)


def test_nothing_has_no_calibration_error():
    with pytest.raises(ValueError, match="no predictions"):
        _ = Reliability.empty().error


def test_bins_of_different_widths_do_not_add():
    with pytest.raises(ValueError, match="same number of bins"):
        Reliability.empty(15) + Reliability.empty(10)


def test_unsigned_labels_other_byte_orders_and_reversed_arrays_are_read():
    rows = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    expected = expected_calibration_error(rows, [0, 1, 1])
    for labels in (np.array([0, 1, 1], dtype=np.uint16), np.array([0, 1, 1], dtype=">i4")):
        assert expected_calibration_error(rows, labels) == expected
    turned = expected_calibration_error(rows[::-1], np.array([0, 1, 1])[::-1].astype(np.uint64), bins=15.0)
    assert turned == pytest.approx(expected)


def test_columns_of_a_table_that_may_not_be_written_to_are_read_without_a_warning():
    """pandas hands out its columns with a lock on them, of which torch warns."""
    pandas = pytest.importorskip("pandas")
    rows, labels = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1])
    expected = expected_calibration_error(rows, labels)
    table = pandas.DataFrame({"label": labels, "known": rows[:, 0]})
    locked, column = rows.copy(), table.label.to_numpy()
    locked.flags.writeable = column.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert expected_calibration_error(locked, column) == expected
        for kind in ("int8", "Int64", "category"):
            assert expected_calibration_error(pandas.DataFrame(rows), table.label.astype(kind)) == expected
        assert ood_metrics(table.known, table.known.iloc[:1])["auroc"] == pytest.approx(1 / 6)
        assert neural_collapse(pandas.DataFrame(locked), None, column)["nc1"] >= 0
    assert not locked.flags.writeable


@pytest.mark.parametrize("kind", [object, np.longdouble])
def test_what_torch_cannot_hold_is_refused_by_its_dtype(kind):
    with pytest.raises(ValueError, match=f"got ndarray of {np.dtype(kind)}"):
        expected_calibration_error(np.array([[0.9, 0.1]], dtype=kind), [0])
