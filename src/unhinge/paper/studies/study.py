"""A table or figure of trained networks: which cells it has at each scale, what it says, and how it is judged.

An ordering the paper claims ("this row lies above that one") is judged by a stated test over seeds, and comes out as
confirmed, not confirmed, or undecided at this scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unhinge.paper.studies.cell import Cell

__all__ = ["LEVEL", "Judgement", "Ordering", "Study", "StudyResult", "judge", "mean_and_spread", "quantity_of"]

LEVEL = 0.05
Verdict = Literal["confirmed", "not confirmed", "undecided"]
Kind = Literal["table", "curves", "reliability", "histograms", "behaviour", "collapse", "steps"]


@dataclass(frozen=True)
class Ordering:
    """That row `better` has the larger (or smaller) quantity than `worse`, in one column or, with None, in each."""

    statement: str
    better: str  # row
    worse: str  # row
    quantity: str = "accuracy"
    larger: bool = True
    column: str | None = None
    ours: bool = False  # claimed by us, not by the paper


@dataclass(frozen=True)
class Study:
    """What can be reproduced with trained networks; `quantities` are what its table shows."""

    id: str
    label: str | None  # the paper's; None for what the paper does not have
    claim: str
    kind: Kind
    cells: Callable[[str], Sequence[Cell]]  # by scale
    quantities: tuple[str, ...] = ("accuracy",)
    orderings: tuple[Ordering, ...] = ()
    note: str = ""
    aliases: tuple[str, ...] = ()
    seeds: Mapping[str, int] = field(default_factory=lambda: {"quick": 2, "small": 3, "paper": 3})


@dataclass(frozen=True)
class StudyResult:
    """The cells of a study with what was measured of each seed."""

    study: Study
    scale: str
    cells: Sequence[Cell]
    seeds: Sequence[int]
    measured: Mapping[tuple[str, str, int], Mapping[str, Any]]  # (row, column, seed)
    failures: Sequence[str] = ()

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def of(self, row: str, column: str) -> list[Mapping[str, Any]]:
        """What was measured of a cell, seed by seed."""
        return [one for seed in self.seeds if (one := self.measured.get((row, column, seed))) is not None]

    def values(self, row: str, column: str, quantity: str) -> list[float]:
        """One quantity of a cell, seed by seed, where it was measured."""
        found = (quantity_of(one, quantity) for one in self.of(row, column))
        return [value for value in found if value is not None]


@dataclass(frozen=True)
class Judgement:
    """What the seeds say about an ordering in one column."""

    ordering: Ordering
    column: str
    verdict: Verdict
    difference: float  # of the means, in favour of the ordering if positive
    p_value: float | None
    seeds: int

    @property
    def text(self) -> str:
        p = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        return f"{100 * self.difference:+.2f} points{p}, {self.seeds} seeds"


def quantity_of(measured: Mapping[str, Any], quantity: str) -> float | None:
    """A number by its name; parts of nested ones are joined by dots, such as ``ood.energy.fpr95``."""
    value: Any = measured
    for part in quantity.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (with n - 1) of the seeds; nan where there are too few.

    Example:
        >>> mean_and_spread([0.5, 0.7])
        (0.6, 0.1414...)
    """
    if not values:
        return math.nan, math.nan
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def judge(result: StudyResult, ordering: Ordering) -> list[Judgement]:
    """Welch's two-sided t-test on the seeds, at the level of 5 %, in each column that has both rows."""
    columns = result.columns if ordering.column is None else [ordering.column]
    judgements = []
    for column in columns:
        better = result.values(ordering.better, column, ordering.quantity)
        worse = result.values(ordering.worse, column, ordering.quantity)
        if better and worse:
            judgements.append(_judge(ordering, column, better, worse))
    return judgements


def _judge(ordering: Ordering, column: str, better: Sequence[float], worse: Sequence[float]) -> Judgement:
    difference = mean_and_spread(better)[0] - mean_and_spread(worse)[0]
    difference = difference if ordering.larger else -difference
    p_value = _welch(better, worse)
    verdict: Verdict = "undecided"
    if p_value is not None and p_value < LEVEL:
        verdict = "confirmed" if difference > 0 else "not confirmed"
    return Judgement(ordering, column, verdict, difference, p_value, min(len(better), len(worse)))


def _welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The p-value; None where one seed, or seeds that all agree, leave nothing to compare with."""
    if min(len(a), len(b)) < 2 or (len(set(a)) == 1 and len(set(b)) == 1):
        return None
    from scipy import stats

    moments = [(*mean_and_spread(sample), len(sample)) for sample in (a, b)]
    return float(stats.ttest_ind_from_stats(*moments[0], *moments[1], equal_var=False).pvalue)
