"""Classes that pass for another library's, which is imported only when one of them is made."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, ClassVar, Self

__all__ = ["Adopted"]

_MADE: dict[tuple[type[Any], ...], type[Any]] = {}


class Adopted:
    """Its children also derive from a class of another library, where that can be imported.

    ``Child(...)`` makes an instance of a class that has both as bases, so ``isinstance`` of either holds.
    """

    _families: ClassVar[tuple[tuple[str, str], ...]] = ()  # (module, class) of each library that will do
    _missing: ClassVar[str | None] = None  # the error where none is there; None: pass for nobody

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # The ones in use; a class of one of them is a stranger to the other.
        used = [family for family in cls._families if family[0] in sys.modules]
        bases = [base for base in map(_class_of, used or cls._families) if base is not None]
        if not bases and cls._missing is not None:
            raise ImportError(cls._missing)
        bases = [base for base in (bases if used else bases[:1]) if not issubclass(cls, base)]
        made: Self = object.__new__(_with_bases(cls, *bases) if bases else cls)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # The class with both bases has no name to be unpickled by.
        return _unpickled, (getattr(type(self), "_plain", type(self)),), self.__dict__


def _unpickled(cls: type[Adopted]) -> Adopted:
    return cls.__new__(cls)


def _class_of(family: tuple[str, str]) -> type | None:
    module, name = family
    try:
        found: type = getattr(importlib.import_module(module), name)
    except Exception:  # not installed, or installed and broken, which importing it tells better than we can
        return None
    return found


def _with_bases(*classes: type[Any]) -> type[Any]:
    """The class that derives from all of them, and goes by the name of the first; the same one each time."""
    if classes not in _MADE:
        first = classes[0]
        names = {"__module__": first.__module__, "__qualname__": first.__qualname__, "__doc__": first.__doc__}
        _MADE[classes] = types.new_class(first.__name__, classes, exec_body=lambda scope: scope.update(names))
        _MADE[classes]._plain = first
    return _MADE[classes]
