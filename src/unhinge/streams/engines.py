"""Who does the work: this process, several, Dask or Ray. Answers come in the order of the tasks, whoever is faster.

Adding up in one order makes the sum the same with every engine and every number of workers.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from unhinge.cluster import using_ray
from unhinge.extras import needed_for

if TYPE_CHECKING:
    import distributed

__all__ = ["ENGINES", "Engine", "in_order"]

Engine = Literal["local", "dask", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "dask", "ray")

AHEAD = 2  # tasks handed out for each worker: the next one waits there already, and few answers wait for their turn

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def in_order(
    work: Callable[[Task], Answer], tasks: Sequence[Task], engine: Engine = "local", workers: int = 1
) -> Iterator[Answer]:
    """``work(task)`` of each task, in the order of the tasks.

    Arguments:
        work: A function that other processes can import.
        tasks: What can be pickled.
        engine: ``"local"``: this process, or `workers` processes of this machine. ``"dask"``: the cluster of the
            current Dask client, or processes of this machine. ``"ray"``: the cluster of the current Ray session, or
            that of ``RAY_ADDRESS``, or one on this machine.
        workers: The number of processes; on a cluster, how many tasks run at a time.

    Example:
        >>> list(in_order(abs, [-2, -1, 0]))
        [2, 1, 0]
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    with ExitStack() as stack:
        if engine == "local" and workers == 1:
            yield from map(work, tasks)
            return
        start = {"local": _processes, "dask": _dask, "ray": _ray}[engine]
        submit, result = start(work, workers, stack)
        waiting: deque[object] = deque()
        for task in tasks:
            waiting.append(submit(task))
            if len(waiting) >= AHEAD * workers:
                yield result(waiting.popleft())
        while waiting:
            yield result(waiting.popleft())


# What hands out a task and returns a future of one of three libraries, and what waits for that future's answer.
Started = tuple[Callable[[Task], Any], Callable[[Any], Answer]]


def _processes(work: Callable[[Task], Answer], workers: int, stack: ExitStack) -> Started[Task, Answer]:
    pool = _pool(workers, stack)
    stack.callback(pool.shutdown, cancel_futures=True)
    return lambda task: pool.submit(work, task), lambda future: future.result()


def _pool(workers: int, stack: ExitStack) -> ProcessPoolExecutor:
    # A fresh interpreter each: torch and Arrow have threads, which do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    return stack.enter_context(ProcessPoolExecutor(workers, mp_context=spawn, initializer=_one_thread))


def _one_thread() -> None:
    """The processes fill the cores already."""
    import torch

    torch.set_num_threads(1)


def _dask(work: Callable[[Task], Answer], workers: int, stack: ExitStack) -> Started[Task, Answer]:
    with needed_for("the engine dask"):
        import dask
    client = _dask_client()
    if client is not None:
        return lambda task: client.submit(work, task, pure=False), lambda future: future.result()
    # Without a client Dask computes when asked; its threads then ask for one task each, in processes.
    from concurrent.futures import ThreadPoolExecutor

    threads = stack.enter_context(ThreadPoolExecutor(workers))
    pool = _pool(workers, stack)
    stack.callback(threads.shutdown, cancel_futures=True)

    def compute(task: Task) -> Answer:
        (answer,) = dask.compute(dask.delayed(work)(task), scheduler="processes", pool=pool)
        return answer

    return lambda task: threads.submit(compute, task), lambda future: future.result()


def _dask_client() -> distributed.Client | None:
    """The client in use, if Dask's distributed part is there and has one."""
    try:
        from distributed import default_client

        return default_client()
    except (ImportError, ValueError):
        return None


def _ray(work: Callable[[Task], Answer], workers: int, stack: ExitStack) -> Started[Task, Answer]:
    ray = stack.enter_context(using_ray(workers))
    remote = ray.remote(_called)
    return lambda task: remote.remote(work, task), ray.get


def _called(work: Callable[[Any], Any], task: Any) -> Any:
    """Ray takes plain functions only, and `work` may be a partial one."""
    return work(task)
