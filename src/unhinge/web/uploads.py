"""A person's own start from an `.npz`: read without executing anything, limited in size, kept in memory only."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unhinge.web.cache import SizedCache

__all__ = ["LARGEST_FILE", "LARGEST_START", "UPLOADS", "Start", "Uploads", "read_npz"]

LARGEST_FILE = 16 * 2**20  # bytes, as sent and as unpacked
LARGEST_START = 2_000_000  # numbers in features and weight together
LARGEST_KEPT = 64 * 2**20  # bytes of all starts that are kept


@dataclass(frozen=True)
class Start:
    """Initial features and prototypes with their labels."""

    features: Tensor  # (n, p) float64
    weight: Tensor  # (C, p) float64
    labels: Tensor  # (n,) int64

    def size(self) -> int:
        """Bytes in memory."""
        return self.features.nbytes + self.weight.nbytes + self.labels.nbytes


def read_npz(raw: bytes) -> Start:
    """The arrays `features (n, p)`, `weight (C, p)` and `labels (n,)`; a ValueError says what is missing or wrong.

    Nothing in the file is executed: arrays of Python objects are refused, and the sizes are looked at before unpacking.
    """
    if len(raw) > LARGEST_FILE:
        raise ValueError(f"the file has {len(raw):,} bytes; at most {LARGEST_FILE:,} are read.")
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            methods = {entry.compress_type for entry in archive.infolist()}
        if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:  # others may unpack to more than they claim
            raise ValueError("it is packed by a method numpy does not use; write it with numpy.savez.")
        if unpacked > LARGEST_FILE:
            raise ValueError(f"the file unpacks to {unpacked:,} bytes; at most {LARGEST_FILE:,} are read.")
        with np.load(io.BytesIO(raw), allow_pickle=False) as data:
            arrays = {name: data[name] for name in ("features", "weight", "labels", "target") if name in data}
            names = ", ".join(sorted(data)[:8]) or "none"
    except zipfile.BadZipFile:
        raise ValueError(
            "the file is no .npz; write one with numpy.savez(file, features=, weight=, labels=)."
        ) from None
    except ValueError as error:
        reason = "it holds Python objects, which are not read" if "pickle" in str(error) else str(error)
        raise ValueError(f"the file cannot be used: {reason}") from None
    except Exception as error:  # a damaged archive fails in many ways: struct, zlib, EOF, unsupported methods
        raise ValueError(f"the file is damaged ({type(error).__name__}).") from None
    labels = arrays.get("labels", arrays.get("target"))
    if "features" not in arrays or "weight" not in arrays or labels is None:
        raise ValueError(f"the file needs arrays called features, weight and labels; it has {names}.")
    features, weight = _numbers("features", arrays["features"]), _numbers("weight", arrays["weight"])
    if features.ndim != 2 or weight.ndim != 2 or features.shape[1] != weight.shape[1] or not features.shape[1]:
        raise ValueError(
            f"features must be (n, p) and weight (C, p) with the same p, got {features.shape} and {weight.shape}."
        )
    if features.size + weight.size > LARGEST_START:
        raise ValueError(
            f"features and weight hold {features.size + weight.size:,} numbers; at most {LARGEST_START:,}."
        )
    classes = len(weight)
    if labels.shape != (len(features),) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be {len(features)} whole numbers, got {labels.dtype} of shape {labels.shape}.")
    if classes < 2 or labels.size == 0 or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must lie in 0 .. {classes - 1}, one for each of at least two rows of weight.")
    whole = labels.astype(np.int64)
    if (np.bincount(whole, minlength=classes) == 0).any():
        raise ValueError("every class needs at least one example.")
    return Start(torch.from_numpy(features), torch.from_numpy(weight), torch.from_numpy(whole))


def _numbers(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold numbers, got {array.dtype}.")
    plain = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(plain).all() or (plain.size and np.abs(plain).max() > 1e100):
        raise ValueError(f"{name} holds NaN, infinite or huge values; clean or scale them first.")
    return plain


class Uploads:
    """The last few files by name: a digest of their bytes, so that an address names the same start again."""

    def __init__(self, limit: int = LARGEST_KEPT) -> None:
        self._kept: SizedCache[str, Start] = SizedCache(limit, Start.size)

    def add(self, raw: bytes) -> str:
        """Read a file and return its name."""
        start = read_npz(raw)
        name = hashlib.sha256(raw).hexdigest()[:16]
        self._kept.put(name, start)
        return name

    def get(self, name: str) -> Start:
        """The start of that name, if it is still there."""
        start = self._kept.find(name)
        if start is None:
            raise ValueError(
                "choose an .npz with features (n, p), weight (C, p) and labels (n,)."
                if not name
                else f"the file {name[:16]!r} is not here any more (files are kept in memory only); choose it again."
            )
        return start


UPLOADS = Uploads()
