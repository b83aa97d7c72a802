"""What is kept for the next request, within a number of bytes: a page that is open for weeks must not grow."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["STARTS_KEPT", "SizedCache"]

STARTS_KEPT = 8 * 2**20  # bytes of starts in each view: some dozens, where whoever moves a slider needs the last one

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """The last values by key, the oldest dropped first when they take more than `limit` bytes together.

    A value that is asked for twice at the same time is made once: the second asker waits for the first.

    Example:
        >>> kept = SizedCache(limit=10, size_of=len)
        >>> kept.get("a", lambda: b"12345678")
        b'12345678'
        >>> kept.get("b", lambda: b"1234")
        b'1234'
        >>> kept.bytes
        4
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int]) -> None:
        self._limit, self._size_of = limit, size_of
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._busy: dict[Key, threading.Event] = {}
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if need be; what `make` raises is passed on, and not kept."""
        while True:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    return self._values[key][0]
                running = self._busy.get(key)
                if running is None:
                    self._busy[key] = threading.Event()
                    break
            running.wait()
        try:
            value = make()
            self.put(key, value)
            return value
        finally:
            with self._lock:
                self._busy.pop(key).set()

    def put(self, key: Key, value: Value) -> None:
        """Keep a value; one that is larger than the whole limit is not kept."""
        size = self._size_of(value)
        with self._lock:
            if key in self._values:
                self.bytes -= self._values.pop(key)[1]
            self._values[key] = value, size
            self.bytes += size
            while self.bytes > self._limit:
                _, (_, dropped) = self._values.popitem(last=False)
                self.bytes -= dropped

    def find(self, key: Key) -> Value | None:
        """The value of a key if it is here."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]
