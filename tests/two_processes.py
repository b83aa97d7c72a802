"""Two or more processes of a gloo group on the loopback device, for what has to work under torch.distributed."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

__all__ = ["folder_of_two", "run_in", "run_in_two", "start_in"]


def run_in_two(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, *arguments)`` in both processes of a group, and wait for both."""
    run_in(2, work, *arguments)


def folder_of_two(work: Callable[[int, str], None]) -> Any:
    """A fixture: the folder to which both processes of ``work(rank, folder)`` have written.

    Starting them takes the time, so they start once for all tests of a file.
    """

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        place = tmp_path_factory.mktemp("processes")
        run_in_two(work, str(place))
        return place

    return folder


def run_in(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """The same in `count` processes. If one fails the others are ended."""
    mp.spawn(_member, args=(count, _free_port(), work, arguments), nprocs=count)


def start_in(count: int, work: Callable[..., None], *arguments: Any) -> list[Any]:
    """The same, without waiting and without ending anyone: the processes, started."""
    context, port = mp.get_context("spawn"), _free_port()
    members = [context.Process(target=_alone, args=(rank, count, port, work, arguments)) for rank in range(count)]
    for member in members:
        member.start()
    return members


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _member(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=count)
    work(rank, *arguments)  # an error goes to the parent, which ends the other process
    dist.barrier()  # neither leaves while the other may still ask it for something
    _leave(0)


def _alone(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """The same where no parent waits for an error: it is printed here, and the process ends with 1."""
    try:
        _member(rank, count, port, work, arguments)
    except Exception:
        traceback.print_exc()
        _leave(1)


def _leave(code: int) -> None:
    """End at once: gloo's threads may abort an interpreter that shuts down (signal 6, after all was done and said)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
