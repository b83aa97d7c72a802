"""The log of a run: one JSON line per epoch, the same as CSV, and wall-clock times in a file apart.

Times differ from run to run; everything else is bit-identical for the same recipe, interrupted or not. Every line
carries a checksum (:mod:`unhinge.results.sealed`): a digit that was changed on the disk becomes an error, not a number.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unhinge.results.json import JsonRecord, plain
from unhinge.results.sealed import SealError, seal, unseal, write_atomically
from unhinge.results.tables import as_csv

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Log", "epoch_seconds", "read_data", "read_records", "seconds_spent"]


def read_records(folder: Path, first: int | None = None) -> list[JsonRecord]:
    """The records of a run, in order; a :class:`SealError` names the line that is not what was written.

    Arguments:
        folder: Of the run.
        first: Read only so many: what lies behind the last checkpoint is trained again anyway.
    """
    return _read(folder / "log.jsonl", first)


def read_data(folder: Path) -> JsonRecord | None:
    """What a run says of its images in data.json, such as the `counts` of its classes; None where it says nothing."""
    try:
        about: JsonRecord = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about


def seconds_spent(folder: Path) -> float:
    """Wall-clock seconds of all epochs of a run, from its times.jsonl."""
    return sum(epoch_seconds(folder))


def epoch_seconds(folder: Path) -> list[float]:
    """The same, epoch by epoch; the parts of an epoch that was interrupted come one after another."""
    return [float(line.get("seconds", 0.0)) for line in _read(folder / "times.jsonl")]


class Log:
    """log.jsonl, log.csv and times.jsonl of a run, and TensorBoard's files where it is installed."""

    def __init__(self, folder: Path, keep: int, tensorboard: bool = False) -> None:
        self.folder = folder
        self.records = read_records(folder, keep)
        if len(self.records) < keep:
            raise SealError(
                f"{folder / 'log.jsonl'} has {len(self.records)} records, but the checkpoint counts {keep}. Put "
                "the file back, or start over in another folder."
            )
        self.times = _read(folder / "times.jsonl")
        self._write()
        self._board = _tensorboard(folder, keep) if tensorboard else None

    def add(self, record: Mapping[str, object], **times: float) -> None:
        """Append a record, on the disk before this returns."""
        self.records.append(plain(record, names=True))
        self.times.append(plain({"epoch": record.get("epoch"), **times}, names=True))
        self._write()
        self._write_to_tensorboard(record)

    def _write_to_tensorboard(self, record: Mapping[str, object]) -> None:
        if self._board is None:
            return
        try:
            for name, value in record.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "epoch":
                    self._board.add_scalar(name, value, record["epoch"])
            self._board.flush()
        except OSError as error:  # its folder was removed, or the disk is full: the curves are a copy, the log is not
            logging.getLogger("unhinge").warning("TensorBoard's files are given up: %s", error)
            self._board = None

    def _write(self) -> None:
        write_atomically(self.folder / "log.jsonl", _sealed(self.records))
        write_atomically(self.folder / "log.csv", as_csv(self.records).encode())
        write_atomically(self.folder / "times.jsonl", _sealed(self.times))


def _sealed(records: list[JsonRecord]) -> bytes:
    return "".join(seal(record) + "\n" for record in records).encode()


def _read(path: Path, first: int | None = None) -> list[JsonRecord]:
    if not path.is_file():
        return []
    lines = path.read_bytes().splitlines()[:first]
    try:
        return [unseal(line, f"line {number} of {path}") for number, line in enumerate(lines, 1)]
    except SealError as error:
        raise SealError(f"{error} Put the file back, or start over in another folder.") from None


def _tensorboard(folder: Path, keep: int) -> SummaryWriter | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # Epochs count from 1: what came after the kept ones is told again.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=keep + 1)
