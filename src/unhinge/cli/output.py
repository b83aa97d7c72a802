"""What every command says alike: refusals, progress, folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

__all__ = ["examples", "progress_bar", "refuse", "writable"]


def examples(*commands: str) -> str:
    """The end of a help text: one command a line, so that it can be copied."""
    return "\n".join(["Examples:", *(f"  [bold]{command}[/]" for command in commands)])


def refuse(message: str, *arguments: str) -> NoReturn:
    """Say what is wrong with an argument, without a stack trace, and leave with 2.

    Python's `arguments` become options: the first word of the message, and anywhere a name of several words. Readers of
    data sets call their folder `root=`; on the command line it is `--data-root`.
    """
    message = message.replace("with root=", "with --data-root")
    for name in arguments:
        message = message.replace(f"Pass {name}=", f"Pass --{name.replace('_', '-')}")
        if message.startswith(f"{name} ") or "_" in name:
            message = message.replace(name, f"--{name.replace('_', '-')}", 1)
    typer.echo(f"unhinge: {message}", err=True)
    raise typer.Exit(2)


def writable(folder: Path) -> Path:
    """The folder, made and tried; otherwise a refusal, before any work is done."""
    from unhinge.results.folders import writable as try_to_write

    try:
        return try_to_write(folder)
    except OSError as error:
        refuse(str(error))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[..., None]]:
    """A bar on stderr that vanishes when done: stdout is for results.

    What the block gets is to be told how many are done and of how many, and if it likes the name of the present one.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)  # where it is no terminal, a bar would leave an empty line
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, total: int, name: str = what) -> None:
            bar.update(task, completed=done, total=total, description=name)

        yield tell
