"""CIFAR-10 and CIFAR-100: the python and the binary version, packed or unpacked.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from unhinge.data.errors import Checksum, DataError, MissingFile, advising, verify
from unhinge.data.files import read_files
from unhinge.data.images import ImageSet, Splits
from unhinge.data.unpickle import read_pickle

__all__ = ["cifar10", "cifar100"]

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Version:
    """One of the forms a set is published in."""

    archive: str
    archive_md5: str
    folder: str
    train: dict[str, str]  # file to md5
    test: dict[str, str]
    binary: bool


@dataclass(frozen=True)
class _Family:
    """What the versions of one set share."""

    versions: tuple[_Version, ...]
    key: str  # of the labels in a pickle
    column: int  # of the label in a binary record
    columns: int  # label bytes in a binary record
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def cifar10(root: Path, *, checksum: Checksum = "warn", train: bool = True) -> Splits:
    """CIFAR-10, 50,000 and 10,000 images of 32 by 32 pixels, out of `cifar-10-batches-py` or `-bin` or its archive."""
    return _load("cifar10", _CIFAR10, root, checksum, train)


def cifar100(root: Path, *, checksum: Checksum = "warn", train: bool = True, coarse: bool = False) -> Splits:
    """CIFAR-100, 100 classes of 500 and 100 images, or its 20 superclasses, out of `cifar-100-python` or `-binary`."""
    return _load("cifar100-coarse" if coarse else "cifar100", _COARSE if coarse else _FINE, root, checksum, train)


def _load(name: str, family: _Family, root: Path, checksum: Checksum, train: bool) -> Splits:
    version, place = _find(family, root)
    wanted = {**(version.train if train else {}), **version.test}
    with advising(_source(family, root)):
        content = read_files(place, list(wanted))
    missing = [file for file in wanted if file not in content]
    absent = _how_to_get(family, root, place / missing[0], wanted[missing[0]]) if missing else ""
    # A set without any training file is a test set; one with some of them is broken.
    if missing and set(missing) != set(version.train):
        raise MissingFile(absent)

    def read(files: dict[str, str]) -> ImageSet:
        parts = []
        for file, md5 in files.items():
            with advising(f"Its md5 should be {md5}. {_source(family, root)}"):
                verify(content[file], md5, place / file, checksum)
                parts.append((_from_records if version.binary else _from_pickle)(family, content[file], place / file))
        pixels, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True))
        return ImageSet(pixels.view(-1, 3, 32, 32), labels, family.classes, family.mean, family.std)

    return Splits(name, None if absent or not train else read(version.train), read(version.test), absent)


def _find(family: _Family, root: Path) -> tuple[_Version, Path]:
    """The first version there is: unpacked before packed, and the files may lie in `root` itself."""
    for version in family.versions:
        for place in (root / version.folder, root):
            if any((place / file).is_file() for file in (*version.train, *version.test)):
                return version, place
    for version in family.versions:
        stem = version.archive.removesuffix(".tar.gz")
        for ending in (".tar.gz", ".tgz", ".tar"):
            if (root / (stem + ending)).is_file():
                return version, root / (stem + ending)
    first = family.versions[0]
    file, md5 = next(iter(first.test.items()))
    raise MissingFile(_how_to_get(family, root, root / first.folder / file, md5))


def _how_to_get(family: _Family, root: Path, file: Path, md5: str) -> str:
    return f"{file} (md5 {md5}) is missing. {_source(family, root)} If it lies elsewhere, name the folder with root=."


def _source(family: _Family, root: Path) -> str:
    archives = " or ".join(f"{v.archive} (md5 {v.archive_md5})" for v in family.versions)
    return (
        f"Download {archives} from https://www.cs.toronto.edu/~kriz/cifar.html and put it into {root}, packed, or "
        f"unpacked as {' or '.join(v.folder for v in family.versions)}."
    )


def _from_pickle(family: _Family, raw: bytes, file: Path) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(raw, file)
    pixels = _pixels_of(batch.get("data"), file)
    return pixels, _labels_of(batch.get(family.key), family, len(pixels), file)


def _from_records(family: _Family, raw: bytes, file: Path) -> tuple[np.ndarray, np.ndarray]:
    size = family.columns + _PIXELS
    if not raw or len(raw) % size:
        raise DataError(
            f"{file} is truncated or damaged: its {len(raw)} bytes are not a whole number of records of {size}."
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return records[:, family.columns :], _labels_of(records[:, family.column], family, len(records), file)


def _pixels_of(data: object, file: Path) -> np.ndarray:
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
        came = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(
            f"{file} should hold 'data', bytes of shape (n, {_PIXELS}), but has {came}. Is it another data set's file?"
        )
    if not len(data):
        raise DataError(f"{file} holds no images.")
    return data


def _labels_of(labels: object, family: _Family, number: int, file: Path) -> np.ndarray:
    # Looked at one by one: a list of lists, each of them twice, would keep numpy busy for ever.
    whole = isinstance(labels, np.ndarray) or (isinstance(labels, list) and all(type(label) is int for label in labels))
    try:
        array = np.asarray(labels if whole else [])
    except OverflowError:
        array = np.empty(0, object)
    if array.dtype.kind not in "iu" or array.shape != (number,):
        raise DataError(
            f"{file} should hold {number} labels under {family.key!r}, one whole number for each image, but has "
            f"{'none' if labels is None else f'{array.dtype} of shape {array.shape}' if whole else 'something else'}. "
            "Is it another data set's file?"
        )
    low, high, classes = int(array.min()), int(array.max()), len(family.classes)
    if low < 0 or high >= classes:
        raise DataError(f"{file} is damaged: labels must lie in 0 .. {classes - 1}, but lie in {low} .. {high}.")
    return array.astype(np.int64)


_FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

_COARSE_NAMES = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
vehicles_1 vehicles_2
"""

# The md5 of members are torchvision's (python) and follow from them (binary), where the sha1 agree with MXNet's list.
_CIFAR10 = _Family(
    versions=(
        _Version(
            archive="cifar-10-python.tar.gz",
            archive_md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
            train={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            test={"test_batch": "40351d587109b95175f43aff81a1287e"},
            binary=False,
        ),
        _Version(
            archive="cifar-10-binary.tar.gz",
            archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
            train={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            },
            test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
            binary=True,
        ),
    ),
    key="labels",
    column=0,
    columns=1,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

_CIFAR100_VERSIONS = (
    _Version(
        archive="cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        binary=False,
    ),
    _Version(
        archive="cifar-100-binary.tar.gz",
        archive_md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
        test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
        binary=True,
    ),
)

_FINE = _Family(
    versions=_CIFAR100_VERSIONS,
    key="fine_labels",
    column=1,
    columns=2,
    classes=tuple(_FINE_NAMES.split()),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)

_COARSE = _Family(
    versions=_CIFAR100_VERSIONS,
    key="coarse_labels",
    column=0,
    columns=2,
    classes=tuple(_COARSE_NAMES.split()),
    mean=_FINE.mean,
    std=_FINE.std,
)
