"""The sections of the report on trained networks: table, figure, and what became of each ordering."""

from __future__ import annotations

import csv
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from unhinge.paper.studies.judge import OrderingRecord
from unhinge.paper.studies.registry import STUDIES
from unhinge.paper.studies.study import WORDS
from unhinge.paper.studies.write import read_study
from unhinge.results.page import picture

__all__ = ["study_sections"]

COLORED = {"confirmed": "holds", "not confirmed": "fails"}


def study_sections(folder: Path) -> list[str]:
    """An HTML section for each study whose table lies in `folder`, in the catalogue's order."""
    return [_section(folder / name) for name in STUDIES if (folder / name / "table.csv").is_file()]


def _section(place: Path) -> str:
    recipe = read_study(place)
    with (place / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure = place / "figure.png"
    image = picture(figure, recipe["claim"]) if figure.is_file() else ""
    origin = f"The paper's <code>{html.escape(recipe['label'])}</code>" if recipe["label"] else "Beyond the paper"
    missing = recipe["runs_wanted"] - recipe["runs"]
    still = f" <b>{missing} of {recipe['runs_wanted']} runs are still to be made.</b>" if missing else ""
    failed = "".join(f"<li>{html.escape(failure)}</li>" for failure in recipe["failures"])
    return f"""<section class="figure" id="{recipe["id"]}">
<div class="sheet">
<h3>{recipe["id"]}</h3>
<p class="small">{origin}; scale <b>{recipe["scale"]}</b>, {len(recipe["seeds"])} seeds, {recipe["hours"]:.2f} hours of
computing.{still} {html.escape(recipe["note"])} <code>{html.escape(recipe["command"])}</code></p>
{image}
</div>
{_orderings(recipe["orderings"])}
<details open><summary>Numbers: the paper's and ours, mean ± standard deviation over seeds, shares in percent;
† not every class of the training images is fitted</summary>
<div class="wide">{_table(rows)}</div></details>
{f"<p>Failed runs:</p><ul>{failed}</ul>" if failed else ""}
</section>"""


def _orderings(orderings: Sequence[OrderingRecord]) -> str:
    if not orderings:
        return ""
    lines = [
        f"<tr><td>{html.escape(ordering['statement'])}</td><td>{ordering['claimed_by']}</td>"
        f"<td>{html.escape(ordering['column'])}</td>"
        f'<td><span class="{COLORED.get(ordering["verdict"], "")}">{ordering["verdict"]}</span></td>'
        f"<td>{html.escape(ordering.get('text', ''))}</td></tr>"  # older versions wrote none
        for ordering in orderings
    ]
    return (
        '<div class="wide"><table><thead><tr><th>ordering</th><th>claimed by</th><th>where</th><th>at this scale</th>'
        "<th>in its favour; paired t-test, corrected (Holm)</th></tr></thead><tbody>"
        + "\n".join(lines)
        + "</tbody></table></div>"
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """A line per row and quantity, a column per setting."""
    columns = list(dict.fromkeys(row["column"] for row in rows))
    lines = dict.fromkeys((row["row"], row["quantity"]) for row in rows)
    cells = {(row["row"], row["quantity"], row["column"]): row for row in rows}
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = []
    for name, quantity in lines:
        entries = "".join(f"<td class=number>{_cell(cells.get((name, quantity, column)))}</td>" for column in columns)
        body.append(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(WORDS.get(quantity, quantity))}</td>{entries}</tr>"
        )
    return f"<table><thead><tr><th></th><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(row: Mapping[str, str] | None) -> str:
    if row is None:
        return ""
    ours = f"{float(row['ours']):.2f}" if row["ours"] else "–"
    if row["standard_deviation"]:
        ours += f" ± {float(row['standard_deviation']):.2f}"
    if row["ours"] and row.get("interpolated") == "no":
        ours += " †"
    return ours + (f' <span class="small">(paper {float(row["paper"]):.2f})</span>' if row["paper"] else "")
