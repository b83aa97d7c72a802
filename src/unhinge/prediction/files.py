"""Features and labels from a file: read without executing anything, sizes looked at before they are believed.

``.npz`` (numpy), ``.safetensors``, ``.pt``/``.pth`` (a dictionary of tensors, read with ``weights_only``), ``.npy``
with ``labels.npy`` beside it (and maybe ``weight.npy``, ``bias.npy``), and ``.csv`` with a column of labels.
Whatever is wrong with a file ends in one :class:`FileError` with one line.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from unhinge.extras import MissingExtra, needed_for

__all__ = ["FeatureFile", "FileError", "check_classes", "checked", "read_features"]

LARGEST_BYTES = 16 * 2**30  # of a file, and of what it unpacks to
LARGEST_RATIO = 100  # of what it unpacks to and the file itself, above a gigabyte: features are no rows of zeros
LARGEST_NUMBERS = 2**32  # in one array
LARGEST_PROTOTYPES = 2**27  # numbers of a (C, p) matrix, of which several are kept
MATRICES = 6  # of C x C float64 numbers that live at once: spectrum, Gram matrices, cosines, logits of class means
LARGEST_MATRICES = 2**30  # bytes of them
MOST_LABEL = 2**31  # a label above is no class
LARGEST_CSV = 2**28  # bytes of a file of text: a number of it takes some thirty times its letters while it is read
LARGEST_VALUE = 1e100  # squares must not overflow

NAMES = {
    "features": ("features",),
    "labels": ("labels", "target", "targets"),
    "weight": ("weight",),
    "bias": ("bias",),
}
WANTED = "features (n, p) and labels (n,), and if you like weight (C, p) and bias (C,)"


class FileError(ValueError):
    """A file that cannot be used; the message says why, in one line."""


@dataclass(frozen=True)
class FeatureFile:
    """What a file holds: checked, finite, in the precision it was stored in."""

    features: Tensor  # (n, p) float
    labels: Tensor  # (n,) int64
    weight: Tensor | None = None  # (C, p) float64
    bias: Tensor | None = None  # (C,) float64

    @property
    def num_classes(self) -> int:
        """Rows of `weight`, entries of `bias`, or the largest label plus one."""
        for part in (self.weight, self.bias):
            if part is not None:
                return len(part)
        return int(self.labels.max()) + 1


def read_features(path: str | Path) -> FeatureFile:
    """The arrays of a file, by its suffix; a :class:`FileError` says what is missing or wrong.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "features.npz"
        ...     np.savez(file, features=np.eye(4), labels=np.array([0, 0, 1, 1]))
        ...     stored = read_features(file)
        >>> tuple(stored.features.shape), stored.num_classes, stored.weight
        ((4, 4), 2, None)
    """
    file = Path(path)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        called = file.name or f"{str(path)!r}"
        if file.suffix.lower() == ".parquet":
            raise FileError(f"{called} is read in parts: by `unhinge predict {called}` or by summarize_parquet.")
        raise FileError(f"{called} is none of {', '.join(READERS)}. Write one of these with {WANTED}.")
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise FileError(f"{file} is not a file.")
        file.open("rb").close()
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror or one_line(error)}.") from None
    if size > LARGEST_BYTES:
        raise FileError(f"{file.name} has {size:,} bytes; at most {LARGEST_BYTES:,} are read.")
    try:
        return checked(reader(file))
    except MissingExtra:
        raise
    except FileError as error:
        named = file.name in str(error)
        raise FileError(str(error) if named else f"{file.name}: {error}") from None
    except Exception as error:  # a damaged file fails in many ways: struct, zlib, EOF, seeking, tensors of odd kinds
        raise FileError(
            f"{file.name} is damaged or of another kind ({type(error).__name__}). Write it again, with {WANTED}."
        ) from None


def one_line(error: object, most: int = 200) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= most else text[: most - 3] + "..."


# ---- the formats ---------------------------------------------------------------------------------------------------


def _npz(file: Path) -> dict[str, object]:
    if not zipfile.is_zipfile(file):
        raise FileError(
            f"{file.name} is no .npz: it is not a zip archive, or it is cut off. Write it with numpy.savez."
        )
    with zipfile.ZipFile(file) as archive:
        _check_unpacked(archive, file)
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        return {key: _npy(archive, f"{name}.npy", key) for key, name in _chosen(names, file).items()}


def _npy(archive: zipfile.ZipFile, name: str, key: str) -> np.ndarray:
    """One array, after its header has been compared with the size of its entry: numpy allocates what a header says."""
    entry = archive.getinfo(name)
    with archive.open(entry) as stream:
        raw = io.BytesIO(stream.read(1 << 16))
    shape, dtype = _header(raw, key)
    stored = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or stored != entry.file_size - raw.tell():
        raise FileError(f"{key} is damaged: its header speaks of {stored:,} bytes, its entry does not hold them.")
    with archive.open(entry) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype, with which an .npy begins; refused if its entries are Python objects."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        text = ", or as text: labels.astype(str)" if name in NAMES["labels"] else ""
        raise FileError(f"{name} holds Python objects, which are not read; save it as numbers{text}.")
    return shape, dtype


def _safetensors(file: Path) -> dict[str, object]:
    with needed_for(f"reading {file.name}"):
        from safetensors import safe_open

    with safe_open(file, framework="pt") as archive:
        return {key: archive.get_tensor(name) for key, name in _chosen(set(archive.keys()), file).items()}


def _pt(file: Path) -> dict[str, object]:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            _check_unpacked(archive, file)
    try:
        with warnings.catch_warnings():  # of unusual pickles, which are refused anyway
            warnings.simplefilter("ignore")
            arrays = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        objects = "weights_only" in str(error) or "Weights only" in str(error)
        reason = "it holds more than tensors, and nothing else is read" if objects else type(error).__name__
        raise FileError(
            f"{file.name} cannot be read as a dictionary of tensors: {reason}. Write it with torch.save, with {WANTED}."
        ) from None
    if not isinstance(arrays, dict):
        raise FileError(f"{file.name} holds a {type(arrays).__name__}, not a dictionary of tensors with {WANTED}.")
    names = {name for name in arrays if isinstance(name, str)}
    return {key: arrays[name] for key, name in _chosen(names, file).items()}


def _npy_pair(file: Path) -> dict[str, object]:
    """An array of features, and beside it labels.npy and maybe weight.npy and bias.npy."""
    beside = {key: [file.with_name(f"{name}.npy") for name in NAMES[key]] for key in ("labels", "weight", "bias")}
    files = {key: next((place for place in places if place.is_file()), None) for key, places in beside.items()}
    if files["labels"] is None:
        raise FileError(f"{file.name} holds features; put labels.npy beside it, with one label for each.")
    arrays = {"features": _plain_npy(file)}
    return arrays | {key: _plain_npy(place) for key, place in files.items() if place is not None}


def _plain_npy(file: Path) -> np.ndarray:
    with file.open("rb") as stream:
        shape, dtype = _header(stream, file.stem)
        left = file.stat().st_size - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left:
        raise FileError(f"{file.name} is damaged: its header does not fit its size.")
    array: np.ndarray = np.load(file, allow_pickle=False)
    return array


def _csv(file: Path) -> dict[str, object]:
    """One example a line. A first line of words names the columns: `label` is the class, the others are features.

    Without such a line the last column is the label.
    """
    if file.stat().st_size > LARGEST_CSV:
        raise FileError(
            f"{file.name} has {file.stat().st_size:,} bytes, and as text at most {LARGEST_CSV:,} are read, which take "
            f"about {30 * LARGEST_CSV / 1e9:.0f} GB of memory. Write it as .npz or Parquet."
        )
    with file.open(newline="", encoding="utf-8-sig") as stream:  # spreadsheets begin with a byte-order mark
        rows = [[cell.strip() for cell in row] for row in csv.reader(stream) if row]
    if not rows:
        raise FileError(f"{file.name} is empty.")
    heads = rows[0]
    if len(heads) == 1:
        raise FileError(f"{file.name} has one column, {one_line(heads[0], 80)!r}; columns are separated by commas.")
    known = [place for place, head in enumerate(heads) if head.lower() in ("label", *NAMES["labels"])]
    if len(known) > 1:
        called = " and ".join(heads[place] for place in known)
        raise FileError(f"{file.name} has the columns {called}; only one of them is the class. Leave out the others.")
    place = known[0] if known else None
    if place is not None and "" in heads:
        raise FileError(
            f"{file.name}: column {heads.index('') + 1} has no name. An index that pandas writes has none, and is no "
            "feature: write the file with index=False."
        )
    if place is None and len(heads) > 2 and heads[:-1] == [str(number) for number in range(len(heads) - 1)]:
        raise FileError(
            f"{file.name}: the first line counts the columns, {one_line(','.join(heads), 40)!r}, as pandas does where "
            "they have no names. Name them, the class label."
        )
    if place is not None:
        rows = rows[1:]
    elif not all(_is_number(cell) for cell in heads[:-1]):
        raise FileError(f"{file.name} has no column called label; its first line is {one_line(','.join(heads), 80)!r}.")
    if not rows:
        raise FileError(f"{file.name} has the names of its columns, and no example below them.")
    width, place = len(heads), len(heads) - 1 if place is None else place
    for line, row in enumerate(rows, start=1):
        if len(row) != width:
            raise FileError(f"{file.name}: row {line} has {len(row)} columns, the first line has {width}.")
    labels = [row.pop(place) for row in rows]
    if "" in labels:
        raise FileError(f"{file.name}: row {labels.index('') + 1} has no label. Leave it out.")
    try:
        features = np.array(rows, dtype=np.float64)
    except ValueError:
        line, cell = next((k, cell) for k, row in enumerate(rows, 1) for cell in row if not _is_number(cell))
        got = repr(one_line(cell, 40)) if cell else "an empty cell"
        raise FileError(f"{file.name}: row {line}: features must be numbers, got {got}.") from None
    numbers = all(_is_number(cell) for cell in labels)
    return {"features": features, "labels": np.array([float(cell) for cell in labels] if numbers else labels)}


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


READERS: dict[str, Callable[[Path], dict[str, object]]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".pt": _pt,
    ".pth": _pt,
    ".npy": _npy_pair,
    ".csv": _csv,
}


def _check_unpacked(archive: zipfile.ZipFile, file: Path) -> None:
    unpacked = sum(entry.file_size for entry in archive.infolist())
    most = min(LARGEST_BYTES, max(2**30, LARGEST_RATIO * file.stat().st_size))
    if unpacked > most:
        raise FileError(f"{file.name} unpacks to {unpacked:,} bytes; at most {most:,} are read of a file of its size.")
    for entry in archive.infolist():  # other methods may unpack to more than they claim
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileError(f"{file.name} is packed by a method numpy and torch do not use. Write it with numpy.savez.")


def _chosen(names: set[str], file: Path) -> dict[str, str]:
    """By key, the name it has in the file."""
    name_of: dict[str, str] = {}
    for key, aliases in NAMES.items():
        for name in aliases:
            if name in names and key not in name_of:
                name_of[key] = name
    missing = [key for key in ("features", "labels") if key not in name_of]
    if missing:
        shown = one_line(", ".join(sorted(names)[:8])) or "nothing"
        raise FileError(f"{file.name} has no {' and no '.join(missing)}; it holds {shown}. It needs {WANTED}.")
    return name_of


# ---- what the arrays must be ---------------------------------------------------------------------------------------


def checked(arrays: Mapping[str, object]) -> FeatureFile:
    """Tensors of fitting shapes, finite, with labels in range and an example of every class."""
    features = _numbers("features", arrays["features"], 2)
    if 0 in features.shape:
        raise FileError(f"features must be (n, p) with at least one example, got shape {tuple(features.shape)}.")
    labels = _labels(arrays["labels"], len(features))
    weight, bias = (
        None if arrays.get(key) is None else _numbers(key, arrays[key], ndim).double()
        for key, ndim in (("weight", 2), ("bias", 1))
    )
    dim = features.shape[1]
    if weight is not None and weight.shape[1] != dim:
        raise FileError(f"weight must be (C, {dim}), as features are (n, {dim}), got shape {tuple(weight.shape)}.")
    if weight is not None and bias is not None and len(bias) != len(weight):
        raise FileError(f"bias must have {len(weight)} entries, one per row of weight, got {len(bias)}.")
    file = FeatureFile(features, labels, weight, bias)
    low, high, classes = int(labels.min()), int(labels.max()), file.num_classes
    if low < 0:
        raise FileError(f"labels must be 0 or larger, got {low}.")
    if high >= classes:
        raise FileError(f"labels must lie in 0 .. {classes - 1}, got values from {low} to {high}.")
    check_classes(classes, dim)
    empty = (torch.bincount(labels, minlength=classes) == 0).nonzero().flatten().tolist()
    if empty:
        shown = ", ".join(map(str, empty[:8])) + (", ..." if len(empty) > 8 else "")
        raise FileError(
            f"every class needs an example, but {len(empty)} of {classes} have none: {shown}. "
            "Number the classes 0 .. C - 1, or name them."
        )
    return file


def check_classes(classes: int, dim: int) -> None:
    """That the matrices of so many classes have room, before any of them is made; the error has the estimate."""
    most = math.isqrt(LARGEST_MATRICES // (8 * MATRICES))
    if classes < 2:
        raise FileError(f"there must be at least 2 classes, got {classes}.")
    if classes > most:
        needed = 8 * MATRICES * classes**2
        raise FileError(
            f"there are {classes:,} classes: their C x C matrices would take about {needed / 1e9:,.1f} GB, and at most "
            f"{LARGEST_MATRICES / 1e9:.1f} GB are taken, enough for {most:,} classes. Predict for a part of them."
        )
    if classes * dim > LARGEST_PROTOTYPES:
        raise FileError(
            f"C p must be at most {LARGEST_PROTOTYPES:,}, got C = {classes:,} and p = {dim:,}, which is "
            f"{8 * classes * dim / 1e9:.1f} GB for each of several matrices."
        )


def _numbers(name: str, value: object, ndim: int) -> Tensor:
    kind = value.dtype if isinstance(value, Tensor | np.ndarray) else type(value).__name__
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        # half, single and double stay what they are; other widths and byte orders become double
        plain = value.dtype.kind == "f" and value.dtype.itemsize <= 8
        wide = value.dtype.newbyteorder("=") if plain else np.dtype(np.float64)
        with np.errstate(over="ignore"):
            value = torch.from_numpy(np.ascontiguousarray(value, dtype=wide).reshape(value.shape))
    if (
        not isinstance(value, Tensor)
        or value.is_complex()
        or value.dtype == torch.bool
        or value.layout != torch.strided
    ):
        raise FileError(f"{name} must hold real numbers, got {kind}.")
    if value.is_quantized:
        raise FileError(f"{name} must hold real numbers, got {kind}; dequantize them first.")
    if value.ndim != ndim or value.numel() > LARGEST_NUMBERS:
        wanted = {"features": "(n, p)", "weight": "(C, p)", "bias": "(C,)"}[name]
        raise FileError(
            f"{name} must have shape {wanted} and at most {LARGEST_NUMBERS:,} numbers, got {_shape(value)}."
        )
    stored, asked = value.untyped_storage().nbytes(), value.numel() * value.element_size()
    if stored < asked:
        # A stride of 0 makes gigabytes out of one number; a copy of it would be as large as it claims to be.
        raise FileError(
            f"{name} claims {asked:,} bytes and the file holds {stored:,} of them: its entries share memory. Save it "
            "with .contiguous()."
        )
    tensor = value.detach()
    tensor = tensor.double() if tensor.dtype not in FLOATS else tensor
    largest = max(
        (part.abs().max().double().item() for part in tensor.flatten().split(1 << 22) if len(part)), default=0.0
    )
    if not largest <= LARGEST_VALUE or bool(torch.isnan(tensor).any()):
        place = ", ".join(map(str, (~(tensor.abs() <= LARGEST_VALUE)).nonzero()[0].tolist()))
        raise FileError(
            f"{name} holds NaN, infinite or huge values, the first at [{place}] (counted from 0); find where they come "
            "from, or scale them, first."
        )
    return tensor.contiguous()


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)


def _labels(value: object, size: int) -> Tensor:
    kind = value.dtype if isinstance(value, Tensor | np.ndarray) else type(value).__name__
    if isinstance(value, np.ndarray) and value.dtype.kind in "US" and value.ndim == 1:
        value = _numbered(value)
    if isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided:
        value = value.detach().double().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim == 1:
        with np.errstate(invalid="ignore"):
            whole = np.isfinite(value) & (value == np.round(value)) & (np.abs(value) < MOST_LABEL)
        if not whole.all():
            raise FileError(f"labels must be whole numbers, got {value[~whole][0]:g}.")
        value = value.astype(np.int64)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        if value.size and int(value.max()) > MOST_LABEL:
            raise FileError(f"labels must lie in 0 .. C - 1, got values up to {value.max()}.")
        value = torch.from_numpy(np.ascontiguousarray(value, dtype=np.int64).reshape(value.shape))
    if not isinstance(value, Tensor) or value.dtype not in WHOLE or value.layout != torch.strided:
        advice = "Soft labels: give the most probable class."
        if "bool" in str(kind):
            advice = "Save true and false as 1 and 0: labels.astype(int)."
        raise FileError(f"labels must be whole numbers of an integer dtype, got {kind}. {advice}")
    if value.shape != (size,):
        raise FileError(f"labels must have shape ({size},), one per example, got {_shape(value)}.")
    return value.to(torch.int64).contiguous()


def _numbered(names: np.ndarray) -> np.ndarray:
    """Classes by the order of their names, as scikit-learn has it; names that are whole numbers in that of numbers."""
    unique, places = np.unique(names, return_inverse=True)
    words = [name.decode() if isinstance(name, bytes) else str(name) for name in unique.tolist()]
    if not all(word.isascii() and word.isdigit() for word in words):
        return places
    rank = np.empty(len(words), dtype=np.int64)
    rank[sorted(range(len(words)), key=lambda k: int(words[k]))] = np.arange(len(words))
    ranked: np.ndarray = rank[places]
    return ranked


def _shape(value: Tensor) -> str:
    return f"shape {tuple(value.shape)}"
