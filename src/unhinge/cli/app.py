"""The application all commands hang on, and its entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from unhinge.cli import explore, predict, reproduce, train, verify
from unhinge.cli.completion import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    help="Exact training dynamics of the last layer, and the paper's claims put to the test.",
    no_args_is_help=True,
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
    with _without_traces():
        try:
            app()
        except BrokenPipeError:  # `unhinge verify | head`
            sys.stderr.close()


@contextmanager
def _without_traces() -> Iterator[None]:
    """Give matplotlib and torch a folder that vanishes for what they would leave at home and among temporary files.

    Matplotlib keeps its own where it has one: there is its list of fonts already, and perhaps a person's settings.
    """
    home = Path.home()
    configured = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    cached = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    places = (configured / "matplotlib", cached / "matplotlib", home / ".matplotlib")
    with TemporaryDirectory(prefix="unhinge-", ignore_cleanup_errors=True) as folder:
        # Through the environment, where further processes find it too.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        if not any(place.is_dir() for place in places):
            os.environ.setdefault("MPLCONFIGDIR", folder)
        yield
