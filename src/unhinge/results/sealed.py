"""Files that are whole or not there, and whose content is noticed when it is no longer what was written.

One mechanism for every file that a later step reads: a JSON object carries a CRC-32 of its own text under the key
``crc32``, and where tables lie beside it, theirs under ``files``. It guards against flipped bits, cut files and hand
edits that would otherwise become a number in a table; it is no signature, and does not guard against someone who wants
to deceive.
"""

from __future__ import annotations

import errno
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unhinge.results.json import JsonRecord

__all__ = [
    "FULL",
    "SealError",
    "checked",
    "read_sealed",
    "remove_leftovers",
    "seal",
    "stamped",
    "unseal",
    "write_atomically",
    "write_sealed",
]

FULL = errno.ENOSPC, errno.EDQUOT  # the disk, or what one may use of it
KEY = "crc32"
FILES = "files"  # checksums of files beside a sealed one, by name


class SealError(ValueError):
    """A file or a line that is not what was written."""


def write_atomically(path: Path, content: bytes) -> None:
    """The file is the old one or the new one, whatever happens in between.

    The content is flushed before the rename, and the folder after it: without the second, a power cut may forget the
    rename although the call has returned.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        cure = "make room" if error.errno in FULL else "remove the cause"
        raise OSError(
            error.errno,
            f"{error.strerror}, while writing {path.name} ({len(content):,} bytes). What was saved before is whole: "
            f"{cure} and run the same command again, it continues from there",
            str(path.parent),
        ) from error


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes were writing when they died; a living one's is left alone."""
    for path in folder.glob(".*.partial"):
        owner = path.name.split(".")[-2]
        if not (owner.isdecimal() and _alive(int(owner))):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if os.name != "posix":  # there signal 0 is Ctrl-C: no question, but an end
        return True
    try:
        os.kill(process, 0)
    except OSError as error:  # no permission: it is there, and another user's
        return not isinstance(error, ProcessLookupError)
    return True


def seal(record: Mapping[str, object]) -> str:
    """One line of JSON with the checksum of all its other entries.

    Example:
        >>> seal({"epoch": 1, "accuracy": 0.5})
        '{"epoch": 1, "accuracy": 0.5, "crc32": "090f312b"}'
    """
    return json.dumps(stamped(record), allow_nan=False)


def stamped(record: Mapping[str, object]) -> JsonRecord:
    """The record with the checksum of all its entries, for :func:`checked`."""
    if KEY in record:
        raise ValueError(f"{KEY!r} is the name of the checksum; a record cannot have an entry of that name.")
    return {**record, KEY: _checksum(record)}


def unseal(text: str | bytes, name: str, older: bool = False) -> JsonRecord:
    """The record that :func:`seal` wrote, or a :class:`SealError` that says what is wrong with `name`.

    With `older`, a record without a checksum is taken as it is.

    Example:
        >>> unseal(seal({"epoch": 1}), "the line")
        {'epoch': 1}
        >>> unseal('{"epoch": 2, "crc32": "00000000"}', "the line")
        Traceback (most recent call last):
        ...
        unhinge.results.sealed.SealError: the line was changed after it was written
         (checksum 00000000, content ...).
    """
    try:
        # NaN and Infinity are no JSON, although Python reads them; 1e999 is, and becomes infinite all the same.
        record = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise SealError(f"{name} is cut off or damaged: it is no JSON.") from None
    return checked(record, name, older)


def checked(record: object, name: str, older: bool = False) -> JsonRecord:
    """A record that :func:`stamped` made, without its checksum; a :class:`SealError` if it does not hold."""
    # With files beside it, a record is of this version, and only its checksum is gone.
    if older and isinstance(record, dict) and KEY not in record and FILES not in record:
        return record
    if not isinstance(record, dict) or not isinstance(record.get(KEY), str):
        raise SealError(f"{name} carries no checksum: unhinge did not write it, or an older version did.")
    content = {key: value for key, value in record.items() if key != KEY}
    actual = _checksum(content)
    if record[KEY] != actual:
        raise SealError(f"{name} was changed after it was written (checksum {record[KEY]}, content {actual}).")
    return content


def write_sealed(
    path: Path, record: Mapping[str, object], beside: Sequence[str] = (), indent: int | None = None
) -> None:
    """A file of one sealed record, which also holds the checksums of the files `beside` it."""
    if FILES in record:
        raise ValueError(f"{FILES!r} is the name of the files beside a record; it cannot have an entry of that name.")
    files = {name: f"{zlib.crc32((path.parent / name).read_bytes()):08x}" for name in beside}
    text = json.dumps(stamped({**record, FILES: files} if files else record), indent=indent, ensure_ascii=False)
    write_atomically(path, (text + "\n").encode())


def read_sealed(
    path: Path, older: bool = False, advice: str = "Put the file back, or delete it to have it made again."
) -> JsonRecord:
    """What :func:`write_sealed` wrote, where the files beside it are what they were too.

    Arguments:
        path: The file.
        older: Also take a record without a checksum, as older versions wrote it.
        advice: What to do, for the error, which names the file as well.
    """
    try:
        record = unseal(path.read_bytes(), str(path), older)
        files = record.pop(FILES, {})
        if not isinstance(files, dict):
            raise SealError(f"{path} names no files where it should.")
        for name, wanted in files.items():
            _check_file(path.parent, name, wanted)
    except SealError as error:
        raise SealError(f"{error} {advice}") from None
    return record


def _check_file(folder: Path, name: str, wanted: str) -> None:
    path = folder / name
    if path.parent != folder or not path.is_file():  # a name that leads elsewhere is not one that we wrote
        raise SealError(f"{path} is missing.")
    actual = f"{zlib.crc32(path.read_bytes()):08x}"
    if actual != wanted:
        raise SealError(f"{path} was changed after it was written (checksum {wanted}, content {actual}).")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _checksum(record: Mapping[str, object]) -> str:
    # Of the text json writes, which is the same for equal content: floats in their shortest exact form, keys in order.
    return f"{zlib.crc32(json.dumps(dict(record), allow_nan=False).encode()):08x}"


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows opens no folders, and flushes renames by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
