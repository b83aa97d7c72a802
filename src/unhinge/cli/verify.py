"""`unhinge verify`: every claim of the paper, its verdict and its number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unhinge.cli.output import examples, progress_bar, refuse, writable

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog=examples(
            "unhinge verify",
            "unhinge verify thm2",
            "unhinge verify erratum-19 --json",
            "unhinge verify thm2 --out report",
        )
    )(verify)


def verify(
    claim: Annotated[
        list[str] | None,
        typer.Argument(
            help="Claims to explain at length: an id (theorem-2-bias), a group (thm2, cor1, lemma1), a LaTeX label, "
            "or an erratum (erratum-19); beyond for our own statements. Without any, all claims as a table."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random problems.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON list of records on stdout.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table on stdout.")] = False,
    html: Annotated[bool, typer.Option("--html", help="An HTML table (a fragment) on stdout.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the claims without testing them.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the table in every format and the report; with claims named, plots as well."),
    ] = None,
) -> None:
    """Test every claim of the paper: verdict, residual of the printed form and of ours, erratum.

    The verdict is [green]holds[/] (literally true; a remark says where it is loose), [yellow]corrected[/] (true once a
    symbol, a sign or a hypothesis is fixed) or [red]false as printed[/] (contradicted). A second table has our own
    statements beyond the paper; JSON, Markdown and HTML hold the paper's claims only. The exit code is 1 only
    if one of our own statements fails its tolerance, 2 for a wrong argument.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from unhinge.paper.claims import UnknownClaim, claims, find, own_statements

    if json + markdown + html + listing > 1:
        refuse("choose one of --json, --markdown, --html and --list: each of them takes all of stdout.")
    if listing and out is not None:
        refuse("--list tests nothing, so there is nothing to write: leave out --out, or --list.")
    try:
        chosen = [statement for name in claim for statement in find(name)] if claim else list(claims())
    except UnknownClaim as error:
        refuse(str(error))
    chosen = list(dict.fromkeys(chosen))
    console = Console()
    if listing:
        rows = Table.grid(padding=(0, 2))  # on a terminal titles wrap in their column; elsewhere a claim is a line
        for statement in chosen:
            rows.add_row(Text(statement.id, no_wrap=True), Text(statement.title))
            if not console.is_terminal:
                console.print(f"{statement.id:34}", statement.title, highlight=False, markup=False, soft_wrap=True)
        if console.is_terminal:
            console.print(rows)
        return

    from unhinge.paper.claims import report

    if out is not None:
        from unhinge.paper.report import write_report
        from unhinge.results.sealed import write_atomically

        writable(out)
    asked = chosen if claim else [*chosen, *own_statements()]
    tested = []
    pictures: list[str] = []
    with progress_bar("") as tell:
        for done, statement in enumerate(asked):
            tell(done, len(asked), statement.id)
            tested.append(statement.run(seed))
    records, own = tested[: len(chosen)], tested[len(chosen) :]

    texts = {"json": report.as_json, "csv": report.as_csv, "md": report.as_markdown, "html": report.as_html}
    if out is not None:
        try:
            for ending, render in (texts | {"json": report.as_sealed_json}).items():
                write_atomically(out / f"claims.{ending}", render(records).encode())
            write_report(out)
        except OSError as error:
            refuse(f"cannot write the verdicts to {out}: {error}.")
        if claim:  # a plot for each claim asked for, not for the whole table
            from unhinge.paper.claims.plots import draw_all

            pictures = [path.name for path in draw_all(records, out, seed)]
    if json or markdown or html:
        typer.echo(texts["json" if json else "md" if markdown else "html"](records))
    else:
        report.print_records(console, records, at_length=bool(claim))
        if own:
            console.print("\nBeyond the paper, our own statements (unhinge verify beyond):", highlight=False)
            report.print_records(console, own, at_length=False)
        if out is not None:
            files = ["claims.json", "claims.csv", "claims.md", "claims.html", "report.html", *pictures]
            console.print(f"Written to {out}: {', '.join(files)}.", highlight=False)
    if any(record.verdict == "OURS FAILS" for record in tested):
        raise typer.Exit(1)
