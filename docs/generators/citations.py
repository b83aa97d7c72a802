"""What docstrings cite: `[eq: label]` becomes a link to the formula, and names of private parts become plain code."""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from generators.api import home_of, resolve

__all__ = ["CITATION", "setup"]

CITATION = re.compile(r"\[eq:\s+([\w-]+)\]")


def link_formulas(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """`[eq: sphere]` as a link to the target `eq-sphere`; a label may stand on the next line."""
    text = CITATION.sub(r":ref:`[\1] <eq-\1>`", "\n".join(lines))
    lines[:] = text.split("\n")


def draw_tables(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Markdown's tables, which read well in `help()` too, as tables of reStructuredText."""
    drawn: list[str] = []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        if not line.startswith("|"):
            drawn.append(line)
        elif not before.startswith("|"):
            drawn += [".. list-table::", "   :header-rows: 1", "", *_row(line)]
        elif set(line) - set("|-: "):
            drawn += _row(line)
    lines[:] = drawn


def _row(line: str) -> list[str]:
    cells = line.strip().strip("|").split("|")
    return [f"   {'*' if not number else ' '} - {cell.strip()}" for number, cell in enumerate(cells)]


def whole_sentence(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Undo napoleon's reading of "The head: zeros where there is none" as a type and its description."""
    typed = next((line for line in lines if line.startswith(":type: ")), None)
    if typed is not None and what in ("attribute", "data", "property"):
        lines.remove(typed)
        lines[0] = f"{typed.removeprefix(':type: ')}: {lines[0]}"


def skip_foreign(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Methods that another library puts into our classes are described there."""
    module = getattr(thing, "__module__", None) or "unhinge"
    return True if callable(thing) and not module.startswith("unhinge") else None


def link_names(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.Element) -> nodes.Node | None:
    """A name of ours that has no entry: the entry of the same object under its public name, else plain code.

    A name that leads nowhere stays unresolved, and the build fails on it.
    """
    if node.get("refdomain") != "py":
        return None
    for name in _meanings(node):
        if not name.startswith("unhinge") or resolve(name) is None:
            continue
        home = home_of(name)
        if home is not None:
            domain = env.domains.python_domain
            found = domain.find_obj(env, None, None, home, None, 0)
            if found:
                return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", home, _renamed(node, home), shown)
        return shown
    return None


def _renamed(node: pending_xref, target: str) -> pending_xref:
    copied = node.copy()
    copied["reftarget"] = target
    copied.attributes.pop("refspecific", None)
    return copied


def _meanings(node: pending_xref) -> list[str]:
    """The target as it stands, within the documented class or module, and within the module that defines it."""
    target, module, owner = node["reftarget"], node.get("py:module"), node.get("py:class")
    names = [target]
    if module and owner:
        names.append(f"{module}.{owner}.{target}")
        described = resolve(f"{module}.{owner}")
        names.append(f"{getattr(described, '__module__', module)}.{target}")
    if module:
        names.append(f"{module}.{target}")
        names += [f"{where}.{target}" for where in _sources(module)]
    return names


def _sources(module: str) -> list[str]:
    """The modules that define what a package exports."""
    package = resolve(module)
    homes = (getattr(getattr(package, name, None), "__module__", "") for name in getattr(package, "__all__", ()))
    return [home for home in dict.fromkeys(homes) if home.startswith("unhinge") and inspect.ismodule(resolve(home))]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", draw_tables)
    app.connect("autodoc-process-docstring", whole_sentence, priority=600)  # after napoleon
    app.connect("autodoc-process-docstring", link_formulas, priority=700)  # in the sentences that are whole again
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("missing-reference", link_names)
