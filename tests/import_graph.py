"""What imports what in `src`, read off the source, and the map of CONTRIBUTING.md as places to compare it with."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unhinge"


def modules() -> dict[str, Path]:
    """Every module of the package, as ``nn/frames.py``, by the name it is imported by."""
    paths = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Our modules that this file imports anywhere, also inside functions; not those for the type checker alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unread = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    imported = set()
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                imported.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
    return imported & set(known)


def drawn_map(text: str) -> dict[str, int]:
    """The line of the map on which each file stands, by its path below `src/unhinge`, as ``nn/frames.py``.

    A line is an indented list of files and folders with a comment after two blanks. Files without a folder in front
    belong to the folder above them that is indented less.

    Example:
        >>> drawn_map(
        ...     "src/unhinge/   the package\\n  nn/   parts\\n    a.py, b.py   two\\n    c.py\\n  cli.py\\n"
        ... )
        {'nn/a.py': 2, 'nn/b.py': 2, 'nn/c.py': 3, 'cli.py': 4}
    """
    places: dict[str, int] = {}
    folders: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines()):
        indent = len(line) - len(line.lstrip())
        entries = re.split(r"\s{2,}", line.strip(), maxsplit=1)[0]
        while folders and folders[-1][0] >= indent:
            folders.pop()
        above = "".join(name for _, name in folders)
        for entry in re.split(r",?\s+", entries):
            if entry.endswith("/"):
                folders.append((indent, "" if entry == "src/unhinge/" else entry))
                above = "".join(name for _, name in folders)
            elif entry.endswith(".py"):
                assert above + entry not in places, f"{above + entry} stands twice in the map"
                places[above + entry] = number
    return places


def the_map() -> dict[str, int]:
    """That of CONTRIBUTING.md."""
    block = re.search(r"```\n(src/unhinge/.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return drawn_map(block.group(1))
