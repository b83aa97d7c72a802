r"""What the seeds say about an ordering: confirmed, not confirmed, undecided, or that the regime was not reached.

Runs of one seed share the subset of images, the initial weights before the head and the order of the batches, so they
are compared in pairs: the test is Student's on the differences. A study asks many questions of the same runs, so its
p-values are corrected together (Holm 1979: the k-th smallest of m is multiplied by m - k + 1), and the corrected one
decides. The family has all m questions that the study asks, those too whose runs are still to come or whose regime was
not reached: how strict a test is must not depend on how others came out.

A comparison at one rate may only show whom the rate suits. Where several were run, a `tuned` ordering gives each method
its own, of those at which it fits its training images: for each seed the rate with the best mean over the *other*
seeds, so that no run takes part in the choice of its own rate. A rate with fewer seeds than another waits until it has
them all. The choices of different seeds share runs, so where rates are close the test is too sure: simulated with five
seeds and two or three rates that do not differ, it errs in 10 to 12 % of cases at a level of 5 %, in 2 to 3 % at 1 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import numpy as np

from unhinge.paper.studies.paired import LEVEL, Paired, holm, majority, paired
from unhinge.paper.studies.study import PLAIN, Ordering, StudyResult
from unhinge.training.recipes import Method

__all__ = ["DECIDED", "Judgement", "OrderingRecord", "Verdict", "judge_all", "questions"]

NOTHING = Paired(math.nan, None, None, None)
Verdict = Literal["confirmed", "not confirmed", "undecided", "regime not reached"]
DECIDED: tuple[Verdict, ...] = ("confirmed", "not confirmed")


@dataclass(frozen=True)
class Judgement:
    """What the seeds say about an ordering in one column."""

    ordering: Ordering
    column: str
    found: Paired  # over the seeds both have, in favour of the ordering if positive
    seeds: int
    reached: bool  # both fit all of their training images, or the claim does not ask for it
    corrected: float | None = None  # after Holm, with all questions of the study
    apart: float | None = None  # with a margin: that they differ by more, times the number of questions
    count: tuple[int, int] | None = None  # cases in favour, cases in all
    stopped: int = 0  # runs that ended before their time, and so are no part of it

    @property
    def difference(self) -> float:
        """Its mean over the seeds; of cases, the share in favour less one half."""
        return self.found.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95 % interval, if there are any."""
        return None if self.found.low is None or self.found.high is None else (self.found.low, self.found.high)

    @property
    def p_value(self) -> float | None:
        """Of this test alone."""
        return self.found.p_value

    @property
    def verdict(self) -> Verdict:
        """Never more than the corrected p-value allows."""
        if not self.reached:
            return "regime not reached"
        if self.apart is not None and self.apart < LEVEL:
            return "not confirmed"
        if self.corrected is None or self.corrected >= LEVEL:
            return "undecided"
        return "confirmed" if self.ordering.margin is not None or self.difference > 0 else "not confirmed"

    @property
    def text(self) -> str:
        """Effect, interval, corrected p and seeds, in words."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        seeds += f", {self.stopped} more runs diverged" if self.stopped else ""
        seeds += f", asked {self.ordering.asked}" if self.ordering.asked else ""
        corrected = self.apart if self.apart is not None and self.verdict == "not confirmed" else self.corrected
        p = "" if corrected is None else f", corrected p = {corrected:.2g}"
        if self.count is not None:
            return f"in {self.count[0]} of {self.count[1]} cases{p}, {seeds}"
        if math.isnan(self.difference):
            return seeds
        unit = PLAIN.get(self.ordering.quantity)
        factor, unit, form = (100, " points", "+.2f") if unit is None else (1, unit, "+.3g")
        interval = ""
        if self.interval is not None:
            interval = f" (95 % interval {' to '.join(f'{factor * end:{form}}' for end in self.interval)})"
        return f"{factor * self.difference:{form}}{unit}{interval}{p}, {seeds}"


class OrderingRecord(TypedDict):
    """What recipe.json of a study has of a judgement."""

    statement: str
    claimed_by: str
    better: str
    worse: str
    quantity: str
    column: str
    verdict: Verdict
    text: str
    difference: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    p_value_alone: float | None
    margin: float | None
    cases: tuple[int, int] | None
    seeds: int


def judge_all(result: StudyResult) -> list[Judgement]:
    """Every ordering of a study in each column that has both of its rows, corrected as one family."""
    judgements = [judgement for ordering in result.study.orderings for judgement in _judge(result, ordering)]
    tested = {
        index: judgement.p_value
        for index, judgement in enumerate(judgements)
        if judgement.reached and judgement.p_value is not None
    }
    asked = questions(result)
    # Of the others nothing is known: their runs are still to come, or missed the regime.
    family = holm([*tested.values(), *[1.0] * (asked - len(tested))])
    for index, corrected in zip(tested, family, strict=False):
        apart = judgements[index].found.apart
        judgements[index] = replace(
            judgements[index], corrected=corrected, apart=None if apart is None else min(1.0, asked * apart)
        )
    return judgements


def questions(result: StudyResult) -> int:
    """How many judgements a study has once all of it has run."""
    return sum(_questions(result, ordering) for ordering in result.study.orderings)


def _questions(result: StudyResult, ordering: Ordering) -> int:
    """How many judgements an ordering has once all of the study has run."""
    if ordering.cases:
        return 1
    columns = _columns(result, ordering)
    if ordering.averaged:
        return int(len(columns) > 1)
    if ordering.column is not None:
        columns = {ordering.column.label: [ordering.column.label]}
    places = {(cell.row, cell.column) for cell in result.cells}
    methods = ordering.better.label, ordering.worse.label
    return sum(all(any((row, one) in places for one in parts) for row in methods) for parts in columns.values())


def _judge(result: StudyResult, ordering: Ordering) -> list[Judgement]:
    if ordering.cases:
        return _majority(result, ordering)
    if ordering.averaged:
        return _average(result, ordering)
    columns = list(_columns(result, ordering)) if ordering.column is None else [ordering.column.label]
    pairs = (_pair(result, ordering, ordering.better, ordering.worse, column) for column in columns)
    return [pair for pair in pairs if pair is not None]


def _pair(result: StudyResult, ordering: Ordering, better: Method, worse: Method, column: str) -> Judgement | None:
    differences = list(_differences(result, ordering, better, worse, column).values())
    if not differences:
        return None
    found = paired(differences, ordering.margin)
    reached = _reached(result, ordering, better, worse, column)
    parts = _columns(result, ordering).get(column, [])
    stopped = sum(result.stopped(method.label, one) for method in (better, worse) for one in parts)
    return Judgement(ordering, column, found, len(differences), reached, stopped=stopped)


def _differences(
    result: StudyResult, ordering: Ordering, better: Method, worse: Method, column: str
) -> dict[int, float]:
    """By the seeds that both have, in favour of the ordering if positive."""
    by_better, by_worse = (_values(result, ordering, method, column) for method in (better, worse))
    sign = 1.0 if ordering.larger else -1.0
    return {seed: sign * (by_better[seed] - by_worse[seed]) for seed in by_better if seed in by_worse}


def _columns(result: StudyResult, ordering: Ordering) -> dict[str, list[str]]:
    """What is compared as one column, by its name, with the columns of the table it consists of."""
    if not ordering.tuned:
        return {column: [column] for column in result.columns}
    same: dict[str, list[str]] = {}
    for cell in result.cells:
        place = replace(cell.place, lr=None).label
        columns = same.setdefault(f"{place}, each at its own rate" if place else "each at its own rate", [])
        if cell.column not in columns:
            columns.append(cell.column)
    return same


def _fitted(result: StudyResult, ordering: Ordering, method: Method, column: str) -> list[str]:
    """The columns of the table, of those compared as one, in which the method is in its regime."""
    columns = _columns(result, ordering).get(column, [])
    return [one for one in columns if not ordering.regime or result.interpolated(method.label, one)]


def _values(result: StudyResult, ordering: Ordering, method: Method, column: str) -> dict[int, float]:
    """By seed; if `tuned`, at the rate that suits the other seeds best, of those in the regime or else of all."""
    columns = _fitted(result, ordering, method, column) or _columns(result, ordering).get(column, [])
    tried = [found for one in columns if (found := result.by_seed(method.label, one, ordering.quantity))]
    if not ordering.tuned:
        return tried[0] if tried else {}
    tried = [found for found in tried if len(found) == max(map(len, tried))]  # the others have still to catch up
    seeds = set.intersection(*map(set, tried)) if tried else set()
    if len(seeds) < 2:
        return {}  # no other seed could choose the rate
    sign = 1.0 if ordering.larger else -1.0
    chosen = {}
    for seed in sorted(seeds):
        means = [sign * math.fsum(found[other] for other in seeds if other != seed) for found in tried]
        chosen[seed] = tried[means.index(max(means))][seed]
    return chosen


def _reached(result: StudyResult, ordering: Ordering, better: Method, worse: Method, column: str) -> bool:
    return not ordering.regime or all(_fitted(result, ordering, method, column) for method in (better, worse))


def _average(result: StudyResult, ordering: Ordering) -> list[Judgement]:
    """One number for each seed that has both methods in all of the columns: the mean of its differences."""
    asked = (result, ordering, ordering.better, ordering.worse)
    known = {column: found for column in _columns(result, ordering) if (found := _differences(*asked, column))}
    if len(known) < 2:
        return []
    left = [column for column in known if not _reached(*asked, column)]
    counted = [found for column, found in known.items() if column not in left]
    seeds = sorted(set.intersection(*map(set, counted if len(counted) > 1 else known.values())))
    if not seeds:
        return []
    if len(counted) < 2:
        return [Judgement(ordering, "mean of all columns", NOTHING, len(seeds), False)]
    means = [math.fsum(found[seed] for found in counted) / len(counted) for seed in seeds]
    named = f"mean of {len(counted)} columns" + (f", without {' and '.join(left)}" if left else "")
    return [Judgement(ordering, named, paired(means, ordering.margin), len(seeds), True)]


def _majority(result: StudyResult, ordering: Ordering) -> list[Judgement]:
    """The share of cases in favour, against what it would be if the runs of each seed were exchanged."""
    judged = [
        (better, worse, column, case)
        for better, worse in ordering.cases
        for column in _columns(result, ordering)
        if (case := _pair(result, ordering, better, worse, column)) is not None
    ]
    if not judged:
        return []
    least = min(case.seeds for _, _, _, case in judged)
    groups: dict[tuple[Method, str], list[Method]] = {}  # what is compared with the same runs
    for better, worse, column, case in judged:
        if case.reached:
            groups.setdefault((worse, column), []).append(better)
    sign, tables = 1.0 if ordering.larger else -1.0, []
    for (worse, column), others in groups.items():
        runs = [_values(result, ordering, method, column) for method in (worse, *others)]
        shared = sorted(set.intersection(*map(set, runs)))
        if shared:
            tables.append(sign * np.array([[run[seed] for seed in shared] for run in runs]))
    if not tables:
        return [Judgement(ordering, "all columns", NOTHING, least, bool(groups), count=(0, 0))]
    wins, cases, p = majority(tables)
    share = Paired(wins / cases - 0.5, None, None, p)
    return [Judgement(ordering, "all columns", share, least, True, count=(wins, cases))]
