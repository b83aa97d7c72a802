"""Any folder of images, one subfolder for each class, and ImageNet's first hundred classes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch

from unhinge.data.errors import DataError, MissingFile
from unhinge.data.images import ImageSet, Splits, channel_statistics
from unhinge.data.stratify import stratified_split
from unhinge.extras import needed_for

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["image_folder", "imagenet100"]

# The only decoders that are asked, whatever a file is called: Pillow would hand PostScript to an interpreter.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_MOST_PIXELS = 1 << 26  # of one image; a larger one is a mistake, or made to fill the memory
_TRAIN, _TEST = ("train", "training"), ("test", "val", "valid", "validation")
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image_folder(path: Path, *, image_size: int | None = None, train: bool = True) -> Splits:
    """The images of `path`/train/CLASS/ and `path`/test/CLASS/ (or val); classes are the subfolders, sorted.

    Without such a pair, `path`/CLASS/ is split once and for all, a fifth of each class to test on.

    Arguments:
        path: The folder.
        image_size: Side of the square that every image is brought to: its shorter side is resized to that, and the
            middle cut out. None keeps images as they are, which must then be of one size.
        train: False leaves the training images unread.
    """
    parts = {"train": _first_folder(path, _TRAIN), "test": _first_folder(path, _TEST)}
    if not path.is_dir():
        raise MissingFile(f"there is no folder {path}. It should have train/CLASS/ and test/CLASS/, or CLASS/.")
    if parts["test"] is None and parts["train"] is None:
        names = _classes(path)
        images, labels = _read(path, names, image_size, trained_on=train)
        first, second = stratified_split(labels, share=0.2, seed=0)
        if not len(second):
            raise DataError(f"{path} has one image of each class, too few to split. Add some, or make a test folder.")
        mean, std = _statistics(images[first])
        whole = ImageSet(images, labels, names, mean, std)
        return Splits(path.name, whole.subset(first) if train else None, whole.subset(second))
    if parts["test"] is None:
        raise MissingFile(f"{path} has a folder train but none of {', '.join(_TEST)}. Put the images to test on there.")
    names = _classes(parts["train"] or parts["test"])
    test_images, test_labels = _read(parts["test"], names, image_size, trained_on=False)
    if parts["train"] is None or not train:
        test = ImageSet(test_images, test_labels, names, *_statistics(test_images))
        return Splits(path.name, None, test, f"{path / 'train'} is missing." if parts["train"] is None else "")
    train_images, train_labels = _read(parts["train"], names, image_size, trained_on=True)
    if train_images.shape[1:] != test_images.shape[1:]:
        raise DataError(
            f"the images of {parts['train']} are {tuple(train_images.shape[2:])} pixels, those of {parts['test']} "
            f"{tuple(test_images.shape[2:])}. Pass image_size= to bring all to one size."
        )
    mean, std = _statistics(train_images)
    return Splits(
        path.name,
        ImageSet(train_images, train_labels, names, mean, std),
        ImageSet(test_images, test_labels, names, mean, std),
    )


def imagenet100(root: Path, *, image_size: int = 224, train: bool = True) -> Splits:
    """The first 100 classes of an ImageNet folder tree, in the sorted order of their wnids.

    Looks for train/WNID/ and val/WNID/ in `root`, `root`/imagenet and the other names people give it. At
    224 pixels the 126,689 training images take 19 GB of memory; at 64 they take 1.6 GB.
    """
    folders = ("imagenet", "imagenet100", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
    places = [root, *(root / name for name in folders)]
    place = next((place for place in places if (place / "val").is_dir()), None)
    if place is None:
        raise MissingFile(
            f"no folder val of ImageNet in {root} or {root / 'imagenet'}. Download ILSVRC2012_img_train.tar (md5 "
            "1d675b47d978889d74fa0da5fadfb00e) and ILSVRC2012_img_val.tar (md5 29b22e2961454d5413ddabcf34fc5622) from "
            f"https://image-net.org and unpack them into {root / 'imagenet'} as train/WNID/ and val/WNID/."
        )
    absent = not (place / "train").is_dir()
    names = _classes(place / ("val" if absent else "train"))
    if len(names) < 100:
        raise DataError(f"{place} has {len(names)} classes, but the first 100 are asked for.")
    names = names[:100]

    def part(split: str) -> ImageSet:
        images, labels = _read(place / split, names, image_size, trained_on=split == "train", allow_others=True)
        return ImageSet(images, labels, names, _IMAGENET_MEAN, _IMAGENET_STD)

    return Splits(
        "imagenet100",
        None if absent or not train else part("train"),
        part("val"),
        f"{place / 'train'} is missing." if absent else "",
    )


def _first_folder(path: Path, names: Sequence[str]) -> Path | None:
    return next((path / name for name in names if (path / name).is_dir()), None)


def _classes(path: Path) -> tuple[str, ...]:
    names = tuple(sorted(item.name for item in path.iterdir() if item.is_dir() and not item.name.startswith(".")))
    if not names:
        raise DataError(f"{path} has no subfolders; each class should be one, with its images in it.")
    return names


def _read(
    path: Path,
    names: tuple[str, ...],
    image_size: int | None,
    *,
    trained_on: bool,
    allow_others: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise ValueError(f"image_size must be a whole number of pixels, at least 1, got {image_size!r}.")
    others = sorted(set(_classes(path)) - set(names))
    if others and not allow_others:
        raise DataError(f"{path} has a class {others[0]!r} that the training images do not have. Remove or add it.")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if not (path / name).is_dir():
            raise DataError(
                f"{path} has no folder {name!r}, a class of the training images. Add it, empty if there are none of it."
            )
        members = sorted(Path(file) for file in _images_below(path / name, set()))
        if not members and trained_on:
            raise DataError(
                f"{path / name} has no images, so nothing could be learned of that class; known are "
                f"{', '.join(_ENDINGS)}. Add some, or remove the folder."
            )
        files += members
        labels += [label] * len(members)
    if not files:
        raise DataError(f"{path} has no images in the subfolders of its classes; known are {', '.join(_ENDINGS)}.")
    pillow = _pillow()
    height, width = (image_size, image_size) if image_size else _decode(pillow, files[0], None).shape[1:]
    # Filled in place: a list of images and the tensor beside it would take the memory twice.
    try:
        images = np.empty((len(files), 3, height, width), np.uint8)
    except (MemoryError, ValueError):
        raise DataError(
            f"{len(files):,} images of {height} by {width} pixels, as {files[0]} has, do not fit in memory. "
            "Pass image_size= for smaller ones."
        ) from None

    def fill(index: int) -> None:
        image = _decode(pillow, files[index], image_size)
        if image.shape != images.shape[1:]:
            raise DataError(
                f"{files[index]} has {image.shape[1]} by {image.shape[2]} pixels, but {files[0]} has {height} by "
                f"{width}. Pass image_size= to bring all to one size."
            )
        images[index] = image

    # Threads, not processes: decoding happens outside Python's lock.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        for _ in pool.map(fill, range(len(files))):
            pass
    return torch.from_numpy(images), torch.tensor(labels)


def _images_below(folder: Path | str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """The image files in a folder and below it, through links, but no folder twice: links may form a circle."""
    about = os.stat(folder)
    if (about.st_dev, about.st_ino) in seen:
        return
    seen.add((about.st_dev, about.st_ino))
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from _images_below(entry.path, seen)
            # is_file: a pipe would never end.
            elif entry.name.lower().endswith(_ENDINGS) and not entry.name.startswith(".") and entry.is_file():
                yield entry.path


def _decode(pillow: ModuleType, file: Path, image_size: int | None) -> np.ndarray:
    """One image as bytes (c, h, w)."""
    try:
        with pillow.open(file, formats=_FORMATS) as opened:
            shape = f"it has {opened.size[0]} by {opened.size[1]} pixels"
            if math.prod(opened.size) > _MOST_PIXELS:
                raise ValueError(shape)
            # Resizing keeps its form: a line of a few hundred bytes would become gigabytes.
            if image_size is not None and image_size**2 * max(opened.size) / min(opened.size) > _MOST_PIXELS:
                raise ValueError(f"{shape}, too many where the shorter side has {image_size}")
            if image_size is not None:
                # JPEG: decode at a fraction of the size where possible
                opened.draft("RGB", (image_size, image_size))
            image = _bytes_of(opened, pillow).convert("RGB")
            if image_size is not None:
                scale = image_size / min(image.size)
                width, height = (max(image_size, round(side * scale)) for side in image.size)
                left, top = (width - image_size) // 2, (height - image_size) // 2
                image = image.resize((width, height), pillow.Resampling.BILINEAR, reducing_gap=3.0)
                image = image.crop((left, top, left + image_size, top + image_size))
            array = np.asarray(image, np.uint8)
    except Exception as error:  # Pillow's decoders raise what they like
        reason = str(error).rstrip(".")
        raise DataError(f"{file} cannot be read as an image: {reason}. Replace or remove it.") from None
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _bytes_of(image: Image, pillow: ModuleType) -> Image:
    """An image of 16 bits scaled to 8: Pillow would cut off at 255, and nearly every pixel would be white."""
    if image.mode.startswith("I;16"):
        return pillow.fromarray((np.asarray(image, np.uint16) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are numbers of 32 bits (mode {image.mode}), whose white is not known")
    return image


def _pillow() -> ModuleType:
    with needed_for("reading image files"):
        from PIL import Image as pillow
    return pillow


def _statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, std = channel_statistics(images)
    # A channel that never changes has no spread to divide by.
    return mean, tuple(s if s > 0 else 1.0 for s in std)
