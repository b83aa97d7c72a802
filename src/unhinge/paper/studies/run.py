"""From studies to folders: which runs are missing, who does them, and the tables and figures of what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path

from unhinge.data import DataError, load
from unhinge.paper.studies.cell import Cell
from unhinge.paper.studies.derived import extended
from unhinge.paper.studies.follow import Task, follow, measured, read_run
from unhinge.paper.studies.registry import STUDIES
from unhinge.paper.studies.study import Study, StudyResult
from unhinge.paper.studies.sweep import Engine, Failure, sweep
from unhinge.paper.studies.verdicts import write_verdicts
from unhinge.paper.studies.write import write_runs, write_study
from unhinge.results.folders import writable
from unhinge.results.json import JsonRecord
from unhinge.results.lock import only_writer

__all__ = ["Told", "check_data", "choose_cells", "planned", "reproduce_studies"]

Told = Callable[[int, int, str], None]  # runs done, runs in all, what was done last


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
    chosen: Callable[[Cell], bool] | None = None,
    tell: Told | None = None,
) -> list[StudyResult]:
    """Run what is missing, and write each study's table and figure into its own folder of `out`.

    Besides, runs.csv has one line for every run there is, whichever study wanted it, and verdicts.md one for every
    ordering that is claimed. All tables grow with each run.

    Arguments:
        studies: What to reproduce.
        scale: `quick`, `small` or `paper`.
        out: The folder of results. Runs lie below it by the key of their recipe; those done are never run again, and
            those interrupted are continued.
        seeds: How many; None: each study's own numbers at that scale, and in its tables what there is of further ones.
        jobs: Runs at once.
        engine: Who does them; see :func:`sweep`.
        data_root: Where the data sets lie.
        train: False only collects what is there.
        chosen: Which cells are trained, see :func:`choose_cells`; None: all. The tables show every run there is.
        tell: Called after each run.
    """
    folder = writable(Path(out))
    runs = writable(folder / "runs")
    with only_writer(runs):
        plans = _shared([planned(study, scale, seeds, runs, data_root) for study in studies])
        tasks = {place.task.name: place.task for plan in plans for place in plan}  # each run once, whoever shares it
        answers = {name: kept for name, task in tasks.items() if (kept := measured(task)) is not None}
        asked = {place.task.name for plan in plans for place in plan if chosen is None or chosen(place.cell)}
        missing = [task for name, task in tasks.items() if name in asked and name not in answers] if train else []
        done = len(answers)
        failures: dict[str, str] = {}
        # every run of the folder, of these studies or of others
        everything = {path.stem: run for path in sorted(runs.glob("*.json")) if (run := read_run(path)) is not None}
        write_runs(folder / "runs.csv", everything)

        def result_of(number: int) -> StudyResult:
            return _collected(studies[number], scale, plans[number], answers, failures)

        if tell is not None:
            tell(done, len(tasks), "found")
        # A first number in every cell before second ones. Several workers begin with the longest, so that none waits
        # for the last; one follows the order of the tables, so that what is done when it is stopped is a whole part.
        check_data(missing)
        missing.sort(key=lambda task: (task.recipe.seed, -task.recipe.epochs if jobs > 1 else 0))
        for task, answer in sweep(missing, follow, jobs=jobs, engine=engine):
            done += 1
            complaint = runs / f"{task.name}.failed.txt"
            if isinstance(answer, Failure) and answer.reason.startswith(DataError.__name__):
                # What one run does not find, the next ones will not find either: one message instead of one a run.
                raise DataError(f"{answer.reason.partition(': ')[2]} Nothing further was trained.")
            if isinstance(answer, Failure):
                failures[task.name] = answer.reason
                complaint.write_text(answer.details or answer.reason, encoding="utf-8")
            else:
                complaint.unlink(missing_ok=True)
                answers[task.name] = everything[task.name] = answer
                write_runs(folder / "runs.csv", everything)
            if tell is not None:
                tell(done, len(tasks), f"{task.name}{' FAILED' if isinstance(answer, Failure) else ''}")
            # streamed: whoever looks into the folder while it runs sees the numbers there are; figures come at the end
            for number, plan in enumerate(plans):
                if any(place.task.name == task.name for place in plan):
                    write_study(result_of(number), folder, draw=False)
        results = [result_of(number) for number in range(len(studies))]
        if not train:  # of a study of which nothing was run there is nothing to collect
            results = [result for result in results if result.measured]
        for result in results:
            write_study(result, folder)
        write_verdicts(list(STUDIES.values()), folder)
        return results


def choose_cells(
    studies: Sequence[Study], scale: str, rows: Sequence[str], columns: Sequence[str]
) -> Callable[[Cell], bool]:
    """Whether a cell stands in one of these rows and in one of these columns, by their labels; none given means all."""
    cells = [cell for study in studies for cell in study.cells(scale)]
    if (rows or columns) and not cells:
        raise ValueError("--row and --column choose from tables of trained networks, and none was asked for.")
    for what, labels, known in (
        ("row", rows, dict.fromkeys(cell.row for cell in cells)),
        ("column", columns, dict.fromkeys(cell.column for cell in cells)),
    ):
        for label in labels:
            if label not in known:
                raise ValueError(f"there is no {what} {label!r} in these tables. There are: {'; '.join(known)}.")
    return lambda cell: (not rows or cell.row in rows) and (not columns or cell.column in columns)


def check_data(tasks: Sequence[Task]) -> None:
    """Read the test images of every data set that these runs need, before the first of them starts.

    A :class:`DataError` says in one message what is missing, where it goes, and how many runs wait for it.
    """
    wanted: dict[tuple[str, str | None], int] = {}
    for task in tasks:
        for name in dict.fromkeys((task.recipe.data, *(task.ood or "").split(","))):
            if name and name != "noise":
                wanted[name, task.data_root] = wanted.get((name, task.data_root), 0) + 1
    missing, how = [], []
    for (name, root), runs in wanted.items():
        try:
            load(name, root, train=False)
        except DataError as error:
            missing.append(f"{runs} of {len(tasks)} runs need {name}")
            how.append(str(error))
    if missing:
        raise DataError(f"{', '.join(missing)}, and nothing was trained. {' '.join(how)}")


@dataclass(frozen=True)
class PlannedRun:
    """A cell with one of its seeds, and the run that fills it."""

    cell: Cell
    seed: int
    task: Task


def planned(study: Study, scale: str, seeds: int | None, runs: Path, data_root: str | Path | None) -> list[PlannedRun]:
    """Every cell of a study with every seed, and the run that fills it; with the study's own numbers of them also the
    next ones that are there, so that no table forgets what somebody once asked for."""
    root = None if data_root is None else str(data_root)

    def place(cell: Cell, seed: int) -> PlannedRun:
        return PlannedRun(cell, seed, Task(replace(cell.recipe, seed=seed), cell.ood, str(runs), root))

    places = []
    for cell in study.cells(scale):
        wanted = study.seeds_of(cell, scale) if seeds is None else seeds
        further = (place(cell, seed) for seed in count(wanted)) if seeds is None else iter(())
        there = takewhile(lambda found: measured(found.task) is not None, further)
        places += [*(place(cell, seed) for seed in range(wanted)), *there]
    return places


def _shared(plans: Sequence[list[PlannedRun]]) -> list[list[PlannedRun]]:
    """The same places, where a run that one study measures on unknown images as well serves the others too.

    Otherwise two workers would train one recipe in one folder at the same time. What is there already stays.
    """
    fuller = {place.task.recipe: place.task for plan in plans for place in plan if place.task.ood is not None}

    def served(place: PlannedRun) -> PlannedRun:
        task = fuller.get(place.task.recipe)
        if task is None or place.task.ood is not None or measured(place.task) is not None:
            return place
        return replace(place, task=task)

    return [[served(place) for place in plan] for plan in plans]


def _collected(
    study: Study,
    scale: str,
    plan: Sequence[PlannedRun],
    answers: Mapping[str, JsonRecord],
    failures: Mapping[str, str],
) -> StudyResult:
    """What is measured of a study so far."""
    measured, failed = {}, []
    for place in plan:
        cell, seed, name = place.cell, place.seed, place.task.name
        if name in answers:
            measured[cell.row, cell.column, seed] = extended(answers[name])
        elif name in failures:
            failed.append(f"{cell.row}, {cell.column}, seed {seed}: {failures[name]}")
    cells = list(dict.fromkeys(place.cell for place in plan))
    seeds = sorted({place.seed for place in plan})
    return StudyResult(study, scale, cells, seeds, measured, failed, whole=len(plan))
