"""Data sets by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from unhinge.data.cifar import cifar10, cifar100
from unhinge.data.digits import digits
from unhinge.data.errors import Checksum, check_policy
from unhinge.data.folder import image_folder, imagenet100
from unhinge.data.glyphs import glyphs
from unhinge.data.idx import fashion_mnist, kmnist, mnist
from unhinge.data.images import ImageSet, Splits
from unhinge.data.patches import patches
from unhinge.data.svhn import svhn

__all__ = ["NAMES", "SIZED", "blank", "load", "no_such_data"]

_FILES: dict[str, Callable[..., Splits]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100-coarse": partial(cifar100, coarse=True),
    "svhn": svhn,
    "mnist": mnist,
    "kmnist": kmnist,
    "fashion-mnist": fashion_mnist,
}
# Images to train on and to test on, channels, side and classes, as published.
_SIZES = {
    "cifar10": (50_000, 10_000, 3, 32, 10),
    "cifar100": (50_000, 10_000, 3, 32, 100),
    "cifar100-coarse": (50_000, 10_000, 3, 32, 20),
    "svhn": (73_257, 26_032, 3, 32, 10),
    "mnist": (60_000, 10_000, 1, 28, 10),
    "kmnist": (60_000, 10_000, 1, 28, 10),
    "fashion-mnist": (60_000, 10_000, 1, 28, 10),
}
SIZED = ("folder", "imagenet100", "glyphs")  # whose images are brought to any size
NAMES = ("digits", "patches", "glyphs", *_FILES, "imagenet100", "folder:PATH")


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    checksum: Checksum = "warn",
    image_size: int | None = None,
    fonts: Sequence[str | os.PathLike[str]] | None = None,
    characters: str | None = None,
) -> Splits:
    """A data set by name, whole and in memory; nothing is downloaded.

    Arguments:
        name: One of `NAMES`; `folder:PATH` is any folder of images, one subfolder for each class.
        root: The folder the files lie in. None: the environment variable UNHINGE_DATA, or else the folder `data`.
        train: False leaves the training images unread, for a set that is only tested on.
        checksum: What to do if a file is not the official one: "error", "warn", or "skip" to not look.
        image_size: Side that the images of `imagenet100` (224 if None), `glyphs` (24) and `folder:PATH` are brought to.
        fonts: Font files and folders of `glyphs`; None draws the faces that come with matplotlib.
        characters: Ranges of code points of `glyphs`, such as "4E00-9FA5"; None takes all that the fonts share.

    Example:
        >>> splits = load("digits")
        >>> tuple(splits.training.images.shape), splits.num_classes
        ((1438, 1, 8, 8), 10)
        >>> load("cifar")
        Traceback (most recent call last):
        ...
        ValueError: there is no data set 'cifar'; did you mean cifar10? There are
         digits, patches, glyphs, ...
    """
    check_policy(checksum)
    below = Path(os.environ.get("UNHINGE_DATA", "data") if root is None else root).expanduser()
    kind, _, path = name.partition(":")
    if kind == "folder" and path:
        # A relative PATH is meant from `root` where one is named and it is there, and from here otherwise.
        place = Path(path).expanduser()
        inside = root is not None and ((below / place).is_dir() or not place.is_dir())
        read: Callable[..., Splits] = partial(image_folder, below / place if inside else place)
    elif name == "imagenet100":
        read = partial(imagenet100, below)
    elif name in ("digits", "patches"):
        read = digits if name == "digits" else patches
    elif name == "glyphs":
        read = partial(glyphs, fonts=fonts, characters=characters)
    elif name in _FILES:
        read = partial(_FILES[name], below, checksum=checksum)
    else:
        raise no_such_data(name, NAMES)
    if (fonts is not None or characters is not None) and name != "glyphs":
        raise ValueError(f"fonts and characters are for glyphs; {name} has images of its own.")
    if image_size is not None:
        if kind not in SIZED:
            raise ValueError(
                f"image_size is for imagenet100, glyphs and folder:PATH; the images of {name} have their own."
            )
        read = partial(read, image_size=image_size)
    splits = read(train=train)
    return splits if train else replace(splits, absent="They were left unread: pass train=True.")


def no_such_data(name: str, names: Sequence[str]) -> ValueError:
    """The error for a name that is none of `names`, with the nearest of them."""
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return ValueError(f"there is no data set {name!r}{hint} There are {', '.join(names)}.")


def blank(name: str) -> Splits | None:
    """Black images in the published number and size, classes of equal size; None where no number is published.

    They serve to plan a run whose files are not here.

    Example:
        >>> splits = blank("cifar10")
        >>> tuple(splits.training.images.shape), len(splits.test), splits.num_classes
        ((50000, 3, 32, 32), 10000, 10)
    """
    if name not in _SIZES:
        return None
    train, test, channels, side, num_classes = _SIZES[name]
    names = tuple(str(c) for c in range(num_classes))

    def images(count: int) -> ImageSet:
        pixels = torch.zeros(count, channels, side, side, dtype=torch.uint8)
        return ImageSet(pixels, torch.arange(count) % num_classes, names, (0.0,) * channels, (1.0,) * channels)

    return Splits(name, images(train), images(test))
