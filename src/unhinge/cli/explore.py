"""`unhinge explore`: the web page, on this machine."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from unhinge.cli.output import examples, refuse
from unhinge.extras import MissingExtra, needed_for

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        epilog=examples(
            "unhinge explore",
            "unhinge explore --port 9000 --no-browser",
            "unhinge explore --results results/quick",
            "unhinge explore --export collapse.html",
        )
    )(explore)


def explore(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port.", show_default="8765, or the next free one")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    host: Annotated[
        str, typer.Option(help="Where to listen; anything but this machine gives a warning.")
    ] = "127.0.0.1",
    results: Annotated[
        Path | None, typer.Option(help="Folder of results to browse.", show_default="results, if there is one")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write one HTML file with live sliders that needs no Python, and exit."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user of this machine read the page, not only you.")
    ] = False,
) -> None:
    """Open a page where every parameter of the theory has a control and every curve answers at once.

    The page is served by this machine for this machine: it asks no other host for anything and sends nothing anywhere.
    Its address holds its state, so it can be kept and shared. The printed address also holds a token, which keeps other
    users of the machine out. Ctrl-C ends it.

    With --export nothing is served: a page with live sliders is written that can be mailed or put on a web site.
    """
    if results is not None and not results.is_dir():
        refuse(f"there is no folder {results} to browse. Leave --results out, or name one of unhinge reproduce --out.")
    if export is not None:
        _export(export)
        return
    folder = results or Path("results")
    token = None if no_token else secrets.token_urlsafe(16)
    try:
        socket.getaddrinfo(host, port)
        with needed_for("the page"):
            from unhinge.web.serve import is_local, serve

            served = serve(host, port, folder, token, helper=True)
    except MissingExtra as error:
        refuse(str(error))
    except socket.gaierror:
        refuse(f"there is no host {host!r}. Choose another --host.")
    except OSError:
        refuse(f"cannot listen on {host}, port {port}. Choose another port, or none for a free one.")
    if not is_local(host):
        typer.echo(
            f"unhinge: warning: the page listens on {host}, so other machines can reach it and browse {folder}. "
            + ("It asks for no token." if no_token else "Whoever has the address below can open it."),
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
        raise typer.Exit(130) from None


def _export(file: Path) -> None:
    try:
        with needed_for("the page"):
            from unhinge.web.address import default_state
            from unhinge.web.live import live_page
            from unhinge.web.view_free import FREE

            text = live_page(default_state("free", FREE.controls))
    except MissingExtra as error:
        refuse(str(error))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(f"cannot write {file}: {error.strerror}.")
    typer.echo(f"{file}: a page with live sliders, which any browser opens without Python.")
