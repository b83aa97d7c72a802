"""Plain numeric arrays out of Matlab's version 5 files, the format of SVHN.

The same as `scipy.io.loadmat` for such arrays, in a few checked lines: that reader is compiled, trusts the sizes it
finds, and a single wrong byte in a file can end the whole process.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from unhinge.data.errors import DataError
from unhinge.data.files import LARGEST

__all__ = ["read_mat"]

# Types of stored numbers, by their code. An array of doubles may be stored as bytes where all its numbers fit.
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15


def read_mat(content: bytes, file: Path | str) -> dict[str, np.ndarray]:
    """The real numeric arrays of a file by name, in Matlab's (Fortran) order; anything else in it is left out.

    Arguments:
        content: The whole file.
        file: Named in errors.
    """
    try:
        order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
        if order is None or struct.unpack(f"{order}H", content[124:126]) != (0x0100,):
            raise DataError("it has no header of Matlab's version 5; in Matlab, save it with -v7")
        arrays = {}
        left = LARGEST  # bytes that all its arrays together may unpack to
        for code, body in _elements(memoryview(content)[128:], order):
            if code == _COMPRESSED:
                code, body = _inflate(body, order, left)
                left -= len(body)
            if code == _MATRIX and (named := _array(body, order)) is not None:
                arrays[named[0]] = named[1]
        return arrays
    except (DataError, struct.error, zlib.error, ValueError, OverflowError, MemoryError) as error:
        raise DataError(f"{file} is truncated or damaged: {error}.") from None


def _elements(rest: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The (type, bytes) of one element after another; what is left must be whole."""
    while len(rest):
        code, size = struct.unpack_from(f"{order}II", rest)
        if code >> 16:  # a small one: its size beside its type, its bytes in place of the size
            code, size = code & 0xFFFF, code >> 16
            if size > 4:
                raise DataError("a small element is too large")
            yield code, rest[4 : 4 + size]
            rest = rest[8:]
            continue
        if size > len(rest) - 8:
            raise DataError(f"an element of {size} bytes has {len(rest) - 8}")
        yield code, rest[8 : 8 + size]
        # To the next multiple of 8, but for compressed ones, which follow each other without a gap.
        rest = rest[8 + size + (0 if code == _COMPRESSED else -size % 8) :]


def _inflate(body: memoryview, order: str, most: int) -> tuple[int, memoryview]:
    stream = zlib.decompressobj()
    tag = stream.decompress(body, 8)
    code, size = struct.unpack(f"{order}II", tag)
    if size > most:
        raise DataError(f"an element claims {size} bytes, where {most} may still come")
    inside = stream.decompress(stream.unconsumed_tail, size + 1)
    if len(inside) != size or not stream.eof:
        raise DataError(f"an element of {size} bytes does not end where it should")
    return code, memoryview(inside)


def _array(body: memoryview, order: str) -> tuple[str, np.ndarray] | None:
    """Flags, sizes, name and numbers; None where it is a cell, a struct, text, sparse or complex."""
    parts = list(islice(_elements(body, order), 4))  # more would be of no use, and there may be millions
    if len(parts) < 4:
        raise DataError("an array without its parts")
    (_, flags), (_, sizes), (_, name), (code, numbers) = parts
    kind = struct.unpack_from(f"{order}I", flags)[0]
    if not 6 <= kind & 0xFF <= 15 or kind & 0x0800 or code not in _TYPES:
        return None
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    values = np.frombuffer(numbers, np.dtype(order + _TYPES[code]))
    if len(shape) > 8 or any(size < 0 for size in shape) or math.prod(shape) != len(values):
        raise DataError(f"an array of shape {shape} has {len(values)} numbers")
    return bytes(name).decode("latin1"), values.reshape(shape, order="F")
