"""The log of a run: one JSON line per epoch, the same as CSV and Markdown, and wall-clock times in a file apart.

Times differ from run to run; everything else is bit-identical for the same recipe, interrupted or not.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unhinge.training.checkpoint import write_atomically

__all__ = ["as_csv", "as_markdown", "plain", "read_records", "seconds_spent", "Log"]

Record = dict[str, Any]


def plain(record: Mapping[str, Any]) -> Record:
    """The record as JSON can hold it: what is not finite becomes its name, at any depth."""
    return {key: _plain(value) for key, value in record.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def read_records(folder: Path) -> list[Record]:
    """The records of a run, in order, up to the first line that is none: one cut short by a crash, or damaged."""
    path = folder / "log.jsonl"
    if not path.is_file():
        return []
    records: list[Record] = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


def seconds_spent(folder: Path) -> float:
    """Wall-clock seconds of all epochs of a run, from its times.jsonl; a line that a crash cut short counts nothing."""
    total = 0.0
    path = folder / "times.jsonl"
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            total += float(json.loads(line)["seconds"])
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):
            continue
    return total


class Log:
    """log.jsonl, log.csv and times.jsonl of a run, and TensorBoard's files where it is installed."""

    def __init__(self, folder: Path, keep: int, tensorboard: bool = False) -> None:
        self.folder = folder
        self.records = read_records(folder)[:keep]
        if len(self.records) < keep:
            raise ValueError(
                f"{folder / 'log.jsonl'} has {len(self.records)} whole records, but the checkpoint was made after "
                f"{keep}. Put the file back, or start over in another folder."
            )
        self._write()
        self._board = _tensorboard(folder, keep) if tensorboard else None

    def add(self, record: Mapping[str, Any], **times: float) -> None:
        """Append a record, on the disk before this returns."""
        self.records.append(plain(record))
        self._write()
        path = self.folder / "times.jsonl"
        # A line that a crash cut short is ended first, so that it spoils no other.
        cut = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut else "") + json.dumps({"epoch": record.get("epoch"), **plain(times)}) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "epoch":
                    self._board.add_scalar(name, value, record["epoch"])
            self._board.flush()

    def _write(self) -> None:
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self.records)
        write_atomically(self.folder / "log.jsonl", lines.encode())
        write_atomically(self.folder / "log.csv", as_csv(self.records).encode())


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """One row per record; floats as Python writes them, so that they read back to the same bits."""
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        writer.writerow(["" if record.get(name) is None else record[name] for name in names])
    return text.getvalue()


def as_markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of records.

    Example:
        >>> print(as_markdown([{"epoch": 1, "loss": 0.25}]))
        | epoch | loss |
        | --- | --- |
        | 1 | 0.25 |
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    lines = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
    for record in records:
        lines.append("| " + " | ".join(_cell(record.get(name)) for name in names) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _tensorboard(folder: Path, keep: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # Epochs count from 1: what came after the kept ones is told again.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=keep + 1)
