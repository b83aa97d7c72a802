"""What a reader raises, and only that: the file, what is wrong with it, and what to do."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

__all__ = ["Checksum", "DataError", "DataWarning", "MissingFile", "advising", "check_policy", "verify"]

Checksum = Literal["error", "warn", "skip"]


class DataError(ValueError):
    """A data file that cannot be read as what it should be."""


class MissingFile(DataError):
    """A data file that is not there; the message says where it belongs and where it comes from."""


class DataWarning(UserWarning):
    """A readable data file whose content is not the official one."""


def check_policy(checksum: str) -> None:
    """Refuse a policy that :func:`verify` does not know."""
    if checksum not in get_args(Checksum):
        raise ValueError(f"checksum must be one of {', '.join(get_args(Checksum))}, got {checksum!r}.")


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Let a reader's error end with `advice`: the reader knows what is wrong, its caller where the right file is.

    Example:
        >>> with advising("Download it again."):
        ...     raise DataError("test_batch is truncated.")
        Traceback (most recent call last):
        ...
        unhinge.data.errors.DataError: test_batch is truncated. Download it again.
    """
    try:
        yield
    except MissingFile:
        raise
    except DataError as error:
        raise DataError(f"{error} {advice}") from None


def verify(content: bytes, md5: str | None, file: Path | str, checksum: Checksum) -> None:
    """Compare the md5 of `content` with the official one, and raise, warn or say nothing as `checksum` wants it.

    The md5 guards against damage and mix-ups, not against malice.

    Example:
        >>> verify(b"a", "0cc175b9c0f1b6a831c399e269772661", "a.bin", checksum="error")
    """
    if checksum == "skip" or md5 is None:
        return
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual == md5:
        return
    message = (
        f"{file} is not the official file: its md5 is {actual}, expected {md5}. "
        'Put the official file there, or call load(..., checksum="skip") if the difference is meant.'
    )
    if checksum == "error":
        raise DataError(message)
    warnings.warn(message, DataWarning, stacklevel=2)
