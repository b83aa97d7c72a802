"""From studies to folders: which runs are missing, who does them, and the tables and figures of what is there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unhinge.paper.studies.cell import Cell, Task, follow, measured, read_run
from unhinge.paper.studies.draw import draw_study
from unhinge.paper.studies.study import Judgement, Study, StudyResult, judge, mean_and_spread, quantity_of
from unhinge.paper.studies.sweep import Engine, Failure, sweep
from unhinge.results.environment import environment
from unhinge.results.folders import writable
from unhinge.results.tables import write_csv

__all__ = ["Told", "reproduce_studies", "write_study"]

Told = Callable[[int, int, str], None]  # runs done, runs in all, what was done last
HALF = "halfway_accuracy"  # test accuracy at the middle of training: who is faster
PLAIN = ("feature_norm", "epochs")  # quantities that are no shares
TRAIN = "train_accuracy"  # in the last epoch: who interpolates


def reproduce_studies(
    studies: Sequence[Study],
    scale: str,
    out: str | Path,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    engine: Engine = "local",
    data_root: str | Path | None = None,
    train: bool = True,
    tell: Told | None = None,
) -> list[StudyResult]:
    """Run what is missing, and write each study's table and figure into its own folder of `out`.

    Besides, runs.csv has one line for every run there is, whichever study wanted it. All tables grow with each run.

    Arguments:
        studies: What to reproduce.
        scale: `quick`, `small` or `paper`.
        out: The folder of results. Runs lie below it by the key of their recipe; those done are never run again, and
            those interrupted are continued.
        seeds: How many; None: each study's own number at that scale.
        jobs: Runs at once.
        engine: Who does them; see :func:`sweep`.
        data_root: Where the data sets lie.
        train: False only collects what is there.
        tell: Called after each run.
    """
    folder = writable(Path(out))
    runs = writable(folder / "runs")
    plans = _shared([_planned(study, scale, seeds, runs, data_root) for study in studies])
    tasks = {place.task.name: place.task for plan in plans for place in plan}  # each run once, whoever shares it
    answers = {name: kept for name, task in tasks.items() if (kept := measured(task)) is not None}
    missing = [task for name, task in tasks.items() if name not in answers] if train else []
    done = len(answers)
    failures: dict[str, str] = {}
    # every run of the folder, of these studies or of others
    everything = {path.stem: run for path in sorted(runs.glob("*.json")) if (run := read_run(path)) is not None}
    write_csv(folder / "runs.csv", _summaries(everything))

    def result_of(number: int) -> StudyResult:
        return _collected(studies[number], scale, plans[number], answers, failures)

    if tell is not None:
        tell(done, len(tasks), "found")
    # A first number in every cell before second ones; and the longest first, so that no worker waits for the last.
    missing.sort(key=lambda task: (task.recipe.seed, -task.recipe.epochs))
    for task, answer in sweep(missing, follow, jobs=jobs, engine=engine):
        done += 1
        complaint = runs / f"{task.name}.failed.txt"
        if isinstance(answer, Failure):
            failures[task.name] = answer.reason
            complaint.write_text(answer.details or answer.reason, encoding="utf-8")
        else:
            complaint.unlink(missing_ok=True)
            answers[task.name] = everything[task.name] = answer
            write_csv(folder / "runs.csv", _summaries(everything))
        if tell is not None:
            tell(done, len(tasks), f"{task.name}{' FAILED' if isinstance(answer, Failure) else ''}")
        # streamed: whoever looks into the folder while it runs sees the numbers there are; figures come at the end
        for number, plan in enumerate(plans):
            if any(place.task.name == task.name for place in plan):
                write_study(result_of(number), folder, draw=False)
    results = [result_of(number) for number in range(len(studies))]
    for result in results:
        write_study(result, folder)
    return results


@dataclass(frozen=True)
class _Place:
    """A cell with one of its seeds, and the run that fills it."""

    cell: Cell
    seed: int
    task: Task


def _planned(study: Study, scale: str, seeds: int | None, runs: Path, data_root: str | Path | None) -> list[_Place]:
    root = None if data_root is None else str(data_root)
    return [
        _Place(cell, seed, Task(replace(cell.recipe, seed=seed), cell.ood, str(runs), root))
        for cell in study.cells(scale)
        for seed in range(study.seeds[scale] if seeds is None else seeds)
    ]


def _shared(plans: Sequence[list[_Place]]) -> list[list[_Place]]:
    """The same places, where a run that one study measures on unknown images as well serves the others too.

    Otherwise two workers would train one recipe in one folder at the same time.
    """
    fuller = {place.task.recipe: place.task for plan in plans for place in plan if place.task.ood is not None}
    return [
        [replace(p, task=fuller.get(p.task.recipe, p.task)) if p.task.ood is None else p for p in plan]
        for plan in plans
    ]


def _collected(
    study: Study,
    scale: str,
    plan: Sequence[_Place],
    answers: Mapping[str, dict[str, Any]],
    failures: Mapping[str, str],
) -> StudyResult:
    """What is measured of a study so far."""
    found, failed = {}, []
    for place in plan:
        cell, seed, name = place.cell, place.seed, place.task.name
        if name in answers:
            found[cell.row, cell.column, seed] = _extended(answers[name])
        elif name in failures:
            failed.append(f"{cell.row}, {cell.column}, seed {seed}: {failures[name]}")
    cells = list(dict.fromkeys(place.cell for place in plan))
    return StudyResult(study, scale, cells, sorted({place.seed for place in plan}), found, failed)


def _extended(result: dict[str, Any]) -> dict[str, Any]:
    """With what its curves say: the accuracy at half time, how well it fits its own images, where a stopped run was."""
    curves = {name: _numbers(curve) for name, curve in result.get("curves", {}).items()}
    if result.get("stopped") is not None:
        norms = curves.get("feature_norm")
        return result | {"feature_norm": norms[-1]} if norms else result
    test, train = (curves.get(name, []) for name in ("test_accuracy", "train_accuracy"))
    return result | ({HALF: test[len(test) // 2]} if test else {}) | ({TRAIN: train[-1]} if train else {})


def _numbers(curve: Sequence[Any]) -> list[float]:
    return [value for value in curve if isinstance(value, (int, float)) and math.isfinite(value)]


# ---- files ----------------------------------------------------------------------------------------------------------


def write_study(result: StudyResult, out: Path, draw: bool = True) -> Path:
    """table.csv, table.md, runs.csv and recipe.json of a study, and its figure.png and figure.pdf."""
    folder = out / result.study.id
    folder.mkdir(parents=True, exist_ok=True)
    rows = _table(result)
    write_csv(folder / "table.csv", rows)
    judgements = [one for ordering in result.study.orderings for one in judge(result, ordering)]
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
        "runs_wanted": len(result.cells) * len(result.seeds),
        "hours": round(sum(one["seconds"] for one in result.measured.values()) / 3600, 3),
        "failures": list(result.failures),
        "orderings": [_described(one) for one in judgements],
        "command": f"unhinge reproduce {result.study.id} --scale {result.scale} --seeds {len(result.seeds)}",
        "cells": [{"row": c.row, "column": c.column, "recipe": asdict(c.recipe), "ood": c.ood} for c in result.cells],
        **environment(),
    }
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if draw and result.measured:
        draw_study(result, folder)
    return folder


def _described(one: Judgement) -> dict[str, Any]:
    return {
        "statement": one.ordering.statement,
        "claimed_by": "us" if one.ordering.ours else "the paper",
        "better": one.ordering.better,
        "worse": one.ordering.worse,
        "quantity": one.ordering.quantity,
        "column": one.column,
        "verdict": one.verdict,
        "difference": one.difference,
        "p_value": one.p_value,
        "seeds": one.seeds,
    }


def _table(result: StudyResult) -> list[dict[str, Any]]:
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
                    "scale": result.scale,
                }
            )
    return rows


def _runs(result: StudyResult) -> list[dict[str, Any]]:
    rows = []
    for (row, column, seed), one in result.measured.items():
        summary = {quantity: quantity_of(one, quantity) for quantity in result.study.quantities}
        rows.append(
            {"row": row, "column": column, "seed": seed, **summary}
            | {key: one.get(key) for key in ("epochs", "steps", "train_images", "feature_norm", "seconds", "stopped")}
        )
    return rows


def _summaries(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each run: its settings, where they are not all the same, and what was measured."""
    settings = {name: value for one in results.values() for name, value in one["recipe"].items()}
    varied = [name for name in settings if len({str(one["recipe"].get(name)) for one in results.values()}) > 1]
    measures = ("accuracy", "best_accuracy", "ece", "feature_norm", "epochs", "steps", "seconds", "stopped")
    rows = []
    for name in sorted(results):
        one = results[name]
        detection = {
            f"{score}_{metric}": value
            for score, metrics in (one.get("ood") or {}).items()
            if isinstance(metrics, Mapping)
            for metric, value in metrics.items()
        }
        row = {"run": name} | {key: one["recipe"].get(key) for key in varied}
        rows.append(row | {key: one.get(key) for key in measures} | detection)
    return rows


def _markdown(result: StudyResult, judgements: Sequence[Judgement]) -> str:
    study = result.study
    lines = [
        f"# {study.claim}",
        "",
        f"`{study.id}`, scale `{result.scale}`, {_seeds(result)}. " + study.note,
        "",
    ]
    lines += ["Mean ± standard deviation over seeds, shares in percent; in brackets the paper's number.", ""]
    if len(result.columns) == 1:  # then the quantities are the columns
        (column,) = result.columns
        lines += _grid(column, study.quantities, result, lambda row, quantity: _cell(result, row, column, quantity))
    else:
        for quantity in study.quantities:
            show = partial(_of_quantity, result, quantity)
            lines += _grid(quantity, result.columns, result, show)
    if judgements:
        lines += ["Orderings (Welch's t-test over seeds, level 5 %):", ""]
        for one in judgements:
            whose = "ours" if one.ordering.ours else "the paper's"
            lines.append(f"- {one.ordering.statement} ({whose}; {one.column}): **{one.verdict}**, {one.text}")
    lines += [f"- failed: {failure}" for failure in result.failures]
    return "\n".join(lines) + "\n"


def _seeds(result: StudyResult) -> str:
    seeds = "1 seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    done, wanted = len(result.measured), len(result.cells) * len(result.seeds)
    return seeds if done == wanted else f"{seeds}, of whose {wanted} runs {done} are there"


def _grid(corner: str, heads: Sequence[str], result: StudyResult, show: Callable[[str, str], str]) -> list[str]:
    lines = [f"| {corner} | " + " | ".join(heads) + " |", "|" + " --- |" * (len(heads) + 1)]
    lines += [f"| {row} | " + " | ".join(show(row, head) for head in heads) + " |" for row in result.rows]
    return [*lines, ""]


def _of_quantity(result: StudyResult, quantity: str, row: str, column: str) -> str:
    return _cell(result, row, column, quantity)


def _cell(result: StudyResult, row: str, column: str, quantity: str) -> str:
    values = result.values(row, column, quantity)
    paper = next((dict(c.paper).get(quantity) for c in result.cells if (c.row, c.column) == (row, column)), None)
    factor, form = (1.0, ".4g") if quantity in PLAIN else (100.0, ".2f")
    mean, spread = mean_and_spread(values)
    ours = "" if not values else f"{factor * mean:{form}}"
    if len(values) > 1:
        ours += f" ± {factor * spread:{form}}"
    return ours + (f" ({paper:.2f})" if paper is not None else "")
