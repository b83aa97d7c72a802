"""Orderings are judged in pairs, as a family, and never beyond their regime."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.judge import judge_all
from unhinge.paper.studies.paired import holm, majority
from unhinge.paper.studies.study import Ordering, Study, StudyResult
from unhinge.training import Recipe
from unhinge.training.recipes import Method

CE, PAL = Method("ce"), Method("pal")
ABOVE = Ordering("above", PAL, CE)


def result_of(
    pal: list[float], ce: list[float], *orderings: Ordering, fitted: bool = True, columns: tuple[int, ...] = (100,)
) -> StudyResult:
    """A study of two rows whose accuracies are given, the same in each column."""
    places = [Column(ratio=ratio) for ratio in columns]
    cells = [Cell(method, place, Recipe()) for method in (PAL, CE) for place in places]
    measured = {}
    for method, values in ((PAL, pal), (CE, ce)):
        for place in places:
            for seed, value in enumerate(values):
                record = {"accuracy": value, "training": {"interpolated": fitted}}
                measured[method.label, place.label, seed] = record
    study = Study("tiny", None, "tiny", "table", lambda scale: cells, orderings=orderings or (ABOVE,))
    return StudyResult(study, "quick", cells, range(max(len(pal), len(ce))), measured)


@pytest.mark.parametrize(
    ("pal", "ce", "verdict"),
    [
        ([0.91, 0.82, 0.93], [0.80, 0.711, 0.82], "confirmed"),  # large spread between seeds, none within pairs
        ([0.80, 0.711, 0.82], [0.91, 0.82, 0.93], "not confirmed"),
        ([0.80, 0.85, 0.95], [0.79, 0.86, 0.93], "undecided"),
        ([0.95], [0.80], "undecided"),
        ([0.9, 0.9], [0.8, 0.8], "undecided"),
    ],
)
def test_one_ordering_is_judged_by_the_paired_test(pal, ce, verdict):
    (actual,) = judge_all(result_of(pal, ce))
    assert actual.verdict == verdict
    assert actual.difference == pytest.approx(sum(pal) / len(pal) - sum(ce) / len(ce))
    if actual.p_value is not None:
        reference = stats.ttest_rel(pal, ce)
        assert actual.p_value == pytest.approx(reference.pvalue)
        interval = reference.confidence_interval(0.95)
        assert actual.interval == pytest.approx((interval.low, interval.high))
        assert actual.corrected == actual.p_value
        assert "95 % interval" in actual.text


def test_only_seeds_that_both_have_are_compared():
    (actual,) = judge_all(result_of([0.9, 0.8, 0.1], [0.7, 0.7]))
    assert actual.seeds == 2
    assert actual.difference == pytest.approx(0.15)


def test_lower_may_be_better():
    lower = replace(ABOVE, larger=False)
    (actual,) = judge_all(result_of([0.1, 0.11], [0.5, 0.52], lower))
    assert actual.difference == pytest.approx(0.405)


def test_networks_that_do_not_fit_decide_nothing():
    (actual,) = judge_all(result_of([0.91, 0.82, 0.93], [0.80, 0.711, 0.82], fitted=False))
    assert actual.verdict == "regime not reached"
    assert actual.corrected is None
    (actual,) = judge_all(
        result_of([0.91, 0.82, 0.93], [0.80, 0.711, 0.82], replace(ABOVE, regime=False), fitted=False)
    )
    assert actual.verdict == "confirmed"


def test_a_question_whose_regime_was_missed_still_makes_the_others_stricter():
    """How strict a test is must not depend on how others came out."""
    whole = result_of([0.91, 0.82, 0.93], [0.80, 0.711, 0.82], columns=(10, 100))
    missed = {**whole.measured, ("PAL", "ρ=10", 0): {"accuracy": 0.9, "training": {"interpolated": False}}}
    out, within = judge_all(replace(whole, measured=missed))
    assert (out.verdict, out.corrected) == ("regime not reached", None)
    assert within.corrected == pytest.approx(2 * within.p_value)


def test_a_run_that_diverged_is_counted_and_takes_its_cell_out_of_the_regime():
    whole = result_of([0.91, 0.82, 0.93, 0.9], [0.80, 0.711, 0.82, 0.8])
    broken = replace(whole, measured={**whole.measured, ("PAL", "ρ=100", 3): {"stopped": "not finite"}})
    (actual,) = judge_all(broken)
    assert actual.verdict == "regime not reached"
    assert "3 seeds, 1 more runs diverged" in actual.text
    only = replace(whole, measured={("PAL", "ρ=100", 0): {"stopped": "not finite"}})
    assert only.interpolated("PAL", "ρ=100") is False
    assert only.interpolated("CE", "ρ=100") is None


def test_what_was_asked_after_the_runs_says_so():
    (actual,) = judge_all(result_of([0.9, 0.8], [0.7, 0.7], replace(ABOVE, asked="after all runs")))
    assert actual.text.endswith("2 seeds, asked after all runs")


def test_cases_without_a_common_seed_are_no_cases():
    cases = replace(ABOVE, cases=((PAL, CE), (Method("fnpal"), CE)), regime=False)
    whole = result_of([0.9], [0.8], cases)
    cell = Cell(Method("fnpal"), Column(ratio=100), Recipe())
    runs = {**whole.measured, ("CE", "ρ=100", 1): {"accuracy": 0.7}, ("FNPAL", "ρ=100", 1): {"accuracy": 0.9}}
    (actual,) = judge_all(replace(whole, cells=[*whole.cells, cell], seeds=range(2), measured=runs))
    assert (actual.verdict, actual.count) == ("undecided", (0, 0))


def test_a_family_is_corrected_together():
    several = tuple(replace(ABOVE, statement=str(number)) for number in range(4))
    actual = judge_all(result_of([0.91, 0.82, 0.93], [0.80, 0.711, 0.82], *several))
    assert [one.corrected for one in actual] == pytest.approx([4 * actual[0].p_value] * 4)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_the_definition(values):
    actual = holm(values)
    for i, p in enumerate(values):
        # Of all hypotheses with a p-value as small or smaller, the largest of their multiplied ones (ties by position).
        rank = {j: sum((q, k) < (values[j], j) for k, q in enumerate(values)) for j in range(len(values))}
        wanted = max(
            min(1.0, (len(values) - rank[j]) * values[j]) for j in range(len(values)) if (values[j], j) <= (p, i)
        )
        assert actual[i] == pytest.approx(wanted)


def test_questions_whose_runs_are_still_to_come_belong_to_the_family():
    """So that a verdict never becomes weaker because something else was run."""
    whole = result_of([0.91, 0.82, 0.93], [0.80, 0.711, 0.82], columns=(10, 20, 50, 100))
    begun = replace(whole, measured={key: run for key, run in whole.measured.items() if key[1] == "ρ=100"})
    (first,) = judge_all(begun)
    assert first.corrected == pytest.approx(4 * first.p_value)
    assert {judgement.corrected for judgement in judge_all(whole)} == {first.corrected}


@pytest.mark.parametrize(
    ("pal", "ce", "verdict"),
    [
        ([0.800, 0.801, 0.802], [0.800, 0.802, 0.801], "confirmed"),
        ([0.90, 0.91, 0.92], [0.80, 0.811, 0.82], "not confirmed"),
        ([0.80, 0.85, 0.95], [0.79, 0.86, 0.93], "undecided"),
    ],
)
def test_comparable_means_an_interval_inside_the_margin(pal, ce, verdict):
    (actual,) = judge_all(result_of(pal, ce, replace(ABOVE, margin=0.01)))
    assert actual.verdict == verdict
    differences = [a - b for a, b in zip(pal, ce, strict=True)]
    low = stats.ttest_1samp(differences, -0.01, alternative="greater").pvalue
    high = stats.ttest_1samp(differences, 0.01, alternative="less").pvalue
    assert actual.p_value == pytest.approx(max(low, high))
    mean = sum(differences) / 3
    above = stats.ttest_1samp([d if mean > 0 else -d for d in differences], 0.01, alternative="greater").pvalue
    assert actual.apart == pytest.approx(min(1.0, 2 * above))
    if verdict == "not confirmed":
        assert f"corrected p = {actual.apart:.2g}" in actual.text


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 999))
def test_a_majority_is_judged_by_all_arrangements_of_its_runs(others, seeds, draw):
    """Two groups, of which every arrangement of the runs of each seed is tried."""
    group = np.random.default_rng(draw).standard_normal((others + 1, seeds))
    alone = Counter(
        sum(runs[:, k].sum() > runs[:, 0].sum() for k in range(1, others + 1))
        for order in itertools.product(itertools.permutations(range(others + 1)), repeat=seeds)
        if (runs := np.array([group[list(places), seed] for seed, places in enumerate(order)])) is not None
    )
    wins, cases, p = majority([group, group])
    assert cases == 2 * others
    assert wins == 2 * sum(group[k].sum() > group[0].sum() for k in range(1, others + 1))
    far = abs(wins - cases / 2)
    expected = sum(alone[a] * alone[b] for a in alone for b in alone if abs(a + b - cases / 2) >= far)
    assert p == pytest.approx(expected / alone.total() ** 2)


def test_of_too_many_arrangements_some_are_drawn():
    group = np.random.default_rng(1).standard_normal((6, 4))
    group[0] += 10
    wins, cases, p = majority([group])
    assert (wins, cases) == (0, 5)
    assert 0.003 < p < 2 / 6 + 0.01  # at most that the first is the best of six, or the worst
    assert majority([group])[2] == p


def test_most_cases_are_counted_over_columns_and_tested_by_exchange():
    most = replace(ABOVE, cases=((PAL, CE),))
    (actual,) = judge_all(result_of([0.9, 0.8], [0.7, 0.7], most, columns=tuple(range(2, 11))))
    assert actual.count == (9, 9)
    assert actual.p_value == pytest.approx(2 / 2**9)
    assert actual.verdict == "confirmed"
    (actual,) = judge_all(result_of([0.9], [0.7], most, fitted=False))
    assert actual.verdict == "regime not reached"
    assert math.isnan(actual.difference)


def test_an_average_is_over_columns_first_and_then_over_seeds():
    """Against the same test on means that were taken by hand; columns out of their regime do not count."""
    average = replace(ABOVE, averaged=True)
    result = result_of([0.9, 0.8, 0.85], [0.7, 0.7, 0.7], average, columns=(10, 100, 1000))
    first, second, third = result.columns
    by_hand = dict(zip((first, second, third), ([0.95, 0.8, 0.85], [0.7, 0.75, 0.9], [0.1, 0.1, 0.1]), strict=True))
    for (row, column, seed), record in result.measured.items():
        if row == PAL.label:
            record["accuracy"] = by_hand[column][seed]
            record["training"] = {"interpolated": column != third}
    (actual,) = judge_all(result)
    reference = stats.ttest_1samp([(0.25 + 0.0) / 2, (0.1 + 0.05) / 2, (0.15 + 0.2) / 2], 0)
    assert actual.p_value == pytest.approx(reference.pvalue)
    assert actual.difference == pytest.approx(0.125)
    assert (actual.column, actual.seeds) == ("mean of 2 columns, without ρ=1000", 3)
    assert judge_all(result_of([0.9, 0.8], [0.7, 0.7], average)) == []  # of one column there is no average
    (actual,) = judge_all(result_of([0.9, 0.8], [0.7, 0.7], average, fitted=False, columns=(10, 100)))
    assert actual.verdict == "regime not reached"
    assert actual.text == "2 seeds"
    apart = result_of([0.9, 0.8], [0.7, 0.7], average, columns=(10, 100))
    for row, column, seed in list(apart.measured):
        if (column == apart.columns[0]) == (seed == 0):
            del apart.measured[row, column, seed]
    assert judge_all(apart) == []  # no seed has both columns: not run yet, whatever the regime


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=6, max_size=6), min_size=3, max_size=5),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_a_tuned_ordering_compares_each_method_at_the_rate_that_suits_its_other_seeds(drawn, fits):
    """Against the definition, spelled out: three rates of two methods, some of which are out of their regime."""
    rates = (0.1, 0.2, 0.3)
    cells = [Cell(method, Column(ratio=10, lr=rate), Recipe()) for method in (PAL, CE) for rate in rates]
    measured = {
        (cell.row, cell.column, seed): {"accuracy": values[i] / 128, "training": {"interpolated": fits[i]}}
        for seed, values in enumerate(drawn)
        for i, cell in enumerate(cells)
    }
    tuned = replace(ABOVE, tuned=True)
    study = Study("tiny", None, "tiny", "table", lambda scale: cells, orderings=(tuned,))
    actual = judge_all(StudyResult(study, "quick", cells, range(len(drawn)), measured))
    differences = []
    for seed in range(len(drawn)):
        value = []
        for first in (0, 3):
            choice, best = None, -1
            fitting = fits[first : first + 3]
            for i in range(first, first + 3):
                others = sum(values[i] for other, values in enumerate(drawn) if other != seed)
                if (fits[i] or not any(fitting)) and others > best:
                    choice, best = i, others
            value.append(drawn[seed][choice] / 128)
        differences.append(value[0] - value[1])
    (judgement,) = actual
    assert judgement.column == "ρ=10, each at its own rate"
    assert judgement.difference == pytest.approx(sum(differences) / len(differences))
    assert judgement.seeds == len(drawn)
    assert judgement.reached == (any(fits[:3]) and any(fits[3:]))


@pytest.mark.parametrize(("rates", "low", "high"), [(1, 0.04, 0.06), (2, 0.08, 0.12), (3, 0.09, 0.14)])
def test_how_often_a_tuned_test_errs_is_what_the_module_says(rates, low, high):
    """Rates that do not differ, five seeds: the choices share runs, so the test at 5 % errs in about 10 %."""
    drawn = np.random.default_rng(0).standard_normal((20_000, 2, rates, 5))
    others = drawn.sum(-1, keepdims=True) - drawn  # of the seeds that choose
    chosen = np.take_along_axis(drawn, others.argmax(2)[:, :, None], 2)[:, :, 0]
    errs = stats.ttest_rel(chosen[:, 0], chosen[:, 1], axis=-1).pvalue < 0.05
    assert low < errs.mean() < high
