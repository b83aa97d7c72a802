"""Features in Parquet files as a source of predictions: one pass, by one process or many, that can be resumed."""

from __future__ import annotations

from pathlib import Path

from unhinge.prediction.measured import Measured, measure_summary
from unhinge.streams.engines import Engine
from unhinge.streams.parquet import Progress, collapse_of_parquet
from unhinge.streams.rows import BadRows

__all__ = ["is_parquet", "measure_parquet"]


def is_parquet(source: str) -> bool:
    """Whether a source is read as Parquet: by its suffix, or because it is a folder or an address.

    Example:
        >>> is_parquet("features.parquet")
        True
        >>> is_parquet("s3://bucket/features")
        True
        >>> is_parquet("features.npz")
        False
    """
    return source.rstrip("/").lower().endswith((".parquet", ".pq")) or "://" in source or Path(source).is_dir()


def measure_parquet(
    source: str,
    features: str = "features",
    label: str = "label",
    num_classes: int | None = None,
    *,
    engine: Engine = "local",
    workers: int = 1,
    resume: str | Path | None = None,
    bad: BadRows | None = None,
    progress: Progress | None = None,
) -> Measured:
    """What the rows have to say, without a head; arguments as in :func:`~unhinge.streams.summarize_parquet`."""
    summary = collapse_of_parquet(
        source, features, label, num_classes, engine=engine, workers=workers, resume=resume, bad=bad, progress=progress
    )
    return measure_summary(summary)
