"""The files of a study: its table as CSV and Markdown, its runs, its recipe with every verdict, its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from unhinge.paper.studies.draw import draw_study
from unhinge.paper.studies.judge import DECIDED, Judgement, OrderingRecord, judge_all, questions
from unhinge.paper.studies.paired import LEVEL, mean_and_spread
from unhinge.paper.studies.study import PLAIN, WORDS, StudyResult, quantity_of
from unhinge.results.environment import environment
from unhinge.results.json import JsonRecord, plain
from unhinge.results.sealed import read_sealed, write_sealed
from unhinge.results.tables import markdown_text, write_csv

__all__ = ["read_study", "write_runs", "write_study"]

NOT_REACHED = "†"  # beside a number whose network does not fit all of its training images


def write_study(result: StudyResult, out: Path, draw: bool = True) -> Path:
    """table.csv, table.md, runs.csv and recipe.json of a study, and its figure.png and figure.pdf."""
    folder = out / result.study.id
    folder.mkdir(parents=True, exist_ok=True)
    rows = _table(result)
    write_csv(folder / "table.csv", rows)
    judgements = judge_all(result)
    (folder / "table.md").write_text(_markdown(result, judgements), encoding="utf-8")
    write_csv(folder / "runs.csv", _runs(result))
    recipe = {
        "id": result.study.id,
        "label": result.study.label,
        "claim": result.study.claim,
        "note": result.study.note,
        "scale": result.scale,
        "seeds": list(result.seeds),
        "runs": len(result.measured),
        "runs_wanted": result.wanted,
        "questions": questions(result),
        "hours": round(sum(run.get("seconds", 0) for run in result.measured.values()) / 3600, 3),
        "failures": list(result.failures),
        "orderings": [_described(judgement) for judgement in judgements],
        "command": f"unhinge reproduce {result.study.id} --scale {result.scale} --seeds {len(result.seeds)}",
        "machines": _machines(result),
        "cells": [
            {
                "row": c.row,
                "column": c.column,
                "method": asdict(c.method),
                "place": {name: value for name, value in asdict(c.place).items() if value is not None},
                "recipe": asdict(c.recipe),
                "ood": c.ood,
                "interpolated": result.interpolated(c.row, c.column),
            }
            for c in result.cells
        ],
        **environment(),
    }
    write_sealed(folder / "recipe.json", plain(recipe), beside=("table.csv", "table.md", "runs.csv"), indent=2)
    if draw and result.measured:
        draw_study(result, folder)
    return folder


def read_study(place: Path) -> JsonRecord:
    """The recipe.json of a study, where it and the tables beside it are what was written; the error says what to do."""
    advice = f"`unhinge reproduce {place.name} --out {place.parent} --collect` makes the tables again from the runs."
    return read_sealed(place / "recipe.json", older=True, advice=advice)


def _machines(result: StudyResult) -> list[JsonRecord]:
    """The distinct machines, builds and thread counts its runs were made with."""
    distinct = {str(run["machine"]): run["machine"] for run in result.measured.values() if run.get("machine")}
    return list(distinct.values())


def _described(judgement: Judgement) -> OrderingRecord:
    return {
        "statement": judgement.ordering.statement,
        "claimed_by": "us" if judgement.ordering.ours else "the paper",
        "better": judgement.ordering.better.label,
        "worse": judgement.ordering.worse.label,
        "quantity": judgement.ordering.quantity,
        "column": judgement.column,
        "verdict": judgement.verdict,
        "text": judgement.text,
        "difference": judgement.difference,
        "interval": judgement.interval,
        "p_value": judgement.corrected,  # for the family of this study (Holm)
        "p_value_alone": judgement.p_value,
        "margin": judgement.ordering.margin,
        "cases": judgement.count,
        "seeds": judgement.seeds,
    }


def _table(result: StudyResult) -> list[JsonRecord]:
    """One line per cell and quantity: the paper's number and ours, in percent where the quantity is a share."""
    rows = []
    for cell in result.cells:
        paper = dict(cell.paper)
        for quantity in result.study.quantities:
            values = result.values(cell.row, cell.column, quantity)
            mean, spread = mean_and_spread(values)
            factor = 1.0 if quantity in PLAIN else 100.0
            rows.append(
                {
                    "row": cell.row,
                    "column": cell.column,
                    "quantity": quantity,
                    "paper": paper.get(quantity, ""),
                    "ours": "" if not values else repr(round(factor * mean, 4)),
                    "standard_deviation": "" if len(values) < 2 else repr(round(factor * spread, 4)),
                    "seeds": len(values),
                    "interpolated": _word(result.interpolated(cell.row, cell.column)),
                    "scale": result.scale,
                }
            )
    return rows


def _word(reached: bool | None) -> str:
    return "" if reached is None else "yes" if reached else "no"


def _runs(result: StudyResult) -> list[JsonRecord]:
    rows = []
    for (row, column, seed), run in result.measured.items():
        summary = {quantity: quantity_of(run, quantity) for quantity in result.study.quantities}
        rows.append(
            {"row": row, "column": column, "seed": seed, **summary}
            | {key: run.get(key) for key in ("epochs", "steps", "train_images", "feature_norm", "seconds", "stopped")}
        )
    return rows


def write_runs(path: Path, results: Mapping[str, JsonRecord]) -> None:
    """A line for each run: its settings, where they are not all the same, and what was measured."""
    settings = {name: value for run in results.values() for name, value in run["recipe"].items()}
    varied = [name for name in settings if len({str(run["recipe"].get(name)) for run in results.values()}) > 1]
    measures = ("accuracy", "best_accuracy", "ece", "feature_norm", "epochs", "steps", "seconds", "stopped")
    rows = []
    for name in sorted(results):
        run = results[name]
        detection = {
            f"{score}_{metric}": value
            for score, metrics in (run.get("ood") or {}).items()
            if isinstance(metrics, Mapping)
            for metric, value in metrics.items()
        }
        row = {"run": name} | {key: run["recipe"].get(key) for key in varied}
        fitted = run.get("training") or {}
        row |= {"training_accuracy": fitted.get("accuracy"), "interpolated": _word(fitted.get("interpolated"))}
        rows.append(row | {key: run.get(key) for key in measures} | detection)
    write_csv(path, rows)


def _markdown(result: StudyResult, judgements: Sequence[Judgement]) -> str:
    study = result.study
    lines = [
        f"# {study.claim}",
        "",
        f"`{study.id}`, scale `{result.scale}`, {_seeds(result)}. " + study.note,
        "",
    ]
    lines += [
        "Mean ± standard deviation over seeds, shares in percent; in brackets the paper's number. "
        + ("" if _seeds_of_all(result) else "n is the number of seeds. ")
        + f"{NOT_REACHED}: not every class of its training images is fitted to 99 %, so the regime the paper speaks of "
        "was not reached.",
        "",
    ]
    begun = result.begun()
    rows, columns = begun.rows, begun.columns
    for kind, all_of_them, shown in (("rows", result.rows, rows), ("columns", result.columns, columns)):
        left = [name for name in all_of_them if name not in shown]
        if left:
            lines += [f"No run yet in the {kind}: {'; '.join(left)}.", ""]
    quantities = [name for name in study.quantities if any(result.values(*at, name) for at in _places(result))]
    if len(columns) == 1:  # then the quantities are one side of the table, the longer one
        (column,) = columns
        if len(quantities) > len(rows):
            lines += _grid(column, rows, quantities, lambda name, row: _cell(result, name, row, column))
        else:
            lines += _grid(column, quantities, rows, lambda row, name: _cell(result, name, row, column))
    elif columns:
        for name in quantities:
            lines += _grid(name, columns, rows, partial(_cell, result, name))
    if judgements:
        lines += [
            "Orderings (tests paired by seed, corrected by Holm's method for all questions of this table, level "
            f"{100 * LEVEL:g} %; a positive difference is in favour of the statement, and not confirmed means that the "
            "opposite is significant):",
            "",
        ]
        for judgement in judgements:
            whose = "ours" if judgement.ordering.ours else "the paper's"
            verdict = f"**{judgement.verdict}**" if judgement.verdict in DECIDED else judgement.verdict
            lines.append(f"- {judgement.ordering.statement} ({whose}; {judgement.column}): {verdict}; {judgement.text}")
    lines += [f"- failed: {failure}" for failure in result.failures]
    return "\n".join(lines) + "\n"


def _seeds(result: StudyResult) -> str:
    seeds = "1 seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    done = len(result.measured)
    return seeds if done == result.wanted else f"{seeds}, of whose {result.wanted} runs {done} are there"


def _seeds_of_all(result: StudyResult) -> int | None:
    """How many seeds every cell has that was run; None where the cells differ, so that each has to say its own."""
    numbers = {len(result.of(*place)) for place in _places(result)}
    return numbers.pop() if len(numbers) == 1 else None


def _places(result: StudyResult) -> set[tuple[str, str]]:
    return {(row, column) for row, column, _ in result.measured}


def _grid(corner: str, heads: Sequence[str], rows: Sequence[str], show: Callable[[str, str], str]) -> list[str]:
    titles = [WORDS.get(head, head) for head in (corner, *heads)]
    return [markdown_text(titles, [(WORDS.get(row, row), *(show(row, head) for head in heads)) for row in rows]), ""]


def _cell(result: StudyResult, quantity: str, row: str, column: str) -> str:
    values = result.values(row, column, quantity)
    cell = result.cell(row, column)
    paper = None if cell is None else dict(cell.paper).get(quantity)
    factor, form = (1.0, ".4g") if quantity in PLAIN else (100.0, ".2f")
    mean, spread = mean_and_spread(values)
    ours = "" if not values else f"{factor * mean:{form}}"
    if len(values) > 1:
        ours += f" ± {factor * spread:{form}}"
    if values and _seeds_of_all(result) is None:
        ours += f" (n = {len(values)})"
    if values and result.interpolated(row, column) is False:
        ours += f" {NOT_REACHED}"
    return ours + (f" ({paper:.2f})" if paper is not None else "")
