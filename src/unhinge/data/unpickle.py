"""The few pickles the CIFAR files are made of, read without trusting them.

A pickle is a program. Three fences stand before this one: its instructions are listed without running them and only
those that build numbers, strings, lists, dicts and arrays may occur; the names it may call are the handful by which
numpy writes an array; and what those names stand for here is not numpy's code but inert records, turned into an array
only once their type, shape and size are found to agree.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

from unhinge.data.errors import DataError

__all__ = ["read_pickle"]

# What Python 2 wrote into the official files, and what Python 3 writes for the same content with protocols 2 to 5.
_OPCODES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 "
    "SHORT_BINSTRING BINSTRING SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES BYTEARRAY8 "
    "EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "GLOBAL STACK_GLOBAL REDUCE BUILD BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE"
)
# An array takes about ten of these. Without a bound, tuples nested a million deep would overflow the stack of hash().
_RARE = "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GLOBAL STACK_GLOBAL REDUCE BUILD BYTEARRAY8"
_MOST_RARE = 100
_MOST = 2_000_000  # instructions; the largest official file, CIFAR-100's train, has 400 thousand
_TYPES = ("u1", "i4", "i8")


def read_pickle(content: bytes, file: object) -> dict[str, Any]:
    """The dict that `content` holds: str keys; str, int, list and `numpy.ndarray` values.

    Arguments:
        content: The whole pickle.
        file: Named in errors.

    Example:
        >>> read_pickle(pickle.dumps({b"labels": [6, 9]}, protocol=2), "data_batch_1")
        {'labels': [6, 9]}
    """
    try:
        _check_opcodes(content)
        # Python 2's str is bytes; latin1 maps every byte to the character of the same number and never fails.
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can provoke any of them, MemoryError included
        raise DataError(
            f"{file} is truncated or damaged, or not one of the pickles this reader is for: {error}. "
            "Other pickles are refused on purpose, as they could run code."
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{file} should hold a dict, but holds a {type(value).__name__}. Is it another data set's file?"
        )
    return {_text(key): _finish(item, file) for key, item in value.items()}


def _check_opcodes(content: bytes) -> None:
    allowed, rarely = frozenset(_OPCODES.split()), frozenset(_RARE.split())
    rare, last = 0, ""
    kept: dict[int, str] = {}  # by its place in the memo, the instruction that made it
    for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
        name = opcode.name
        if name not in allowed:
            raise DataError(f"instruction {name} at byte {position} has no place in it")
        if count == _MOST:
            raise DataError(f"more than {_MOST} instructions by byte {position}")
        rare += name in rarely
        if rare > _MOST_RARE:
            raise DataError(f"more than {_MOST_RARE} calls and tuples by byte {position}")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(kept) if name == "MEMOIZE" else int(argument or 0)
            # The unpickler allocates its memo up to the largest index, whatever that is: one wrong bit, many gigabytes.
            if place > count:
                raise DataError(f"a reference at byte {position} points nowhere")
            kept[place] = last
        # A tuple used twice, in a tuple used twice, ... takes for ever to hash.
        elif name in ("BINGET", "LONG_BINGET") and "TUPLE" in kept.get(int(argument or 0), ""):
            raise DataError(f"a tuple at byte {position} is used twice")
        last = name


class _Inert:
    """A name of a pickle: it can be called, and neither inspected nor changed by it."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> Any:
        raise DataError("a name is called that is none")

    def __setstate__(self, state: object) -> None:
        raise DataError("it tries to change a name")


class _Encode(_Inert):
    """`_codecs.encode`: how Python 3 writes bytes with protocol 2."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> bytes:
        match arguments:
            case (str() as text, "latin1"):
                return text.encode("latin1")
        raise DataError("an unknown encoding of bytes")


@dataclass(eq=False)
class _Type:
    """A dtype to be: its code, and the byte order that follows in a BUILD."""

    code: str
    order: str = "|"

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), str() as order, None, None, None, -1, -1, 0) if order in ("|", "<", ">"):
                self.order = order
            case _:
                raise DataError("an array of an unusual type")


class _MakeType(_Inert):
    __slots__ = ()

    def __call__(self, *arguments: object) -> _Type:
        match arguments:
            case (str() as code, 0 | 1, 0 | 1) if code in _TYPES:  # 1 is also True
                return _Type(code)
        raise DataError("an array of a type other than whole numbers")


@dataclass(eq=False)
class _Array:
    """An array to be: shape, type and bytes, still unchecked."""

    shape: Any = None
    type: Any = None
    fortran: Any = None
    content: Any = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, _Type() as kind, 0 | 1 as fortran, bytes() | str() as content):
                self.shape, self.type, self.fortran, self.content = shape, kind, bool(fortran), content
            case _:
                raise DataError("an array without its parts")


class _Reconstruct(_Inert):
    """`numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")`: an empty array, filled by the BUILD that follows."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> _Array:
        match arguments:
            case (_Ndarray(), (0,), b"b" | "b"):
                return _Array()
        raise DataError("an array made in an unusual way")


class _Ndarray(_Inert):
    __slots__ = ()


class _FromBuffer(_Inert):
    """`numpy.core.numeric._frombuffer(bytes, dtype, shape, order)`: protocol 5."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> _Array:
        match arguments:
            case (bytes() | bytearray() as content, _Type() as kind, tuple() as shape, "C" | "F" as order):
                return _Array(shape, kind, order == "F", bytes(content))
        raise DataError("an array without its parts")


_NAMES: dict[tuple[str, str], _Inert] = {
    ("numpy", "ndarray"): _Ndarray(),
    ("numpy", "dtype"): _MakeType(),
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer(),
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer(),
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise DataError(f"the name {module}.{name} has no place in it")
        return _NAMES[module, name]


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    return value if isinstance(value, str) else repr(value)


def _finish(item: Any, file: object) -> Any:
    if not isinstance(item, _Array):
        return item
    if item.type is None:
        raise DataError(f"{file} is damaged: an array in it was never filled.")
    # Python 2 wrote the bytes as a str, which latin1 has turned into characters.
    try:
        content = item.content.encode("latin1") if isinstance(item.content, str) else item.content
    except UnicodeEncodeError:
        raise DataError(f"{file} is damaged: the bytes of an array are text.") from None
    kind = np.dtype(item.type.order + item.type.code)
    whole = all(isinstance(size, int) and 0 <= size < 1 << 31 for size in item.shape)
    if not whole or len(item.shape) > 2 or math.prod(item.shape) * kind.itemsize != len(content):
        raise DataError(
            f"{file} is damaged: an array of shape {item.shape!r:.80} and type {kind} cannot have {len(content)} bytes."
        )
    return np.frombuffer(content, kind).reshape(item.shape, order="F" if item.fortran else "C")
