"""The Dash application: views in, one page out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dash
import numpy as np
import torch
from dash import Input, Output, dcc, html
from flask import Flask, Response, request

from unhinge.results.json import as_json
from unhinge.web import view_results
from unhinge.web.address import State, from_address, unread
from unhinge.web.cache import SizedCache
from unhinge.web.controls import Control, written
from unhinge.web.exports import export_page
from unhinge.web.figures import THEMES, figure
from unhinge.web.live import live_page
from unhinge.web.page import answer_html, index, refusal
from unhinge.web.panels import Answer
from unhinge.web.safety import deadline, guard
from unhinge.web.uploads import LARGEST_FILE, UPLOADS
from unhinge.web.view_free import FREE
from unhinge.web.view_noise import NOISE
from unhinge.web.view_sphere import SPHERE
from unhinge.web.view_young import YOUNG
from unhinge.web.views import View

__all__ = ["VIEWS", "all_controls", "make_app", "solve"]

VIEWS: tuple[View, ...] = (FREE, SPHERE, NOISE, YOUNG)
LARGEST_KEPT = 32 * 2**20  # bytes of answers
LONGEST_UPLOAD = 30.0  # seconds
LOG = logging.getLogger(__name__)
SORRY = "Something went wrong in the explorer itself; the details are in its terminal. Another value may work."

ANSWERS: SizedCache[tuple[State, str], str] = SizedCache(LARGEST_KEPT, sys.getsizeof)  # two bytes a letter, with any γ
# Answers are computed by two threads, whoever asks: more of them would only slow each other down, and each thread that
# computes keeps memory of its own (the allocator's arenas).
WORKERS = ThreadPoolExecutor(2, thread_name_prefix="explorer")


def all_controls() -> dict[str, Sequence[Control]]:
    """The controls of each view by its name in the address."""
    return {view.key: view.controls for view in VIEWS} | {"results": view_results.CONTROLS}


def solve(state: State) -> Answer:
    """The answer to a state; a ValueError says what is wrong with the state."""
    view = next(view for view in VIEWS if view.key == state.view)

    def quietly() -> Answer:
        # A number that overflows is a gap in its curve, not a line in the terminal; and no answer is differentiated.
        with np.errstate(all="ignore"), torch.no_grad():
            return view.solve(state)

    return WORKERS.submit(quietly).result()


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
        state, _ = from_address(str(given.get("search") or ""), all_controls())
        item = state.word("item") if state.view == "results" else ""
        try:
            return view_results.body(folder, item, _look(given.get("look")))
        except Exception as error:  # a page must go on; the terminal has the trace
            _report(error)
            return html.P(SORRY, role="alert")


def _look(given: object) -> str:
    return given if given in THEMES else "light"


def answer_text(search: str, look: str) -> str:
    """All that the page shows for an address, as JSON: never an error, at worst a message."""
    state, messages = from_address(search, all_controls())
    known = {"view": state.view, "values": {key: written(value) for key, value in state.items}}
    notice = {"notice": " ".join(messages), "invalid": unread(search, all_controls())}
    start = as_json(known | notice, indent=None)
    if state.view == "results":
        return start
    try:
        shown = ANSWERS.get((state, look), lambda: as_json(shown_record(state, look), indent=None))
    except ValueError as error:
        shown = as_json({"told": refusal(str(error)), "failed": True}, indent=None)
    except Exception as error:  # a page must go on; the terminal has the trace
        _report(error)
        shown = as_json({"told": refusal(SORRY), "failed": True}, indent=None)
    return f"{start[:-1]}, {shown[1:]}"  # one object of both


def shown_record(state: State, look: str) -> dict[str, object]:
    """Words, figures and code of a state; every number in it is finite, since JSON has no other."""
    view = next(view for view in VIEWS if view.key == state.view)
    solved = solve(state)
    panels = solved.panels
    return {
        "told": answer_html(solved),
        "figures": {slot.key: figure(panels[slot.key], slot, look) for slot in view.slots},
        "titles": {slot.key: panels[slot.key].title or slot.title for slot in view.slots},
        "code": {key: panel.code for key, panel in panels.items()},
        "chosen": dict(solved.chosen),
    }


def _requested() -> tuple[str, str]:
    """The address that a request speaks of, and its look."""
    parts = request.query_string.decode("utf-8", errors="replace").split("&")
    look = _look(request.args.get("look"))
    return "?" + "&".join(part for part in parts if part and not part.startswith("look=")), look


def _routes(server: Flask, folder: Path) -> None:
    def answer() -> Response:
        return Response(answer_text(*_requested()), mimetype="application/json", headers={"Cache-Control": "no-store"})

    def export() -> Response:
        search, look = _requested()
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

    def live() -> Response:
        state, messages = from_address(_requested()[0], all_controls())
        try:
            if messages:
                raise ValueError(" ".join(messages))
            text = live_page(state)
        except ValueError as error:
            return Response(f"{error}\n", status=400, mimetype="text/plain")
        return Response(text, mimetype="text/html")

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
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

        return Response(get_plotlyjs(), mimetype="text/javascript", headers={"Cache-Control": "max-age=86400"})

    server.add_url_rule("/answer", "unhinge_answer", answer)
    server.add_url_rule("/export", "unhinge_export", export)
    server.add_url_rule("/live", "unhinge_live", live)
    server.add_url_rule("/upload", "unhinge_upload", upload, methods=["POST"])
    server.add_url_rule("/results/<path:name>", "unhinge_results", file)
    server.add_url_rule("/plotly.js", "unhinge_plotly", plotly)
