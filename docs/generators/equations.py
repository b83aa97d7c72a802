"""The index from formulas to code: for each label its page, the functions that cite it, and the tests.

A formula's label is the MyST target `(eq-LABEL)=` on the line above it, in docs/theory; code cites it as `[eq: LABEL]`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from generators.api import entries, home_of, public_modules, resolve
from generators.citations import CITATION
from generators.pages import Pages, table

__all__ = ["Place", "cited", "generate", "labels"]

TARGET = re.compile(r"^\(eq-([\w-]+)\)=$", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A function, class or module that cites a formula."""

    file: str  # relative to the repository
    name: str  # qualified name within it, or nothing for the module itself


def labels(docs: Path) -> dict[str, Path]:
    """Every label that a page defines, with the page, in the order in which the theory is read."""
    found: dict[str, Path] = {}
    index = (docs / "theory" / "index.md").read_text(encoding="utf-8")
    order = re.findall(r"^[\w-]+$", index, re.MULTILINE)  # the lines of its toctree
    for page in sorted(
        docs.rglob("*.md"), key=lambda page: (order.index(page.stem) if page.stem in order else -1, page)
    ):
        if "_build" not in page.relative_to(docs).parts:
            found |= {label: page for label in TARGET.findall(page.read_text(encoding="utf-8"))}
    return found


def cited(root: Path, folder: str) -> dict[str, list[Place]]:
    """By label, every place below a folder that cites it, in docstrings and comments alike."""
    found: dict[str, list[Place]] = {}
    for file in sorted((root / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        matches = list(CITATION.finditer(text))
        names = _names(ast.parse(text)) if matches else []
        for match in matches:
            line = text.count("\n", 0, match.start()) + 1
            inside = [name for name, first, last in names if first <= line <= last]
            place = Place(str(file.relative_to(root)), inside[-1] if inside else "")
            if place not in found.setdefault(match[1], []):
                found[match[1]].append(place)
    return found


def generate(pages: Pages, root: Path) -> None:
    source, tests = cited(root, "src"), cited(root, "tests")
    by_page: dict[Path, list[str]] = {}
    for label, page in labels(pages.folder).items():
        by_page.setdefault(page, []).append(label)
    lines = [
        "# From formulas to code",
        "",
        "Each formula of the theory pages has a label. Docstrings and tests cite it; this is the way back.",
        "",
    ]
    for page, names in by_page.items():
        place = page.relative_to(pages.folder).as_posix()
        rows = [
            (f"{{ref}}`{label} <eq-{label}>`", _listed(source.get(label, ())), _listed(tests.get(label, ())))
            for label in names
        ]
        lines += [f"## [{_title(page)}]({place})", "", table(("formula", "code", "tests"), rows)]
    pages.write("equations.md", "\n".join(lines))


def _listed(places: list[Place] | tuple[Place, ...]) -> str:
    shown = [line for place in places for line in _shown(place).split("<br>")]
    return "<br>".join(dict.fromkeys(shown)) or "–"


def _shown(place: Place) -> str:
    """Links to what is public, for a module all that it defines; the file and the name of what is not."""
    if place.file.startswith("src/"):
        module = place.file.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        home = home_of(f"{module}.{place.name}") if place.name and resolve(f"{module}.{place.name}") else None
        if home is not None:
            return f"{{py:obj}}`{home}`"
        if not place.name:
            public = sorted({one.home for name in public_modules() for one in entries(name) if one.source == module})
            if public:
                return "<br>".join(f"{{py:obj}}`{one}`" for one in public)
    file = place.file.removeprefix("src/unhinge/")
    return f"`{file}`" + (f", `{place.name}`" if place.name else "")


def _title(page: Path) -> str:
    found = re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem


def _names(tree: ast.Module) -> list[tuple[str, int, int]]:
    """Every class and function with its first and last line, outer ones first; decorators belong to it."""
    found: list[tuple[str, int, int]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                found.append((prefix + child.name, first, child.end_lineno or first))
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(tree, "")
    return found
