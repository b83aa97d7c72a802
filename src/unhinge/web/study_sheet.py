"""A table of trained networks among the results: the paper's numbers beside ours, and what became of each ordering."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from unhinge.paper.studies.study import WORDS
from unhinge.results.json import JsonRecord

__all__ = ["LARGEST", "csv_rows", "is_study", "numbers_of", "orderings_of"]

LARGEST = 8 * 2**20  # bytes of a table or log that is read


def is_study(files: Sequence[str]) -> bool:
    """Whether a folder with these files holds a study of trained networks."""
    return "table.csv" in files and "recipe.json" in files


def orderings_of(recipe: JsonRecord) -> list[tuple[str, ...]]:
    """Statement, who claims it, where, the verdict at this scale, and the difference with its test."""
    words = ("statement", "claimed_by", "column", "verdict", "text")
    orderings = (ordering for ordering in recipe.get("orderings") or [] if isinstance(ordering, dict))
    return [tuple(str(ordering.get(word, "")) for word in words) for ordering in orderings]


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns; none of one that is missing, too large or damaged."""
    try:
        if path.stat().st_size > LARGEST:
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        return []


def numbers_of(path: Path) -> list[tuple[str, str, str, str, str, str]]:
    """Row, column, quantity, the paper's number, ours with its spread, seeds; in percent where shares.

    Of what has run: a table of many cells that are still empty would hide the others.
    """
    names = ("row", "column", "quantity", "paper")
    rows = []
    for entry in csv_rows(path):
        if entry.get("seeds") == "0":
            continue
        ours = str(entry.get("ours") or "–")
        if entry.get("standard_deviation"):
            ours += f" ± {entry['standard_deviation']}"
        cells = [str(entry.get(name) or "") for name in names]
        rows.append(
            (cells[0], cells[1], WORDS.get(cells[2], cells[2]), cells[3] or "–", ours, str(entry.get("seeds") or ""))
        )
    return rows
