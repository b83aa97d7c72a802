"""MNIST and its successors, all in the idx format: a magic number, the sizes, the bytes.

LeCun, Cortes, Burges (MNIST); Clanuwat et al. 2018 (KMNIST); Xiao, Rasul, Vollgraf 2017 (Fashion-MNIST).
"""

from __future__ import annotations

import gzip
import io
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from unhinge.data.errors import Checksum, DataError, MissingFile, advising, verify
from unhinge.data.files import LARGEST, read_file
from unhinge.data.images import ImageSet, Splits

__all__ = ["fashion_mnist", "kmnist", "mnist", "read_idx"]

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class _Family:
    name: str
    folder: str  # torchvision's
    url: str
    packed: dict[str, str]  # file to md5 of the .gz as published
    plain: dict[str, str]  # and of its content
    classes: tuple[str, ...]
    mean: float
    std: float
    mirrored: bool


def mnist(root: Path, *, checksum: Checksum = "warn", train: bool = True) -> Splits:
    """MNIST, 60,000 and 10,000 digits of 28 by 28 pixels."""
    return _load(_MNIST, root, checksum, train)


def kmnist(root: Path, *, checksum: Checksum = "warn", train: bool = True) -> Splits:
    """Kuzushiji-MNIST, 60,000 and 10,000 cursive hiragana of 28 by 28 pixels; the test files alone are enough."""
    return _load(_KMNIST, root, checksum, train)


def fashion_mnist(root: Path, *, checksum: Checksum = "warn", train: bool = True) -> Splits:
    """Fashion-MNIST, 60,000 and 10,000 clothes of 28 by 28 pixels."""
    return _load(_FASHION, root, checksum, train)


def read_idx(content: bytes, file: Path | str) -> np.ndarray:
    """The array of bytes that an idx file holds, gzip or plain.

    Example:
        >>> read_idx(b"\\0\\0\\x08\\x01" + b"\\0\\0\\0\\x02" + b"\\x05\\x07", "labels")
        array([5, 7], dtype=uint8)
    """
    try:
        return _read_idx(content)
    except Exception as error:  # gzip and zlib have their own
        raise DataError(f"{file} is truncated or damaged: {error}.") from None


def _read_idx(content: bytes) -> np.ndarray:
    packed = content[:2] == b"\x1f\x8b"
    with gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content) as stream:
        zero, kind, ndim = struct.unpack(">HBB", _exactly(stream, 4))
        if zero or kind != 8 or not 1 <= ndim <= 4:
            raise DataError(f"it starts with {content[:4].hex()}, not with the magic number 000008xx of idx bytes")
        shape = struct.unpack(f">{ndim}I", _exactly(stream, 4 * ndim))
        size = math.prod(shape)
        if size > LARGEST:
            raise DataError(f"its header claims the shape {shape}")
        body = stream.read(size + 1)  # one more, which there should not be; it also lets gzip check its sum
    if len(body) != size:
        raise DataError(f"shape {shape} needs {size} bytes, but {'fewer' if len(body) < size else 'more'} follow")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _exactly(stream: io.BufferedIOBase, size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise DataError("it ends within its header")
    return content


def _load(family: _Family, root: Path, checksum: Checksum, train: bool) -> Splits:
    absent = all(_place(family, root, name) is None for name in _FILES["train"])
    return Splits(
        family.name,
        None if absent or not train else _read(family, root, "train", checksum),
        _read(family, root, "test", checksum),
        _how_to_get(family, root, _FILES["train"][0]) if absent else "",
    )


def _place(family: _Family, root: Path, name: str) -> Path | None:
    for folder in (root / family.folder / "raw", root / family.folder, root / family.name, root / "raw", root):
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    return None


def _how_to_get(family: _Family, root: Path, name: str) -> str:
    folder = root / family.folder / "raw"
    return (
        f"{folder / name} is missing. {_source(family, folder, name)} If it lies elsewhere, name the folder with root=."
    )


def _source(family: _Family, folder: Path, name: str) -> str:
    plain = f"; unpacked, {family.plain[name]}" if name in family.plain else ""
    return f"Download {name}.gz (md5 {family.packed[name]}{plain}) from {family.url} into {folder}."


def _read(family: _Family, root: Path, split: str, checksum: Checksum) -> ImageSet:
    arrays = []
    for name in _FILES[split]:
        file = _place(family, root, name)
        if file is None:
            raise MissingFile(_how_to_get(family, root, name))
        with advising(_source(family, file.parent, name)):
            raw = read_file(file)
            array = read_idx(raw, file)
            _verify(family, name, raw, array, file, checksum)
        arrays.append(array)
    images, labels = arrays
    if images.ndim != 3 or not images.size or labels.shape != images.shape[:1]:
        raise DataError(
            f"{_place(family, root, _FILES[split][0])} should hold images (n, h, w) and its neighbor n labels, but "
            f"their shapes are {images.shape} and {labels.shape}. Are they of the same set?"
        )
    if labels.max() >= len(family.classes):
        raise DataError(
            f"{_place(family, root, _FILES[split][1])} is damaged or another data set's: labels must lie in "
            f"0 .. {len(family.classes) - 1}, but reach {labels.max()}."
        )
    return ImageSet(
        torch.from_numpy(images.copy())[:, None],
        torch.from_numpy(labels.astype(np.int64)),
        family.classes,
        (family.mean,),
        (family.std,),
        mirrored=family.mirrored,
    )


def _verify(family: _Family, name: str, raw: bytes, array: np.ndarray, file: Path, checksum: Checksum) -> None:
    """By content where its md5 is known, as distributions pack the same content anew."""
    packed = raw[:2] == b"\x1f\x8b"
    if not packed:
        verify(raw, family.plain.get(name), file, checksum)
    elif name in family.plain:
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        verify(header + array.tobytes(), family.plain[name], f"{file} (its content)", checksum)
    else:
        verify(raw, family.packed[name], file, checksum)


_DIGITS = tuple(str(digit) for digit in range(10))

# The md5 are torchvision's for .gz files. The two training files of KMNIST are known packed only.
_MNIST = _Family(
    name="mnist",
    folder="MNIST",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    packed={
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    plain={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    classes=_DIGITS,
    mean=0.1307,
    std=0.3081,
    mirrored=False,
)

_KMNIST = _Family(
    name="kmnist",
    folder="KMNIST",
    url="http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    packed={
        "train-images-idx3-ubyte": "bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte": "e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte": "5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte": "7320c461ea6c1c855c0b718fb2a4b134",
    },
    plain={
        "t10k-images-idx3-ubyte": "bf305b8cd328700fbc17f5acbc2856d2",
        "t10k-labels-idx1-ubyte": "9f55f451c0988b028eccdf7d5cc265ab",
    },
    classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    mean=0.1918,
    std=0.3483,
    mirrored=False,
)

_FASHION = _Family(
    name="fashion-mnist",
    folder="FashionMNIST",
    url="https://github.com/zalandoresearch/fashion-mnist",
    packed={
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    plain={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    classes=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    mean=0.2860,
    std=0.3530,
    mirrored=True,
)
