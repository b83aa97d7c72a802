"""Features in Parquet files: what to read, who reads it, and where an interrupted pass goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from unhinge.extras import needed_for
from unhinge.metrics.collapse import WIDEST_COVARIANCE, CollapseSummary
from unhinge.results.sealed import write_atomically
from unhinge.streams.engines import Engine, in_order
from unhinge.streams.part import Content, Part, Pass, part_of
from unhinge.streams.rows import BadRows, Columns, width_of
from unhinge.theory.linear.summary import Summary, summarize
from unhinge.theory.validation import check_num_classes

if TYPE_CHECKING:
    import pyarrow.fs
    import pyarrow.parquet

__all__ = ["collapse_of_parquet", "summarize_parquet"]

UNIT_ROWS = 1 << 18  # rows of a unit of work: seconds of reading, so that little is read again after an interruption
BATCH_NUMBERS = 1 << 21  # features of a batch: megabytes, which stay in the processor's cache while they are summed
MOST_CLASSES = 1 << 20  # words in the label column: more of them are no names of classes, and would fill the memory

Progress = Callable[[int, int], None]  # units done, units in all


def summarize_parquet(
    path: str | Path | Sequence[str | Path],
    features: str | Sequence[str] = "features",
    label: str = "label",
    num_classes: int | None = None,
    *,
    engine: Engine = "local",
    workers: int = 1,
    resume: str | Path | None = None,
    bad: BadRows | None = None,
    progress: Progress | None = None,
) -> Summary:
    r"""One streamed pass over Parquet files; the sum of the summaries of their parts.

    Only the columns that are needed are read, a few megabytes at a time: memory depends on :math:`C` and :math:`p`,
    not on the number of rows. Parts are added in the order of the files, so the result is the same for every engine and
    number of workers; to the last bit, if torch uses as many threads here as there (workers use one).

    Arguments:
        path: A file, a folder of files, a list of either, or an address that Arrow knows (``s3://bucket/folder``).
        features: A column of lists of numbers, or the names of the columns if each feature has its own.
        label: The column of the labels: whole numbers from 0, words (the classes are then numbered in the order of the
            alphabet, after a pass over this column alone), or lists of :math:`C` probabilities.
        num_classes: :math:`C`. None takes the largest label plus one, from the statistics in the files or else from a
            pass over the label column alone.
        engine: ``"local"``, ``"dask"`` or ``"ray"``.
        workers: Processes, or tasks at a time on a cluster.
        resume: A folder that keeps what is done. The same call after an interruption goes on from there.
        bad: Rows that cannot be used (missing, NaN, infinite, of another width, labels out of range) are left out and
            noted here. None makes them an error, raised at the end, which counts and names them.
        progress: Called with the number of units of work done and in all.

    Example:
        >>> import tempfile, numpy as np, pyarrow as pa, pyarrow.parquet as pq
        >>> rows = np.arange(24, dtype=np.float32).reshape(8, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pq.write_table(
        ...         pa.table({"features": list(rows), "label": [0, 1] * 4}),
        ...         f"{folder}/part-0.parquet",
        ...     )
        ...     summary = summarize_parquet(folder)
        >>> summary.counts.tolist(), summary.means().tolist()
        ([4, 4], [[9.0, 10.0, 11.0], [12.0, 13.0, 14.0]])
    """
    summary = _passed(path, features, label, num_classes, _summed, engine, workers, resume, bad, progress)
    assert not isinstance(summary, CollapseSummary)
    return summary


def collapse_of_parquet(
    path: str | Path | Sequence[str | Path],
    features: str | Sequence[str] = "features",
    label: str = "label",
    num_classes: int | None = None,
    *,
    engine: Engine = "local",
    workers: int = 1,
    resume: str | Path | None = None,
    bad: BadRows | None = None,
    progress: Progress | None = None,
) -> CollapseSummary:
    """The same pass with what the measures of neural collapse need; arguments as in :func:`summarize_parquet`."""
    summary = _passed(path, features, label, num_classes, _collapsed, engine, workers, resume, bad, progress)
    assert isinstance(summary, CollapseSummary)
    return summary


def _summed(batches: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> Summary:
    return summarize(batches, num_classes, prefetch=2)


def _collapsed(batches: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> CollapseSummary:
    whole: CollapseSummary | None = None
    for features, labels in batches:
        if labels.is_floating_point():
            raise ValueError("neural collapse is measured by class, so it needs whole-number labels, got soft ones.")
        keep = features.shape[1] <= WIDEST_COVARIANCE
        part = CollapseSummary.of(features, labels, num_classes, covariance=keep)
        whole = part if whole is None else whole + part
    assert whole is not None
    return whole


# ---- units of work -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """Some row groups of one file."""

    filesystem: pyarrow.fs.FileSystem  # it can be pickled
    file: str
    row_groups: tuple[int, ...]
    first_row: int
    rows: int


def _read(unit: Unit, columns: Columns, work: Pass, batch: int) -> bytes:
    """The part of one unit; as bytes, which every engine carries alike."""
    with needed_for("reading Parquet files"):
        import pyarrow.parquet as pq
    with pq.ParquetFile(unit.file, filesystem=unit.filesystem) as file:
        batches = file.iter_batches(batch, list(unit.row_groups), columns.names)
        return part_of(batches, columns, work, unit.file, unit.first_row).to_bytes()


def _units(files: Sequence[str], filesystem: pyarrow.fs.FileSystem) -> Iterator[Unit]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        try:
            metadata = pq.read_metadata(file, filesystem=filesystem)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{file} cannot be read as Parquet: {' '.join(str(error).split())}") from None
        groups: list[int] = []
        first = rows = 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            rows += metadata.row_group(group).num_rows
            if rows >= UNIT_ROWS or group == metadata.num_row_groups - 1:
                yield Unit(filesystem, file, tuple(groups), first, rows)
                first, rows, groups = first + rows, 0, []


def _files_of(path: str | Path | Sequence[str | Path]) -> tuple[list[str], pyarrow.fs.FileSystem]:
    """All files in the order of their names, and the file system they are on."""
    with needed_for("reading Parquet files"):
        import pyarrow as pa
        import pyarrow.dataset as ds
    try:
        paths = [path] if isinstance(path, str | Path) else list(path)
    except TypeError:
        raise ValueError(f"path must be a file, a folder or a list of them, got {type(path).__name__}.") from None
    if not paths:
        raise ValueError("the list of paths is empty.")
    files: list[str] = []
    system: pyarrow.fs.FileSystem | None = None
    for place in paths:
        if not str(place).strip() or ("://" not in str(place) and not Path(place).exists()):
            raise ValueError(f"there is no file or folder {str(place)!r}.")
        try:
            dataset = ds.dataset(str(place), format="parquet")
        except (pa.ArrowInvalid, OSError, TypeError) as error:
            raise ValueError(
                f"{place} cannot be read as Parquet. Name a Parquet file, or a folder that holds nothing else. "
                f"Arrow says: {' '.join(str(error).split())}"
            ) from None
        if system is not None and not system.equals(dataset.filesystem):
            raise ValueError("all paths must be on one file system; sum up the others by themselves, and add: a + b.")
        system = dataset.filesystem
        files += sorted(dataset.files)
    if not files:
        raise ValueError(f"there are no Parquet files in {', '.join(map(str, paths))}.")
    return files, system


def _expected(units: Sequence[Unit], features: str | Sequence[str], label: str, num_classes: int | None) -> Columns:
    """The columns, with the width of the first rows and the number of classes."""
    import pyarrow.parquet as pq

    names = features if isinstance(features, str) else tuple(features)
    if not names:
        raise ValueError("features must name at least one column.")
    first = next((unit for unit in units if unit.rows), None)
    if first is None:
        raise ValueError("the files hold no rows.")
    with pq.ParquetFile(first.file, filesystem=first.filesystem) as file:
        listed = [names] if isinstance(names, str) else list(names)
        _check_columns([*listed, label], file, first)
        head = next(file.iter_batches(256, list(first.row_groups), listed))
        kind = file.schema_arrow.field(label).type
        if num_classes is None and kind.num_fields:  # lists; is_nested of pyarrow 15 knows none of fixed size
            num_classes = width_of(label, next(file.iter_batches(256, list(first.row_groups), [label])))
    classes = _words(units, label) if _are_words(kind) else None
    if classes is not None and num_classes not in (None, len(classes)):
        raise ValueError(f"column {label!r} names {len(classes):,} classes, but num_classes is {num_classes}.")
    if classes is not None:
        num_classes = len(classes)
    if num_classes is None:
        num_classes = _largest_label(units, label) + 1
        rows = sum(unit.rows for unit in units)
        if num_classes > max(rows, 2):
            raise ValueError(
                f"the largest of the labels is {num_classes - 1:,}, but there are only {rows:,} rows. If labels "
                "are wrong, pass num_classes: rows with labels beyond it are then named."
            )
    width = width_of(names, head)
    if width == 0:
        raise ValueError(f"column {names!r} of {first.file} holds empty lists; a feature has at least one number.")
    return Columns(names, label, width, max(num_classes, 2), classes)


def _check_columns(wanted: Sequence[str], file: pyarrow.parquet.ParquetFile, unit: Unit) -> None:
    known = file.schema_arrow.names
    for name in wanted:
        if name not in known:
            raise ValueError(f"{unit.file} has no column {name!r}; it has {', '.join(known)}.")


def _are_words(kind: pyarrow.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _words(units: Sequence[Unit], label: str) -> tuple[str, ...]:
    """Every word of the label column, in the order of the alphabet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    words: set[str] = set()
    for unit in units:
        with pq.ParquetFile(unit.file, filesystem=unit.filesystem) as file:
            kind = file.schema_arrow.field(label).type if label in file.schema_arrow.names else None
            if kind is None or not (_are_words(kind) or pa.types.is_null(kind)):  # null: all of them are missing
                raise ValueError(f"column {label!r} holds words in some of the files, but not in {unit.file}.")
            for batch in file.iter_batches(1 << 18, list(unit.row_groups), [label]):
                words.update(word for word in batch.column(0).unique().to_pylist() if word is not None)
        if len(words) > MOST_CLASSES:
            raise ValueError(
                f"column {label!r} holds more than {MOST_CLASSES:,} different words, so it does not name classes. "
                "Name another column, or encode the classes as numbers."
            )
    return tuple(sorted(words))


def _largest_label(units: Sequence[Unit], label: str) -> int:
    """From the statistics of the row groups; where one has none, from the column itself."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    largest = 0
    for unit in units:
        with pq.ParquetFile(unit.file, filesystem=unit.filesystem) as file:
            _check_columns([label], file, unit)
            for group in unit.row_groups:
                about = file.metadata.row_group(group)
                columns = (about.column(place) for place in range(about.num_columns))
                found = [column.statistics for column in columns if column.path_in_schema == label]
                if not found:
                    raise ValueError(
                        f"column {label!r} holds whole numbers in some of the files, but not in {unit.file}."
                    )
                statistics = found[0]
                if statistics is not None and statistics.has_min_max:
                    most: object = statistics.max
                else:
                    batches = file.iter_batches(1 << 20, [group], [label])
                    most = max((pc.max(batch.column(0)).as_py() or 0 for batch in batches), default=0)
                if not isinstance(most, int | float):
                    raise ValueError(
                        f"column {label!r} holds {type(most).__name__}, but labels are whole numbers from 0. "
                        "Encode the names of the classes as numbers first, the same way in all files."
                    )
                largest = max(largest, int(most) if most == most and abs(most) < 2**62 else 0)
    return largest


# ---- the pass ------------------------------------------------------------------------------------------------------


def _passed(
    path: str | Path | Sequence[str | Path],
    features: str | Sequence[str],
    label: str,
    num_classes: int | None,
    work: Pass,
    engine: Engine,
    workers: int,
    resume: str | Path | None,
    bad: BadRows | None,
    progress: Progress | None,
) -> Content:
    if num_classes is not None:
        num_classes = check_num_classes(num_classes)
    if bad is not None and not isinstance(bad, BadRows):
        raise ValueError(f"bad must be a BadRows() that takes the rows left out, or None, got {type(bad).__name__}.")
    files, system = _files_of(path)
    units = list(_units(files, system))
    columns = _expected(units, features, label, num_classes)
    saved = None if resume is None else _SavedPass(Path(resume), units, columns, work)
    done, total = (0, None) if saved is None else saved.load()
    if progress is not None:
        progress(done, len(units))
    # The size of a batch goes with the task: all workers cut, and so round, alike.
    read = partial(_read, columns=columns, work=work, batch=max(1, BATCH_NUMBERS // columns.width))
    for answer in in_order(read, units[done:], engine, workers):
        part = Part.from_bytes(answer)
        total = part if total is None else total + part
        done += 1
        if saved is not None:
            saved.save(done, total)
        if progress is not None:
            progress(done, len(units))
    assert total is not None
    return total.answer(bad)


class _SavedPass:
    """What is done of one pass: the sum of the first units, in one file, replaced in one step."""

    def __init__(self, folder: Path, units: Sequence[Unit], columns: Columns, work: Pass) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"resume must name a folder, but {folder} is a file or lies in one.") from None
        self.folder = folder
        question = [
            [work.__name__, columns.names, columns.width, columns.num_classes],
            [[unit.file, unit.row_groups, unit.rows, _stamp(unit)] for unit in units],
        ]
        self.question = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:16]

    def load(self) -> tuple[int, Part | None]:
        """How many units are done, and their sum."""
        stored = list(self.folder.glob("pass-*.npz"))
        mine = [file for file in stored if file.name.startswith(f"pass-{self.question}-")]
        if stored and not mine:
            raise ValueError(
                f"{self.folder} keeps a pass over other files, columns or classes. Name another folder, or empty it."
            )
        for file in sorted(mine, reverse=True):
            try:
                return int(file.stem.rpartition("-")[2]), Part.from_bytes(file.read_bytes())
            except ValueError:  # damaged: begin again rather than trust it
                continue
        return 0, None

    def save(self, done: int, total: Part) -> None:
        file = self.folder / f"pass-{self.question}-{done:09d}.npz"
        write_atomically(file, total.to_bytes())
        for old in self.folder.glob(f"pass-{self.question}-*.npz"):
            if old != file:
                old.unlink(missing_ok=True)


def _stamp(unit: Unit) -> list[int]:
    """Size and time of the file, so that one that was written again is read again."""
    info = unit.filesystem.get_file_info(unit.file)
    return [int(info.size or 0), int((info.mtime_ns or 0) if hasattr(info, "mtime_ns") else 0)]
