"""What besides the recipe decides the last bits of a run: threads, the build of torch, the instructions of the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unhinge.results.json import JsonRecord

__all__ = ["differences", "machine", "total_memory", "using_threads"]


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with this many threads inside the block, and with as many as before after it.

    Example:
        >>> with using_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> JsonRecord:
    """Threads, torch's build and the CPU's instructions, as they are now; kept beside a run.

    Example:
        >>> sorted(machine())
        ['cpu_capability', 'threads', 'torch']
    """
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,  # with its build, such as 2.13.0+cpu
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def total_memory() -> int | None:
    """Bytes of memory this machine has; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no sysconf, or not these names
        return None


def differences(then: JsonRecord, now: JsonRecord) -> list[str]:
    """What is not as it was when a run began, in words; nothing where the same bits can be expected.

    Example:
        >>> differences(
        ...     {"torch": "2.12.0", "threads": 1}, {"torch": "2.13.0", "threads": 1}
        ... )
        ['torch was 2.12.0, now 2.13.0']
    """
    return [f"{name} was {then[name]}, now {now.get(name)}" for name in then if then[name] != now.get(name)]
