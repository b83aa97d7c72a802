"""What one part of the data leaves: its summary, its bad rows, its size. Parts add up, and travel as bytes.

The bytes are a NumPy archive of plain numbers: reading them executes nothing, so they may lie in a file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unhinge.metrics.collapse import CollapseSummary
from unhinge.streams.rows import BadRows, Columns, usable_rows
from unhinge.theory.linear.summary import HardSummary, SoftSummary

__all__ = ["Content", "Part", "Pass", "part_of"]

Content = HardSummary | SoftSummary | CollapseSummary
Pass = Callable[[Iterable[tuple[Tensor, Tensor]], int], Content]  # batches and C in, a summary out

_KINDS = {kind.__name__: kind for kind in (HardSummary, SoftSummary, CollapseSummary)}


@dataclass(frozen=True)
class Part:
    """The summary of some rows; None where none of them could be used."""

    content: Any  # Content | None
    bad: BadRows
    rows: int  # with the bad ones

    def __add__(self, other: Part) -> Part:
        bad = BadRows()
        bad.add(self.bad)
        bad.add(other.bad)
        contents = [part.content for part in (self, other) if part.content is not None]
        content = contents[0] + contents[1] if len(contents) == 2 else (contents or [None])[0]
        return Part(content, bad, self.rows + other.rows)

    def to_bytes(self) -> bytes:
        """As a NumPy archive."""
        arrays: dict[str, Any] = {}
        about = {
            "rows": self.rows,
            "bad": [self.bad.counts, self.bad.places],
            "content": _described(self.content, "", arrays),
        }
        stream = io.BytesIO()
        np.savez(stream, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Part:
        """What :meth:`to_bytes` wrote; a ValueError where it is something else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                about = json.loads(archive["about"].tobytes())
                found = _restored(about["content"], archive)
            return cls(found, BadRows(*about["bad"]), int(about["rows"]))
        except Exception as error:  # a damaged archive fails in many ways
            raise ValueError(f"these bytes hold no part of a summary ({type(error).__name__}).") from None


def part_of(batches: Iterable[Any], columns: Columns, work: Pass, where: str = "the data", first_row: int = 0) -> Part:
    """The part that `batches` of Arrow data leave: the rows that can be used, through `work`."""
    bad, rows = BadRows(), 0

    def counted() -> Iterable[Any]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    pairs = iter(usable_rows(counted(), columns, bad, where, first_row))
    first = next(pairs, None)
    content = None if first is None else work(chain([first], pairs), columns.num_classes)
    return Part(content, bad, rows)


def _described(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """A value in JSON, its tensors beside it; fields are asked for, not listed, so that summaries may change."""
    if isinstance(value, Tensor):
        arrays[f"tensor{name}"] = value.detach().cpu().numpy()
        return {"tensor": f"tensor{name}"}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if is_dataclass(value):
        inside = {one.name: _described(getattr(value, one.name), f"{name}.{one.name}", arrays) for one in fields(value)}
        return {"kind": type(value).__name__, "fields": inside}
    return {"plain": value}


def _restored(about: Any, archive: Any) -> Any:
    if "tensor" in about:
        return torch.from_numpy(archive[about["tensor"]])
    if "dtype" in about:
        found = getattr(torch, about["dtype"])
        if not isinstance(found, torch.dtype):
            raise ValueError("no dtype")
        return found
    if "kind" in about:
        return _KINDS[about["kind"]](**{name: _restored(one, archive) for name, one in about["fields"].items()})
    return about["plain"]
