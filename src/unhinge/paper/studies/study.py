"""A table or figure of trained networks: which cells it has at each scale, what it says, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from unhinge.paper.studies.cell import Cell, Column
from unhinge.results.json import JsonRecord
from unhinge.training.recipes import Method

__all__ = ["PLAIN", "WORDS", "Ordering", "Study", "StudyResult", "quantity_of"]

PLAIN = {  # quantities that are no shares, with the unit of a difference
    "feature_norm": "",
    "epochs": " epochs",
    "epochs_to_fit": " epochs",
    "seconds": " s",
    "after_temperature.log_loss": " nats",
}
WORDS = {  # quantities as a table names them
    "accuracy": "test accuracy",
    "best_accuracy": "best test accuracy on the way",
    "halfway_accuracy": "test accuracy at half time",
    "epochs_to_fit": "first epoch in which 99 % of the training images are right",
    "training.accuracy": "accuracy on the training images, not augmented, with the labels trained on",
    "rare_training_accuracy": "accuracy on the training images of the rarer half of the classes",
    "ece": "calibration error of the softmax",
    "posterior_ece": "calibration error of the posterior",
    "stated_ece": "calibration error of the posterior with a radius, of the softmax for cross-entropy",
    "after_temperature.ece": "calibration error after one temperature was fitted",
    "after_temperature.log_loss": "log loss after one temperature was fitted, in nats",
    "decided_accuracy": "test accuracy, decision adjusted with the strength that the theory names, where it names one",
    "halved_accuracy": "test accuracy, decision adjusted fully for cross-entropy, by half for a posterior",
    "feature_norm": "mean norm of the features of the test images",
    "adjusted_accuracy.0.5": "test accuracy, decision adjusted with strength 1/2",
    "adjusted_accuracy.1": "test accuracy, decision adjusted with strength 1",
    "ood.energy.known_spread": "spread of the energies of known images, as a share of that of all images",
} | {
    f"ood.{score}.{metric}": f"{name} of the {score} score"
    for score in ("softmax", "energy", "norm")
    for metric, name in {
        "fpr95": "FPR95",
        "auroc": "AUROC",
        "aupr_in": "AUPR",
        "aupr_out": "AUPR, unknown images",
    }.items()
}
Kind = Literal["table", "curves", "reliability", "histograms", "behaviour", "collapse", "lines", "fit", "rates"]


@dataclass(frozen=True)
class Ordering:
    """A claim about two methods: that `better` has the larger (or smaller) quantity than `worse`.

    It is judged in one column or, with None, in each. With a `margin` the claim is another: that the two differ by less
    than that. With `cases` it is that in most of these pairs of methods, over all columns, the first is the better one.
    If `averaged`, the claim is about the mean of all columns whose regime was reached. If `tuned`, each method has the
    rate that suits it: columns that differ in the rate alone are one, see :mod:`unhinge.paper.studies.judge`. A
    question that somebody had when runs were there already says so in `asked`.
    """

    statement: str
    better: Method
    worse: Method
    quantity: str = "accuracy"
    larger: bool = True
    column: Column | None = None
    ours: bool = False  # claimed by us, not by the paper
    regime: bool = True  # speaks of networks that fit all of their training images
    margin: float | None = None
    cases: tuple[tuple[Method, Method], ...] = ()
    averaged: bool = False
    tuned: bool = False
    asked: str = ""  # where not before the runs: when, in words

    def asks(self, cell: Cell) -> bool:
        """Whether the runs of this cell take part in the comparison."""
        compared = {method for case in self.cases for method in case} or {self.better, self.worse}
        return cell.method in compared and self.column in (None, cell.place)


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

    def seeds_of(self, cell: Cell, scale: str) -> int:
        """How many runs a cell has: one where no ordering asks about it, since further ones would decide nothing."""
        return self.seeds[scale] if any(ordering.asks(cell) for ordering in self.orderings) else 1


@dataclass(frozen=True)
class StudyResult:
    """The cells of a study with what was measured of each seed."""

    study: Study
    scale: str
    cells: Sequence[Cell]
    seeds: Sequence[int]
    measured: Mapping[tuple[str, str, int], JsonRecord]  # (row, column, seed)
    failures: Sequence[str] = ()
    whole: int | None = None  # runs of the study, where these cells are only a part of it

    @property
    def wanted(self) -> int:
        """How many runs the study asks for."""
        return len(self.cells) * len(self.seeds) if self.whole is None else self.whole

    def begun(self) -> StudyResult:
        """The part to be shown: rows and columns in which there is a run."""
        rows, columns = ({key[axis] for key in self.measured} for axis in (0, 1))
        cells = [cell for cell in self.cells if cell.row in rows and cell.column in columns]
        return replace(self, cells=cells, whole=self.wanted)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell at that place, if the table has one there."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)

    def of(self, row: str, column: str) -> list[JsonRecord]:
        """What was measured of a cell, seed by seed."""
        return [run for seed in self.seeds if (run := self.measured.get((row, column, seed))) is not None]

    def values(self, row: str, column: str, quantity: str) -> list[float]:
        """One quantity of a cell, seed by seed, where it was measured."""
        return list(self.by_seed(row, column, quantity).values())

    def by_seed(self, row: str, column: str, quantity: str) -> dict[int, float]:
        """One quantity of a cell by seed, where it was measured."""
        runs = {seed: self.measured.get((row, column, seed)) for seed in self.seeds}
        numbers = {seed: quantity_of(run, quantity) for seed, run in runs.items() if run is not None}
        return {seed: value for seed, value in numbers.items() if value is not None}

    def interpolated(self, row: str, column: str) -> bool | None:
        """Whether all runs of a cell fit every class of their training images; one that diverged does not. None where
        none says so."""
        ended = [run for run in self.of(row, column) if run.get("stopped") or run.get("training")]
        said = [not run.get("stopped") and run["training"].get("interpolated") for run in ended]
        return all(said) if said else None

    def stopped(self, row: str, column: str) -> int:
        """How many runs of a cell ended before their time, because a number was not finite any more."""
        return sum(bool(run.get("stopped")) for run in self.of(row, column))


def quantity_of(measured: JsonRecord, quantity: str) -> float | None:
    """A number by its name; parts of nested ones are joined by dots, such as ``ood.energy.fpr95``.

    Example:
        >>> quantity_of({"adjusted_accuracy": {"0.5": 0.29}}, "adjusted_accuracy.0.5")
        0.29
    """
    value: object = measured
    while isinstance(value, Mapping):
        if quantity in value or "." not in quantity:  # a key may have a dot of its own
            value, quantity = value.get(quantity), ""
        else:
            part, _, quantity = quantity.partition(".")
            value = value.get(part)
    return float(value) if isinstance(value, (int, float)) and not quantity and math.isfinite(value) else None
