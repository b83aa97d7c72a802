"""One self-contained page from a folder of results: no script, no font and no image from elsewhere."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from unhinge.experiments.errata import ERRATA
from unhinge.experiments.registry import find
from unhinge.experiments.run import Result, results

__all__ = ["write_report"]

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; border-bottom: 2px solid #0072B2; }
h3 { font-size: 1.05rem; margin-bottom: .2rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .5rem; border-bottom: 1px solid #ccc; }
th { border-bottom: 2px solid #888; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.holds { color: #00664b; font-weight: 600; } .fails { color: #b34700; font-weight: 600; }
.note { background: #fff6e6; border-left: 4px solid #E69F00; padding: .4rem .7rem; }
.small { font-size: .85rem; color: #444; } code { font-size: .9em; overflow-wrap: anywhere; }
a { color: #00558a; }
@media print {
  body { max-width: none; margin: 0; font-size: 10pt; } section.figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } .wide { overflow: visible; } nav { display: none; }
}
"""


def write_report(out: str | Path, verdicts: str | None = None, title: str = "Reproduction report") -> Path:
    """Write ``report.html`` into the folder of results `out`, from what lies there, and return its path.

    Arguments:
        out: A folder that :func:`reproduce` wrote.
        verdicts: An HTML fragment with the verdict on each claim, shown first.
        title: The heading.
    """
    folder = Path(out)
    found = results(folder)
    if not found:
        raise FileNotFoundError(f"no finished figure in {folder}. Run `unhinge reproduce --out {folder}` first.")
    sections = [_figures_table(found)]
    if verdicts is not None:
        sections.insert(0, f'<h2 id="claims">Claims</h2>\n<div class="wide">{verdicts}</div>')
    sections.append('<h2 id="figures-in-full">Figures</h2>')
    sections += [_figure(result) for result in found]
    sections += [_errata(found), _made(found)]
    claims = '<a href="#claims">Claims</a> · ' if verdicts is not None else ""
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p>Exact training dynamics under the unhinged loss: every curve computed in closed form (lines) and simulated with
<code>torch.optim.SGD</code> (markers).</p>
<nav>{claims}<a href="#overview">Overview</a> · <a href="#figures-in-full">Figures</a> · <a href="#errata">Errata</a> ·
<a href="#made">How it was made</a></nav>
{chr(10).join(sections)}
</body></html>
"""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _verdict(holds: bool) -> str:
    return '<span class="holds">✔ holds</span>' if holds else '<span class="fails">✘ does not hold</span>'


def _figures_table(found: Sequence[Result]) -> str:
    rows = []
    for result in found:
        recipe = result.recipe
        label = f'<br><span class="small">{html.escape(recipe["label"])}</span>' if recipe["label"] else ""
        shown = ", ".join(f'<a href="#erratum-{n}">{n}</a>' for n in recipe["errata"]) or "none"
        rows.append(
            f'<tr><td><a href="#{result.id}">{result.id}</a>{label}</td><td>{html.escape(recipe["claim"])}</td>'
            f"<td>{_verdict(result.holds)}</td><td class=number>{recipe['largest_deviation']:.1e}</td>"
            f"<td>{shown}</td><td class=number>{recipe['seconds']:.1f} s</td></tr>"
        )
    return (
        '<h2 id="overview">Overview</h2>\n<div class="wide"><table><thead><tr><th>figure</th><th>finding</th>'
        "<th>verdict</th><th>SGD off the exact curve</th><th>errata shown</th><th>time</th></tr></thead><tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _figure(result: Result) -> str:
    recipe = result.recipe
    image = base64.b64encode((result.folder / "figure.png").read_bytes()).decode("ascii")
    checks = "\n".join(
        f"<tr><td>{html.escape(check['statement'])}</td><td>{_verdict(check['holds'])}</td>"
        f"<td>{html.escape(check['number'])}</td></tr>"
        for check in recipe["checks"]
    )
    note = f'<p class="note">{html.escape(recipe["note"])}</p>' if recipe["note"] else ""
    origin = f"the paper's <code>{html.escape(recipe['label'])}</code>" if recipe["label"] else "beyond the paper"
    size = recipe["scale"]
    return f"""<section class="figure" id="{result.id}">
<h3>{html.escape(recipe["claim"])}</h3>
<p class="small">{result.id}, {origin}; C = {size["num_classes"]}, N = {size["per_class"]}, p = {size["dim"]}
unless its recipe says otherwise; seed {recipe["seed"]}. <code>{html.escape(recipe["command"])}</code></p>
<figure><img alt="{html.escape(recipe["claim"])}" src="data:image/png;base64,{image}">
<figcaption class="small">{html.escape(recipe["footnote"])}</figcaption></figure>
{note}
<table><tbody>{checks}</tbody></table>
</section>"""


def _errata(found: Sequence[Result]) -> str:
    shown: dict[int, list[str]] = {}
    for result in found:
        for number in find(result.id).errata:
            shown.setdefault(number, []).append(result.id)
    rows = []
    for entry in ERRATA:
        links = " ".join(f'<a href="#{name}">{name}</a>' for name in shown.get(entry.number, []))
        evidence = html.escape(entry.evidence) + (f"<br>figure: {links}" if links else "")
        rows.append(
            f'<tr id="erratum-{entry.number}"><td class=number>{entry.number}</td><td>{entry.severity}</td>'
            f"<td>{html.escape(entry.where)}</td><td>{html.escape(entry.printed)}</td>"
            f"<td>{html.escape(entry.right)}</td><td>{evidence}</td></tr>"
        )
    return (
        '<h2 id="errata">Errata</h2>\n<p class="small">A: false or undefined as printed. B: a formula or sign that an '
        "implementer would copy. C: a slip or loose wording.</p>\n"
        '<div class="wide"><table><thead><tr><th>no.</th><th></th><th>where</th><th>printed</th><th>right</th>'
        "<th>evidence</th></tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>"
    )


def _made(found: Sequence[Result]) -> str:
    first = found[0].recipe
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    total = sum(result.recipe["seconds"] for result in found)
    rows = "\n".join(
        f"<tr><td>{result.id}</td><td>{result.recipe['scale']['name']}</td><td>{result.recipe['seed']}</td>"
        f"<td><code>{html.escape(_parameters(result))}</code></td>"
        f"<td class=number>{result.recipe['seconds']:.1f} s</td></tr>"
        for result in found
    )
    return f"""<h2 id="made">How it was made</h2>
<p class="small">{html.escape(versions)}; commit {html.escape(str(first["commit"] or "unknown"))};
{html.escape(first["platform"])}. All figures together: {total:.0f} s of computing. Every figure has a folder of its own
with the table it is drawn from (data.csv), a summary, PNG, PDF and the recipe. Deviations are relative to the exact
value, for accuracies absolute; values below 1e-9 of a curve's largest are left out.</p>
<div class="wide"><table><thead><tr><th>figure</th><th>scale</th><th>seed</th><th>parameters</th><th>time</th></tr>
</thead><tbody>
{rows}
</tbody></table></div>"""


def _parameters(result: Result) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in result.recipe["parameters"].items())


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return "1/(C-1)" if value is None else str(value)
