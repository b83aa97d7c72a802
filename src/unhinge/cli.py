"""The command `unhinge`: parse, call, print. What a command needs is imported inside it, so that --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

__all__ = ["app", "main"]

app = typer.Typer(
    help="Exact training dynamics of the last layer, and the paper's claims put to the test.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from unhinge import __version__

        typer.echo(f"unhinge {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Exact training dynamics of the last layer, and the paper's claims put to the test."""


@app.command(
    epilog="Examples:  [bold]unhinge verify[/]  ·  [bold]unhinge verify thm2[/]  ·  "
    "[bold]unhinge verify erratum-19 --json[/]  ·  [bold]unhinge verify --out report[/]"
)
def verify(
    claim: Annotated[
        list[str] | None,
        typer.Argument(
            help="Claims to explain at length: an id (theorem-2-bias), a group (thm2, cor1, lemma1), a LaTeX label, "
            "or an erratum (erratum-19). Without any, all claims as a table."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random problems.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table on stdout.")] = False,
    html: Annotated[bool, typer.Option("--html", help="An HTML table (a fragment) on stdout.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the claims without testing them.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for claims.json, claims.csv, claims.md and claims.html.")
    ] = None,
) -> None:
    """Test every claim of the paper: verdict, residual of the printed form and of ours, erratum.

    The verdict is [green]holds[/], [yellow]corrected[/] (the printed form misses the tolerance and ours meets it) or
    [red]false as printed[/]. The exit code is 1 only if one of our own statements fails its tolerance, 2 for a wrong
    argument.
    """
    from rich.console import Console

    from unhinge.claims import UnknownClaim, claims, find

    if json + markdown + html + listing > 1:
        _refuse("choose one of --json, --markdown, --html and --list: each of them takes all of stdout.")
    try:
        chosen = [one for name in claim for one in find(name)] if claim else list(claims())
    except UnknownClaim as error:
        _refuse(str(error))
    chosen = list(dict.fromkeys(chosen))
    console = Console()
    if listing:
        for one in chosen:
            console.print(f"{one.id:34}", one.title, highlight=False, markup=False, soft_wrap=True)
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from unhinge.claims import report

    columns = TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    records = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for one in chosen:
            progress.update(task, description=one.id)
            records.append(one.run(seed))
            progress.advance(task)

    texts = {"json": report.as_json, "csv": report.as_csv, "md": report.as_markdown, "html": report.as_html}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for ending, render in texts.items():
            (out / f"claims.{ending}").write_text(render(records), encoding="utf-8")
    if json or markdown or html:
        typer.echo(texts["json" if json else "md" if markdown else "html"](records))
    else:
        report.print_records(console, records, at_length=bool(claim))
        if out is not None:
            console.print(f"Written to {out}: claims.json, claims.csv, claims.md, claims.html.", highlight=False)
    if any(record.verdict == "OURS FAILS" for record in records):
        raise typer.Exit(1)


def _refuse(message: str) -> NoReturn:
    """Say what is wrong with an argument, without a stack trace."""
    typer.echo(f"unhinge: {message}", err=True)
    raise typer.Exit(2)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except BrokenPipeError:  # `unhinge verify | head`
        sys.stderr.close()


if __name__ == "__main__":
    main()
