"""The application all commands hang on, and its entry point."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unhinge.cli import explore, predict, reproduce, train, verify

__all__ = ["app", "main"]

app = typer.Typer(
    help="Exact training dynamics of the last layer, and the paper's claims put to the test.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for module in (verify, reproduce, train, predict, explore):
    module.add_to(app)


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


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except BrokenPipeError:  # `unhinge verify | head`
        sys.stderr.close()
