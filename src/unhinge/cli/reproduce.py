"""`unhinge list` and `unhinge reproduce`: the paper's figures and tables."""

from __future__ import annotations

import os
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unhinge.cli.output import examples, progress_bar, refuse, writable
from unhinge.results.json import JsonRecord, as_json

if TYPE_CHECKING:
    from unhinge.paper.figures.registry import Experiment
    from unhinge.paper.figures.run import Result
    from unhinge.paper.figures.scale import Scale
    from unhinge.paper.studies.study import Study, StudyResult
    from unhinge.paper.studies.sweep import Engine

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register both commands."""
    app.command("list", epilog=examples("unhinge list", "unhinge list --json"))(show_list)
    app.command(
        epilog=examples(
            "unhinge reproduce",
            'unhinge reproduce "Figure 15" --scale paper',
            "unhinge reproduce regularized-gamma --seeds 3 --out figures",
        )
    )(reproduce)


def show_list(
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
) -> None:
    """List what can be reproduced: id, the paper's label, the finding, and what it costs at each scale."""
    from unhinge.paper.catalogue import list_studies
    from unhinge.paper.figures.registry import list_experiments

    figures, studies = list_experiments(), list_studies()
    if json:
        records = [*(_figure(entry) for entry in figures), *(_study(study) for study in studies)]
        typer.echo(as_json(records))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for title, heads, records in (
        ("Numerical figures", ("quick", "paper"), [_figure(entry) for entry in figures]),
        (
            "Trained networks: runs, and their time one after another",
            ("quick", "small", "paper"),
            [_study(study) for study in studies],
        ),
    ):
        # The finding stands below the name: as a column of its own it would have a few letters a line at 80 columns.
        table = Table(pad_edge=False, show_lines=True, title=title, title_justify="left")
        table.add_column("id, where in the paper, finding", min_width=max(len(record["id"]) for record in records))
        narrow = console.width < 60  # then the cost stands below as well
        for head in () if narrow else heads:
            table.add_column(head, justify="right", no_wrap=True)
        for record in records:
            origin = f"{record['printed']}: {record['label']}" if record["label"] else "beyond the paper"
            name = Text(record["id"], style="bold").append(f"\n{origin}", style="not bold dim")
            name.append(f"\n{record['claim']}", style="not bold")
            cost = [
                f"{record['runs'][head]}\n{record['cost'][head]}"
                if "runs" in record
                else f"{record['seconds'][head]:g} s"
                for head in heads
            ]
            if narrow:
                for head, words in zip(heads, cost, strict=True):
                    name.append(f"\n{head}: {words.replace(chr(10), ', ')}", style="not bold")
            table.add_row(name, *(() if narrow else cost))
        console.print(table)
    console.print(
        "Figures: on 2 cores. Networks: on one core at quick and small; at paper on one GPU, reckoned from its "
        "operations at 10 TFLOP/s. Studies share runs, so together they cost less.",
        highlight=False,
    )
    console.print(
        "Printed numbers (Figure 3, table2) and the paper's labels work as ids; so do the groups numerical, trained "
        "and all.",
        highlight=False,
    )


def _figure(entry: Experiment) -> JsonRecord:
    from unhinge.paper.numbers import printed_number

    return {
        "id": entry.id,
        "kind": "figure",
        "printed": printed_number(entry.id),
        "label": entry.label,
        "claim": entry.claim,
        "panels": len(entry.panels),
        "errata": list(entry.errata),
        "seconds": dict(entry.seconds),
    }


def _study(study: Study) -> JsonRecord:
    from unhinge.paper.numbers import printed_number
    from unhinge.paper.studies.cost import cost_of

    costs = {scale: cost_of(study, scale) for scale in ("quick", "small", "paper")}
    return {
        "id": study.id,
        "kind": study.kind,
        "printed": printed_number(study.id),
        "label": study.label,
        "claim": study.claim,
        "runs": {scale: cost.runs for scale, cost in costs.items()},
        "cost": {scale: str(cost) for scale, cost in costs.items()},
        "hours": {scale: cost.hours for scale, cost in costs.items()},
        "orderings": [ordering.statement for ordering in study.orderings],
    }


def reproduce(
    id: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids, printed numbers (Figure 3, fig3, table 2), LaTeX labels, or groups (numerical, trained, all), "
            "as `unhinge list` shows them. Without any, the numerical figures."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="quick: small sizes and embedded data. small: real data, small networks (numerical figures have the "
            "paper's size already). paper: the sizes printed."
        ),
    ] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="results/SCALE, in this folder")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random starts of numerical figures.")
    ] = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds.", show_default="1 for figures, 2 or 3 for networks")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once.", show_default="one per core")] = None,
    engine: Annotated[str, typer.Option(help="Where to train: local (processes here) or ray (a cluster).")] = "local",
    data_root: Annotated[Path | None, typer.Option(help="Folder with the data sets, for small and paper.")] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(help="Train only this row of the tables, by its label; may be given several times."),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Train only this column; may be given several times.")
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Compute nothing: tables, figures and the report of what is there.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
) -> None:
    """Reproduce the paper's figures and tables.

    A numerical figure shows the exact curves and, as markers, SGD simulated step by step. A table of trained networks
    shows our numbers beside the printed ones.

    Each gets a folder with PNG, PDF, its table as CSV, and its recipe; report.html shows all of them. What is already
    there, from the same code and seed, is kept, so an interrupted run continues. The exit code is 1 if a statement of a
    numerical figure does not hold in this run or a training run failed, 2 for a wrong argument, 130 after Ctrl-C.
    """
    from unhinge.data import DataError
    from unhinge.paper.catalogue import choose
    from unhinge.paper.figures.scale import as_scale
    from unhinge.paper.report import write_report
    from unhinge.paper.studies.run import choose_cells, reproduce_studies
    from unhinge.results.lock import LockError
    from unhinge.results.sealed import SealError

    try:
        size = as_scale(scale)
        figures, studies = choose(id or [])
        chosen = choose_cells(studies, scale, row or [], column or [])
    except (KeyError, ValueError) as error:
        refuse(str(error.args[0]))
    if engine not in ("local", "ray"):
        refuse(f"there is no engine {engine!r}. Choose one of: local, ray.")
    folder = writable(out if out is not None else Path("results") / scale)
    try:
        made = _figures(figures, size, folder, seed, seeds or 1, jobs, collect)
        trained: list[StudyResult] = []
        if studies:
            with progress_bar("training") as tell:
                trained = reproduce_studies(
                    studies,
                    scale,
                    folder,
                    seeds=seeds,
                    jobs=jobs or os.cpu_count() or 1,
                    engine=cast("Engine", engine),
                    data_root=data_root,
                    train=not collect,
                    chosen=chosen,
                    tell=tell,
                )
    except KeyboardInterrupt:
        typer.echo("unhinge: interrupted. The same command continues with what is missing.", err=True)
        raise typer.Exit(130) from None
    except (SealError, LockError, ImportError, DataError) as error:
        refuse(str(error))
    try:
        page = write_report(folder)
    except (FileNotFoundError, SealError) as error:  # --collect, and nothing is there; or what is there was changed
        refuse(str(error))
    if json:
        records = [*(_record(result) for result in made), *(_study_record(result, folder) for result in trained)]
        typer.echo(as_json(records))
    else:
        _print(made)
        _print_studies(trained, folder)
        typer.echo(f"Figures and tables: {page.parent}/  ·  Report: {page}")
    if not all(result.holds for result in made) or any(result.failures for result in trained):
        raise typer.Exit(1)


def _figures(
    chosen: list[Experiment], size: Scale, folder: Path, seed: int, seeds: int, jobs: int | None, collect: bool
) -> list[Result]:
    """The figures that were chosen, made or kept; with `collect` only those that are there."""
    names = [figure.id for figure in chosen]
    if not names:
        return []
    from unhinge.paper.figures.run import reproduce as make
    from unhinge.paper.figures.run import results

    if collect:
        return [result for result in results(folder) if result.id in names]
    with progress_bar("figures") as tell:

        def advance(done: int, total: int, result: Result) -> None:
            tell(done, total, result.id)

        return make(names, size, folder, seed, seeds=seeds, progress=advance, jobs=jobs)


def _study_record(result: StudyResult, folder: Path) -> JsonRecord:
    recipe = loads((folder / result.study.id / "recipe.json").read_text(encoding="utf-8"))
    del recipe["cells"]
    return {**recipe, "folder": str(folder / result.study.id)}


def _print_studies(studied: list[StudyResult], folder: Path) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from unhinge.results.tables import narrowed

    console = Console()
    for result in studied:
        table = (folder / result.study.id / "table.md").read_text(encoding="utf-8")
        console.print(Markdown(narrowed(table, console.width)))


def _record(result: Result) -> JsonRecord:
    recipe = result.recipe
    kept = ("claim", "label", "seed", "scale", "largest_deviation", "checks", "seconds", "versions", "commit")
    record = {"id": result.id, "holds": result.holds, "reused": result.reused, "folder": str(result.folder)}
    return record | {key: recipe[key] for key in kept}


def _print(made: list[Result]) -> None:
    if not made:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    wide = console.width >= 110  # a narrow terminal gets the rest; the report has the words
    table = Table(pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("seed", justify="right")
    table.add_column("SGD off the exact curve", justify="right")
    table.add_column("time", justify="right")
    if wide:
        table.add_column("finding")
    for result in made:
        recipe = result.recipe
        sign = Text("✔ ", style="green") if result.holds else Text("✘ ", style="bold red")
        time = "kept" if result.reused else f"{recipe['seconds']:.1f} s"
        finding = [recipe["claim"]] if wide else []
        table.add_row(sign + Text(result.id), str(recipe["seed"]), recipe["deviation"], time, *finding)
    console.print(table)
    for result in made:
        for check in result.recipe["checks"]:
            if not check["holds"]:
                console.print(f"✘ {result.id}: {check['statement']}: {check['number']}", style="red", highlight=False)
