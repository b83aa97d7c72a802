"""The staged pages: written only when they changed, so that a second build has little to do."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Pages", "cell", "prose", "repointed", "table"]

SHOWN = {
    r"benchmarks/results/[\w.-]+\.md": "performance.md",
    r"results/small/README\.md": "reproduce/small.md",
    r"results/small/earlier/README\.md": "reproduce/small-earlier.md",
    r"results/small/([\w-]+)/table\.md": r"reproduce/\1.md",
    r"CHANGELOG\.md": "changelog.md",
}


class Pages:
    """A folder that ends up with exactly what was written to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: set[Path] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> None:
        path = self._path(name)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")

    def copy(self, source: Path, name: str) -> None:
        path = self._path(name)
        if not path.is_file() or path.read_bytes() != source.read_bytes():
            shutil.copyfile(source, path)

    def remove_stale(self) -> None:
        """What an earlier build left and this one did not write."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()

    def _path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written.add(path)
        return path


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Plain text for a cell: nothing in it is markup, and it stays on one line."""
    return _escaped(" ".join(text.split()))


def prose(text: str) -> str:
    """Sentences in which only what stands in `backticks` is markup."""
    parts = text.split("`")
    return "".join(f"`{part}`" if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    escaped = html.escape(text, quote=False)
    for mark in "\\`*_[]$~{}|":
        escaped = escaped.replace(mark, f"\\{mark}" if mark != "|" else "&#124;")
    return escaped


def repointed(text: str) -> str:
    """Links to Markdown elsewhere in the repository lead to the page of the site that shows it."""
    for pattern, page in SHOWN.items():
        text = re.sub(rf"\]\((?:\.\./)+{pattern}(?:#[\w-]+)?\)", f"](/{page})", text)
    return text
