"""Pieces of work that other processes can import: some succeed, one fails, one kills its process once."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def square(task: tuple[int, str]) -> int:
    return task[0] ** 2


def fail_on_three(task: tuple[int, str]) -> int:
    if task[0] == 3:
        raise ValueError("three is not for us\nsecond line")
    return task[0] ** 2


def die_once(task: tuple[int, str]) -> int:
    """The first to come here with number 2 kills its own process; whoever tries again succeeds."""
    marker = Path(task[1]) / "died"
    if task[0] == 2 and not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return task[0] ** 2


def die_always(task: tuple[int, str]) -> int:
    if task[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task[0] ** 2
