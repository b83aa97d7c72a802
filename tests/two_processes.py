"""Two processes of a gloo group on the loopback device, for what has to work under torch.distributed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

__all__ = ["run_in_two"]


def run_in_two(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, *arguments)`` in both processes of a group, and wait for both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_member, args=(port, work, arguments), nprocs=2)


def _member(rank: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    work(rank, *arguments)  # an error goes to the parent, which ends the other process
    dist.barrier()  # neither leaves while the other may still ask it for something
    # Gloo's threads, of which sharding starts some for groups of its own, may abort the interpreter while it shuts
    # down (signal 6 after the work was done). All that was to be said is said: leave without that.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
