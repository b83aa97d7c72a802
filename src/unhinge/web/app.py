"""The Dash application: views in, one page out."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dash
from dash import Input, Output, dcc, html
from flask import Flask, Response, request

from unhinge.web import view_results
from unhinge.web.address import State, from_address
from unhinge.web.controls import Control, written
from unhinge.web.exports import export_page
from unhinge.web.figures import THEMES, figure
from unhinge.web.page import index, refusal, told
from unhinge.web.panels import Answer
from unhinge.web.safety import guard
from unhinge.web.uploads import LARGEST_FILE, UPLOADS
from unhinge.web.view_free import FREE
from unhinge.web.view_noise import NOISE
from unhinge.web.view_sphere import SPHERE
from unhinge.web.views import Kept, View

__all__ = ["VIEWS", "all_controls", "make_app", "solve"]

VIEWS: tuple[View, ...] = (FREE, SPHERE, NOISE)
KEPT = Kept()
LOG = logging.getLogger(__name__)
SORRY = "Something went wrong in the explorer itself; the details are in its terminal. Another value may work."


def all_controls() -> dict[str, Sequence[Control]]:
    """The controls of each view by its name in the address."""
    return {view.key: view.controls for view in VIEWS} | {"results": view_results.CONTROLS}


def solve(state: State) -> Answer:
    """The answer to a state, kept for the next time it is asked; a ValueError says what is wrong with the state."""
    view = next(view for view in VIEWS if view.key == state.view)
    return KEPT.answer(state, view.solve)


def make_app(results: str | Path = "results", hosts: Sequence[str] | None = ("127.0.0.1", "localhost")) -> dash.Dash:
    """The page as a Dash application.

    Arguments:
        results: The folder whose results can be browsed.
        hosts: Names under which the page may be asked for; None allows all. Others are refused, so that no other page
            can reach this one through a name of its own that leads here.
    """
    app = dash.Dash(
        "unhinge",
        assets_folder=str(Path(__file__).with_name("assets")),
        serve_locally=True,
        title="unhinge explorer",
        update_title="",
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        assets_ignore=r"explorer\.js",  # the page loads it by itself
        index_string=index(VIEWS, all_controls(), ("plotly.js", f"assets/explorer.js?{_age('explorer.js')}")),
        on_error=_report,
        enable_mcp=False,
    )
    folder = Path(results)
    _results(app, folder)
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_FILE + 2**16
    _routes(server, folder)
    guard(server, hosts, app)
    return app


def _age(name: str) -> int:
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
    def show(asked: dict[str, Any] | None) -> Any:
        given = asked or {}
        state, _ = from_address(str(given.get("search") or ""), all_controls())
        item = state.word("item") if state.view == "results" else ""
        try:
            return view_results.body(folder, item, _look(given.get("look")))
        except Exception as error:  # a page must go on; the terminal has the trace
            _report(error)
            return html.P(SORRY, role="alert")


def _look(given: Any) -> str:
    return given if given in THEMES else "light"


def answer_record(search: str, look: str) -> dict[str, Any]:
    """All that the page shows for an address, as plain values: never an error, at worst a message."""
    began, worked = time.perf_counter(), time.thread_time()
    state, messages = from_address(search, all_controls())
    record: dict[str, Any] = {
        "view": state.view,
        "values": {key: written(value) for key, value in state.items},
        "notice": " ".join(messages),
    }
    if state.view == "results":
        return record
    view = next(view for view in VIEWS if view.key == state.view)
    try:
        found = solve(state)
    except ValueError as error:
        return record | {"told": refusal(str(error)), "failed": True}
    except Exception as error:  # a page must go on; the terminal has the trace
        _report(error)
        return record | {"told": refusal(SORRY), "failed": True}
    panels = found.panels
    return record | {
        "told": told(found),
        "figures": {slot.key: figure(panels[slot.key], slot, look) for slot in view.slots},
        "titles": {slot.key: panels[slot.key].title or slot.title for slot in view.slots},
        "code": {key: panel.code for key, panel in panels.items()},
        "chosen": dict(found.chosen),
        "milliseconds": 1000 * (time.perf_counter() - began),
        "processor": 1000 * (time.thread_time() - worked),
    }


def _asked() -> tuple[str, str]:
    """The address that a request speaks of, and its look."""
    parts = request.query_string.decode("utf-8", errors="replace").split("&")
    look = _look(request.args.get("look"))
    return "?" + "&".join(part for part in parts if part and not part.startswith("look=")), look


def _routes(server: Flask, folder: Path) -> None:
    def answer() -> Response:
        text = json.dumps(answer_record(*_asked()), separators=(",", ":"), allow_nan=False)
        return Response(text, mimetype="application/json", headers={"Cache-Control": "no-store"})

    def export() -> Response:
        search, look = _asked()
        state, messages = from_address(search, all_controls())
        try:
            if messages:
                raise ValueError(" ".join(messages))
            if state.view == "results":
                text = view_results.export(folder, state.word("item"))
            else:
                view = next(view for view in VIEWS if view.key == state.view)
                text = export_page(view, state, solve(state), look)
        except ValueError as error:
            return Response(f"{error}\n", status=400, mimetype="text/plain")
        return Response(text, mimetype="text/html")

    def upload() -> Response:
        if "X-Unhinge" not in request.headers:  # which no form of another page can send
            return Response("Send the file from the page itself.\n", status=403, mimetype="text/plain")
        try:
            name = UPLOADS.add(request.get_data(cache=False))
        except ValueError as error:
            return Response(json.dumps({"error": str(error)}), status=400, mimetype="application/json")
        start = UPLOADS.get(name)
        words = f"{len(start.features):,} features, {len(start.weight):,} classes, p = {start.weight.shape[1]:,}"
        return Response(json.dumps({"name": name, "words": words}), mimetype="application/json")

    def file(name: str) -> Response:
        return view_results.send(folder, name)

    def plotly() -> Response:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

        return Response(get_plotlyjs(), mimetype="text/javascript", headers={"Cache-Control": "max-age=86400"})

    server.add_url_rule("/answer", "unhinge_answer", answer)
    server.add_url_rule("/export", "unhinge_export", export)
    server.add_url_rule("/upload", "unhinge_upload", upload, methods=["POST"])
    server.add_url_rule("/results/<path:name>", "unhinge_results", file)
    server.add_url_rule("/plotly.js", "unhinge_plotly", plotly)
