"""One page for each figure and table that can be made again, and their list.

Numerical figures are made at the quick scale when the site is built (those of the same code are kept); tables of
trained networks come from the committed folder results/SCALE/ID, where somebody has run them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generators.pages import Pages, cell, prose, repointed, table
from unhinge.paper.catalogue import list_studies
from unhinge.paper.figures.draw import explained, pretty
from unhinge.paper.figures.registry import Experiment, list_experiments
from unhinge.paper.numbers import printed_number
from unhinge.paper.studies.cost import cost_of
from unhinge.paper.studies.study import Study

__all__ = ["generate"]

SCALES = ("quick", "small", "paper")
ON = {"quick": "on a core", "small": "on a core", "paper": "on a GPU"}


def generate(pages: Pages, root: Path, cache: Path | None) -> None:
    """Without a cache no figure is made, and the pages say so."""
    figures, studies = list_experiments(), list_studies()
    quick = None if cache is None else _made(cache / "quick")
    for figure in figures:
        pages.write(f"reproduce/{figure.id}.md", _figure(pages, figure, quick, root))
    for study in studies:
        pages.write(f"reproduce/{study.id}.md", _study(pages, study, root))
    for page, folder in (("small", "small"), ("small-earlier", "small/earlier")):
        text = (root / "results" / folder / "README.md").read_text(encoding="utf-8")
        pages.write(f"reproduce/{page}.md", repointed(text))
    pages.write("reproduce/index.md", _index(figures, studies, root))


def _made(folder: Path) -> Path:
    print("making the numerical figures (under a minute; those of the same code are kept) ...", flush=True)
    command = [sys.executable, "-m", "unhinge", "reproduce", "--scale", "quick", "--out", str(folder), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def _index(figures: Sequence[Experiment], studies: Sequence[Study], root: Path) -> str:
    drawn = [(_shown(one), _named(one), *(f"{one.seconds[key]:g} s" for key in ("quick", "paper"))) for one in figures]
    trained = [
        (_shown(one), _named(one), *(_cost(one, scale) for scale in SCALES), _where(one, root)) for one in studies
    ]
    lines = [
        "# Figures and tables",
        "",
        "This page lists every figure and table of the paper, and some beyond it. `unhinge list` shows the same list, "
        "and `unhinge reproduce ID` makes one of them. You can use the paper's labels as ids too.",
        "",
        "There are three scales. `quick` uses small sizes and embedded data and takes seconds. `small` uses real data "
        "and small networks. `paper` uses the sizes of the paper. Every table says at which scale it was made. Do not "
        "compare numbers of different scales.",
        "",
        "## Numerical figures",
        "",
        "Lines are exact, and markers are SGD simulated step by step. Times are for two cores.",
        "",
        table(("what it shows", "id, the paper's label", "quick", "paper"), drawn),
        "## Trained networks",
        "",
        "The table gives the number of runs and the time that they take one after another: on one core at `quick` and "
        "`small`, on one GPU at `paper` (estimated from the number of operations at 10 TFLOP/s). Tables share runs, so "
        "all of them together cost less.",
        "",
        table(("what it shows", "id, the paper's label", *SCALES, "measured here"), trained),
        "All measurements at the small scale, and single runs outside these tables: [small scale](small.md).",
        "",
    ]
    for title, entries, extra in (
        ("Numerical figures", figures, ()),
        ("Trained networks", studies, ("small", "small-earlier")),
    ):
        lines += [
            "```{toctree}",
            ":hidden:",
            f":caption: {title}",
            "",
            *(f"{_short(one)} <{one.id}>" for one in entries),
            *extra,
            "```",
            "",
        ]
    return "\n".join(lines)


def _figure(pages: Pages, entry: Experiment, quick: Path | None, root: Path) -> str:
    costs = ", ".join(f"{entry.seconds[scale]:g} s at {scale}" for scale in ("quick", "paper"))
    lines = [*_head(entry), f"- Cost on two cores: {costs}"]
    if entry.errata:
        listed = ", ".join(f"[{number}](../errata.md#erratum-{number})" for number in entry.errata)
        lines += [f"- Errata shown: {listed}"]
    texts = (entry.claim, entry.note, *(f"{panel.title} {panel.xlabel}" for panel in entry.panels))
    words = [prose(text) + "\n" for text in (entry.note, explained(*texts)) if text]
    lines += ["", ":::{note}", *words, ":::", ""]
    lines += [*_command(entry.id, "quick", "paper"), ""]
    folders = [root / "results" / scale / entry.id for scale in ("paper", "small")]
    folders = [folder for folder in folders if (folder / "recipe.json").is_file()]
    if quick is not None:
        folders.append(quick / entry.id)
    for folder in folders:
        lines += _drawn(pages, entry, folder)
    if not folders:
        lines += ["This build has no figures; `make docs` makes them.", ""]
    return "\n".join(lines)


def _drawn(pages: Pages, entry: Experiment, folder: Path) -> list[str]:
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    scale = recipe["scale"]
    size = f"{scale['num_classes']} classes of {scale['per_class']} examples, {scale['dim']} dimensions"
    checks = [
        (cell(pretty(one["statement"])), "holds" if one["holds"] else "**does not hold**", cell(one["number"]))
        for one in recipe["checks"]
    ]
    caption = f"{size}, seed {recipe['seed']}. Lines are exact, and markers are simulated with `torch.optim.SGD`."
    lines = [f"## At the {scale['name']} scale", ""]
    lines += _picture(pages, folder, f"{entry.id}-{scale['name']}", entry.claim, caption)
    lines += ["What the figure shows, and what was measured:", ""]
    lines += [table(("statement", "verdict", "measured"), checks)]
    lines += [f"Largest deviation of simulated SGD from the exact curve: {cell(recipe['deviation'])}.", ""]
    return [*lines, _made_with(recipe), ""]


def _study(pages: Pages, study: Study, root: Path) -> str:
    costs = "; ".join(f"at {scale} {_cost(study, scale)} {ON[scale]}" for scale in SCALES)
    lines = [*_head(study), f"- Cost: {costs}", ""]
    if study.note:
        lines += [f":::{{note}}\n{prose(study.note)}\n:::", ""]
    if study.orderings:
        lines += ["These orderings are judged by paired t-tests over seeds, corrected by Holm's method:", ""]
        whose = {True: "ours", False: "the paper's"}
        lines += [*dict.fromkeys(f"- {cell(one.statement)} ({whose[one.ours]})" for one in study.orderings), ""]
    lines += [*_command(study.id, "quick", "small --data-root data", "paper --data-root data"), ""]
    measured = [scale for scale in ("paper", "small") if _has(root, study, scale)]
    for scale in measured:
        lines += _measured(pages, study, root / "results" / scale / study.id, scale)
    if not measured:
        lines += [
            ":::{admonition} Not measured here yet",
            f"This table has not been run at the small scale. `unhinge reproduce {study.id} --scale small --data-root "
            f"data` makes it: {_cost(study, 'small')} on a core.",
            ":::",
            "",
        ]
    return "\n".join(lines)


def _measured(pages: Pages, study: Study, folder: Path, scale: str) -> list[str]:
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    words = (folder / "table.md").read_text(encoding="utf-8").split("\n", 1)[1]  # the title is this page's
    done, wanted = recipe.get("runs", 0), recipe.get("runs_wanted", 0)
    lines = [f"## At the {scale} scale", ""]
    if done < wanted:
        lines += [f":::{{warning}}\nNot complete: {done} of {wanted} runs.\n:::", ""]
    lines += _picture(pages, folder, f"{study.id}-{scale}", study.claim, cell(study.claim))
    return [*lines, _in_words(words), "", _made_with(recipe), ""]


def _in_words(text: str) -> str:
    """The tables of numbers with the names that readers use, and with rows for columns where those are too many."""
    named = {"fpr95": "FPR95", "auroc": "AUROC", "aupr_in": "AUPR in", "known_spread": "spread of known images"}
    text = re.sub(r"\bood\.(\w+)\.(\w+)", lambda found: f"{found[1]}: {named.get(found[2], found[2])}", text)
    text = text.replace("| feature_norm |", "| feature norm |")
    return re.sub(r"(?:^\|.*\|\n)+", lambda found: _narrow(found[0]), text, flags=re.MULTILINE)


def _narrow(lines: str, most: int = 8) -> str:
    heads, _, *rows = ([one.strip() for one in line.strip("|").split("|")] for line in lines.splitlines())
    if len(heads) <= most:
        return lines
    columns = list(zip(heads, *rows, strict=True))
    return table(columns[0], columns[1:])


def _short(entry: Experiment | Study) -> str:
    """For the list at the side, where a whole sentence has no room: the journal's number, or our name."""
    number = printed_number(entry.id)
    return f"{number}: {entry.id}" if number else entry.id


def _head(entry: Experiment | Study) -> list[str]:
    return [f"# {cell(entry.claim)}", "", f"- Name: `{entry.id}`", f"- In the paper: {_label(entry)}"]


def _command(id: str, *scales: str) -> list[str]:
    return ["```console", *(f"$ unhinge reproduce {id} --scale {scale}" for scale in scales), "```"]


def _picture(pages: Pages, folder: Path, name: str, claim: str, caption: str) -> list[str]:
    if not (folder / "figure.png").is_file():
        return []
    pages.copy(folder / "figure.png", f"reproduce/{name}.png")
    words = claim.replace("[", "(").replace("]", ")")
    return [f"```{{figure}} {name}.png\n:alt: {words}\n:figclass: figure\n:width: 100%\n\n{caption}\n```", ""]


def _made_with(recipe: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in recipe.get("versions", {}).items())
    took = f"{recipe['seconds']:g} s" if "seconds" in recipe else f"{recipe.get('hours', 0):g} hours of training"
    return f"Made with `{recipe['command']}` in {took}; {cell(versions)}; {cell(recipe.get('platform', ''))}."


def _shown(entry: Experiment | Study) -> str:
    return f"[{cell(entry.claim)}]({entry.id}.md)"


def _named(entry: Experiment | Study) -> str:
    return f"`{entry.id}`<br>{_label(entry)}"


def _label(entry: Experiment | Study) -> str:
    return f"{printed_number(entry.id)}, `{entry.label}`" if entry.label else "beyond the paper"


def _cost(study: Study, scale: str) -> str:
    cost = cost_of(study, scale)
    return f"{cost.runs} runs, {cost}"


def _has(root: Path, study: Study, scale: str) -> bool:
    return (root / "results" / scale / study.id / "table.md").is_file()


def _where(study: Study, root: Path) -> str:
    return ", ".join(f"at {scale}" for scale in ("small", "paper") if _has(root, study, scale)) or "not yet"
