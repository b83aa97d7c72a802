"""What a view is, and how its answers are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unhinge.web.address import State
from unhinge.web.controls import Control
from unhinge.web.panels import Answer, Slot

__all__ = ["Kept", "View"]


@dataclass(frozen=True)
class View:
    """One page: its controls, the places of its panels, and the function that answers."""

    key: str
    title: str
    help: str
    controls: Sequence[Control]
    slots: Sequence[Slot]
    solve: Callable[[State], Answer]


class Kept:
    """The last answers by state. A state asked for twice at once is solved once; only a few are solved at a time, so
    that many clients share the cores instead of slowing each other down."""

    def __init__(self, size: int = 128, at_once: int = 2) -> None:
        self._size = size
        self._answers: OrderedDict[State, Answer] = OrderedDict()
        self._busy: dict[State, threading.Event] = {}
        self._lock = threading.Lock()
        self._places = threading.Semaphore(at_once)

    def answer(self, state: State, solve: Callable[[State], Answer]) -> Answer:
        """The answer to a state; what `solve` raises is passed on, and not kept."""
        while True:
            with self._lock:
                if state in self._answers:
                    self._answers.move_to_end(state)
                    return self._answers[state]
                running = self._busy.get(state)
                if running is None:
                    self._busy[state] = threading.Event()
                    break
            running.wait()
        try:
            with self._places:
                answer = solve(state)
            with self._lock:
                self._answers[state] = answer
                while len(self._answers) > self._size:
                    self._answers.popitem(last=False)
            return answer
        finally:
            with self._lock:
                self._busy.pop(state).set()
