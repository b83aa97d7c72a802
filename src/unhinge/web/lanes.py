"""Where answers are computed: in this process and, beside a server, in further ones.

Two threads of Python share one core, whatever the machine has: the answers are made of many small operations, each of
which holds Python's lock. A second process has a lock of its own. One is there from the start; where there are more
cores, others come when answers have to wait, for each takes some 300 MB. More lanes than cores would only slow each
other down, and each thread that computes keeps memory of its own (the allocator's arenas), so nobody computes where a
request came in.

A lane speaks to its process over a pipe of its own. An executor's pool would pass each answer through two more threads,
and each of them waits for the lock that the computing thread holds.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import PriorityQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

__all__ = ["Lanes"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MOST_HELPERS = 3


class Lanes:
    """A few computations at a time: two here, or one here and one in each of the helpers, which only a server starts.

    They are taken in the order in which they were asked for, but one that is known to take longer by as much earlier,
    so that all wait about equally long for what they asked. Each lane is a thread that fetches the next; if instead
    those who wait took free lanes, one who has just been answered and asks again would be there first.

    Example:
        >>> Lanes().run("a sum", sum, [2, 3])
        5
    """

    def __init__(self, cores: int | None = None) -> None:
        self._most = min((cores or os.cpu_count() or 1) - 1, MOST_HELPERS)
        self._helpers: dict[int, _Helper] = {}  # by the lane that asks them, from 1 on: lane 0 is of this process
        self._coming: _Helper | None = None  # the one that starts just now
        self._begun = False  # whether the first two lanes are there
        self._lock = threading.Lock()  # of the four above
        self._asked: PriorityQueue[_Task] = PriorityQueue()
        self._numbers = count()
        self._takes: dict[str, float] = {}  # seconds that each kind of work took, on average and more so lately

    def run(
        self, kind: str, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """The result of `work`, once a lane is free; in a helper if that is one of its, so that all must be picklable.

        A helper that has died (memory was short, somebody ended it) is replaced, and its work is done here.

        Arguments:
            kind: A name for work that takes about equally long.
        """
        if self._helpers and not self._asked.empty():
            self.start_helper()
        return self._queued(kind, partial(work, *args, **kwargs), here=False)

    def run_here(
        self, kind: str, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """The same in this process, for work that needs what only this process has."""
        return self._queued(kind, partial(work, *args, **kwargs), here=True)

    def start_helper(self) -> Future[None] | None:
        """Let one more process compute, as soon as it has started; the first takes one of the two lanes from here.

        Returns:
            What is done when it has; None where there are as many as cores, or one is just starting.
        """
        with self._lock:
            if len(self._helpers) >= self._most or self._coming is not None:
                return None
            self._coming = helper = _Helper()
        started: Future[None] = Future()
        threading.Thread(target=self._await, args=(helper, started), daemon=True).start()
        return started

    def stop_helpers(self) -> None:
        """End the other processes."""
        with self._lock:
            helpers = [*self._helpers.values(), *([self._coming] if self._coming else [])]
            self._helpers, self._coming, self._most = {}, None, 0
        for helper in helpers:
            helper.stop()

    def _queued(self, kind: str, work: Callable[[], Result], here: bool) -> Result:
        self._begin()
        turn = time.monotonic() - self._takes.get(kind, 0.0)
        task = _Task(turn, next(self._numbers), kind, work, here, Future())
        self._asked.put(task)
        result: Result = task.done.result()
        return result

    def _await(self, helper: _Helper, started: Future[None]) -> None:
        try:
            helper.compute(_nothing)
        except _Gone as error:  # while it started
            with self._lock:
                self._coming = None
            started.set_exception(error)
            return
        self._begin()
        with self._lock:
            self._coming, lane = None, len(self._helpers) + 1
            if self._most:  # nobody has stopped them all meanwhile
                self._helpers[lane] = helper
        if lane > 1:
            self._open(lane)
        started.set_result(None)

    def _begin(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, True
        if not begun:
            self._open(0)
            self._open(1)

    def _open(self, lane: int) -> None:
        threading.Thread(target=self._serve, args=(lane,), name=f"explorer lane {lane}", daemon=True).start()

    def _serve(self, lane: int) -> None:
        while True:
            asked = self._asked.get()
            began = time.monotonic()
            try:
                asked.done.set_result(asked.work() if asked.here else self._computed(lane, asked.work))
            except BaseException as error:
                asked.done.set_exception(error)
            took = time.monotonic() - began
            self._takes[asked.kind] = 0.9 * self._takes.get(asked.kind, took) + 0.1 * took
            del asked  # or its result would stay until the next one

    def _computed(self, lane: int, work: Callable[[], object]) -> object:
        helper = self._helpers.get(lane)
        if helper is not None:
            try:
                return helper.compute(work)
            except _Gone:
                with self._lock:
                    if lane in self._helpers:  # nobody has stopped them all
                        self._helpers[lane] = _Helper()
        return work()


class _Task(NamedTuple):
    """Work, whether only this process can do it, and where its result appears; the one with the least turn is next."""

    turn: float  # seconds
    number: int  # decides between equal turns, and before anything that has no order
    kind: str
    work: Callable[[], object]
    here: bool
    done: Future[Any]


class _Gone(Exception):
    """A helper has died."""


class _Helper:
    """Another process, which does one piece of work at a time for the one thread that asks it."""

    def __init__(self) -> None:
        # A new interpreter, not a fork: a fork of a process with threads may find their locks taken for ever.
        context = get_context("spawn")
        self._wire, theirs = context.Pipe()
        self._process = context.Process(target=_help, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def compute(self, work: Callable[[], object]) -> object:
        """What `work` returns or raises there."""
        try:
            self._wire.send(work)
            failed, result = self._wire.recv()
        except (EOFError, OSError) as error:
            raise _Gone from error
        if failed:
            raise result
        return result

    def stop(self) -> None:
        """End it."""
        self._process.terminate()


def _help(wire: Connection) -> None:
    """What a helper does until the process that serves is gone, however it went: then the pipe has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that serves
    import torch

    import unhinge.web.answers  # noqa: F401  # so that the first answer does not wait for it

    torch.set_num_threads(1)
    while True:
        try:
            work = wire.recv()
        except (EOFError, OSError):
            return
        try:
            reply = (False, work())
        except Exception as error:
            error.add_note(traceback.format_exc())  # a trace does not travel
            reply = (True, error)
        with suppress(OSError):
            wire.send(reply)


def _nothing() -> None:
    """Work that is done when the helper is ready."""
