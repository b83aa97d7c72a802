"""Labels and starts from the controls, with the Python that makes the same; kept, since few controls change them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from unhinge.nn.frames import simplex_etf
from unhinge.web.address import State
from unhinge.web.controls import Control, choice, count, number, text
from unhinge.web.uploads import UPLOADS

__all__ = ["CLASSES", "STARTS", "Setting", "check_size", "class_counts", "labels_of", "random_rows", "setting"]

LARGEST = {"numbers": 2_000_000, "logits": 1_000_000, "classes": 1000}

PROFILES = (("balanced", "balanced"), ("tail", "long tail"), ("step", "step"), ("own", "own"))
CLASSES: tuple[Control, ...] = (
    count(
        "classes",
        "classes C",
        "The number of classes.",
        10,
        2,
        1000,
        log=True,
        slide=(2, 200),
        when=("profile", ("balanced", "tail", "step")),
    ),
    choice(
        "profile",
        "class sizes",
        "How many examples each class has: all N; falling geometrically from N to N/ratio; N for the first half and "
        "N/ratio for the second; or a list of your own.",
        PROFILES,
    ),
    count(
        "per_class",
        "examples N",
        "Examples per class; with imbalance, those of the largest class.",
        5,
        1,
        10_000,
        log=True,
        slide=(1, 500),
        when=("profile", ("balanced", "tail", "step")),
    ),
    number(
        "ratio",
        "largest / smallest",
        "The size of the largest class over that of the smallest.",
        10.0,
        1.0,
        10_000.0,
        log=True,
        slide=(1, 1000),
        when=("profile", ("tail", "step")),
    ),
    text(
        "counts",
        "own sizes",
        "The sizes of the classes, such as 50, 20, 20, 5.",
        "50, 20, 20, 5",
        ("profile", ("own",)),
    ),
    count("dim", "dimension p", "Entries of a feature and of a prototype.", 32, 1, 8192, log=True, slide=(2, 1024)),
)
STARTS: tuple[Control, ...] = (
    choice(
        "start",
        "start",
        "Where training begins: independent normal features and prototypes; normal features and prototypes on a "
        "simplex ETF; or features, weight and labels from an .npz of your own.",
        (("random", "random"), ("etf", "ETF"), ("own", "own .npz")),
    ),
    count("seed", "seed", "Of the random start.", 0, 0, 10**9, slide=(0, 50), when=("start", ("random", "etf"))),
    text("file", "file", "The name of the file you chose; it stays on this machine.", "", ("start", ("own",))),
)


@dataclass(frozen=True)
class Setting:
    """Labels and the initial state, and the lines of Python that make them as `labels`, `features` and `weight`."""

    labels: Tensor  # (n,)
    counts: tuple[int, ...]
    features: Tensor  # (n, p)
    weight: Tensor  # (C, p)
    code: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.counts)


def setting(state: State) -> Setting:
    """What the controls of :data:`CLASSES` and :data:`STARTS` ask for; a ValueError says why not."""
    if state.word("start") == "own":
        return _own(state.word("file"))
    counts = class_counts(state)
    dim = state.count("dim")
    check_size(counts, dim)
    return _drawn(counts, dim, state.word("start"), state.count("seed"))


def class_counts(state: State) -> tuple[int, ...]:
    """The size of each class, largest first unless listed otherwise.

    Example:
        >>> items = {"profile": "tail", "classes": 3, "per_class": 100, "ratio": 100.0, "counts": ""}
        >>> class_counts(State("free", tuple(items.items())))
        (100, 10, 1)
    """
    profile = state.word("profile")
    if profile == "own":
        return _listed(state.word("counts"))
    classes, largest, ratio = state.count("classes"), state.count("per_class"), state.number("ratio")
    if profile == "tail":
        return tuple(max(1, round(largest * ratio ** (-c / (classes - 1)))) for c in range(classes))
    if profile == "step":
        small = max(1, round(largest / ratio))
        return tuple(largest if c < (classes + 1) // 2 else small for c in range(classes))
    return (largest,) * classes


def _listed(given: str) -> tuple[int, ...]:
    words = [word for word in re.split(r"[\s,;]+", given.strip()) if word]
    try:
        counts = tuple(int(word) for word in words)
    except ValueError:
        raise ValueError(f"own sizes must be whole numbers with commas between them, got {given[:40]!r}.") from None
    if len(counts) < 2 or min(counts) < 1 or max(counts) > 10**7:
        raise ValueError(f"own sizes must be at least two numbers, none below 1 or huge, got {given[:40]!r}.")
    return counts


def check_size(counts: tuple[int, ...], dim: int) -> None:
    """That the page stays quick: a ValueError says which product is too large."""
    classes, size = len(counts), sum(counts)
    if classes > LARGEST["classes"]:
        raise ValueError(
            f"{classes:,} classes are more than the {LARGEST['classes']:,} this page draws; use the library."
        )
    if (size + classes) * dim > LARGEST["numbers"]:
        raise ValueError(
            f"{size:,} examples and {classes:,} prototypes of dimension {dim:,} are {(size + classes) * dim:,} "
            f"numbers; "
            f"this page takes {LARGEST['numbers']:,}. Lower C, N or p here, or use the library, which has no such "
            f"limit."
        )
    if size * classes > LARGEST["logits"]:
        raise ValueError(
            f"{size:,} examples times {classes:,} classes are {size * classes:,} logits; this page takes "
            f"{LARGEST['logits']:,}. Lower C or N here, or use the library."
        )


def labels_of(counts: tuple[int, ...]) -> tuple[Tensor, str]:
    """Labels class by class, and the line that makes them."""
    classes = len(counts)
    if len(set(counts)) == 1:
        return torch.arange(classes).repeat_interleave(counts[0]), (
            f"labels = torch.arange({classes}).repeat_interleave({counts[0]})"
        )
    return torch.arange(classes).repeat_interleave(torch.tensor(counts)), (
        f"labels = torch.arange({classes}).repeat_interleave(torch.tensor({list(counts)}))"
    )


def random_rows(rows: int, dim: int, seed: int) -> Tensor:
    """Independent standard normal rows in float64."""
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@lru_cache(maxsize=16)
def _drawn(counts: tuple[int, ...], dim: int, start: str, seed: int) -> Setting:
    labels, line = labels_of(counts)
    classes, size = len(counts), sum(counts)
    if start == "etf":
        if classes > dim + 1:
            raise ValueError(
                f"a simplex ETF of {classes} classes needs p of at least {classes - 1}, got {dim}. Raise p, or "
                "start at random."
            )
        generator = torch.Generator().manual_seed(seed)
        weight = dim**0.5 * simplex_etf(classes, dim, generator, dtype=torch.float64)
        features = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        code = (
            f"g = torch.Generator().manual_seed({seed}); weight = {dim}**0.5 * "
            f"unhinge.nn.simplex_etf({classes}, {dim}, g, dtype=torch.float64)",
            f"features = torch.randn({size}, {dim}, generator=g, dtype=torch.float64)",
        )
        return Setting(labels, counts, features, weight, (line, "; ".join(code)))
    rows = random_rows(size + classes, dim, seed)
    code = (
        f"z = torch.randn({size + classes}, {dim}, generator=torch.Generator().manual_seed({seed}), "
        f"dtype=torch.float64)",
        f"features, weight = z[:{size}], z[{size}:]",
    )
    return Setting(labels, counts, rows[:size], rows[size:], (line, "; ".join(code)))


def _own(name: str) -> Setting:
    start = UPLOADS.get(name)
    counts = tuple(torch.bincount(start.labels, minlength=len(start.weight)).tolist())
    check_size(counts, start.features.shape[1])
    code = (
        "import numpy; data = {key: torch.from_numpy(value) for key, value in numpy.load('start.npz').items()}",
        "labels, features, weight = data['labels'].long(), data['features'].double(), data['weight'].double()",
    )
    return Setting(start.labels, counts, start.features, start.weight, code)
