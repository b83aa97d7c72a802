"""SVHN, the cropped house numbers in Matlab files.

Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", 2011,
http://ufldl.stanford.edu/housenumbers/
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from unhinge.data.errors import Checksum, DataError, MissingFile, advising, verify
from unhinge.data.files import read_file
from unhinge.data.images import ImageSet, Splits
from unhinge.data.mat5 import read_mat

__all__ = ["svhn"]

_MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
# The training set's, so that a lone test file is normalized as usual.
_MEAN, _STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def svhn(root: Path, *, checksum: Checksum = "warn", train: bool = True) -> Splits:
    """SVHN, 73,257 and 26,032 digits of 32 by 32 pixels; the test file alone is enough.

    The class of the digit 0 is 0, though the files write 10.
    """
    places = {name: _place(root, name) for name in _MD5}
    test = places["test_32x32.mat"]
    if not test.is_file():
        raise MissingFile(_how_to_get(root, "test_32x32.mat"))
    absent = not places["train_32x32.mat"].is_file()
    return Splits(
        "svhn",
        None if absent or not train else _read(places["train_32x32.mat"], checksum),
        _read(test, checksum),
        _how_to_get(root, "train_32x32.mat") if absent else "",
    )


def _place(root: Path, name: str) -> Path:
    nested = root / "svhn" / name
    return nested if nested.is_file() else root / name


def _how_to_get(root: Path, name: str) -> str:
    folder = root / "svhn"
    return f"{folder / name} is missing. {_source(folder, name)} If it lies elsewhere, name the folder with root=."


def _source(folder: Path, name: str) -> str:
    return f"Download http://ufldl.stanford.edu/housenumbers/{name} (md5 {_MD5[name]}) into {folder}."


def _read(file: Path, checksum: Checksum) -> ImageSet:
    with advising(_source(file.parent, file.name)):
        raw = read_file(file)
        verify(raw, _MD5[file.name], file, checksum)
        pixels, labels = _arrays(raw, file)
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    names = tuple(str(digit) for digit in range(10))
    targets = torch.from_numpy(labels.reshape(-1).astype(np.int64)) % 10
    return ImageSet(torch.from_numpy(images), targets, names, _MEAN, _STD, mirrored=False)


def _arrays(raw: bytes, file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = read_mat(raw, file)
    pixels, labels = content.get("X", np.empty(0)), content.get("y", np.empty(0))
    if (
        pixels.dtype != np.uint8
        or pixels.shape != (32, 32, 3, labels.size)
        or labels.size == 0
        or not np.isin(labels, np.arange(11)).all()
    ):
        raise DataError(
            f"{file} should hold X, bytes of shape (32, 32, 3, n), and y, n labels in 1 .. 10, but has "
            f"{_description(pixels)} and {_description(labels)}. This is the reader of the cropped digits (format 2)."
        )
    return pixels, labels


def _description(value: np.ndarray) -> str:
    return f"{value.dtype} of shape {value.shape}"
