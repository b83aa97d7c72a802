"""One writer per folder: the second process is told who the first is, instead of mixing its files with theirs.

The lock is the operating system's (``flock``), not the file's existence: it ends with the process that holds it,
however that ends, so a stale lock cannot be left behind. The file only says who holds it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LockError", "only_writer"]

NAME = ".writer.lock"


class LockError(OSError):
    """Another process writes to the folder."""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder for the length of the block; :class:`LockError` if another process does.

    Within one process the lock is held once: a second block on the same folder is refused as well.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name, only_writer(Path(name)):
        ...     print("alone")
        alone
    """
    try:
        import fcntl
    except ImportError:  # Windows has no flock; there two writers are the user's to avoid
        yield
        return
    path = folder / NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockError(
                f"{folder} is being written to by {_owner(handle)}. Wait until it ends, stop it, or choose another "
                "folder."
            ) from None
        owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        os.ftruncate(handle, 0)
        os.pwrite(handle, owner, 0)
        yield
    finally:
        os.close(handle)  # which releases it; the file stays, since removing it would race with the next writer


def _owner(handle: int) -> str:
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
        return f"process {int(owner['pid'])} on {owner['host']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
