"""Tables as text: CSV that reads back to the same bits, Markdown for people."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

__all__ = ["as_csv", "as_markdown", "columns_of", "csv_text", "markdown_text", "narrowed", "write_csv"]

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
    return _table(lines)


def _table(lines: Iterable[Sequence[str]]) -> str:
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


def narrowed(text: str, width: int) -> str:
    """Markdown whose wide tables are cut into several, each with the first column, so that a terminal can show them.

    Words of a head and of the first column may be broken into lines, other cells not.

    Example:
        >>> print(narrowed(markdown_text(("", "left", "right"), [("a", 1, 2)]), 12))
        |  | left |
        | --- | --- |
        | a | 1 |
        <BLANKLINE>
        |  | right |
        | --- | --- |
        | a | 2 |
    """
    parts: list[str] = []
    for is_table, group in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        lines = list(group)
        parts += ["\n\n".join(_cut(lines, width))] if is_table else lines
    return "\n".join(parts)


def _cut(lines: Sequence[str], width: int) -> Iterator[str]:
    head, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]

    def needed(column: int) -> int:  # with the space between two columns
        words = head[column].split() + [row[column] for row in rows]
        return 2 + max(map(len, words), default=0)

    names = max((len(row[0]) for row in rows), default=0)
    first = min(names, width // 3)
    shown: list[int] = []
    for column in range(1, len(head)):
        if shown and first + sum(map(needed, [*shown, column])) > width:
            yield _columns(head, rows, [0, *shown])
            shown = []
        shown.append(column)
    yield _columns(head, rows, [0, *shown])


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> str:
    """Some columns of a table whose cells are Markdown already."""
    return _table([line[column] for column in columns] for line in (head, ["---"] * len(head), *rows))


def _cell(value: Value, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value).replace("|", "\\|")
