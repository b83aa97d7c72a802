"""Measured speed and accuracy: what benchmarks/results keeps, with the lines that say how it was measured."""

from __future__ import annotations

import re
from pathlib import Path

from generators.pages import Pages

__all__ = ["generate"]

FIRST = ("dynamics", "spherical", "kernel", "many_classes", "glyphs", "training", "sklearn", "streams")
INTRODUCTION = """# Performance

Each table comes from one run of one script. Other libraries are measured in the same run, and each section names the
machine. `make bench` measures everything again on your machine.
"""


def generate(pages: Pages, root: Path) -> None:
    files = sorted((root / "benchmarks" / "results").glob("*.md"), key=_place)
    pages.write("performance.md", "\n".join([INTRODUCTION, *(_section(file) for file in files)]))


def _place(file: Path) -> tuple[int, str]:
    """The exact dynamics first; what nobody ordered comes last."""
    topic = file.name.partition("_2core")[0]
    return FIRST.index(topic) if topic in FIRST else len(FIRST), topic


def _section(file: Path) -> str:
    """One level down; titles keep their order even where a file goes from the first level to the third."""
    text = re.sub(r"^#{2,} ", "### ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = re.sub(r"^# (.*?)(: measured)?$", r"## \1", text, count=1, flags=re.MULTILINE)
    return re.sub(r"(?<!`)\b(benchmarks/results/[\w.-]+)\b(?!`)", r"`\1`", text)
