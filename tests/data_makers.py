"""Tiny data files in the formats users have, written byte by byte from their descriptions."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def images(number: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (number, *shape), dtype=np.uint8)


def image(file: Path, array: np.ndarray) -> None:
    """One image file, in the format that its ending names."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(file)


def labels(number: int, classes: int) -> list[int]:
    """Every class in turn."""
    return [index % classes for index in range(number)]


def python2_pickle(content: dict[str, object]) -> bytes:
    """What Python 2's cPickle wrote with protocol 2: str as BINSTRING, arrays through numpy.core.multiarray."""
    out = bytearray(b"\x80\x02}(")
    for key, value in content.items():
        out += _string(key.encode()) + _python2(value)
    return bytes(out + b"u.")


def _python2(value: object) -> bytes:
    if isinstance(value, str):
        return _string(value.encode())
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(_python2(item) for item in value) + b"e"
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    shape = b"(" + b"".join(b"J" + struct.pack("<i", size) for size in value.shape) + b"t"
    kind = b"cnumpy\ndtype\n" + _string(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + _string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _string(b"b") + b"\x87R"
    return empty + b"(K\x01" + shape + kind + b"\x89" + _string(value.tobytes()) + b"tb"


def _string(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def cifar10_python(folder: Path, per_batch: int = 20, protocol: int | None = None) -> Path:
    """The unpacked python version; `protocol` None is Python 2's, a number Python 3's with bytes as keys."""
    below = folder / "cifar-10-batches-py"
    below.mkdir(parents=True)
    for index, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        content = {"batch_label": name, "labels": labels(per_batch, 10), "data": images(per_batch, 3072, seed=index)}
        content["filenames"] = [f"{k}.png" for k in range(per_batch)]
        if protocol is None:
            raw = python2_pickle(content)
        else:
            raw = pickle.dumps({key.encode(): value for key, value in content.items()}, protocol=protocol)
        (below / name).write_bytes(raw)
    return below


def cifar10_binary(folder: Path, per_batch: int = 20) -> Path:
    below = folder / "cifar-10-batches-bin"
    below.mkdir(parents=True)
    for index, name in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        records = zip(labels(per_batch, 10), images(per_batch, 3072, seed=index), strict=True)
        (below / name).write_bytes(b"".join(bytes([label]) + pixels.tobytes() for label, pixels in records))
    return below


def cifar100_python(folder: Path, number: int = 100) -> Path:
    below = folder / "cifar-100-python"
    below.mkdir(parents=True)
    for index, name in enumerate(["train", "test"]):
        content = {"fine_labels": labels(number, 100), "coarse_labels": labels(number, 20)}
        (below / name).write_bytes(python2_pickle({**content, "data": images(number, 3072, seed=index)}))
    return below


def cifar100_binary(folder: Path, number: int = 100) -> Path:
    below = folder / "cifar-100-binary"
    below.mkdir(parents=True)
    for index, name in enumerate(["train.bin", "test.bin"]):
        rows = zip(labels(number, 20), labels(number, 100), images(number, 3072, seed=index), strict=True)
        (below / name).write_bytes(b"".join(bytes([coarse, fine]) + pixels.tobytes() for coarse, fine, pixels in rows))
    return below


def tar(folder: Path, archive: Path) -> Path:
    """`folder` packed as tar or tar.gz, and gone."""
    with tarfile.open(archive, "w:gz" if archive.name.endswith("gz") else "w") as packed:
        packed.add(folder, arcname=folder.name)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return archive


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_set(folder: Path, number: int = 20, packed: bool = False, splits: tuple[str, ...] = ("train", "t10k")) -> Path:
    folder.mkdir(parents=True)
    for seed, split in enumerate(splits):
        for name, array in {
            f"{split}-images-idx3-ubyte": images(number, 28, 28, seed=seed),
            f"{split}-labels-idx1-ubyte": np.array(labels(number, 10), np.uint8),
        }.items():
            raw = idx(array)
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)
    return folder


def svhn(folder: Path, splits: tuple[str, ...] = ("train", "test"), number: int = 20, compressed: bool = True) -> Path:
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for seed, split in enumerate(splits):
        pixels = images(number, 3, 32, 32, seed=seed).transpose(2, 3, 1, 0)
        digits = np.array([[label if label else 10] for label in labels(number, 10)], np.uint8)
        stream = io.BytesIO()
        savemat(stream, {"X": pixels, "y": digits}, do_compression=compressed)
        (folder / f"{split}_32x32.mat").write_bytes(stream.getvalue())
    return folder
