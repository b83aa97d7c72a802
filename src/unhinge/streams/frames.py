"""Data sets and frames of other libraries: each hands out Arrow batches where the data are, and the parts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import TYPE_CHECKING

from unhinge.extras import needed_for
from unhinge.metrics.collapse import CollapseSummary
from unhinge.streams.part import Part, part_of
from unhinge.streams.rows import BadRows, Batch, Columns, width_of
from unhinge.theory.linear.summary import Summary, summarize
from unhinge.theory.validation import check_num_classes

if TYPE_CHECKING:
    import dask.dataframe
    import datasets
    import pandas
    import pyarrow as pa
    import pyspark.sql
    import ray.data

__all__ = ["summarize_batches", "summarize_dask", "summarize_dataset", "summarize_ray", "summarize_spark"]

BATCH = 8192  # rows of a batch
FIRST = 256  # rows that tell how wide the features are: the width of most of them


def summarize_batches(
    batches: Iterable[Batch],
    features: str | Sequence[str] = "features",
    label: str = "label",
    *,
    num_classes: int,
    bad: BadRows | None = None,
) -> Summary:
    r"""One pass over Arrow record batches or tables: from a scanner, a database cursor, a Flight stream.

    Arguments:
        batches: ``pyarrow.RecordBatch`` or ``pyarrow.Table`` objects with the columns `features` and `label`.
        features: A column of lists of numbers, or the names of the columns if each feature has its own.
        label: The column of the labels: whole numbers from 0, or lists of :math:`C` probabilities.
        num_classes: :math:`C`.
        bad: Takes the rows that cannot be used, which are then left out. None makes them an error.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table(
        ...     {"features": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "label": [0, 1, 1]}
        ... )
        >>> summarize_batches(table.to_batches(), num_classes=2).means().tolist()
        [[1.0, 2.0], [4.0, 5.0]]
    """
    if hasattr(batches, "num_rows") or not hasattr(batches, "__iter__"):
        raise ValueError(f"batches must be an iterable of record batches or tables, got one {type(batches).__name__}.")
    items = (_batch(batch) for batch in batches)
    items = (batch for batch in items if batch.num_rows)
    first = next(items, None)
    if first is None:
        raise ValueError("there are no rows.")
    columns = _columns(features, label, num_classes, first)
    return _answer(part_of(chain([first], items), columns, summarize), bad)


def summarize_dataset(
    dataset: datasets.Dataset | datasets.IterableDataset,
    features: str | Sequence[str] = "features",
    label: str = "label",
    num_classes: int | None = None,
    *,
    bad: BadRows | None = None,
) -> Summary:
    r"""One pass over a ``datasets.Dataset`` or ``IterableDataset`` of Hugging Face.

    Shards add up: ``sum`` the summaries of ``dataset.shard(n, i)``, each made in a process of its own.

    Arguments:
        dataset: The data set; its other columns are not read.
        features, label, bad: As in :func:`summarize_batches`.
        num_classes: :math:`C`; None asks the ``ClassLabel`` of the label column.
    """
    if num_classes is None:
        known = (getattr(dataset, "features", None) or {}).get(label)
        num_classes = getattr(known, "num_classes", None)
        if num_classes is None:
            raise ValueError(
                f"column {label!r} is no ClassLabel, so the number of classes is not known: pass num_classes."
            )
    arrow = dataset.select_columns(_names(features, label)).with_format("arrow")
    return summarize_batches(arrow.iter(BATCH), features, label, num_classes=num_classes, bad=bad)


def summarize_ray(
    dataset: ray.data.Dataset,
    features: str | Sequence[str] = "features",
    label: str = "label",
    *,
    num_classes: int,
    bad: BadRows | None = None,
) -> Summary:
    """One pass over a ``ray.data.Dataset``: each worker sums up its blocks, and only the sums travel.

    Arguments as in :func:`summarize_batches`.
    """
    pruned = dataset.select_columns(_names(features, label))
    columns = _columns(features, label, num_classes, pruned.take_batch(FIRST, batch_format="pyarrow"))
    # None: whole blocks, so that there are few parts.
    summed = partial(_part_in_a_table, columns=columns)
    parts = pruned.map_batches(summed, batch_size=None, batch_format="pyarrow")
    return _answer(_total(row["part"] for row in parts.iter_rows()), bad)


def summarize_dask(
    frame: dask.dataframe.DataFrame,
    features: str | Sequence[str] = "features",
    label: str = "label",
    *,
    num_classes: int,
    bad: BadRows | None = None,
) -> Summary:
    """One pass over a ``dask.dataframe.DataFrame``, by whichever scheduler is in use.

    Dask turns columns of Python lists into text unless told otherwise: make the frame under
    ``dask.config.set({"dataframe.convert-string": False})``, or give each feature a column.

    Arguments as in :func:`summarize_batches`.
    """
    with needed_for("a Dask frame"):
        import dask
        import pyarrow as pa
    if not hasattr(frame, "to_delayed"):
        raise ValueError(f"frame must be a dask.dataframe.DataFrame, got {type(frame).__name__}.")
    missing = [name for name in _names(features, label) if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame has no column {missing[0]!r}; it has {', '.join(map(str, frame.columns))}.")
    pruned = frame[_names(features, label)]
    first = pa.Table.from_pandas(pruned.head(FIRST, npartitions=-1), preserve_index=False)
    if not first.num_rows:
        raise ValueError("there are no rows.")
    columns = _columns(features, label, num_classes, first)
    partitions = enumerate(pruned.to_delayed())
    parts = [dask.delayed(_part_of_pandas)(partition, columns, number) for number, partition in partitions]
    return _answer(_total(dask.compute(*parts)), bad)


def summarize_spark(
    frame: pyspark.sql.DataFrame,
    features: str | Sequence[str] = "features",
    label: str = "label",
    *,
    num_classes: int,
    bad: BadRows | None = None,
) -> Summary:
    """One pass over a ``pyspark.sql.DataFrame`` (Spark 4): executors sum up Arrow batches, and only the sums travel.

    The executors need this package. Arguments as in :func:`summarize_batches`.
    """
    pruned = frame.select(*_names(features, label))
    columns = _columns(features, label, num_classes, pruned.limit(FIRST).toArrow())
    parts = pruned.mapInArrow(_mapper(columns), "part binary").collect()
    return _answer(_total(bytes(row["part"]) for row in parts), bad)


# ---- where the data are --------------------------------------------------------------------------------------------


def _part_in_a_table(table: pa.Table, columns: Columns) -> pa.Table:
    import pyarrow as pa

    part = part_of([table], columns, summarize, "a block").to_bytes()
    return pa.table({"part": pa.array([part], pa.binary())})


def _part_of_pandas(frame: pandas.DataFrame, columns: Columns, number: int) -> bytes:
    import pyarrow as pa

    table = pa.Table.from_pandas(frame, preserve_index=False)
    return part_of([table], columns, summarize, f"partition {number}").to_bytes()


def _mapper(columns: Columns) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        part = part_of(batches, columns, summarize, "a partition").to_bytes()
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.binary())], ["part"])

    return summed


# ---- here ----------------------------------------------------------------------------------------------------------


def _names(features: str | Sequence[str], label: str) -> list[str]:
    return [*([features] if isinstance(features, str) else features), label]


def _columns(features: str | Sequence[str], label: str, num_classes: int, batch: Batch) -> Columns:
    names = features if isinstance(features, str) else tuple(features)
    if not names:
        raise ValueError("features must name at least one column.")
    num_classes = check_num_classes(num_classes)
    return Columns(names, label, width_of(names, batch), num_classes)


def _batch(value: object) -> Batch:
    if not hasattr(value, "num_rows"):
        raise ValueError(f"batches must hold record batches or tables of Arrow, got {type(value).__name__}.")
    return value


def _total(parts: Iterable[bytes]) -> Part:
    return reduce(add, map(Part.from_bytes, parts))


def _answer(total: Part, bad: BadRows | None) -> Summary:
    summary = total.answer(bad)
    assert not isinstance(summary, CollapseSummary)
    return summary
