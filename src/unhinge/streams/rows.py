"""Arrow batches as tensors, row by row fit to be summed; the others are counted and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LEAVE_OUT", "BadRows", "Batch", "Columns", "usable_rows", "width_of"]

LEAVE_OUT = "pass bad=BadRows() and look at it afterwards"  # of Python; a command has its own words for it
SHOWN = 20  # bad rows that are named; all of them are counted
MISSING = "a feature or label is missing"
INFINITE = "a feature is NaN or infinite"
WIDTH = "the number of features differs"
RANGE = "the label is out of range"
FRACTION = "the label is no whole number"
SOFT = "the soft label is no distribution"

Mask = NDArray[np.bool_]


Batch: TypeAlias = "pa.RecordBatch | pa.Table"


class Reject(Protocol):
    """Leaves out the rows of a mask, for a reason."""

    def __call__(self, wrong: Mask, reason: str, /) -> None: ...


@dataclass
class BadRows:
    """Rows that cannot be used: how many for which reason, and where the first of them are.

    Example:
        >>> bad = BadRows()
        >>> bad.note("the label is out of range", "part-0.parquet", [7, 9])
        >>> bad.total, bad.counts, bad.places
        (2, {'the label is out of range': 2}, ['part-0.parquet, row 7: the label is out
         of range', ...])
    """

    counts: dict[str, int] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def kinds(self) -> str:
        """How many for which reason, in words."""
        return "; ".join(f"{reason}: {count:,}" for reason, count in sorted(self.counts.items()))

    def note(self, reason: str, where: str, rows: Sequence[int]) -> None:
        """Add rows of `where`, counted from 0, that share a reason."""
        if len(rows):
            self.counts[reason] = self.counts.get(reason, 0) + len(rows)
            room = max(0, SHOWN - len(self.places))
            self.places += [f"{where}, row {int(row)}: {reason}" for row in rows[:room]]

    def add(self, other: BadRows) -> None:
        """Take over what another part of the data has noted."""
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        self.places = (self.places + other.places)[:SHOWN]

    def error(self, rows: int) -> ValueError:
        """One error that says how many, why, where the first are, and what to do."""
        first = "; ".join(self.places[:5])
        more = ", ..." if self.total > 5 else ""
        return ValueError(
            f"{self.total:,} of {rows:,} rows cannot be used ({self.kinds}). The first: {first}{more}. "
            f"Repair them, or leave them out: {LEAVE_OUT}."
        )


@dataclass(frozen=True)
class Columns:
    """Which columns hold features and labels, and what is expected in them."""

    features: str | tuple[str, ...]  # one column of lists, or one column per feature
    label: str
    width: int
    num_classes: int
    classes: tuple[str, ...] | None = None  # what the classes are called, in order, where the labels are words

    @property
    def names(self) -> list[str]:
        """The only columns that are read."""
        return [*([self.features] if isinstance(self.features, str) else self.features), self.label]


def width_of(features: str | tuple[str, ...], batch: Batch) -> int:
    """The number of features of most rows of an Arrow batch."""
    if not isinstance(features, str):
        return len(features)
    column = _column(batch, features)
    size = getattr(column.type, "list_size", -1)
    if size >= 0:
        return int(size)
    widths = Counter(_lengths(column, features).tolist())
    del widths[-1]
    if not widths:
        raise ValueError(f"column {features!r} begins with missing values only; its width cannot be told from them.")
    return int(widths.most_common(1)[0][0])


def usable_rows(
    batches: Iterable[Batch],
    columns: Columns,
    bad: BadRows,
    where: str = "the data",
    first_row: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of features :math:`(b, p)` and labels of the rows that can be used; the others are noted in `bad`.

    Arguments:
        batches: Arrow record batches or tables.
        columns: What to read.
        bad: Takes the rows that cannot be used.
        where: The name of the source, for `bad`.
        first_row: The number of the first row in that source.
    """
    for batch in batches:
        count = batch.num_rows
        if count:
            good = np.ones(count, dtype=bool)

            def reject(wrong: Mask, reason: str, good: Mask = good, start: int = first_row) -> None:
                rows = np.flatnonzero(wrong & good)  # a row counts once, for the first thing that is wrong with it
                good[rows] = False
                bad.note(reason, where, [start + int(row) for row in rows])

            features = _features(batch, columns, reject)
            labels = _labels(batch, columns, reject)
            if good.all():
                yield features, labels
            elif good.any():
                kept = torch.from_numpy(good)
                yield features[kept], labels[kept]
        first_row += count


# ---- features ------------------------------------------------------------------------------------------------------


def _features(batch: Batch, columns: Columns, reject: Reject) -> Tensor:
    """All rows of the batch, :math:`(b, p)`; the rejected ones hold whatever is at hand."""
    if isinstance(columns.features, str):
        rows = _from_lists(_column(batch, columns.features), columns, reject)
    else:
        parts = [_column(batch, name) for name in columns.features]
        for part in parts:
            reject(~_valid(part), MISSING)
        rows = torch.stack([_numbers(part, name) for part, name in zip(parts, columns.features, strict=True)], 1)
    # A sum is one fast pass and shows any NaN or infinity; only a suspicious one is worth a closer look.
    if not bool(torch.isfinite(rows.sum())):
        reject(~torch.isfinite(rows).all(1).numpy(), INFINITE)
    return rows


def _from_lists(column: pa.Array, columns: Columns, reject: Reject) -> Tensor:
    name, width = str(columns.features), columns.width
    lengths = _lengths(column, name)
    reject(lengths < 0, MISSING)
    reject(lengths != width, WIDTH)
    fits = lengths == width
    if not fits.any():
        return torch.zeros(len(column), width)
    if fits.all():
        size = getattr(column.type, "list_size", -1)
        flat = column.values.slice(column.offset * size, len(column) * size) if size >= 0 else column.flatten()
        return _numbers(flat, name).view(len(column), width)
    import pyarrow as pa

    kept = column.filter(pa.array(fits)).flatten()
    some = _numbers(kept, name).view(-1, width)
    rows = some.new_zeros(len(column), width)
    rows[torch.from_numpy(fits)] = some
    return rows


def _lengths(column: pa.Array, name: str) -> NDArray[np.int64]:
    """The length of each list, -1 where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_null(kind):  # a part of the data in which all of them are missing
        return np.full(len(column), -1, dtype=np.int64)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ValueError(
            f"column {name!r} holds {kind}, but features are lists of numbers. Pass the names of the columns as a "
            "list if each feature has a column of its own."
        )
    lengths = pc.fill_null(pc.list_value_length(column), -1)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def _numbers(values: pa.Array, name: str) -> Tensor:
    """A flat Arrow array as a tensor that shares its memory where it can; nulls become NaN."""
    import pyarrow as pa

    # Null: a part of the data in which all of them are missing.
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    elif not pa.types.is_floating(values.type):
        raise ValueError(f"column {name!r} holds {values.type}, but features must be numbers.")
    if values.null_count:
        return torch.from_numpy(values.to_numpy(zero_copy_only=False))
    if len(values) == 0:
        return torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())
    return from_dlpack(values)


# ---- labels --------------------------------------------------------------------------------------------------------


def _labels(batch: Batch, columns: Columns, reject: Reject) -> Tensor:
    """Integers :math:`(b,)` or soft labels :math:`(b, C)`; the rejected rows hold whatever is at hand."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _column(batch, columns.label)
    kind = column.type
    if pa.types.is_null(kind):
        reject(~_valid(column), MISSING)
        return torch.zeros(len(column), dtype=torch.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        as_features = Columns(columns.label, columns.label, columns.num_classes, columns.num_classes)
        soft = _from_lists(column, as_features, reject)
        off = (soft.double().sum(1) - 1).abs() > 16 * columns.num_classes * torch.finfo(soft.dtype).eps
        reject((off | ~torch.isfinite(soft).all(1) | (soft < 0).any(1)).numpy(), SOFT)
        return soft
    if columns.classes is not None:
        words = column.dictionary_decode() if pa.types.is_dictionary(kind) else column
        place = pc.index_in(words, value_set=pa.array(columns.classes, words.type))
        reject(~_valid(place), MISSING)
        return torch.from_numpy(np.asarray(pc.fill_null(place, 0).to_numpy(zero_copy_only=False), dtype=np.int64))
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(
            f"column {columns.label!r} holds {kind}, but labels are whole numbers from 0. "
            "Encode the names of the classes as numbers first, the same way in all files."
        )
    reject(~_valid(column), MISSING)
    plain = pc.fill_null(column.cast(pa.int8()) if pa.types.is_boolean(kind) else column, 0)
    labels = np.asarray(plain.to_numpy(zero_copy_only=False))
    if np.issubdtype(labels.dtype, np.floating):
        reject(labels != np.floor(labels), FRACTION)  # NaN differs from itself; an infinite label is out of range
        labels = np.where(np.isfinite(labels), labels, -1)
    reject((labels < 0) | (labels >= columns.num_classes), RANGE)
    return torch.from_numpy(labels.astype(np.int64))  # a copy of its own: Arrow's memory is not writable


def _valid(column: pa.Array) -> Mask:
    if column.null_count == 0:
        return np.ones(len(column), dtype=bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=bool)


def _column(batch: Batch, name: str) -> pa.Array:
    """One Arrow array, also of a table in chunks and of a tensor type."""
    import pyarrow as pa

    if name not in batch.schema.names:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(batch.schema.names)}.")
    if batch.schema.names.count(name) > 1:
        raise ValueError(f"there are {batch.schema.names.count(name)} columns {name!r}; rename all but one.")
    column = batch.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # a table without chunks stays chunked
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.storage if isinstance(column, pa.ExtensionArray) else column
