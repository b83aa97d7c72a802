"""The log of a run: one JSON line per epoch, the same as CSV and Markdown, and wall-clock times in a file apart.

Times differ from run to run; everything else is bit-identical for the same recipe, interrupted or not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unhinge.results.json import plain
from unhinge.results.tables import as_csv
from unhinge.training.checkpoint import write_atomically

__all__ = ["read_records", "seconds_spent", "Log"]

Record = dict[str, Any]


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
        self.records.append(plain(record, names=True))
        self._write()
        path = self.folder / "times.jsonl"
        # A line that a crash cut short is ended first, so that it spoils no other.
        cut = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("a", encoding="utf-8") as file:
            line = plain({"epoch": record.get("epoch"), **times}, names=True)
            file.write(("\n" if cut else "") + json.dumps(line) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "epoch":
                    self._board.add_scalar(name, value, record["epoch"])
            self._board.flush()

    def _write(self) -> None:
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self.records)
        write_atomically(self.folder / "log.jsonl", lines.encode())
        write_atomically(self.folder / "log.csv", as_csv(self.records).encode())


def _tensorboard(folder: Path, keep: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # Epochs count from 1: what came after the kept ones is told again.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=keep + 1)
