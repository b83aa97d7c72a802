"""The application all commands hang on, and its entry point."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated

import typer

from unhinge.cli import data, evaluate, explore, predict, reproduce, train, verify
from unhinge.cli.completion import Commands
from unhinge.results.sealed import FULL

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    help="Exact training dynamics of the last layer of a classifier, and a check of every claim of the paper.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
FAILED, INTERRUPTED, CLOSED_PIPE = 1, 130, 141  # the last two: 128 plus the number of the signal, as shells report
for module in (verify, reproduce, train, evaluate, predict, explore, data):
    module.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from unhinge import __version__

        typer.echo(f"unhinge {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exact training dynamics of the last layer of a classifier, and a check of every claim of the paper."""


def main() -> None:
    """Entry point of the console script.

    The exit code is 0 where all is well, 1 where a statement failed or a run stopped, 2 for a wrong argument, 130 after
    Ctrl-C, and 141 where whoever read the output has left (`unhinge verify | head`), as for other programs.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where there is no Greek letter, a question mark does
    with _without_traces():
        code = _run()
    try:
        sys.stdout.flush()
    except OSError:
        code = CLOSED_PIPE
    if code == CLOSED_PIPE:  # else the interpreter complains when it closes what is closed already
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    sys.exit(code)


def _run() -> int:
    pressed = _CtrlC()
    try:
        app()
    except SystemExit as end:
        # Typer and Rich both end with 1 where a pipe is closed, which here means that a statement failed.
        if any(isinstance(cause, BrokenPipeError) for cause in _causes(end)):
            return CLOSED_PIPE
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
        return INTERRUPTED if pressed and code else code
    except BrokenPipeError:
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if pressed:
            return INTERRUPTED
        full = [cause.errno for cause in _causes(error) if isinstance(cause, OSError) and cause.errno in FULL]
        if not full:
            raise
        typer.echo(f"unhinge: {os.strerror(full[0])}. Make room and give the same command again.", err=True)
        return FAILED
    return 0


class _CtrlC:
    """Whether Ctrl-C was pressed. A library that is interrupted while it is imported may raise anything afterwards."""

    def __init__(self) -> None:
        self.pressed = False
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        signal.default_int_handler(number, frame)

    def __bool__(self) -> bool:
        return self.pressed


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it came from: a library may stumble once more while it cleans up."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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
