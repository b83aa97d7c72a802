"""Features and labels in Parquet files of every form that is read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

__all__ = ["CLASSES", "WIDTH", "examples", "table_of", "write_parts"]

CLASSES, WIDTH = 5, 6


def examples(count: int = 100, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Features near their class means, labels in no order; every class is there."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count)[torch.randperm(count, generator=generator)] % CLASSES
    features = labels[:, None] + torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
    return features.to(dtype), labels


def table_of(features: Tensor, labels: Tensor, form: str = "fixed") -> pa.Table:
    """A table with the features as lists of fixed or free length, or in columns; and a column nobody asks for."""
    rows = features.numpy()
    flat = pa.array(rows.reshape(-1))
    columns: dict[str, Any]
    if form == "fixed":
        columns = {"features": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])}
    elif form in ("list", "large_list"):
        offsets = np.arange(0, rows.size + 1, rows.shape[1])
        kind, width = (pa.ListArray, np.int32) if form == "list" else (pa.LargeListArray, np.int64)
        columns = {"features": kind.from_arrays(pa.array(offsets.astype(width)), flat)}
    else:
        columns = {f"f{k}": pa.array(rows[:, k]) for k in range(rows.shape[1])}
    return pa.table({**columns, "label": pa.array(labels.numpy()), "name": [f"row {k}" for k in range(len(rows))]})


def write_parts(folder: Path, table: pa.Table, files: int = 3, row_group_size: int = 10) -> Path:
    """The table cut into files of about equal size, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    cuts = np.linspace(0, table.num_rows, files + 1).astype(int)
    for k, (start, end) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(start, end - start), folder / f"part-{k}.parquet", row_group_size=row_group_size)
    return folder
