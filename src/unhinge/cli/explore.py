"""`unhinge explore`: the web page, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unhinge.cli.output import refuse
from unhinge.extras import MissingExtra, needed_for

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog="Examples:  [bold]unhinge explore[/]  ·  [bold]unhinge explore --port 9000 --no-browser[/]  ·  "
        "[bold]unhinge explore --results results/quick[/]"
    )(explore)


def explore(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port.", show_default="8765, or the next free one")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    host: Annotated[
        str, typer.Option(help="Where to listen; anything but this machine gives a warning.")
    ] = "127.0.0.1",
    results: Annotated[Path, typer.Option(help="Folder of results to browse.")] = Path("results"),
) -> None:
    """Open a page where every parameter of the theory has a control and every curve answers at once.

    The page is served by this machine for this machine: it asks no other host for anything and sends nothing anywhere.
    Its address holds its state, so it can be kept and shared. Ctrl-C ends it.
    """
    try:
        with needed_for("the page"):
            from unhinge.web.serve import is_local, serve

            served = serve(host, port, results)
    except MissingExtra as error:
        refuse(str(error))
    except (OSError, SystemExit):  # werkzeug leaves when a port is taken
        refuse(f"cannot listen on {host}, port {port}. Choose another port, or none for a free one.")
    if not is_local(host):
        typer.echo(
            f"unhinge: warning: the page listens on {host}, so other machines can open it and browse {results}. "
            "It has no password.",
            err=True,
        )
    typer.echo(f"unhinge explorer: {served.url}  (Ctrl-C ends it)")
    if not no_browser:
        import webbrowser

        webbrowser.open(served.url)
    try:
        served.run()
    except KeyboardInterrupt:
        typer.echo("unhinge: the page is closed.", err=True)
