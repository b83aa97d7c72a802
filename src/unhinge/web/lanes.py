"""Where answers are computed: in one thread of this process and, beside a server, in further processes.

Two threads of Python share one core, whatever the machine has: the answers are made of many small operations, each of
which holds Python's lock. A second process has a lock of its own. One is there from the start; where there are more
cores, others come when answers have to wait, for each takes some 300 MB. More lanes than cores would only slow each
other down, and each thread that computes keeps memory of its own (the allocator's arenas), so nobody computes where a
request came in.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

__all__ = ["Lanes"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MOST_HELPERS = 3


class Lanes:
    """A few computations at a time: two here, or one here and one in each of the helpers, which only a server starts.

    They are taken in the order in which they were asked for. Each lane is a thread that fetches the next; if instead
    those who wait took free lanes, one who has just been answered and asks again would be there first.

    Example:
        >>> Lanes().run(max, 2, 3)
        3
    """

    def __init__(self, cores: int | None = None) -> None:
        self._here = ThreadPoolExecutor(2, thread_name_prefix="explorer")
        self._most = min((cores or os.cpu_count() or 1) - 1, MOST_HELPERS)
        self._helpers: dict[int, ProcessPoolExecutor] = {}
        self._coming: Future[None] | None = None  # the helper that starts just now
        self._begun = False  # whether the lanes of this process are there
        self._lock = threading.Lock()  # of the three above
        self._asked: SimpleQueue[_Task | int] = SimpleQueue()  # a number: of the helper whose lane the finder becomes

    def run(self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """The result of `work`, once a lane is free; in a helper if that is one of its, so that all must be picklable.

        A helper that has died (memory was short, somebody ended it) is replaced, and its work is done here.
        """
        self._begin()
        if self._helpers and not self._asked.empty():
            self.start_helper()
        task = _Task(partial(work, *args, **kwargs))
        self._asked.put(task)
        result: Result = task.done.result()
        return result

    def run_here(
        self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """The same in this process, for work that needs what only this process has."""
        return self._here.submit(work, *args, **kwargs).result()

    def start_helper(self) -> Future[None] | None:
        """Let one more process compute, as soon as it has started; the first takes one of the two lanes from here.

        Returns:
            What is done when it has; None where there are as many as cores, or one is just starting.
        """
        with self._lock:
            number = len(self._helpers)
            if number >= self._most or self._coming is not None:
                return None
            self._helpers[number] = helper = _helper()
            self._coming = started = helper.submit(_nothing)
        started.add_done_callback(lambda done: self._ready(number, done))
        return started

    def _ready(self, number: int, started: Future[None]) -> None:
        if started.exception() is not None:
            self._helpers.pop(number, None)
        elif number == 0:
            self._begin()
            self._asked.put(number)
        else:
            self._open(number)
        self._coming = None

    def _begin(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, True
        if not begun:
            self._open(None)
            self._open(None)

    def _open(self, number: int | None) -> None:
        """One more lane: of this helper, None for this process."""
        threading.Thread(target=self._serve, args=(number,), name="explorer lane", daemon=True).start()

    def _serve(self, number: int | None) -> None:
        while True:
            asked = self._asked.get()
            if isinstance(asked, int):
                number = asked
                continue
            try:
                asked.done.set_result(self._computed(number, asked.work))
            except BaseException as error:
                asked.done.set_exception(error)
            del asked  # or its result would stay until the next one

    def _computed(self, number: int | None, work: Callable[[], object]) -> object:
        helper = None if number is None else self._helpers.get(number)
        if number is not None and helper is not None:
            try:
                return helper.submit(work).result()
            except BrokenProcessPool:
                self._helpers[number] = _helper()
        return self._here.submit(work).result()

    def stop_helpers(self) -> None:
        """End the other processes."""
        with self._lock:
            helpers, self._helpers, self._most = self._helpers, {}, 0
        for helper in helpers.values():
            helper.shutdown(wait=False, cancel_futures=True)


class _Task:
    """Work, and where its result appears."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.done: Future[Any] = Future()


def _helper() -> ProcessPoolExecutor:
    # A new interpreter, not a fork: a fork of a process with threads may find their locks taken for ever.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare)


def _prepare() -> None:
    """What the second process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that serves
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import torch

    import unhinge.web.answers  # noqa: F401  # so that the first answer does not wait for it

    torch.set_num_threads(1)


def _leave_with_parent() -> None:
    """End when the process that serves is gone, however it went."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def _nothing() -> None:
    """Work that is done when the helper is ready."""
