"""The catalogue of parts: each loss, head, penalty and measure with its formula, when to use it, and when not.

What a part is comes from its docstring, its formula from there or from docs/guide/parts.md, the advice from
docs/parts.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from generators.api import Entry, entries, public_modules
from generators.pages import Pages, table

__all__ = ["LISTED", "advice", "formulas", "generate"]

TABLE = Path("docs", "guide", "parts.md")
# title, and the module whose names it lists
LISTED = (
    ("Losses, heads and regularizers", "unhinge.nn"),
    ("The same as functions", "unhinge.nn.functional"),
    ("Measures", "unhinge.metrics"),
    ("Watching a training run", "unhinge.monitor"),
    ("Out-of-distribution detection", "unhinge.ood"),
)


def generate(pages: Pages, root: Path) -> None:
    known, told, glance = formulas(root), advice(root), (root / TABLE).read_text(encoding="utf-8")
    lines = [
        "# Catalogue of parts",
        "",
        "This page lists every part: what it is, when to use it and when not. [How to choose](guide/choosing.md) "
        "compares them. `C` is the number of classes and `p` the number of entries of a feature.",
        "",
        when_not_to(glance),
        "",
    ]
    for title, module in LISTED:
        if module in public_modules() and entries(module):
            rows = [_row(entry, module, known, told) for entry in entries(module)]
            lines += [f"## {title}", "", f"[`{module}`](api/{module}.md)", ""]
            lines += [table(("part", "what it is", "use it when", "not when"), rows)]
    pages.write("catalogue.md", "\n".join(lines))


def advice(root: Path) -> dict[str, dict[str, str]]:
    """By name as in `unhinge.nn` or `UF.name`: when to `use` a part, and when to `avoid` it."""
    return tomllib.loads((root / "docs" / "parts.toml").read_text(encoding="utf-8"))


def formulas(root: Path) -> dict[str, str]:
    """By name, the formula column of the table of parts where it has code; a part may have a row for each option."""
    glance = (root / TABLE).read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([\w.]+)(?:\(([^)]*)\))?`[^|]*\| ((?:\\\||[^|])*) \|",
        _between(glance, "| part |", "**When not to.**"),
        re.MULTILINE,
    )
    found: dict[str, str] = {}
    for name, option, formula in rows:
        if "`" in formula:
            told = f"with `{option}`: {formula}" if option else formula
            found[name] = f"{found[name]}<br>{told}" if name in found else told
    return found


def when_not_to(glance: str) -> str:
    """The paragraph of warnings, as an admonition."""
    words = _between(glance + "\n\n", "**When not to.**", "\n\n").removeprefix("**When not to.**").strip()
    return f":::{{admonition}} When not to\n:class: warning\n\n{words}\n:::"


def _row(entry: Entry, module: str, known: dict[str, str], told: dict[str, dict[str, str]]) -> tuple[str, ...]:
    name = entry.name.removeprefix(f"{module}.")
    key = f"UF.{name}" if module.endswith(".functional") else name
    words = told.get(key, {})
    return (
        f"{{py:obj}}`{name} <{entry.home}>`",
        f"{entry.summary}<br>{known[key]}" if key in known and "$" not in entry.summary else entry.summary,
        words.get("use", "–"),
        words.get("avoid", "–"),
    )


def _between(text: str, first: str, last: str) -> str:
    start = text.index(first)
    return text[start : text.index(last, start + len(first))]
