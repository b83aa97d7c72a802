"""Which score for which loss: the detection tables of several runs side by side, runs of one recipe taken together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

__all__ = ["MEASURES", "Compared", "compare_scores", "comparison_markdown", "comparison_records"]

MEASURES = ("auroc", "aupr_in", "fpr95")


@dataclass(frozen=True)
class Compared:
    """One score of one method against one unknown set: the values of its runs, a seed each."""

    method: str
    data: str
    score: str
    seeds: tuple[int, ...]
    values: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by measure

    def mean(self, measure: str) -> float:
        """Over the seeds."""
        return fmean(self.values[measure])

    def spread(self, measure: str) -> float:
        """Standard deviation over the seeds; NaN for one."""
        return stdev(self.values[measure]) if len(self.seeds) > 1 else math.nan


def compare_scores(runs: Sequence[tuple[str, int, Sequence[Mapping[str, object]]]]) -> list[Compared]:
    """A row for each method, unknown set and score, the best score of each set first.

    Arguments:
        runs: Of each run the name of its method, its seed and its rows as
            :func:`~unhinge.ood.benchmark.detection_records` has them.

    Example:
        >>> def rows(energy):
        ...     norm = {
        ...         "score": "norm",
        ...         "data": "svhn",
        ...         "auroc": 0.7,
        ...         "aupr_in": 0.6,
        ...         "fpr95": 0.5,
        ...     }
        ...     return [norm, norm | {"score": "energy", "auroc": energy}]
        >>> table = compare_scores([("PAL", 0, rows(0.8)), ("PAL", 1, rows(0.9))])
        >>> [(row.score, round(row.mean("auroc"), 2), row.seeds) for row in table]
        [('energy', 0.85, (0, 1)), ('norm', 0.7, (0, 1))]
    """
    cells: dict[tuple[str, str, str], list[tuple[int, Mapping[str, object]]]] = {}
    for method, seed, rows in runs:
        for row in rows:
            if row["data"] not in ("near", "far"):  # means over the sets, which differ from call to call
                cells.setdefault((method, str(row["data"]), str(row["score"])), []).append((seed, row))
    table = []
    for (method, data, score), members in cells.items():
        seeds = [seed for seed, _ in members]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"two runs of {method} have the same seed: {sorted(seeds)}. Name each run once.")
        values = {name: tuple(float(str(row[name])) for _, row in members) for name in MEASURES}
        table.append(Compared(method, data, score, tuple(seeds), values))
    order = {key: place for place, key in enumerate(dict.fromkeys((row.method, row.data) for row in table))}
    return sorted(table, key=lambda row: (order[row.method, row.data], -row.mean("auroc")))


def comparison_records(table: Sequence[Compared]) -> list[dict[str, object]]:
    """Rows for a CSV: means and standard deviations over the seeds, fractions in [0, 1]."""
    records: list[dict[str, object]] = []
    for row in table:
        record: dict[str, object] = {
            "method": row.method,
            "data": row.data,
            "score": row.score,
            "seeds": len(row.seeds),
        }
        for name in MEASURES:
            spread = row.spread(name)
            record |= {name: row.mean(name), f"{name}_std": "" if math.isnan(spread) else spread}
        records.append(record)
    return records


def comparison_markdown(table: Sequence[Compared]) -> str:
    """Methods as rows, scores as columns: the AUROC in percent on each set, the best of a row in bold.

    Example:
        >>> row = Compared(
        ...     "PAL",
        ...     "svhn",
        ...     "norm",
        ...     (0,),
        ...     {"auroc": (0.75,), "aupr_in": (0.5,), "fpr95": (0.5,)},
        ... )
        >>> print(comparison_markdown([row]))
        | method | seeds | unknown | norm |
        |---|---|---|---|
        | PAL | 1 | svhn | **75.0** |
    """
    scores = sorted({row.score for row in table})
    lines = [f"| method | seeds | unknown | {' | '.join(scores)} |", "|" + "---|" * (3 + len(scores))]
    for method, data in dict.fromkeys((row.method, row.data) for row in table):
        mine = {row.score: row for row in table if (row.method, row.data) == (method, data)}
        best = max(mine, key=lambda score: mine[score].mean("auroc"))
        cells = [_cell(mine[score], score == best) if score in mine else "" for score in scores]
        lines.append(f"| {method} | {len(next(iter(mine.values())).seeds)} | {data} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Compared, best: bool) -> str:
    text = f"{100 * row.mean('auroc'):.1f}"
    if len(row.seeds) > 1:
        text += f" ± {100 * row.spread('auroc'):.1f}"
    return f"**{text}**" if best else text
