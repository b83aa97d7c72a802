"""Tables as text: CSV that reads back to the same bits, Markdown for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["as_csv", "as_markdown", "columns_of", "csv_text", "markdown_text", "write_csv"]

Value = object  # a number, a word, or None for an empty cell


def columns_of(records: Iterable[Mapping[str, Value]]) -> list[str]:
    """The keys of all records, in the order they first appear.

    Example:
        >>> columns_of([{"epoch": 1}, {"epoch": 2, "loss": 0.5}])
        ['epoch', 'loss']
    """
    return list(dict.fromkeys(name for record in records for name in record))


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    r"""A head line and one line a row; floats as Python writes them, so that they read back to the same bits.

    Example:
        >>> csv_text(("step", "loss"), [(1, 0.1), (2, None)])
        'step,loss\n1,0.1\n2,\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return text.getvalue()


def as_csv(records: Sequence[Mapping[str, Value]]) -> str:
    r"""Records as CSV, a column for each key of any of them.

    Example:
        >>> as_csv([{"epoch": 1, "loss": 0.25}, {"epoch": 2}])
        'epoch,loss\n1,0.25\n2,\n'
    """
    names = columns_of(records)
    return csv_text(names, ([record.get(name) for name in names] for record in records))


def write_csv(path: Path, records: Sequence[Mapping[str, Value]]) -> None:
    """Write records as CSV."""
    path.write_text(as_csv(records), encoding="utf-8")


def markdown_text(heads: Sequence[str], rows: Iterable[Sequence[Value]], digits: int = 5) -> str:
    r"""A Markdown table; floats in a few digits, bars escaped.

    Example:
        >>> print(markdown_text(("step", "|h|"), [(1, 0.123456789)]))
        | step | \|h\| |
        | --- | --- |
        | 1 | 0.12346 |
    """
    lines = [[_cell(head, digits) for head in heads], ["---"] * len(heads)]
    lines += [[_cell(cell, digits) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_markdown(records: Sequence[Mapping[str, Value]], digits: int = 5) -> str:
    """Records as a Markdown table.

    Example:
        >>> print(as_markdown([{"epoch": 1, "loss": 0.25}]))
        | epoch | loss |
        | --- | --- |
        | 1 | 0.25 |
    """
    names = columns_of(records)
    return markdown_text(names, ([record.get(name) for name in names] for record in records), digits)


def _cell(value: Value, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value).replace("|", "\\|")
