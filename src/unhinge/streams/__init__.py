"""Features that live in files and on many machines, summarized where they are.

A summary of a data set is the sum of the summaries of its parts, so every adapter is the same two steps: turn Arrow
batches into tensors, and add up. The answers are those of :func:`unhinge.theory.summarize` over the same rows.

==========================  ==========================================================================
:func:`summarize_parquet`   Parquet files, read in one process, several, or by Dask or Ray; resumable
:func:`summarize_batches`   any iterable of Arrow record batches or tables
:func:`summarize_dataset`   a data set of Hugging Face ``datasets``, in memory or streamed
:func:`summarize_ray`       a Ray ``Dataset``
:func:`summarize_dask`      a Dask ``DataFrame``
:func:`summarize_spark`     a Spark ``DataFrame``
==========================  ==========================================================================

Rows that cannot be used are an error that counts and names them. Pass a :class:`BadRows` to leave them out instead.
"""

from unhinge.streams.frames import (
    summarize_batches,
    summarize_dask,
    summarize_dataset,
    summarize_ray,
    summarize_spark,
)
from unhinge.streams.parquet import summarize_parquet
from unhinge.streams.rows import BadRows

__all__ = [
    "BadRows",
    "summarize_batches",
    "summarize_dask",
    "summarize_dataset",
    "summarize_parquet",
    "summarize_ray",
    "summarize_spark",
]
