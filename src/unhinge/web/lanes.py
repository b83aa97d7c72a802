"""Where answers are computed: in one thread of this process and, beside a server, in one more process.

Two threads of Python share one core, whatever the machine has: the answers are made of many small operations, each of
which holds Python's lock. A second process has a lock of its own. More than two lanes would only slow each other down,
and each thread that computes keeps memory of its own (the allocator's arenas), so nobody computes where a request came
in.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from queue import Queue
from typing import ParamSpec, TypeVar

__all__ = ["Lanes"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Lanes:
    """At most two computations at a time: both here, or one here and one in a helper that :meth:`start_helper` starts.

    Example:
        >>> Lanes().run(max, 2, 3)
        3
    """

    def __init__(self) -> None:
        self._here = ThreadPoolExecutor(2, thread_name_prefix="explorer")
        self._helper: ProcessPoolExecutor | None = None
        self._free: Queue[bool] = Queue()  # of lanes: whether the helper's
        self._free.put(False)
        self._free.put(False)

    def run(self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """The result of `work`, once a lane is free; in the helper if that is the one, so that all must be picklable.

        A helper that has died (memory was short, somebody ended it) is replaced, and its work is done here.
        """
        helps = self._free.get()
        try:
            if helps and self._helper is not None:
                try:
                    return self._helper.submit(work, *args, **kwargs).result()
                except BrokenProcessPool:
                    self._helper = _helper()
            return self._here.submit(work, *args, **kwargs).result()
        finally:
            self._free.put(helps)

    def run_here(
        self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """The same in this process, for work that needs what only this process has."""
        return self._here.submit(work, *args, **kwargs).result()

    def start_helper(self) -> Future[None] | None:
        """Let a second process take one of the lanes, as soon as it has started; until then both are here.

        Returns:
            What is done when it has; None where there is a helper already, or one core.
        """
        if self._helper is not None or (os.cpu_count() or 1) < 2:
            return None
        self._helper = _helper()
        started = self._helper.submit(_nothing)
        started.add_done_callback(self._ready)
        return started

    def _ready(self, started: Future[None]) -> None:
        if started.exception() is None:
            self._free.get()
            self._free.put(True)

    def stop_helper(self) -> None:
        """End the second process."""
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.shutdown(wait=False, cancel_futures=True)


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
