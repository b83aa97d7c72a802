"""Classes that also derive from a class of another library, which is imported only when one of them is made.

A callback must be a ``lightning.pytorch.Callback``, a postprocessor an ``openood.postprocessors.BasePostprocessor``. A
class statement that said so would import those libraries (seconds each, and not installed everywhere) together with
ours. So the base is borrowed when the first instance is made.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, ClassVar, Self

__all__ = ["BorrowedBases"]

_COMBINED: dict[tuple[type[Any], ...], type[Any]] = {}  # the same class each time, so that type(a) is type(b)


class BorrowedBases:
    """Its children also derive from a class of another library, where that can be imported.

    ``Child(...)`` makes an instance of a class that has both as bases, so ``isinstance`` of either holds.

    Example:
        >>> class Sorted(BorrowedBases):
        ...     _base_candidates = (("collections", "UserList"),)
        ...
        ...     def __init__(self, values):
        ...         self.data = sorted(values)
        >>> from collections import UserList
        >>> isinstance(Sorted([2, 1]), UserList), Sorted.__mro__[1] is UserList
        (True, False)
    """

    _base_candidates: ClassVar[tuple[tuple[str, str], ...]] = ()  # (module, class) of each library that will do
    _missing: ClassVar[str | None] = None  # the error where none is there; None: do without

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        # The lenders in use; a class derived from one of them is no instance of the other's.
        used = [candidate for candidate in cls._base_candidates if candidate[0] in sys.modules]
        bases = [base for base in map(_class_of, used or cls._base_candidates) if base is not None]
        if not bases and cls._missing is not None:
            raise ImportError(cls._missing)
        bases = [base for base in (bases if used else bases[:1]) if not issubclass(cls, base)]
        made: Self = object.__new__(_combined(cls, *bases) if bases else cls)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # The combined class has no name to be unpickled by.
        return _unpickled, (getattr(type(self), "_plain", type(self)),), self.__dict__


def _unpickled(cls: type[BorrowedBases]) -> BorrowedBases:
    return cls.__new__(cls)


def _class_of(candidate: tuple[str, str]) -> type | None:
    module, name = candidate
    try:
        base: type = getattr(importlib.import_module(module), name)
    except Exception:  # not installed, or installed and broken, which importing it tells better than we can
        return None
    return base


def _combined(*classes: type[Any]) -> type[Any]:
    """The class that derives from all of them, and goes by the name of the first."""
    if classes not in _COMBINED:
        first = classes[0]
        names = {"__module__": first.__module__, "__qualname__": first.__qualname__, "__doc__": first.__doc__}
        _COMBINED[classes] = types.new_class(first.__name__, classes, exec_body=lambda scope: scope.update(names))
        _COMBINED[classes]._plain = first
    return _COMBINED[classes]
