"""Unknown images: the paper's two tables of detection, and the histograms of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.printed import OOD, OOD_PENALTY, SCORES
from unhinge.paper.studies.study import Ordering, Study
from unhinge.training.recipes import Method, Setting, recipe_of

__all__ = ["studies"]

# The first of several is the one in the table; the records of the runs have all of them.
UNKNOWN = {
    "quick": {"cifar10": "patches", "cifar100": "patches"},
    "small": {"cifar10": "svhn,cifar100", "cifar100": "svhn,cifar10"},
    "paper": {"cifar10": "svhn", "cifar100": "svhn"},
}
METRICS = {"fpr95": False, "auroc": True, "aupr_in": True}  # whether larger is better
QUANTITIES = (
    *(f"ood.{score}.{metric}" for score in SCORES for metric in METRICS),
    "ood.energy.known_spread",
    "training.accuracy",
)
NOTE = (
    "Softmax scores are ranked by the log-odds of the largest probability: the same order, without ties. The "
    "probability itself is 1 in float32 once the largest logit wins by 17, and a table made from it counts ties; the "
    "paper's softmax columns, where the features are long, may have suffered from that."
)
NORMALIZED = (
    " FNPAL is added to the paper's rows. Its logits are those of normalized features, so softmax and energy do not "
    "see the length of a feature; the norm score does. Scored without the normalization, as T2FNorm (arXiv 2305.17797) "
    "does, its networks are in the detector's scores of `unhinge evaluate --ood`."
)


def _cells(
    table: Mapping[str, Mapping[Method, Sequence[Sequence[float]]]], data: str, more: Sequence[Method], scale: str
) -> list[Cell]:
    """The methods of the paper's `table` with its numbers, and `more` of ours."""
    cells = []
    for method in (*table[data], *more):
        numbers = table[data].get(method, ())
        paper = tuple(
            (f"ood.{score}.{metric}", values[i])
            for metric, values in zip(METRICS, numbers, strict=bool(numbers))
            for i, score in enumerate(SCORES)
        )
        recipe = recipe_of(Setting(data), method, scale)
        unknown = UNKNOWN[scale][data]
        place = Column(data=recipe.data, against=unknown.partition(",")[0])
        cells.append(Cell(method, place, recipe, ood=unknown, paper=paper))
    return cells


def _orderings(*pairs: tuple[Method, Method]) -> tuple[Ordering, ...]:
    made = [
        Ordering(
            f"the penalty improves the {score} score's {metric.upper().removesuffix('_IN')} ({plain.label})",
            penalized,
            plain,
            f"ood.{score}.{metric}",
            larger,
        )
        for penalized, plain in pairs
        for score in SCORES
        for metric, larger in METRICS.items()
    ]
    made += [
        Ordering(
            f"with the penalty the energies of known images are more concentrated ({plain.label})",
            penalized,
            plain,
            "ood.energy.known_spread",
            larger=False,
        )
        for penalized, plain in pairs
    ]
    return tuple(made)


def studies() -> list[Study]:
    """For each data set the table with both losses, and that of cross-entropy over penalties."""
    ce = (Method("ce", penalty=1e-5), Method("ce"))
    pal = (Method("pal", penalty=5e-7), Method("pal"))
    made = []
    for data in ("cifar10", "cifar100"):
        first = data == "cifar10"
        made += [
            Study(
                f"ood-{data}",
                "tab:ood-cifar-unhinged",
                "Does the feature penalty improve the detection of unknown images?",
                "histograms",
                partial(_cells, OOD, data, (Method("fnpal"),)),
                QUANTITIES,
                _orderings(ce, pal),
                note=NOTE + NORMALIZED,
                aliases=("fig:cifar10-ood-energy-score",) if first else (),
            ),
            Study(
                f"ood-penalty-{data}",
                "tab:ood-cifar",
                "Detection of unknown images by cross-entropy, over penalties",
                "histograms",
                partial(_cells, OOD_PENALTY, data, ()),
                QUANTITIES,
                _orderings(ce),
                note=NOTE,
                aliases=("fig:ood-softmax-score", "fig:ood-energy-score", "fig:ood-feat-norm") if first else (),
            ),
        ]
    return made
