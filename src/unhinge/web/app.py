"""The Dash application: views in, one page out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import dash
from dash import Input, Output, dcc, html
from flask import Flask, Response, request

from unhinge.results.json import as_json
from unhinge.web import view_results
from unhinge.web.address import State, from_address
from unhinge.web.answers import VIEWS, picture_of, solve, text_of, view_of
from unhinge.web.cache import SizedCache
from unhinge.web.controls import Control, written
from unhinge.web.exports import export_page, plotly_script
from unhinge.web.figures import THEMES
from unhinge.web.lanes import Lanes
from unhinge.web.live import live_page
from unhinge.web.page import index, refusal
from unhinge.web.safety import deadline, guard
from unhinge.web.uploads import LARGEST_FILE, UPLOADS

__all__ = ["LANES", "VIEWS", "all_controls", "make_app"]

LARGEST_KEPT = 16 * 2**20  # bytes of answers
LONGEST_UPLOAD = 30.0  # seconds
LOG = logging.getLogger(__name__)
SORRY = "Something went wrong in the explorer itself; the details are in its terminal. Another value may work."

# by state, look, and whether it is the picture; an answer takes two bytes a letter, with any γ in it
ANSWERS: SizedCache[tuple[State, str, bool], str] = SizedCache(LARGEST_KEPT, sys.getsizeof)
LANES = Lanes()


def all_controls() -> dict[str, Sequence[Control]]:
    """The controls of each view by its name in the address."""
    return {view.key: view.controls for view in VIEWS} | {"results": view_results.CONTROLS}


def make_app(
    results: str | Path = "results",
    hosts: Sequence[str] | None = ("127.0.0.1", "localhost"),
    token: str | None = None,
) -> dash.Dash:
    """The page as a Dash application.

    Arguments:
        results: The folder whose results can be browsed.
        hosts: Names under which the page may be asked for; None allows all. Others are refused, so that no other page
            can reach this one through a name of its own that leads here.
        token: What a first request must have in its address, so that other users of this machine cannot read the page;
            None asks for nothing.
    """
    app = dash.Dash(
        "unhinge",
        assets_folder=str(Path(__file__).with_name("assets")),
        serve_locally=True,
        title="unhinge explorer",
        update_title="",
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        assets_ignore=r"(explorer\.js|live\.)",  # the pages load them by themselves
        index_string=index(VIEWS, all_controls(), ("plotly.js", f"assets/explorer.js?{_file_version('explorer.js')}")),
        on_error=_report,
        enable_mcp=False,
    )
    folder = Path(results)
    _results(app, folder)
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_FILE + 2**16
    _routes(server, folder)
    guard(server, hosts, app, token)
    return app


def _file_version(name: str) -> int:
    """A number that changes with the file, so that no browser keeps an old one."""
    return int(Path(__file__).with_name("assets").joinpath(name).stat().st_mtime)


def _report(error: Exception) -> None:
    LOG.error("the explorer failed", exc_info=error)


def _results(app: dash.Dash, folder: Path) -> None:
    app.layout = html.Div(
        [
            dcc.Store(id="request-results"),
            html.Div(html.P("Reading the results ...", className="sheet"), id="results-body", style={"height": "100%"}),
        ],
        style={"height": "100%"},
    )

    @app.callback(Output("results-body", "children"), Input("request-results", "data"), prevent_initial_call=True)
    def show(asked: dict[str, object] | None) -> object:
        given = asked or {}
        state, _, _ = from_address(str(given.get("search") or ""), all_controls())
        item = state.word("item") if state.view == "results" else ""
        try:
            return view_results.body(folder, item, _look(given.get("look")))
        except Exception as error:  # a page must go on; the terminal has the trace
            _report(error)
            return html.P(SORRY, role="alert")


def _look(given: object) -> str:
    return given if given in THEMES else "light"


def answer_text(search: str, look: str, picture: bool = False) -> str:
    """Words and curves that the page shows for an address, or its moving picture, as JSON: never an error, at worst a
    message."""
    state, messages, wrong = from_address(search, all_controls())
    known = {"view": state.view, "values": {key: written(value) for key, value in state.items}}
    notice = {"notice": " ".join(messages), "invalid": wrong}
    start = as_json(known | notice, indent=None)
    if state.view == "results":
        return start
    try:
        own = dict(state.items).get("start") == "own"  # a file that was sent lies in the memory of this process
        run = LANES.run_here if own else LANES.run
        made = picture_of if picture else text_of
        shown = ANSWERS.get((state, look, picture), lambda: run(f"{made.__name__} {state.view}", made, state, look))
    except ValueError as error:
        shown = as_json({"told": refusal(str(error)), "failed": True}, indent=None)
    except Exception as error:  # a page must go on; the terminal has the trace
        _report(error)
        shown = as_json({"told": refusal(SORRY), "failed": True}, indent=None)
    return f"{start[:-1]}, {shown[1:]}"  # one object of both


def _requested() -> tuple[str, str]:
    """The address that a request speaks of, and its look."""
    parts = request.query_string.decode("utf-8", errors="replace").split("&")
    look = _look(request.args.get("look"))
    return "?" + "&".join(part for part in parts if part and not part.startswith("look=")), look


def _sent(text: str) -> Response:
    return Response(text, mimetype="application/json", headers={"Cache-Control": "no-store"})


def _file_of(made: Callable[[State, str], str]) -> Response:
    """What is made of the requested state and look as a page of its own, or in words why it cannot be."""
    search, look = _requested()
    state, messages, _ = from_address(search, all_controls())
    try:
        if messages:
            raise ValueError(" ".join(messages))
        return Response(made(state, look), mimetype="text/html")
    except ValueError as error:
        return Response(f"{error}\n", status=400, mimetype="text/plain")


def _routes(server: Flask, folder: Path) -> None:
    def answer() -> Response:
        return _sent(answer_text(*_requested()))

    def picture() -> Response:
        return _sent(answer_text(*_requested(), picture=True))

    def exported(state: State, look: str) -> str:
        if state.view == "results":
            return view_results.export(folder, state.word("item"))
        return export_page(view_of(state), state, LANES.run_here("export", solve, state), look)

    def export() -> Response:
        return _file_of(exported)

    def live() -> Response:
        return _file_of(lambda state, _: live_page(state))

    def upload() -> Response:
        if "X-Unhinge" not in request.headers:  # which no form of another page can send
            return Response("Send the file from the page itself.\n", status=403, mimetype="text/plain")
        try:
            with deadline(request.environ, LONGEST_UPLOAD):
                raw = request.get_data(cache=False)
            name = UPLOADS.add(raw)
        except ValueError as error:
            return Response(as_json({"error": str(error)}), status=400, mimetype="application/json")
        start = UPLOADS.get(name)
        words = f"{len(start.features):,} features, {len(start.weight):,} classes, p = {start.weight.shape[1]:,}"
        return Response(as_json({"name": name, "words": words}), mimetype="application/json")

    def file(name: str) -> Response:
        return view_results.send(folder, name)

    def plotly() -> Response:
        return Response(plotly_script(), mimetype="text/javascript", headers={"Cache-Control": "max-age=86400"})

    server.add_url_rule("/answer", "unhinge_answer", answer)
    server.add_url_rule("/picture", "unhinge_picture", picture)
    server.add_url_rule("/export", "unhinge_export", export)
    server.add_url_rule("/live", "unhinge_live", live)
    server.add_url_rule("/upload", "unhinge_upload", upload, methods=["POST"])
    server.add_url_rule("/results/<path:name>", "unhinge_results", file)
    server.add_url_rule("/plotly.js", "unhinge_plotly", plotly)
