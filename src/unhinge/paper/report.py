"""One self-contained page from a folder of results: no script, no font and no image from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from unhinge.paper.claims.errata import ERRATA
from unhinge.paper.claims.page import STYLE as CLAIMS_STYLE
from unhinge.paper.claims.page import claims_section, read_claims, residual_text
from unhinge.paper.figures.draw import SYMBOLS, pretty
from unhinge.paper.figures.registry import find
from unhinge.paper.figures.run import Result, results
from unhinge.paper.numbers import printed_number
from unhinge.paper.studies.report import study_sections
from unhinge.results.page import page, picture

__all__ = ["write_report"]

TITLE = "The unhinged loss: what holds, what does not, and by how much"
STYLE = """
span.holds { color: var(--good); font-weight: 600; } span.fails { color: var(--bad); font-weight: 600; }
caption { text-align: left; padding-bottom: .4rem; font-weight: 600; }
span.holds, span.fails { white-space: nowrap; }
@media screen and (max-width: 40rem) { figure { overflow-x: auto; } figure img { max-width: none; width: 44rem; } }
@media print { td code { font-size: 6.5pt; } div.sheet { break-inside: avoid; } figure img { max-height: 190mm; } }
"""

_KEY = "; ".join(f"<b>{symbol}</b> {meaning}" for symbol, meaning in SYMBOLS.items())
INTRODUCTION = f"""<p>The paper <i>On the Dynamics Under the Unhinged Loss and Beyond</i> (Zhou et al., JMLR 2023) says
what training does to the last layer of a classifier. Its loss is linear in the logits, so the whole training can be
computed exactly. This page tests the claims of the paper one by one, makes its figures, and lists its errata. In
the figures, lines are computed in closed form and markers are simulated with <code>torch.optim.SGD</code>.</p>
<details class="key" open><summary>What the symbols mean</summary><p class="small">{_KEY}; <b>N</b> the number of
examples of each class, if all classes have the same number; <b>p</b> the dimension of the features; <b>b</b> the
biases; <b>ETF</b> a simplex: class vectors of the same length with equal angles between them, as large as possible. A
<b>hat</b> means that something is divided by its norm.</p></details>"""


def write_report(out: str | Path) -> Path:
    """Write ``report.html`` into the folder of results `out`, from what lies there, and return its path.

    Arguments:
        out: A folder that :func:`reproduce` wrote; the verdicts come from the claims.json that ``unhinge verify --out``
            left there.
    """
    folder = Path(out)
    figures = results(folder)
    trained = study_sections(folder)
    verdicts = folder / "claims.json"
    if not figures and not trained and not verdicts.is_file():
        raise FileNotFoundError(
            f"neither figures nor verdicts in {folder}. Run `unhinge reproduce --out {folder}` first."
        )
    if verdicts.is_file():
        claims = claims_section(read_claims(folder))
    else:
        claims = (
            f"<p>Not tested yet: <code>unhinge verify --out {html.escape(str(folder))}</code> adds the verdicts.</p>"
        )
    sections = [f'<h2 id="claims">Claims</h2>\n{claims}', _figures_table(figures, _other_seeds(folder))]
    if figures:
        sections += ['<h2 id="figures-in-full">Figures</h2>', *(_figure(result) for result in figures)]
    if trained:
        sections += ['<h2 id="trained">Trained networks</h2>', *trained]
    sections += [_errata(figures, _measured(folder)), _how_made(figures)]
    body = f"""{INTRODUCTION}
<nav>{_links(bool(figures), bool(trained))}</nav>
{chr(10).join(sections)}"""
    path = folder / "report.html"
    path.write_text(page(TITLE, body, CLAIMS_STYLE + STYLE), encoding="utf-8")
    return path


def _links(figures: bool, trained: bool) -> str:
    places = {"claims": "Claims", "overview": "Overview", "figures-in-full": "Figures", "trained": "Trained networks"}
    places |= {"errata": "Errata", "made": "How it was made"}
    absent = {key for key, there in (("figures-in-full", figures), ("trained", trained)) if not there}
    return " · ".join(f'<a href="#{key}">{name}</a>' for key, name in places.items() if key not in absent)


def _verdict(holds: bool) -> str:
    return '<span class="holds">✔ holds</span>' if holds else '<span class="fails">✘ does not hold</span>'


def _other_seeds(folder: Path) -> list[Result]:
    return [result for place in sorted(folder.glob("seed-*")) for result in results(place)]


def _figures_table(figures: Sequence[Result], others: Sequence[Result]) -> str:
    rows = []
    for result in figures:
        recipe = result.recipe
        places = [printed_number(result.id), recipe["label"]]
        label = "".join(f'<br><span class="small">{html.escape(place)}</span>' for place in places if place)
        shown = ", ".join(f'<a href="#erratum-{n}">{n}</a>' for n in recipe["errata"]) or "none"
        rows.append(
            f'<tr><td><a href="#{result.id}">{result.id}</a>{label}</td><td>{html.escape(recipe["claim"])}</td>'
            f"<td>{_verdict(result.holds)}{_repeats(result, others)}</td>"
            f"<td class=number>{html.escape(recipe['deviation'])}</td>"
            f"<td>{shown}</td><td class=number>{recipe['seconds']:.1f} s</td></tr>"
        )
    return (
        '<h2 id="overview">Overview</h2>\n<div class="wide"><table><thead><tr><th>figure</th><th>finding</th>'
        "<th>verdict</th><th>SGD off the exact curve</th><th>errata shown</th><th>time</th></tr></thead><tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _repeats(result: Result, others: Sequence[Result]) -> str:
    held = [other.holds for other in others if other.id == result.id]
    return f'<br><span class="small">other seeds: {sum(held)} of {len(held)}</span>' if held else ""


def _figure(result: Result) -> str:
    recipe = result.recipe
    checks = "\n".join(
        f"<tr><td>{html.escape(pretty(check['statement']))}</td><td>{_verdict(check['holds'])}</td>"
        f"<td>{html.escape(check['number'])}</td></tr>"
        for check in recipe["checks"]
    )
    number = printed_number(result.id)
    origin = f"The paper's {number} (<code>{html.escape(recipe['label'])}</code>)" if number else "Beyond the paper"
    size = recipe["scale"]
    return f"""<section class="figure" id="{result.id}">
<div class="sheet">
<h3>{html.escape(recipe["claim"])}</h3>
<p class="small"><code>{result.id}</code>. {origin}; C = {size["num_classes"]}, N = {size["per_class"]},
p = {size["dim"]} unless its recipe says otherwise; seed {recipe["seed"]}.
<code>{html.escape(recipe["command"])}</code></p>
{picture(result.folder / "figure.png", recipe["claim"] + ". " + recipe["footnote"])}
</div>
<table><thead><tr><th>what the figure says</th><th></th><th>the number</th></tr></thead><tbody>{checks}</tbody></table>
</section>"""


def _measured(folder: Path) -> dict[int, list[str]]:
    """By erratum, the residuals of the claims that test it, as `unhinge verify --out` left them."""
    measured: dict[int, list[str]] = {}
    for record in read_claims(folder) if (folder / "claims.json").is_file() else []:
        printed, ours = (residual_text(record[key]) for key in ("printed_residual", "our_residual"))
        for number in record["errata"]:
            measured.setdefault(number, []).append(
                f"{record['id']}: printed form off by {printed}, right form by {ours}"
            )
    return measured


def _errata(figures: Sequence[Result], measured: Mapping[int, Sequence[str]]) -> str:
    shown: dict[int, list[str]] = {}
    for result in figures:
        for number in find(result.id).errata:
            shown.setdefault(number, []).append(result.id)
    rows = []
    for entry in ERRATA:
        links = " ".join(f'<a href="#{name}">{name}</a>' for name in shown.get(entry.number, []))
        evidence = "<br>".join(html.escape(text) for text in (entry.evidence, *measured.get(entry.number, [])))
        evidence += f"<br>figure: {links}" if links else ""
        rows.append(
            f'<tr id="erratum-{entry.number}"><td class=number>{entry.number}</td><td>{entry.severity}</td>'
            f"<td>{html.escape(entry.where)}</td><td>{html.escape(entry.printed)}</td>"
            f"<td>{html.escape(entry.right)}</td><td>{evidence}</td></tr>"
        )
    return (
        '<h2 id="errata">Errata</h2>\n<p class="small">A: false or undefined as printed. B: a formula or sign that an '
        "implementer would copy. C: a slip or loose wording.</p>\n"
        '<div class="wide"><table><thead><tr><th>no.</th><th></th><th>where</th><th>printed</th><th>right</th>'
        "<th style='width: 32%'>evidence</th></tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>"
    )


def _how_made(figures: Sequence[Result]) -> str:
    if not figures:
        return '<h2 id="made">How it was made</h2>\n<p>No figure has been made yet.</p>'
    first = figures[0].recipe
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    total = sum(result.recipe["seconds"] for result in figures)
    rows = "\n".join(
        f"<tr><td>{result.id}</td><td>{result.recipe['scale']['name']}</td><td>{result.recipe['seed']}</td>"
        f"<td><code>{html.escape(_parameters(result))}</code></td>"
        f"<td class=number>{result.recipe['seconds']:.1f} s</td></tr>"
        for result in figures
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
