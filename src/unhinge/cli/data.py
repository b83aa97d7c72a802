"""`unhinge data`: which data sets are there, and how to get the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unhinge.cli.output import examples, refuse
from unhinge.results.json import as_json

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "data",
        epilog=examples("unhinge data", "unhinge data cifar10 --data-root ~/data", "unhinge data --json"),
    )(show)


def show(
    name: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets to look at, also folder:PATH of your own images. Without any, all."),
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(help="Folder with the data sets.", show_default="the variable UNHINGE_DATA, or data"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
) -> None:
    """Say which data sets are there, which are missing, where their files go, and which checksums they have.

    Nothing is downloaded. The test files of each set are read and compared with their published checksums. The exit
    code is 1 if a data set that was named is missing or damaged, 2 for a name that does not exist.
    """
    from unhinge.data.load import NAMES, no_such_data

    known = [data_set for data_set in NAMES if data_set != "folder:PATH"]
    for asked in name or ():
        if asked not in known and not asked.startswith("folder:"):
            refuse(str(no_such_data(asked, known)))
    records = [_record(data_set, data_root) for data_set in name or known]
    if json:
        typer.echo(as_json(records))
    else:
        _print(records)
    if name and not all(record["there"] for record in records):
        raise typer.Exit(1)


def _record(name: str, root: Path | None) -> dict[str, object]:
    import warnings

    from unhinge.data.load import load

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            images = load(name, root, train=name in ("digits", "glyphs"), checksum="error").test
    except (ValueError, OSError, ImportError) as error:
        words = str(error).replace("with root=", "with --data-root")
        return {"name": name, "there": False, "words": words.replace("Pass image_size=", "Train with --image-size")}
    shape = " x ".join(str(side) for side in images.images.shape[1:])
    words = f"{len(images):,} test images of {shape}, {len(images.classes):,} classes"
    return {"name": name, "there": True, "words": words}


def _print(records: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(pad_edge=False, show_lines=True)
    table.add_column("data set", overflow="fold", min_width=15, max_width=30)  # room for all names but a long path
    table.add_column("what is there, or how to get it", overflow="fold")  # an address cut short helps nobody
    for record in records:
        # "Not ready" is missing, damaged, or images of many sizes: the words beside it say which.
        mark = Text("there", style="green") if record["there"] else Text("not ready", style="yellow")
        table.add_row(Text(f"{record['name']}\n").append(mark), Text(str(record["words"])))
    Console().print(table)
