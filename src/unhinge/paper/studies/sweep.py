"""Many independent pieces of work, in several processes here or on several machines.

A piece that fails is an outcome like any other and stops nothing; a worker that dies takes its piece with it, which is
then tried again. Pieces are functions of what they are given, so who does them does not matter.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeVar

from unhinge.cluster import using_ray
from unhinge.extras import needed_for

__all__ = ["ENGINES", "Engine", "Failure", "sweep"]

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")
RETRIES = 3  # of a piece whose worker died


@dataclass(frozen=True)
class Failure(Generic[Task]):
    """A piece of work that did not succeed, and why."""

    task: Task
    reason: str  # one line
    details: str = ""  # the traceback


def sweep(
    tasks: Sequence[Task], work: Callable[[Task], Answer], *, jobs: int = 1, engine: Engine = "local"
) -> Iterator[tuple[Task, Answer | Failure[Task]]]:
    """Each task with its answer, or its failure, as they are done.

    Arguments:
        tasks: What `work` is called with, once each.
        work: A function that other processes can import.
        jobs: Pieces at once. On a Ray cluster, each asks for one CPU, and 0 means as many as there are CPUs.
        engine: `local`, processes of this machine; `ray`, those of the cluster that RAY_ADDRESS names, or else of this
            machine.

    Example:
        >>> from math import isqrt
        >>> sorted(sweep([1, 4, 9], isqrt))
        [(1, 1), (4, 2), (9, 3)]
    """
    if engine not in ENGINES:
        raise ValueError(f"there is no engine {engine!r}. Choose one of: {', '.join(ENGINES)}.")
    if not tasks:
        return
    if engine == "ray":
        yield from _with_ray(tasks, work, jobs)
    elif jobs <= 1:
        for task in tasks:
            yield task, _guarded(work, task)
    else:
        yield from _in_processes(tasks, work, jobs)


def _guarded(work: Callable[[Task], Answer], task: Task) -> Answer | Failure[Task]:
    try:
        return work(task)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Failure(task, f"{type(error).__name__}: {lines[0]}", traceback.format_exc())


def _numbered(work: Callable[[Task], Answer], number: int, task: Task) -> tuple[int, Answer | Failure[Task]]:
    _end_with_parent()
    return number, _guarded(work, task)


@cache  # once in each worker
def _end_with_parent() -> None:
    """End this worker when the process that started it is gone, so that a killed sweep computes no further.

    A watching thread rather than Linux's parent-death signal: that signal comes when the *thread* that started the
    worker ends, and joblib starts workers from threads of its own.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(143)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def _in_processes(
    tasks: Sequence[Task], work: Callable[[Task], Answer], jobs: int
) -> Iterator[tuple[Task, Answer | Failure[Task]]]:
    with needed_for("a sweep over several processes"):
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import TerminatedWorkerError

    waiting = dict(enumerate(tasks))
    deaths = 0
    while waiting:
        # At least 2: with 1, joblib would work in this process, and a piece that kills its process would kill this one.
        workers = max(2, min(jobs, len(waiting)))
        # One thread each, whatever `jobs` is: what computes with more says so itself, and its numbers depend on it.
        with parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
            pool = Parallel(return_as="generator_unordered", batch_size=1)
            try:
                for number, answer in pool(delayed(_numbered)(work, n, task) for n, task in list(waiting.items())):
                    yield waiting.pop(number), answer
            except TerminatedWorkerError as error:  # which piece it was, joblib does not say: all the rest again
                deaths += 1
                if deaths > RETRIES:
                    for task in waiting.values():
                        yield task, Failure(task, f"its process died {deaths} times", str(error))
                    return


def _with_ray(
    tasks: Sequence[Task], work: Callable[[Task], Answer], jobs: int
) -> Iterator[tuple[Task, Answer | Failure[Task]]]:
    with using_ray(jobs or None) as ray:
        remote: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_guarded)
        waiting = {remote.remote(work, task): task for task in tasks}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                task = waiting.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayError as error:  # died more often than it may
                    yield task, Failure(task, f"lost with its worker: {type(error).__name__}", str(error))
