"""JSON that every reader accepts: RFC 8259 has no NaN and no infinity, Python's writer has both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, overload

__all__ = ["JsonRecord", "as_json", "plain", "write_json"]

# A JSON object that was read from a file or will be written to one: what a value is depends on its key.
JsonRecord: TypeAlias = dict[str, Any]


@overload
def plain(value: Mapping[str, object], *, names: bool = False) -> JsonRecord: ...
@overload
def plain(value: object, *, names: bool = False) -> Any: ...
def plain(value: object, *, names: bool = False) -> Any:
    """The value as JSON can hold it, at any depth.

    Arguments:
        value: Numbers, words, lists and dictionaries of them.
        names: What a number that is not finite becomes. True: its name ("inf"), for a log that is read back and wants
            to know which of the three it was. False: null, for readers that take a number or nothing.

    Example:
        >>> plain({"loss": float("inf"), "norms": [1.0, float("nan")]})
        {'loss': None, 'norms': [1.0, None]}
        >>> plain({"loss": float("inf")}, names=True)
        {'loss': 'inf'}
    """
    if isinstance(value, Mapping):
        return {key: plain(item, names=names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, names=names) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if not names:
        return None
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def as_json(value: object, indent: int | None = 2) -> str:
    """The text of a value; a number in it that is not finite is a ValueError, not a file that others cannot read.

    Example:
        >>> as_json({"γ": 0.5}, indent=None)
        '{"γ": 0.5}'
    """
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: object) -> None:
    """Write a value, indented, with a line end at the end."""
    path.write_text(as_json(value) + "\n", encoding="utf-8")
