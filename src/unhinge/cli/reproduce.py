"""`unhinge list` and `unhinge reproduce`: the figures again, theory drawn over measurement."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unhinge.cli.output import progress_bar, refuse, writable

if TYPE_CHECKING:
    from unhinge.experiments import Experiment
    from unhinge.experiments.run import Result

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register both commands."""
    app.command("list", epilog="Example:  [bold]unhinge list[/]  ·  [bold]unhinge list --json[/]")(show_list)
    app.command(
        epilog="Examples:  [bold]unhinge reproduce[/]  ·  [bold]unhinge reproduce pal-toy --scale paper[/]  ·  "
        "[bold]unhinge reproduce regularized-gamma --seeds 3 --out figures[/]"
    )(reproduce)


def show_list(
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
) -> None:
    """What can be reproduced: id, the paper's own label, the finding, and the seconds it takes at each scale."""
    from unhinge.experiments import list_experiments

    entries = list_experiments()
    if json:
        typer.echo(jsonlib.dumps([_described(entry) for entry in entries], indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        pad_edge=False,
        show_lines=True,
        caption="Times on 2 cores. The paper's labels work as ids.",
        caption_justify="left",
    )
    table.add_column("id, the paper's label", no_wrap=True)
    table.add_column("quick", justify="right")
    table.add_column("paper", justify="right")
    table.add_column("finding")
    for entry in entries:
        times = (f"{entry.seconds[scale]:g} s" for scale in ("quick", "paper"))
        name = Text(entry.id).append(f"\n{entry.label or 'beyond the paper'}", style="dim")
        table.add_row(name, *times, entry.claim)
    Console().print(table)


def _described(entry: Experiment) -> dict[str, Any]:
    return {
        "id": entry.id,
        "label": entry.label,
        "claim": entry.claim,
        "panels": len(entry.panels),
        "errata": list(entry.errata),
        "seconds": dict(entry.seconds),
    }


def reproduce(
    id: Annotated[
        list[str] | None,
        typer.Argument(help="Ids or the paper's LaTeX labels, as `unhinge list` shows them. Without any, all."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="quick: small sizes, seconds. paper: the sizes printed (so does small for these figures)."),
    ] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="results/SCALE, in this folder")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random starts.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, from --seed on.")] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once.", show_default="one per core")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
) -> None:
    """Make the figures again: exact curves, really simulated SGD on top, predicted rates, what fails and by how much.

    Each figure gets a folder with PNG, PDF, the table it is drawn from as CSV, and its recipe; report.html shows all of
    them. What is already there, from the same code and seed, is kept, so an interrupted run continues. The exit code
    is 1 if a statement of a figure does not hold in this run, 2 for a wrong argument.
    """
    from unhinge.experiments import as_scale, find, write_report
    from unhinge.experiments import reproduce as make

    try:
        size = as_scale(scale)
        names = [find(name).id for name in id or []]
    except (KeyError, ValueError) as error:
        refuse(str(error.args[0]))
    folder = writable(out if out is not None else Path("results") / scale)
    with progress_bar() as bar:
        task = bar.add_task("figures", total=None)

        def advance(done: int, total: int, result: Result) -> None:
            bar.update(task, completed=done, total=total, description=result.id)

        try:
            made = make(names, size, folder, seed, seeds=seeds, progress=advance, jobs=jobs)
        except KeyboardInterrupt:
            typer.echo("unhinge: interrupted. The same command continues with what is missing.", err=True)
            raise typer.Exit(1) from None
    page = write_report(folder)
    if json:
        typer.echo(jsonlib.dumps([_record(result) for result in made], indent=2, ensure_ascii=False))
    else:
        _print(made, page)
    if not all(result.holds for result in made):
        raise typer.Exit(1)


def _record(result: Result) -> dict[str, Any]:
    recipe = result.recipe
    kept = ("claim", "label", "seed", "scale", "largest_deviation", "checks", "seconds", "versions", "commit")
    record = {"id": result.id, "holds": result.holds, "reused": result.reused, "folder": str(result.folder)}
    return record | {key: recipe[key] for key in kept}


def _print(made: list[Result], page: Path) -> None:
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
    console.print(f"Figures and tables: {page.parent}/  ·  Report: {page}", highlight=False, soft_wrap=True)
