"""What one part of the data leaves: its summary, its bad rows, its size. Parts add up, and travel as bytes.

The bytes are a NumPy archive of plain numbers: reading them executes nothing, so they may lie in a file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unhinge.metrics.collapse import CollapseSummary
from unhinge.streams.rows import BadRows, Batch, Columns, usable_rows
from unhinge.theory.linear.summary import HardSummary, SoftSummary

__all__ = ["Content", "Part", "Pass", "part_of"]

Content = HardSummary | SoftSummary | CollapseSummary
Pass = Callable[[Iterable[tuple[Tensor, Tensor]], int], Content]  # batches and C in, a summary out

_KINDS = {kind.__name__: kind for kind in (HardSummary, SoftSummary, CollapseSummary)}


@dataclass(frozen=True)
class Part:
    """The summary of some rows; None where none of them could be used."""

    content: Content | None
    bad: BadRows
    rows: int  # with the bad ones

    def __add__(self, other: Part) -> Part:
        bad = BadRows()
        bad.add(self.bad)
        bad.add(other.bad)
        contents = [part.content for part in (self, other) if part.content is not None]
        return Part(reduce(add, contents) if contents else None, bad, self.rows + other.rows)

    def answer(self, bad: BadRows | None) -> Content:
        """The summary. The bad rows are noted in `bad`; without it they are an error, which counts and names them."""
        if bad is not None:
            bad.add(self.bad)
        if self.content is None or (self.bad.total and bad is None):
            raise self.bad.error(self.rows)
        return self.content

    def to_bytes(self) -> bytes:
        """As a NumPy archive."""
        arrays: dict[str, Any] = {}  # NumPy types the names of an archive as options of its own
        about = {
            "rows": self.rows,
            "bad": [self.bad.counts, self.bad.places],
            "content": _described(self.content, "", arrays),
        }
        stream = io.BytesIO()
        np.savez(stream, **arrays, about=np.frombuffer(json.dumps(about).encode(), np.uint8))
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Part:
        """What :meth:`to_bytes` wrote; a ValueError where it is something else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                about = json.loads(archive["about"].tobytes())
                value = _restored(about["content"], archive)
            return cls(value, BadRows(*about["bad"]), int(about["rows"]))
        except Exception as error:  # a damaged archive fails in many ways
            raise ValueError(f"these bytes hold no part of a summary ({type(error).__name__}).") from None


def part_of(
    batches: Iterable[Batch],
    columns: Columns,
    work: Pass,
    where: str = "the data",
    first_row: int = 0,
) -> Part:
    """The part that `batches` of Arrow data leave: the rows that can be used, through `work`."""
    bad, rows = BadRows(), 0

    def counted() -> Iterable[Batch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    pairs = iter(usable_rows(counted(), columns, bad, where, first_row))
    first = next(pairs, None)
    content = None if first is None else work(chain([first], pairs), columns.num_classes)
    return Part(content, bad, rows)


def _described(value: object, name: str, arrays: dict[str, np.ndarray]) -> dict[str, object]:
    """A value in JSON, its tensors beside it; fields are asked for, not listed, so that summaries may change."""
    if isinstance(value, Tensor):
        arrays[f"tensor{name}"] = value.detach().cpu().numpy()
        return {"tensor": f"tensor{name}"}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        inside = {part: _described(getattr(value, part), f"{name}.{part}", arrays) for part in names}
        return {"kind": type(value).__name__, "fields": inside}
    return {"plain": value}


def _restored(about: Any, archive: Mapping[str, np.ndarray]) -> Any:  # JSON of unknown content, just parsed
    if "tensor" in about:
        return torch.from_numpy(archive[about["tensor"]])
    if "dtype" in about:
        dtype = getattr(torch, about["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError("no dtype")
        return dtype
    if "kind" in about:
        return _KINDS[about["kind"]](**{name: _restored(inner, archive) for name, inner in about["fields"].items()})
    return about["plain"]
