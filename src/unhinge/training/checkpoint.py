"""Checkpoints that survive kill -9, a full disk and a flipped bit; tensors and JSON, nothing that executes.

A checkpoint is one safetensors file: weights, buffers, momentum, and in its header, as JSON, where the run stands and a
checksum of both. It is written beside its place, flushed to the disk and then renamed, so a name that exists is
whole; the one before is kept until the next is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unhinge.extras import needed_for
from unhinge.results.json import JsonRecord
from unhinge.results.sealed import write_atomically

__all__ = ["CheckpointError", "Checkpoint", "load_newest", "read_tensors", "save", "write_tensors"]

_PATTERN = "checkpoint-*.safetensors"


class CheckpointError(ValueError):
    """A file that is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and where the run stood."""

    tensors: dict[str, Tensor]
    standing: JsonRecord


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: JsonRecord) -> None:
    """A safetensors file with `about` as JSON in its header, and a checksum of both."""
    with needed_for("a checkpoint"):
        from safetensors.torch import save as to_bytes

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    checksum = _checksum(json.dumps(dict(about), allow_nan=False), plain)
    # One entry: safetensors writes several in an order that changes from time to time, and equal runs are equal files.
    header = {"unhinge": json.dumps({"crc32": checksum, **about}, allow_nan=False)}
    write_atomically(path, to_bytes(plain, metadata=header))


def read_tensors(path: Path) -> Checkpoint:
    """What :func:`write_tensors` wrote, or an error that names the file."""
    with needed_for("a checkpoint"):
        from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        about = json.loads(header["unhinge"])
        wanted = about.pop("crc32")
        actual = _checksum(json.dumps(about), tensors)
    except (KeyError, AttributeError):
        raise CheckpointError(f"{path} is damaged or not ours: its header does not describe a run.") from None
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged or not ours: {str(error) or type(error).__name__}.") from None
    if wanted != actual:
        raise CheckpointError(f"{path} is damaged: its content is not what was written (checksum).")
    return Checkpoint(tensors, about)


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], standing: JsonRecord) -> Path:
    """Write the checkpoint of `step`, and keep beside it the one before: later ones were damaged and passed over."""
    path = folder / f"checkpoint-{step:09d}.safetensors"
    write_tensors(path, tensors, standing)
    before = [old for old in sorted(folder.glob(_PATTERN)) if old < path]
    for other in folder.glob(_PATTERN):
        if other != path and other not in before[-1:]:
            other.unlink(missing_ok=True)
    return path


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and what is wrong with newer ones."""
    complaints: list[str] = []
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            return read_tensors(path), complaints
        except CheckpointError as error:
            complaints.append(str(error))
    return None, complaints


def _checksum(about: str, tensors: Mapping[str, Tensor]) -> str:
    value = zlib.crc32(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        # Dtype and shape as well: the same bytes read as integers would be other numbers.
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"", value)
    return f"{value:08x}"
