"""Every score against every unknown set, in one table: with intervals, near and far, and as OpenOOD writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.metrics import ood_metrics
from unhinge.metrics.bootstrap import interval_of, ood_bootstrap

__all__ = ["Detection", "detection_records", "detections", "distance_of", "leaderboard_records", "openood_records"]

MEASURES = ("auroc", "aupr_in", "aupr_out", "fpr95")
NEAR, FAR = "near", "far"

# What OpenOOD 1.5 counts as near: other classes of the same kind of image. All else is far.
NEAR_TO = {
    "cifar10": ("cifar100", "cifar100-coarse"),
    "cifar100": ("cifar10",),
    "cifar100-coarse": ("cifar10",),
    "mnist": ("fashion-mnist", "kmnist"),
    "fashion-mnist": ("mnist", "kmnist"),
    "kmnist": ("mnist", "fashion-mnist"),
}


def distance_of(known: str, unknown: str) -> str:
    """Whether a data set is near to the known one or far from it, as OpenOOD groups them.

    Example:
        >>> distance_of("cifar10", "cifar100"), distance_of("cifar10", "svhn")
        ('near', 'far')
    """
    return NEAR if unknown in NEAR_TO.get(known, ()) else FAR


@dataclass(frozen=True, eq=False)
class Detection:
    """How well one score tells the known set from one unknown set, or from all near or far ones on average."""

    score: str
    data: str  # the unknown set; "near" and "far" for the means over theirs
    distance: str  # near, far
    measures: dict[str, float]  # auroc, aupr_in, aupr_out, fpr95: fractions in [0, 1]
    intervals: dict[str, tuple[float, float]]  # of each of them
    openood_fpr95: float  # OpenOOD's: the share of known inputs rejected where 95 % of the unknown ones are

    @property
    def is_mean(self) -> bool:
        """Whether this is the mean over the near or far sets."""
        return self.data == self.distance


def detections(
    known: Mapping[str, Tensor],
    unknown: Mapping[str, Mapping[str, Tensor]],
    distances: Mapping[str, str] | None = None,
    *,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> list[Detection]:
    r"""All scores against all unknown sets, and for each score the means over near and far sets.

    Arguments:
        known: Scores of the known test set by name, as :meth:`CollapseDetector.scores
            <unhinge.ood.CollapseDetector.scores>` gives them.
        unknown: By the name of the set, its scores by name.
        distances: ``"near"`` or ``"far"`` for each set, as :func:`distance_of` says; by default all are far.
        resamples: Sets drawn again for the intervals. They say how sure a number is for *this network* on sets of
            this size; how much networks differ, only several training runs tell.
        level: Of the intervals.
        seed: Of the draws.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> inside = torch.randn(200, generator=g) + 2
        >>> outside = torch.randn(100, generator=g)
        >>> rows = detections(
        ...     {"norm": inside}, {"svhn": {"norm": outside}}, resamples=50
        ... )
        >>> [(row.data, round(row.measures["auroc"], 2)) for row in rows]
        [('svhn', 0.93), ('far', 0.93)]
        >>> low, high = rows[0].intervals["auroc"]
        >>> low < rows[0].measures["auroc"] < high
        True
    """
    if not unknown:
        raise ValueError("there must be at least one unknown set to detect.")
    for data, distance in (distances or {}).items():
        if distance not in (NEAR, FAR):
            raise ValueError(f'distances must be "{NEAR}" or "{FAR}", got {distance!r} for {data!r}.')
    table: list[Detection] = []
    for score, inside in known.items():
        groups: dict[str, list[tuple[Detection, dict[str, Tensor]]]] = {NEAR: [], FAR: []}
        for data, scores in unknown.items():
            distance = FAR if distances is None else distances.get(data, FAR)
            samples = ood_bootstrap(inside, scores[score], resamples, seed)
            measures = ood_metrics(inside, scores[score])
            row = Detection(
                score=score,
                data=data,
                distance=distance,
                measures={name: measures[name] for name in MEASURES},
                intervals={name: interval_of(samples[name], level) for name in MEASURES},
                openood_fpr95=ood_metrics(inside, scores[score], positive="ood")["fpr95"],
            )
            groups[distance].append((row, samples))
            table.append(row)
        for distance, members in groups.items():
            if members:
                table.append(_mean(score, distance, members, level))
    return table


def detection_records(table: list[Detection]) -> list[dict[str, object]]:
    """Rows for JSON or a table: score, data, distance, each measure and the ends of its interval."""
    records: list[dict[str, object]] = []
    for row in table:
        record: dict[str, object] = {"score": row.score, "data": row.data, "distance": row.distance}
        for name in MEASURES:
            low, high = row.intervals[name]
            record |= {name: row.measures[name], f"{name}_low": low, f"{name}_high": high}
        records.append(record)
    return records


def openood_records(table: list[Detection], accuracy: float) -> list[dict[str, object]]:
    """Rows as OpenOOD's evaluator writes them, in percent, with the score in front.

    Its means are called ``nearood`` and ``farood``, and its FPR@95 takes the unknown inputs as the positive ones. Its
    AUPR joins the points of the curve by straight lines, where ours (average precision) does not: they differ by less
    than a hundredth where scores do not tie.

    Example:
        >>> rows = detections(
        ...     {"norm": torch.tensor([2.0, 3.0])},
        ...     {"svhn": {"norm": torch.tensor([1.0])}},
        ...     resamples=2,
        ... )
        >>> openood_records(rows, accuracy=0.95)[1]["dataset"]
        'farood'
        >>> list(openood_records(rows, 0.95)[0])
        ['postprocessor', 'dataset', 'FPR@95', 'AUROC', 'AUPR_IN', 'AUPR_OUT', 'ACC']
    """
    return [
        {
            "postprocessor": row.score,
            "dataset": f"{row.data}ood" if row.is_mean else row.data,
            "FPR@95": _percent(row.openood_fpr95),
            "AUROC": _percent(row.measures["auroc"]),
            "AUPR_IN": _percent(row.measures["aupr_in"]),
            "AUPR_OUT": _percent(row.measures["aupr_out"]),
            "ACC": _percent(accuracy),
        }
        for row in table
    ]


def leaderboard_records(table: list[Detection], accuracy: float, training: str) -> list[dict[str, object]]:
    """One row a score, in the columns of OpenOOD's leaderboard: AUROC near and far, accuracy, each set; in percent."""
    records: list[dict[str, object]] = []
    for score in dict.fromkeys(row.score for row in table):
        mine = {row.data: _percent(row.measures["auroc"]) for row in table if row.score == score}
        head: dict[str, object] = {
            "Training": training,
            "Postprocessor": score,
            "Near-OOD AUROC": mine.pop(NEAR, None),
            "Far-OOD AUROC": mine.pop(FAR, None),
            "ID ACC": _percent(accuracy),
        }
        records.append(head | mine)
    return records


def _mean(score: str, distance: str, members: list[tuple[Detection, dict[str, Tensor]]], level: float) -> Detection:
    rows = [row for row, _ in members]
    return Detection(
        score=score,
        data=distance,
        distance=distance,
        measures={name: sum(row.measures[name] for row in rows) / len(rows) for name in MEASURES},
        # Resample by resample: the known set is drawn once for all of them.
        intervals={
            name: interval_of(torch.stack([samples[name] for _, samples in members]).mean(0), level)
            for name in MEASURES
        },
        openood_fpr95=sum(row.openood_fpr95 for row in rows) / len(rows),
    )


def _percent(share: float) -> float:
    return round(100 * share, 2)
