"""Labels and starts from the controls, as Python that is run and shown; kept, since few controls change them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from unhinge.web.address import State
from unhinge.web.cache import STARTS_KEPT, SizedCache
from unhinge.web.controls import Control, choice, count, number, text
from unhinge.web.script import Script
from unhinge.web.uploads import UPLOADS

__all__ = [
    "CLASSES",
    "STARTS",
    "Setting",
    "accuracy_cost",
    "check_simplex",
    "check_size",
    "class_counts",
    "labels_line",
    "long_tail",
    "setting",
]

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


def long_tail(per_class: int) -> tuple[Control, ...]:
    """The controls of the classes where sizes differ unless others are chosen, from `per_class` to a twentieth."""
    defaults: dict[str, str | float] = {"profile": "tail", "per_class": per_class, "ratio": 20.0}
    return tuple(replace(each, default=defaults.get(each.key, each.default)) for each in CLASSES)


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
    """Labels and the initial state: a script that leaves `labels (n,)`, `features (n, p)` and `weight (C, p)`."""

    script: Script
    counts: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.counts)

    @property
    def by_size(self) -> list[int]:
        """The classes, the largest first."""
        return sorted(range(self.num_classes), key=lambda c: -self.counts[c])

    @property
    def few(self) -> dict[int, str]:
        """The largest, the middle and the smallest class with their names; of two classes there is no middle."""
        order = self.by_size
        return {order[0]: "largest", order[len(order) // 2]: "middle", order[-1]: "smallest"}

    @property
    def num_samples(self) -> int:
        """n."""
        return sum(self.counts)

    @property
    def dim(self) -> int:
        """p."""
        return int(self.script["weight"].shape[1])


DRAWN: SizedCache[tuple[tuple[int, ...], int, str, int], Setting] = SizedCache(
    STARTS_KEPT, lambda given: given.script.nbytes
)


def setting(state: State) -> Setting:
    """What the controls of :data:`CLASSES` and :data:`STARTS` ask for; a ValueError says why not."""
    if state.word("start") == "own":
        return _own(state.word("file"))
    counts, dim, start, seed = class_counts(state), state.count("dim"), state.word("start"), state.count("seed")
    check_size(counts, dim)
    check_simplex(start, len(counts), dim)
    return DRAWN.get((counts, dim, start, seed), lambda: _drawn(counts, dim, start, seed))


def class_counts(state: State) -> tuple[int, ...]:
    """The size of each class, largest first unless listed otherwise.

    Example:
        >>> items = {
        ...     "profile": "tail",
        ...     "classes": 3,
        ...     "per_class": 100,
        ...     "ratio": 100.0,
        ...     "counts": "",
        ... }
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
        numbers = (size + classes) * dim
        raise ValueError(
            f"{size:,} examples and {classes:,} prototypes of dimension {dim:,} are {numbers:,} numbers; this page "
            f"takes {LARGEST['numbers']:,}. Lower C, N or p here, or use the library, which has no such limit."
        )
    if size * classes > LARGEST["logits"]:
        raise ValueError(
            f"{size:,} examples times {classes:,} classes are {size * classes:,} logits; this page takes "
            f"{LARGEST['logits']:,}. Lower C or N here, or use the library."
        )


def accuracy_cost(given: Setting) -> float:
    """About the nanoseconds for the accuracy at one moment; with unequal classes each logit is a product of vectors."""
    width = 0 if len(set(given.counts)) == 1 else min(given.dim, 2 * given.num_classes)
    return 5e3 + (2 + width / 25) * given.num_samples * given.num_classes  # calling torch is not free either


def check_simplex(start: str, classes: int, dim: int) -> None:
    """That a simplex ETF, where one is asked for, has room."""
    if start == "etf" and classes > dim + 1:
        raise ValueError(
            f"a simplex ETF of {classes} classes needs p of at least {classes - 1}, got {dim}. Raise p, or start at "
            "random."
        )


def labels_line(counts: tuple[int, ...]) -> str:
    """Python for labels class by class.

    Example:
        >>> labels_line((5, 1))
        'labels = torch.arange(2).repeat_interleave(torch.tensor([5, 1]))'
    """
    each = counts[0] if len(set(counts)) == 1 else f"torch.tensor({list(counts)})"
    return f"labels = torch.arange({len(counts)}).repeat_interleave({each})"


def _drawn(counts: tuple[int, ...], dim: int, start: str, seed: int) -> Setting:
    size, classes = sum(counts), len(counts)
    first = ("import torch, unhinge", labels_line(counts), f"g = torch.Generator().manual_seed({seed})")
    if start == "etf":
        lines = (
            f"weight = {dim}**0.5 * unhinge.simplex_etf({classes}, {dim}, g, dtype=torch.float64)\n"
            f"features = torch.randn({size}, {dim}, generator=g, dtype=torch.float64)",
        )
    else:
        lines = (
            f"z = torch.randn({size + classes}, {dim}, generator=g, dtype=torch.float64)\n"
            f"features, weight = z.split([{size}, {classes}])",
        )
    return Setting(Script(*first, *lines), counts)


READ = (
    "import numpy, torch, unhinge",
    "data = {k: torch.from_numpy(v) for k, v in numpy.load('start.npz').items()}",
    "labels = data['labels'].long()",
    "features, weight = data['features'].double(), data['weight'].double()",
)


def _own(name: str) -> Setting:
    start = UPLOADS.get(name)
    counts = tuple(torch.bincount(start.labels, minlength=len(start.weight)).tolist())
    check_size(counts, start.features.shape[1])
    names = {"labels": start.labels, "features": start.features, "weight": start.weight}
    return Setting(Script("import torch, unhinge", names=names).shown_as(*READ), counts)
