"""Data sets by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from unhinge.data.cifar import cifar10, cifar100
from unhinge.data.digits import digits
from unhinge.data.errors import Checksum, check_policy
from unhinge.data.folder import image_folder, imagenet100
from unhinge.data.idx import fashion_mnist, kmnist, mnist
from unhinge.data.images import Splits
from unhinge.data.svhn import svhn

__all__ = ["NAMES", "load"]

_FILES: dict[str, Callable[..., Splits]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100-coarse": partial(cifar100, coarse=True),
    "svhn": svhn,
    "mnist": mnist,
    "kmnist": kmnist,
    "fashion-mnist": fashion_mnist,
}
NAMES = ("digits", *_FILES, "imagenet100", "folder:PATH")


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    checksum: Checksum = "warn",
    image_size: int | None = None,
) -> Splits:
    """A data set by name, whole and in memory; nothing is downloaded.

    Arguments:
        name: One of `NAMES`; `folder:PATH` is any folder of images, one subfolder for each class.
        root: The folder the files lie in. None: the environment variable UNHINGE_DATA, or else the folder `data`.
        train: False leaves the training images unread, for a set that is only tested on.
        checksum: What to do if a file is not the official one: "error", "warn", or "skip" to not look.
        image_size: Side that the images of `imagenet100` (224 if None) and `folder:PATH` are brought to.

    Example:
        >>> splits = load("digits")
        >>> tuple(splits.training.images.shape), splits.num_classes
        ((1438, 1, 8, 8), 10)
        >>> load("cifar")
        Traceback (most recent call last):
        ...
        ValueError: there is no data set 'cifar'; did you mean cifar10? There are digits, cifar10, ...
    """
    check_policy(checksum)
    below = Path(os.environ.get("UNHINGE_DATA", "data") if root is None else root).expanduser()
    kind, _, path = name.partition(":")
    sized: dict[str, Any] = {} if image_size is None else {"image_size": image_size}
    if kind == "folder" and path:
        # A relative PATH is meant from `root` where one is named, and from here where none is.
        place = Path(path).expanduser()
        return image_folder(place if root is None else below / place, train=train, **sized)
    if name == "imagenet100":
        return imagenet100(below, train=train, **sized)
    if image_size is not None:
        raise ValueError(
            f"image_size is for imagenet100 and folder:PATH; the images of {name} have a size of their own."
        )
    if name == "digits":
        whole = digits()
        return whole if train else Splits(whole.name, None, whole.test)
    if name not in _FILES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"there is no data set {name!r}{hint} There are {', '.join(NAMES)}.")
    return _FILES[name](below, checksum=checksum, train=train)
