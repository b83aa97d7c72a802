"""One page for each public package: its docstring, a table of its names, and an entry for each.

Every object is described once, on the page of the package furthest down that lists it in `__all__`; packages above it
(`unhinge` itself) list it with a link.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType, UnionType
from typing import Any

import unhinge
from generators.pages import Pages, table

__all__ = ["Entry", "entries", "first_sentence", "generate", "home_of", "public_modules"]

NOT_API = {"unhinge.cli", "unhinge.__main__"}  # the command has a page of its own
ALSO = ("unhinge.paper.notation",)  # a module meant for readers, outside any `__all__`
DIRECTIVES = {"class": "autoclass", "exception": "autoexception", "function": "autofunction", "data": "autodata"}


@dataclass(frozen=True)
class Entry:
    """A public name, and the name under which its object is described."""

    name: str  # unhinge.LayerPeeled
    home: str  # unhinge.theory.LayerPeeled
    kind: str
    summary: str
    source: str  # the module that defines it


@cache
def public_modules() -> tuple[str, ...]:
    """`unhinge`, what lies directly in it, packages below, and modules that a package names in its `__all__`."""
    found = ["unhinge"]
    for info in pkgutil.walk_packages(unhinge.__path__, "unhinge."):
        parent, _, name = info.name.rpartition(".")
        if name.startswith("_") or any(info.name.startswith(one) for one in NOT_API):
            continue
        listed = isinstance(getattr(_load(parent), name, None), ModuleType) and name in _names(_load(parent))
        if parent == "unhinge" or info.ispkg or listed or info.name in ALSO:
            found.append(info.name)
    return tuple(found)


@cache
def entries(module: str) -> tuple[Entry, ...]:
    """Every name of a module's `__all__` but its modules; without one, the functions its docstring points at."""
    found = []
    for name in _names(_load(module)):
        thing = getattr(_load(module), name)
        if not isinstance(thing, ModuleType):
            full = f"{module}.{name}"
            found.append(_entry(full, thing, _homes().get(_key(thing, full), full)))
    if not hasattr(_load(module), "__all__"):
        for full in re.findall(r":func:`(unhinge[\w.]+)`", _load(module).__doc__ or ""):
            thing = resolve(full)
            found.append(_entry(full, thing, full))
    return tuple(found)


def home_of(name: str) -> str | None:
    """Where the object of any dotted name, public or not, is described; None where it is not."""
    for cut in range(len(name.split(".")), 0, -1):
        head, rest = ".".join(name.split(".")[:cut]), name.split(".")[cut:]
        thing = resolve(head)
        home = None if thing is None else _homes().get(_key(thing, head))
        if home is not None:
            return ".".join([home, *rest])
    return None


def resolve(name: str) -> Any:
    """The object of a dotted name, or None."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            annotated = part in getattr(thing, "__annotations__", {})
            thing = getattr(thing, part, thing.__annotations__[part] if annotated else None)
        return thing
    return None


def first_sentence(thing: Any) -> str:
    """The first paragraph of the docstring as Markdown, formulas included."""
    if isinstance(thing, UnionType):
        return "Either of " + " and ".join(f"`{one.__name__}`" for one in thing.__args__) + "."
    text = "" if _kind(thing) == "data" else inspect.getdoc(thing) or ""
    return as_markdown(text.split("\n\n")[0])


def as_markdown(text: str) -> str:
    """The little reStructuredText that first lines have, as Markdown."""
    text = " ".join(text.split()).replace("|", "\\|")
    text = re.sub(r"\s*\[eq: ([\w-]+)\]", r" ({ref}`\1 <eq-\1>`)", text)
    text = re.sub(
        r":math:`([^`]*)`",
        lambda found: "$" + found[1].replace("\\\\|", "\\Vert ").replace("\\|", "\\vert ") + "$",
        text,
    )
    text = re.sub(r":\w+:`([^`<]*?) <[^`]*>`", r"`\1`", text)
    text = re.sub(r":\w+:`~[^`]*?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text)
    return re.sub(r"``([^`]*)``", r"`\1`", text)


def generate(pages: Pages) -> None:
    modules = public_modules()
    rows = [(f"[`{name}`]({name}.md)", as_markdown((_load(name).__doc__ or "").split("\n\n")[0])) for name in modules]
    listed = "\n".join(modules)
    pages.write(
        "api/index.md",
        "# API reference\n\nWhat each package is for; every public name is on its package's page, with its formula,\n"
        "its arguments and an example that is run by the tests. The [command](../command.md) has a page of its own.\n\n"
        f"{table(('package', 'what it has'), rows)}\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n",
    )
    for module in modules:
        pages.write(f"api/{module}.md", _page(module))


def _page(module: str) -> str:
    here = [entry for entry in entries(module) if entry.home == entry.name]
    rows = [(f"{{py:obj}}`{_short(entry, module)} <{entry.home}>`", entry.summary) for entry in entries(module)]
    inner = [name for name in public_modules() if name.rpartition(".")[0] == module]
    lines = [f"# {module}", "", "```{eval-rst}", f".. automodule:: {module}", "   :no-members:", "```", ""]
    if rows:
        lines += [table(("name", "what it is"), rows)]
    if not rows and not inner:
        parent = module.rpartition(".")[0]
        lines += [f"Its public names are described on the page of [`{parent}`]({parent}.md).", ""]
    if inner and module != "unhinge":
        lines += ["Below it: " + ", ".join(f"[`{name}`]({name}.md)" for name in inner) + ".", ""]
    for entry in here:
        owner, _, name = entry.name.rpartition(".")
        lines += ["```{eval-rst}", f".. currentmodule:: {owner}", ""]
        lines += [f".. {DIRECTIVES[entry.kind]}:: {name}"]
        if entry.kind in ("class", "exception"):
            lines += ["   :members:"]
        lines += ["```", ""]
    return "\n".join(lines)


def _entry(name: str, thing: Any, home: str) -> Entry:
    return Entry(name, home, _kind(thing), first_sentence(thing), getattr(thing, "__module__", None) or "")


def _short(entry: Entry, module: str) -> str:
    return entry.name.removeprefix(f"{module}.")


def _load(module: str) -> ModuleType:
    return importlib.import_module(module)


def _names(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", ()))


def _kind(thing: Any) -> str:
    if inspect.isclass(thing):
        return "exception" if issubclass(thing, BaseException) else "class"
    return "function" if callable(thing) and hasattr(thing, "__name__") else "data"


def _key(thing: Any, name: str) -> Any:
    """Objects by identity, plain data by name: two equal tuples are two things."""
    return name if _kind(thing) == "data" else id(thing)


@cache
def _homes() -> dict[Any, str]:
    homes: dict[Any, str] = {}
    for module in sorted(public_modules(), key=lambda name: name.count(".")):
        for name in _names(_load(module)):
            thing = getattr(_load(module), name)
            if not isinstance(thing, ModuleType):
                homes[_key(thing, f"{module}.{name}")] = f"{module}.{name}"
    return homes
