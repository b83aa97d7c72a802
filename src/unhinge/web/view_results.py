"""Browse what `unhinge reproduce` and `unhinge train` have written: the paper's words against our numbers."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dash import dcc, html
from dash.development.base_component import Component
from flask import Response, abort, send_from_directory

from unhinge.results.json import JsonRecord
from unhinge.results.sealed import SealError, read_sealed, unseal
from unhinge.web.controls import text
from unhinge.web.figures import PALETTES, figure
from unhinge.web.panels import Curve, Panel, Slot
from unhinge.web.study_sheet import LARGEST, csv_rows, is_study, numbers_of, orderings_of

if TYPE_CHECKING:
    from unhinge.paper.figures.registry import Panel as Drawn

__all__ = ["CONTROLS", "Item", "body", "export", "find_items", "send"]

CONTROLS = (text("item", "result", "The folder of the result, inside the folder of results.", ""),)
DEEPEST = 4  # folders below the one given
MOST = 400
SHOWN = {".png", ".pdf", ".csv", ".json", ".jsonl", ".md"}  # files that are handed out; none of them runs
KINDS = {"exact": "line", "flow": "dotted", "slope": "dashed", "level": "dotted", "sgd": "marks"}
RUN_PANELS = (
    ("training loss", "loss", ("train_loss",)),
    ("accuracy", "share", ("train_accuracy", "test_accuracy")),
    ("mean feature norm", "norm", ("feature_norm",)),
    ("neural collapse on training images", "no unit", ("nc1_ratio", "nc2_angle_features", "nc3", "nc4")),
    ("smallest prototype angle", "degrees", ("prototype_angle_min",)),
)


@dataclass(frozen=True)
class Item:
    """One finished result."""

    name: str  # its folder, relative to the folder of results
    kind: str  # figure, study (of trained networks) or run
    recipe: JsonRecord


def _message(words: str) -> Component:
    """A refusal, where the answer would be."""
    return html.Div(html.Strong(words), className="headline bad", role="alert")


def find_items(folder: Path) -> list[Item]:
    """The results in a folder and in the folders below it, by name; what cannot be read is left out."""
    items: list[Item] = []
    root = folder.resolve()
    for place, folders, files in os.walk(root):
        depth = len(Path(place).relative_to(root).parts)
        folders[:] = sorted(f for f in folders if not f.startswith(".")) if depth < DEEPEST else []
        if "recipe.json" not in files or len(items) >= MOST:
            continue
        kind = (
            "study" if is_study(files) else "figure" if "figure.png" in files else "run" if "log.jsonl" in files else ""
        )
        recipe = _json(Path(place) / "recipe.json")
        if kind and recipe is not None:
            items.append(Item(Path(place).relative_to(root).as_posix(), kind, recipe))
    return items


def _json(path: Path) -> JsonRecord | None:
    try:
        if path.stat().st_size > LARGEST:
            return None
        return read_sealed(path, older=True)
    except (OSError, ValueError):
        return None


def body(folder: Path, wanted: str, look: str) -> Component:
    """The list of results and the one that is wanted, or the first."""
    items = find_items(folder)
    if not items:
        return html.Div(
            [
                html.H2("Nothing to browse yet"),
                html.P(f"There are no results in the folder {folder}."),
                html.P(
                    [
                        "Make some with ",
                        html.Code("unhinge reproduce"),
                        " or ",
                        html.Code("unhinge train"),
                        ", or name another folder with ",
                        html.Code("unhinge explore --results DIR"),
                        ".",
                    ]
                ),
            ],
            className="sheet",
        )
    by_name = {item.name: item for item in items}
    chosen = by_name.get(wanted, items[0])
    missing = (
        [_message(f"There is no result {wanted[:80]!r} in {folder}; this is another.")]
        if wanted not in ("", *by_name)
        else []
    )
    sheet = {"figure": _figure_sheet, "study": _study_sheet, "run": _run_sheet}[chosen.kind](folder, chosen, look)
    return html.Div(
        [html.Nav(_list(items, chosen), title="results"), html.Div([*missing, *sheet], className="sheet")],
        className="results",
    )


def _list(items: Sequence[Item], chosen: Item) -> list[Component]:
    rows: list[Component] = []
    for kind, title in (("figure", "Figures"), ("study", "Trained networks"), ("run", "Training runs")):
        of_kind = [item for item in items if item.kind == kind]
        if of_kind:
            rows.append(html.H2(f"{title} ({len(of_kind)})"))
        for item in of_kind:
            sign = {True: "✔ ", False: "✘ ", None: ""}[_holds(item)]
            current = "true" if item is chosen else "false"
            marks: Any = {"data-do": "item", "data-item": item.name, "aria-current": current}
            rows.append(html.Button(sign + item.name, **marks))
    return rows


def _holds(item: Item) -> bool | None:
    checks = item.recipe.get("checks")
    if not isinstance(checks, list) or not checks:
        return None
    return all(isinstance(check, dict) and check.get("holds") is True for check in checks)


def _table(head: Sequence[str], rows: Sequence[Sequence[str | Component]]) -> Component:
    return html.Div(
        html.Table(
            [
                html.Thead(html.Tr([html.Th(cell) for cell in head])),
                html.Tbody([html.Tr([html.Td(cell) for cell in row]) for row in rows]),
            ]
        ),
        className="wide-table",
    )


def _verdict(holds: bool) -> Component:
    return html.Span("✔ holds" if holds else "✘ does not hold", className="holds" if holds else "fails")


def _checks(item: Item) -> list[tuple[str, bool, str]]:
    checks = [check for check in item.recipe.get("checks") or [] if isinstance(check, dict)]
    return [(str(c.get("statement", "")), bool(c.get("holds")), str(c.get("number", ""))) for c in checks]


def _errata(item: Item) -> list[tuple[str, str, str, str]]:
    from unhinge.paper.claims.errata import ERRATA

    shown = item.recipe.get("errata") or []
    return [(f"{e.number}: {e.where}", e.printed, e.right, e.evidence) for e in ERRATA if e.number in shown]


def _files(folder: Path, item: Item) -> Component:
    place = folder / item.name
    names = sorted(f.name for f in place.iterdir() if f.is_file() and f.suffix in SHOWN)
    links: list[Component | str] = ["Files: "]
    for name in names:
        links += [html.A(name, href=_url(item, name), target="_blank"), " · "]
    return html.P(links[:-1], className="small")


def _url(item: Item, name: str) -> str:
    return "results/" + quote(f"{item.name}/{name}" if item.name != "." else name)


def _origin(item: Item) -> str:
    recipe = item.recipe
    label = recipe.get("label")
    size = recipe.get("scale") or {}
    numbers = ""
    if isinstance(size, dict) and "num_classes" in size:
        numbers = f"; C = {size['num_classes']}, N = {size.get('per_class')}, p = {size.get('dim')}"
    origin = f"The paper's {label}" if label else "Beyond the paper"
    return f"{origin}{numbers}; seed {recipe.get('seed')}; {recipe.get('command', '')}"


def _figure_sheet(folder: Path, item: Item, look: str) -> list[Component]:
    recipe = item.recipe
    checks = [(words, _verdict(holds), number) for words, holds, number in _checks(item)]
    parts: list[Component] = [
        html.H2(str(recipe.get("claim") or item.name)),
        html.P(_origin(item), className="small"),
        html.Img(src=_url(item, "figure.png"), alt=str(recipe.get("footnote") or recipe.get("claim") or item.name)),
        html.H3("What the figure says, and what we found"),
        _table(("statement", "verdict", "number"), checks),
    ]
    errata = _errata(item)
    if errata:
        parts += [
            html.H3("The paper against ours"),
            _table(("where", "printed in the paper", "ours", "evidence"), errata),
        ]
    else:
        parts.append(html.P("No erratum: the printed figure and ours say the same.", className="small"))
    graphs = _curves(folder / item.name / "data.csv", str(recipe.get("id", "")), look)
    if graphs:
        parts += [html.H3("The same curves, to zoom and read"), html.Div(graphs, className="result-grid")]
    return [*parts, _files(folder, item)]


def _study_sheet(folder: Path, item: Item, look: str) -> list[Component]:
    recipe = item.recipe
    label = recipe.get("label")
    origin = f"The paper's {label}" if label else "Beyond the paper"
    made = f"{origin}; scale {recipe.get('scale')}; {recipe.get('runs')} of {recipe.get('runs_wanted')} runs"
    parts: list[Component] = [
        html.H2(str(recipe.get("claim") or item.name)),
        html.P(f"{made}; {recipe.get('command', '')}", className="small"),
    ]
    if (folder / item.name / "figure.png").is_file():
        parts.append(html.Img(src=_url(item, "figure.png"), alt=str(recipe.get("claim") or item.name)))
    orderings = orderings_of(recipe)
    if orderings:
        words = ("ordering", "claimed by", "where", "at this scale", "in its favour")
        parts += [html.H3("Which orderings hold"), _table(words, orderings)]
    head = ("row", "column", "quantity", "paper", "ours", "seeds")
    parts += [html.H3("The paper against ours"), _table(head, numbers_of(folder / item.name / "table.csv"))]
    return [*parts, _files(folder, item)]


def _curves(path: Path, name: str, look: str) -> list[Component]:
    # late: a page without results does without
    from unhinge.paper.figures.draw import pretty
    from unhinge.paper.figures.registry import Panel as Drawn

    rows = _rows(path)
    panels = _known_panels(name)
    palette: dict[str, int] = {}
    graphs = []
    for key in dict.fromkeys(row["panel"] for row in rows):
        groups: dict[tuple[str, str], tuple[list[float], list[float | None]]] = {}
        for row in rows:
            if row["panel"] == key:
                x, y = groups.setdefault((row["series"], row["kind"]), ([], []))
                x.append(_float(row["step"]) or 0.0)
                y.append(_float(row["value"]))
        curves = []
        for (series, kind), (x, y) in groups.items():
            # a level is named after the curve that it belongs to: "limit at lambda=0.1"
            own = next((known for known in palette if series.endswith(known)), series)
            color = palette.setdefault(own, len(palette))
            label = pretty(series) if kind == "exact" else f"{pretty(series)}, {kind}"
            curves.append(Curve(label, x, y, KINDS.get(kind, "line"), color))  # type: ignore[arg-type]
        known = panels.get(key) or Drawn(key, key.replace("_", " "), key.replace("_", " "), "linear")
        ylabel = known.title if "$" in known.ylabel else known.ylabel  # the page sets no formulas
        panel = Panel(known.xlabel, ylabel, curves, "", xlog=known.xscale == "log", ylog=known.yscale == "log")
        drawn = figure(panel, Slot(key, known.title, ""), look)
        # one legend above all panels, and no room for one in each
        drawn["layout"]["showlegend"], drawn["layout"]["margin"]["t"] = False, 8
        drawn["layout"]["hovermode"] = "closest"
        for trace in drawn["data"]:
            trace["hovertemplate"] = f"{trace['name']}<br>%{{x:.6g}}, %{{y:.5g}}<extra></extra>"
        graphs.append(_graph(known.title, drawn))
    colors = PALETTES[look]
    names = [html.Span(f"● {pretty(one)}", style={"color": colors[k % len(colors)]}) for one, k in palette.items()]
    words = "Lines are exact, marks are simulated, dashes are predicted:"
    legend = html.P([words, *(part for name in names for part in ("  ", name))], className="small")
    return [html.Div(legend, style={"gridColumn": "1 / -1"}), *graphs] if len(names) > 1 else graphs


def _graph(title: str, drawn: JsonRecord) -> Component:
    config: Any = {"displayModeBar": False, "responsive": True}
    return html.Article(
        [html.Div(html.H2(title), className="panel-head"), dcc.Graph(figure=drawn, config=config, className="graph")],
        className="panel",
    )


def _known_panels(name: str) -> dict[str, Drawn]:
    from unhinge.paper.figures.registry import find

    try:
        return {panel.key: panel for panel in find(name).panels}
    except KeyError:
        return {}


def _rows(path: Path) -> list[dict[str, str]]:
    wanted = ("panel", "series", "kind", "step", "value")
    return [row for row in csv_rows(path) if all(row.get(name) is not None for name in wanted)]


def _float(given: object) -> float | None:
    try:
        value = float(given)  # type: ignore[arg-type]  # whatever it is: what is no number is answered below
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _records(folder: Path) -> tuple[list[JsonRecord], str]:
    """The records of a run as far as their checksums hold, and what is wrong with the next line, or nothing."""
    log = folder / "log.jsonl"
    try:
        if log.stat().st_size > LARGEST:
            return [], f"log.jsonl has more than {LARGEST:,} bytes, and this page does not read it."
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return [], f"log.jsonl cannot be read: {error.strerror}."
    records: list[JsonRecord] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(unseal(line, f"Line {number} of log.jsonl"))
        except SealError as error:
            return records, f"{error} It and what follows is not shown."
    return records, ""


def _run_sheet(folder: Path, item: Item, look: str) -> list[Component]:
    records, complaint = _records(folder / item.name)
    last = records[-1] if records else {}
    parts: list[Component] = [
        html.H2(f"Training run {item.name}"),
        html.P(_run_line(records), className="small"),
    ]
    if complaint:
        parts.append(html.P(complaint, className="error", role="alert"))
    graphs = []
    for title, unit, keys in RUN_PANELS:
        curves = []
        for color, key in enumerate(keys):
            points = [(r.get("epoch"), r.get(key)) for r in records]
            kept = [(float(e), _float(v)) for e, v in points if isinstance(e, int | float) and _float(v) is not None]
            if kept:
                curves.append(Curve(key.replace("_", " "), [e for e, _ in kept], [v for _, v in kept], color=color))
        if curves:
            drawn = figure(Panel("epoch", unit, curves, ""), Slot(title, title, ""), look)
            for trace in drawn["data"]:
                trace |= {"mode": "lines+markers", "marker": {"size": 4}}
            graphs.append(_graph(title, drawn))
    parts.append(html.Div(graphs, className="result-grid"))
    if last:
        numbers = [(key.replace("_", " "), _short(value)) for key, value in last.items()]
        parts += [html.H3("The last epoch"), _table(("measure", "value"), numbers)]
    parts += [html.H3("Recipe"), _table(("setting", "value"), [(k, _short(v)) for k, v in _flat(item.recipe)])]
    return [*parts, _files(folder, item)]


def _run_line(records: Sequence[JsonRecord]) -> str:
    if not records:
        return "No epoch has been written yet."
    line = f"{len(records)} epochs"
    best = [_float(r.get("test_accuracy")) for r in records]
    known = [value for value in best if value is not None]
    return line + (f"; test accuracy {known[-1]:.4f} in the end, {max(known):.4f} at best" if known else "")


def _flat(recipe: JsonRecord) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key, value in recipe.items():
        if isinstance(value, dict):
            pairs += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            pairs.append((key, value))
    return pairs


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "-" if value is None else str(value)[:300]


def send(folder: Path, name: str) -> Response:
    """A file of a result, of the kinds that do not run, from inside the folder only."""
    if Path(name).suffix not in SHOWN or any(part.startswith(".") for part in Path(name).parts):
        abort(404, "There is no such file among the results.")
    inside = folder.resolve()
    if not (inside / name).resolve().is_relative_to(inside):  # a link may lead anywhere
        abort(404, "There is no such file among the results.")
    return send_from_directory(inside, name)


def export(folder: Path, wanted: str) -> str:
    """A result as one HTML file: its picture and its tables."""
    items = {item.name: item for item in find_items(folder)}
    if not items:
        raise ValueError(f"there are no results in {folder}.")
    item = items.get(wanted, next(iter(items.values())))
    place = folder / item.name
    picture = place / ("curves.png" if item.kind == "run" else "figure.png")
    image = ""
    if picture.is_file():
        image = f'<img alt="" src="data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode("ascii")}">'
    tables: list[tuple[str, Sequence[Sequence[str]]]] = [
        ("What the figure says", [(w, "holds" if h else "does not hold", n) for w, h, n in _checks(item)]),
        ("The paper against ours: where, printed, ours, evidence", _errata(item)),
        ("Which orderings hold", orderings_of(item.recipe)),
        ("Numbers: row, column, quantity, paper, ours, seeds", numbers_of(place / "table.csv")),
        ("Recipe", [(key, _short(value)) for key, value in _flat(item.recipe)]),
    ]
    sections = "".join(
        f"<h2>{escape(title)}</h2><table>"
        + "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
        + "</table>"
        for title, rows in tables
        if rows
    )
    title = escape(str(item.recipe.get("claim") or item.name))
    return f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.2rem; max-width: 70rem; }} img {{ max-width: 100%; }}
td {{ vertical-align: top; border-bottom: 1px solid #ccc; padding: 3px 8px; overflow-wrap: anywhere; }}</style></head>
<body><h1>{title}</h1><p>{escape(item.name)}</p>{image}{sections}</body></html>
"""
