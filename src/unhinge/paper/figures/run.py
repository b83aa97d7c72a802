"""From ids to folders: compute, write, draw; what is already there is kept."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from unhinge.paper.figures.curves import (
    deviation_text,
    deviations,
    largest_deviation,
    read_rows,
    write_rows,
    write_summary,
)
from unhinge.paper.figures.draw import draw, explained, pretty
from unhinge.paper.figures.registry import Experiment, find, list_experiments
from unhinge.paper.figures.scale import Scale, as_scale
from unhinge.results.environment import environment
from unhinge.results.folders import writable
from unhinge.results.json import JsonRecord, plain
from unhinge.results.look import save
from unhinge.results.sealed import SealError, read_sealed, write_sealed
from unhinge.training.machine import using_threads

__all__ = ["Progress", "Result", "redraw", "reproduce", "results"]

# What the report asks of a recipe.json; one without is damaged or of another version, and made again.
WRITTEN = (
    *("id", "label", "claim", "note", "footnote", "scale", "seed", "parameters", "deviation", "deviations", "checks"),
    *("errata", "seconds", "versions", "commit", "command", "largest_deviation"),
)
FILES = ("data.csv", "summary.csv", "summary.md", "figure.png", "figure.pdf", "recipe.json")


@dataclass(frozen=True)
class Result:
    """One figure in its folder."""

    id: str
    folder: Path
    recipe: JsonRecord
    reused: bool = False

    @property
    def holds(self) -> bool:
        """Whether every statement the figure makes held in this run."""
        return all(check["holds"] for check in self.recipe["checks"])


Progress = Callable[[int, int, Result], None]  # done, all, the latest
Job = tuple[str, int, Path]  # id, seed, the folder its own folder goes to


def reproduce(
    ids: Sequence[str] = (),
    scale: str | Scale = "quick",
    out: str | Path = "results",
    seed: int = 0,
    progress: Progress | None = None,
    jobs: int | None = None,
    seeds: int = 1,
) -> list[Result]:
    """Make each figure in its own folder of `out`, and return them in the order asked for.

    Arguments:
        ids: Ids or LaTeX labels; none means all.
        scale: `quick` or `paper`.
        out: The folder of results. What lies there complete, from the same code, scale and seed, is kept.
        seed: Of the initial features and prototypes. The same seed gives the same CSV, byte by byte.
        progress: Called after each figure with the number done, the number of all, and the result.
        jobs: Processes at once; by default one per core, as far as there are figures to make. They are started afresh,
            so a script that asks for more than one keeps its own work under ``if __name__ == "__main__":``.
        seeds: Repeat with this many seeds, from `seed` on; those after the first go to ``out/seed-K``.
    """
    names = list(dict.fromkeys(find(name).id for name in ids)) or [entry.id for entry in list_experiments()]
    size, folder = as_scale(scale), Path(out)
    wanted = [
        (name, seed + extra, folder / f"seed-{seed + extra}" if extra else folder)
        for extra in range(seeds)
        for name in names
    ]
    for place in dict.fromkeys(place for _, _, place in wanted):
        writable(place)
    kept = {job: result for job in wanted if (result := _complete(job[2] / job[0], job[0], size, job[1]))}
    # the longest first, so that no core waits for the last one
    missing = sorted((job for job in wanted if job not in kept), key=lambda job: -find(job[0]).seconds[size.name])
    made = _make(missing, size, min(jobs or os.cpu_count() or 1, len(missing)))
    by_job: dict[Job, Result] = {}
    for done, (job, result) in enumerate(chain(kept.items(), made), 1):
        by_job[job] = result
        if progress is not None:
            progress(done, len(wanted), result)
    return [by_job[job] for job in wanted]


def results(out: str | Path) -> list[Result]:
    """The finished figures in a folder of results, in the registry's order."""
    places = {entry.id: Path(out) / entry.id for entry in list_experiments()}
    recipes = {id: recipe for id, place in places.items() if (recipe := _recipe(place)) is not None}
    return [Result(id, places[id], recipe, reused=True) for id, recipe in recipes.items()]


def _recipe(folder: Path) -> JsonRecord | None:
    """The recipe.json in a folder of ours; None where there is none, or where it or a table beside it is damaged."""
    try:
        recipe = read_sealed(folder / "recipe.json", older=True)
    except (OSError, SealError):
        return None
    return recipe if all(key in recipe for key in WRITTEN) else None


def redraw(folder: str | Path) -> None:
    """Draw a figure again from the table and the recipe in its folder; nothing is computed."""
    place = Path(folder)
    recipe = read_sealed(place / "recipe.json", older=True)
    entry = find(recipe["id"])
    rows = read_rows(place / "data.csv")
    save(
        draw(rows, entry.panels, entry.claim, recipe["footnote"], entry.columns, recipe["deviations"], entry.words),
        place,
    )


def _make(missing: list[Job], scale: Scale, jobs: int) -> Iterator[tuple[Job, Result]]:
    if jobs <= 1:
        for job in missing:
            yield job, _make_one(job, scale)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = {pool.submit(_make_one, job, scale): job for job in missing}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make_one(job: Job, scale: Scale) -> Result:
    """One figure, first beside its place and then moved there, so that a folder is complete or absent."""
    name, seed, folder = job
    entry = find(name)
    began = time.perf_counter()
    with using_threads(1):  # sums in one order whatever the machine: the same bytes; and two figures at once
        outcome = entry.compute(scale, seed)
    worst = largest_deviation(outcome.summary)
    footnote = f"Largest deviation of simulated SGD from the exact curve: {deviation_text(outcome.summary)}."
    names = (pretty(name) for name in dict.fromkeys(row.series for row in outcome.rows if row.kind == "exact"))
    seen = explained(entry.claim, entry.note, *names, *(f"{panel.title} {panel.xlabel}" for panel in entry.panels))
    hats = "A hat means divided by the norm." if any(r"\hat" in panel.ylabel for panel in entry.panels) else ""
    footnote = " ".join(part for part in (footnote, entry.note, seen, hats) if part)
    partial = folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    write_rows(outcome.rows, partial / "data.csv")
    write_summary(outcome.summary, partial / "summary.csv")
    printed = deviations(outcome.summary)
    save(draw(outcome.rows, entry.panels, entry.claim, footnote, entry.columns, printed, entry.words), partial)
    recipe: JsonRecord = {
        "id": entry.id,
        "label": entry.label,
        "claim": entry.claim,
        "errata": list(entry.errata),
        "note": entry.note,
        "footnote": footnote,
        "scale": asdict(scale),
        "seed": seed,
        "start": "independent standard normal features and prototypes, float64, from the seed",
        "parameters": dict(outcome.parameters),
        "largest_deviation": worst,
        "deviation": deviation_text(outcome.summary),
        "deviations": printed,
        "checks": [asdict(check) for check in outcome.checks],
        "seconds": round(time.perf_counter() - began, 2),
        "command": f"unhinge reproduce {entry.id} --scale {scale.name}" + (f" --seed {seed}" if seed else ""),
        "fingerprint": _fingerprint(entry),
        "look": _look(),
        **environment(),
    }
    _write_recipe(recipe, partial)
    final = folder / name
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    return Result(name, final, read_sealed(final / "recipe.json"))


def _complete(folder: Path, name: str, scale: Scale, seed: int) -> Result | None:
    """The result in that folder, if it is whole and what would be made now."""
    if not all((folder / file).is_file() for file in FILES):
        return None
    recipe = _recipe(folder)
    wanted = {"scale": asdict(scale), "seed": seed, "fingerprint": _fingerprint(find(name))}
    if recipe is None or any(recipe.get(key) != value for key, value in wanted.items()):
        return None
    if recipe.get("look") != _look():
        redraw(folder)
        recipe["look"] = _look()
        _write_recipe(recipe, folder)
    return Result(name, folder, recipe, reused=True)


def _write_recipe(recipe: JsonRecord, folder: Path) -> None:
    write_sealed(folder / "recipe.json", plain(recipe), beside=("data.csv", "summary.csv"), indent=2)


def _fingerprint(entry: Experiment) -> str:
    """A hash of the code that decides the numbers: results of other code are made again."""
    folder = Path(__file__).parent
    files = sorted((folder.parents[1] / "theory").rglob("*.py"))
    return _hash([*files, *(folder / name for name in ("scale.py", "simulate.py", "curves.py", f"{entry.module}.py"))])


def _look() -> str:
    """A hash of the code that decides the drawing: with another one, figures are drawn again from their tables."""
    file = Path(__file__)
    return _hash([file.with_name("draw.py"), file.parents[2] / "results" / "look.py"])


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
