"""Everything that decides a run, frozen; as JSON beside its results, and as a key that names it."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

__all__ = ["Recipe", "RecipeError"]

Loss = Literal["ce", "unhinged", "adjusted", "hinge", "mse", "ldam", "taylor_softmax", "z", "spherical_softmax"]
Head = Literal["linear", "pal", "fnpal", "etf-init", "many"]

MOST_THREADS = 1024
_LARGEST = (2 - 2**-23) * 2.0**127  # that float32 holds: networks compute in it
MANY = ("taylor_softmax", "z", "spherical_softmax", "unhinged")  # of the head whose step does not grow with the classes


class RecipeError(ValueError):
    """A recipe that cannot be followed."""


@dataclass(frozen=True)
class Recipe:
    r"""One training run, whole: two equal recipes give the same weights on the same machine.

    Where the data lie, on which devices and in how many processes it runs is not part of it. The number of threads is:
    a sum over two threads is rounded otherwise than over one, and training magnifies the difference.

    Example:
        >>> ours = Recipe(loss="unhinged", head="pal", radius=5.0)
        >>> ours.fixed_prototypes, ours.without_last_relu
        (True, True)
        >>> Recipe.from_json(ours.to_json()) == ours
        True
    """

    # what is learned
    data: str = "digits"
    image_size: int | None = None  # side of the images of folder:PATH, imagenet100 and glyphs; None: their own
    shrink: int = 1  # each shrink x shrink block of pixels becomes one
    imbalance: str | None = None  # "exp:100", "step:10"
    largest: int | None = None  # training images of the largest class; None: all there are
    label_noise: float = 0.0  # share of training labels replaced by another class
    augment: bool = True
    fonts: tuple[str, ...] = ()  # of glyphs, each as `Face.entry` tells it; none: the embedded ones
    characters: str | None = None  # of glyphs: ranges of code points such as "4E00-9FA5"; None: all

    # by what
    model: str = "convnet"
    width: int | None = None  # None: the model's own
    last_relu: bool | None = None  # None: removed where prototypes are fixed, as in the paper
    head: Head = "linear"
    head_scale: float = 1.0  # norm of a prototype of pal, fnpal and etf-init
    head_rate: float = 10.0  # of the exact SGD of many, in units of batch / features; it falls as lr does
    shortlist: int | None = None  # of many: in the second half of the epochs so many near classes decide

    # to lower what
    loss: Loss = "ce"
    gamma: float | None = None  # None: 1/(C-1)
    epsilon: float = 0.05  # of the adjusted margin
    class_weight: float = 0.0  # examples of class c weigh n_c^(-class_weight)
    logit_adjustment: float = 0.0  # tau: log(n_c/n) times this added to the logits while training (ce)
    label_smoothing: float = 0.0
    feature_penalty: float = 0.0  # lambda of lambda * sum over the batch of |h|^2
    radius: float | None = None  # the feature norm that the penalty shall ask for, instead of its strength
    weighted_penalty: bool = False  # class weights on the radius' penalty too: then every class has the same radius
    rescale: bool = False  # gradients of the features times their norm (fnpal)

    # how
    epochs: int = 30
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: int = 0  # epochs of linear warm-up before the cosine
    threads: int = 1  # of each process: sums over other numbers of threads round otherwise, and end in other weights
    measure_every: int = 1  # epochs from one measurement on test images to the next; the last is always measured

    # seeds, one for each purpose; None: `seed`
    seed: int = 0
    seed_data: int | None = None  # imbalance and label noise
    seed_init: int | None = None  # weights and prototypes
    seed_order: int | None = None  # order of the batches and augmentation

    def __post_init__(self) -> None:
        _one_of("loss", self.loss, get_args(Loss))
        _one_of("head", self.head, get_args(Head))
        for field in fields(self):
            if not _fits(getattr(self, field.name), str(field.type)):
                raise RecipeError(f"{field.name} must be {field.type}, got {getattr(self, field.name)!r}.")
        if self.imbalance is not None:
            _check_imbalance(self.imbalance)
        for name in ("shrink", "epochs", "batch", "measure_every"):
            _number(name, getattr(self, name), 1, integer=True)
        # A thread costs the whole machine: a million of them leave no other program a single one.
        _number("threads", self.threads, 1, MOST_THREADS, integer=True)
        for name in ("warmup", "seed"):
            _number(name, getattr(self, name), 0, integer=True)
        for name in ("seed_data", "seed_init", "seed_order", "width", "largest", "shortlist", "image_size"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), 0 if name.startswith("seed") else 1, integer=True)
        if not 0 <= self.momentum < 1:
            raise RecipeError(f"momentum must lie in [0, 1), got {self.momentum!r}: from 1 on no step ever ends.")
        for name in ("lr", "weight_decay", "feature_penalty", "class_weight", "logit_adjustment"):
            _number(name, getattr(self, name), 0.0)
        for name in ("label_noise", "label_smoothing"):
            _number(name, getattr(self, name), 0.0, 1.0)
        if not 0 < self.epsilon < 1:
            raise RecipeError(f"epsilon must lie strictly between 0 and 1, got {self.epsilon!r}.")
        _number("head_scale", self.head_scale, 0.0, exclusive=True)
        _number("head_rate", self.head_rate, 0.0)
        if self.radius is not None:
            _number("radius", self.radius, 0.0, exclusive=True)
        if self.gamma is not None:
            _number("gamma", self.gamma, 0.0)
        if (self.fonts or self.characters is not None) and self.data != "glyphs":
            raise RecipeError(f"fonts and characters are for data glyphs, but the data are {self.data}.")
        if self.image_size is not None:
            _check_sized(self.data)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.radius is not None and self.feature_penalty:
            raise RecipeError("radius and feature_penalty say the same thing twice; give one of them.")
        if self.radius is not None and (self.loss != "unhinged" or self.head != "pal"):
            instead = "the features are normalized: leave it out" if self.head == "fnpal" else "give feature_penalty"
            raise RecipeError(
                "a radius sets the penalty of the unhinged loss on fixed prototypes (loss unhinged, head pal); "
                f"with loss {self.loss} and head {self.head}, {instead}."
            )
        if self.gamma is not None and self.loss not in ("unhinged", "adjusted"):
            raise RecipeError(f"gamma is for losses unhinged and adjusted, but the loss is {self.loss}.")
        if self.head_rate != Recipe.head_rate and self.head != "many":
            raise RecipeError(f"head_rate is for the head many, but the head is {self.head}; its rate is lr.")
        if self.weighted_penalty and (self.radius is None or not self.class_weight):
            raise RecipeError("weighted_penalty puts class weights on the penalty of a radius: give both of them.")
        if self.rescale and self.head != "fnpal":
            raise RecipeError(f"rescale is for normalized features (head fnpal), but the head is {self.head}.")
        if self.loss == "adjusted" and self.head not in ("pal", "fnpal"):
            raise RecipeError(f"loss adjusted needs fixed prototypes (head pal or fnpal), but the head is {self.head}.")
        if self.head == "many" and self.loss not in MANY:
            raise RecipeError(f"head many has the losses {', '.join(MANY)}, but the loss is {self.loss}.")
        if self.shortlist is not None and (self.head != "many" or self.loss == "unhinged"):
            raise RecipeError(
                "a shortlist is for the head many with a loss that keeps the sum of squares, such as taylor_softmax; "
                f"the head is {self.head} and the loss {self.loss}."
            )
        if self.shortlist is not None and self.epochs < 2:
            raise RecipeError("a shortlist begins at half time, so it needs at least 2 epochs.")
        if self.loss == "ldam" and self.head != "fnpal":
            raise RecipeError(f"loss ldam is on cosines (head fnpal), but the head is {self.head}.")
        if self.logit_adjustment and self.loss != "ce":
            raise RecipeError(f"logit_adjustment is for loss ce, but the loss is {self.loss}.")
        if self.label_smoothing and (self.loss not in ("ce", "unhinged") or self.head == "many"):
            raise RecipeError(
                f"label_smoothing is for losses ce and unhinged on a head other than many, but the loss is {self.loss} "
                f"and the head {self.head}."
            )
        if self.epsilon != Recipe.epsilon and self.loss != "adjusted":
            raise RecipeError(f"epsilon is for the loss adjusted, but the loss is {self.loss}.")
        if self.warmup >= self.epochs:
            raise RecipeError(f"warmup must be shorter than the run (epochs={self.epochs}), got {self.warmup}.")

    @property
    def fixed_prototypes(self) -> bool:
        return self.head in ("pal", "fnpal")

    @property
    def without_last_relu(self) -> bool:
        return self.fixed_prototypes if self.last_relu is None else not self.last_relu

    @property
    def restart(self) -> int | None:
        """The epoch, counted from 0, before which the rows of the head start anew from class means; None: never."""
        return None if self.shortlist is None else math.ceil(self.epochs / 2)

    def seed_for(self, purpose: Literal["data", "init", "order"]) -> int:
        """The seed of one purpose, `seed` unless it has its own."""
        own = getattr(self, f"seed_{purpose}")
        return self.seed if own is None else int(own)

    @property
    def key(self) -> str:
        """Twelve letters that name the recipe: other settings, other key.

        Made from what differs from the defaults, so that a setting added in a later version, which leaves the run as it
        was, leaves its name as it was.
        """
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own["fonts"] = tuple(map(_without_folders, self.fonts))
        changed = {field.name: own[field.name] for field in fields(self) if own[field.name] != field.default}
        return hashlib.sha256(json.dumps(changed, allow_nan=False).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """What :meth:`to_json` wrote; settings left out have their defaults, unknown ones are an error."""
        try:
            settings = json.loads(text)
        except RecursionError:
            raise RecipeError("a recipe is a JSON object of settings, but this one is nested without end.") from None
        except ValueError as error:
            raise RecipeError(f"a recipe is a JSON object, but this is no JSON: {error}.") from None
        if not isinstance(settings, dict):
            raise RecipeError(f"a recipe is a JSON object of settings, got a {type(settings).__name__}.")
        return cls.of(settings)

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Recipe:
        """A recipe from named settings, each of the type its field has."""
        known = {field.name: str(field.type) for field in fields(cls)}
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f". There are: {', '.join(known)}."
                raise RecipeError(f"a recipe has no setting {name!r}{hint}")
        return cls(**{name: _as_typed(value, known[name]) for name, value in settings.items()})


def _without_folders(entry: str) -> str:
    """A typeface as its files tell it, wherever they lie. Several files are joined by a plus after a checksum."""
    files = re.split(r"(?<= sha256:[0-9a-f]{64})\+", entry)
    return "+".join(re.split(r"[/\\]", file)[-1] for file in files)


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return "None" in kind
    if isinstance(value, tuple):
        return kind.startswith("tuple") and all(isinstance(part, str) for part in value)
    if isinstance(value, bool):
        return "bool" in kind
    if isinstance(value, int):
        return "int" in kind or "float" in kind
    if isinstance(value, float):
        return "float" in kind
    return isinstance(value, str) and (kind.startswith("str") or kind in ("Loss", "Head"))


def _as_typed(value: object, kind: str) -> Any:  # checked against the type by Recipe itself
    """JSON writes 1.0 as 1 where it likes to, and tuples as lists; equal recipes shall be the same text."""
    if kind.startswith("tuple") and isinstance(value, list):
        return tuple(value)
    if kind.startswith("float") and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return value


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RecipeError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")


def _number(
    name: str, value: float, least: float, most: float = math.inf, integer: bool = False, exclusive: bool = False
) -> None:
    # Compared instead of asked whether it is finite: a whole number of 400 digits cannot be turned into a float.
    limit = min(most, 2**63 - 1 if integer else _LARGEST)
    if not ((least < value if exclusive else least <= value) and value <= limit):
        kind = "a whole number" if integer else "a number"
        above = "above" if exclusive else "of at least"
        upper = f" and at most {most:g}" if most < math.inf else f" and at most {limit}" if value > limit else ""
        raise RecipeError(f"{name} must be {kind} {above} {least:g}{upper}, got {value!r}.")


# The data package is imported where it is needed: it brings torch, and shell completion reads the recipe book.


def _check_sized(data: str) -> None:
    from unhinge.data.load import SIZED

    if data.partition(":")[0] not in SIZED:
        raise RecipeError(
            f"image_size is for data folder:PATH, imagenet100 and glyphs, but the data are {data}. "
            "Pass shrink= to make their images smaller."
        )


def _check_imbalance(text: str) -> None:
    from unhinge.data import Imbalance

    try:
        Imbalance.parse(text)
    except ValueError as error:
        raise RecipeError(str(error)) from None
