"""Output folders: tried before work starts, so that nothing is computed in vain."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["writable"]


def writable(folder: Path) -> Path:
    """The folder, made if need be, after writing to it once; an error says what is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"cannot write to {folder}: {error.strerror or error}. Nothing was computed; choose another folder."
        ) from error
    return folder
