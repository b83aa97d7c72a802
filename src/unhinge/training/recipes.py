"""The recipe book: settings, methods and scales, as data. `train --recipe`, the tables and completion all read it here.

A name is SETTING/METHOD, such as ``cifar10-lt100/pal``. `paper` is the paper's own size. `small` asks the same of the
same images on a machine without a GPU: 16 pixels, a part of each class and no augmentation, so that a ResNet-18 of
width 16 fits all of its training images within minutes, as the paper's networks do within hours. `quick` asks it of
scikit-learn's digits within seconds.

Nothing here needs torch.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from unhinge.training.recipe import Recipe, RecipeError

__all__ = [
    "ALIASES",
    "CHARACTERS",
    "CLASSES",
    "METHODS",
    "PAPER_BATCH",
    "SCALES",
    "SETTINGS",
    "Method",
    "Setting",
    "Settings",
    "named_recipes",
    "of_steps",
    "recipe_named",
    "recipe_of",
    "short",
    "train_images",
]

Scale = Literal["quick", "small", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "small", "paper")
Settings: TypeAlias = dict[str, Any]  # fields of a Recipe by name; the recipe checks their values

PAPER_BATCH = 256  # the paper's penalties are of the sum over a batch of this size

# Training images of a class, and classes. Those of digits differ by a few, so there it is about.
CLASSES: Mapping[str, tuple[int, int]] = {
    "cifar10": (5000, 10),
    "cifar100": (500, 100),
    "imagenet100": (1300, 100),
    "fashion-mnist": (6000, 10),
    "digits": (139, 10),
    "glyphs": (9, 2231),
}
# Classes of glyphs among these code points, in the embedded typefaces.
CHARACTERS: Mapping[str, int] = {"21-7E": 94}

# ---- what is done about the loss ------------------------------------------------------------------------------------

_KINDS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "ce": ("CE", {}),
    "pal": ("PAL", {"loss": "unhinged", "head": "pal"}),
    "fnpal": ("FNPAL", {"loss": "unhinged", "head": "fnpal"}),
    "adjusted": ("adjusted margin", {"loss": "adjusted", "head": "fnpal"}),
    "unhinged": ("unhinged, trainable head", {"loss": "unhinged"}),
    "ce-etf": ("CE, simplex start", {"head": "etf-init"}),
    "ldam": ("LDAM on a fixed simplex", {"loss": "ldam", "head": "fnpal", "head_scale": 30.0}),
    "unhinged-etf": ("unhinged, simplex start", {"loss": "unhinged", "head": "etf-init"}),
    "many-taylor": ("Taylor softmax, many-class head", {"loss": "taylor_softmax", "head": "many"}),
    "many-finished": (
        "Taylor softmax, class means, shortlist",
        {"loss": "taylor_softmax", "head": "many", "shortlist": 64},
    ),
    "many-z": ("Z-loss, many-class head", {"loss": "z", "head": "many"}),
    "many-unhinged": ("unhinged, many-class head", {"loss": "unhinged", "head": "many", "head_rate": 0.3}),
}
_WEIGHTS = {0.5: "1/√n weights", 1.0: "1/n weights"}


@dataclass(frozen=True)
class Method:
    r"""How a network is trained, apart from where: loss and head by `kind`, and what is added to them.

    `kind` is one of ce, pal (unhinged loss on fixed prototypes), fnpal (and normalized features), adjusted, unhinged
    (trainable head), ldam (its margins on the cosines of fixed prototypes, at its paper's temperature), ce-etf and
    unhinged-etf (a trainable head that starts as a simplex), many-taylor, many-z and many-unhinged (a head whose exact
    SGD does not grow with the classes), many-finished (the first of them, restarted from class means and finished with
    a shortlist).

    Example:
        >>> Method("pal", penalty=5e-7, class_weight=0.5).label
        'PAL, λ=5e-7, 1/√n weights'
        >>> Method("pal", penalty=5e-7).changes(batch=128)
        {'loss': 'unhinged', 'head': 'pal', 'feature_penalty': 1e-06}
    """

    kind: str = "ce"
    penalty: float = 0.0  # lambda, as the paper writes it: of the sum over a batch of 256
    radius: float | None = None
    class_weight: float = 0.0
    logit_adjustment: float = 0.0
    weighted_penalty: bool = False
    rescale: bool = False
    gamma: float | None = None
    head_scale: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise RecipeError(f"there is no kind of method {self.kind!r}. There are: {', '.join(_KINDS)}.")

    @property
    def label(self) -> str:
        """Its row in a table."""
        parts = [_KINDS[self.kind][0]]
        parts += [f"prototypes times {self.head_scale:g}"] if self.head_scale != 1 else []
        parts += [f"λ={short(self.penalty)}"] if self.penalty else []
        parts += [f"radius {self.radius:g}"] if self.radius is not None else []
        parts += [_WEIGHTS.get(self.class_weight, f"n^-{self.class_weight:g} weights")] if self.class_weight else []
        parts += ["penalty too"] if self.weighted_penalty else []
        parts += ["logits adjusted"] if self.logit_adjustment else []
        parts += [f"labels smoothed by {self.label_smoothing:g}"] if self.label_smoothing else []
        parts += ["rescaled"] if self.rescale else []
        return ", ".join(parts)

    def changes(self, batch: int) -> Settings:
        """The settings of a recipe with batches of this size.

        The paper sums the penalty over its batch beside a mean of losses: a batch half as large needs twice the
        strength for the same effect on an example. This is the only place that knows it.
        """
        changes = dict(_KINDS[self.kind][1])
        if self.penalty:
            changes["feature_penalty"] = self.penalty * PAPER_BATCH / batch
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("kind", "penalty")}
        return changes | {name: value for name, value in own.items() if value != getattr(Method, name)}


def short(number: float) -> str:
    """A number as one writes it: 5e-07 as 5e-7.

    Example:
        >>> short(5e-07), short(0.0), short(0.1)
        ('5e-7', '0', '0.1')
    """
    mantissa, mark, exponent = f"{number:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa


METHODS: Mapping[str, Method] = {
    "ce": Method("ce"),
    "ce+penalty": Method("ce", penalty=1e-5),
    "ce+sqrt": Method("ce", class_weight=0.5),
    "ce+penalty+sqrt": Method("ce", penalty=1e-5, class_weight=0.5),
    "ce+inverse": Method("ce", class_weight=1.0),
    "ce+adjusted": Method("ce", logit_adjustment=1.0),
    "pal": Method("pal"),
    "pal+penalty": Method("pal", penalty=5e-7),
    "pal+radius": Method("pal", radius=10.0),
    "pal+large-radius": Method("pal", penalty=5e-6),  # 434 for ten classes, 395 for a hundred
    "pal+sqrt": Method("pal", class_weight=0.5),
    "pal+penalty+sqrt": Method("pal", penalty=5e-7, class_weight=0.5),
    "pal+radius+sqrt": Method("pal", radius=10.0, class_weight=0.5),
    "pal+radius+sqrt+weighted": Method("pal", radius=10.0, class_weight=0.5, weighted_penalty=True),
    "pal+inverse": Method("pal", class_weight=1.0),
    "fnpal": Method("fnpal"),
    "fnpal+rescale": Method("fnpal", rescale=True),
    "fnpal+sqrt": Method("fnpal", class_weight=0.5),
    "adjusted": Method("adjusted"),
    "unhinged": Method("unhinged"),
    "unhinged+sqrt": Method("unhinged", class_weight=0.5),
    "ldam": Method("ldam"),
    "etf-init": Method("ce-etf"),
    "unhinged+etf-init": Method("unhinged-etf"),
    "unhinged+etf-init+scaled": Method("unhinged-etf", head_scale=10.0),
}

# Other names of the same training. Balanced softmax is cross-entropy with adjusted logits. The adjusted decision of
# pal+radius is taken after training: `evaluate --prior counts` and the columns "adjusted" of the tables have it.
ALIASES: Mapping[str, str] = {"balanced-softmax": "ce+adjusted", "pal+radius+adjusted": "pal+radius"}

# ---- what is learned ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The task: a data set, how uneven its classes are made, how many labels are wrong.

    Example:
        >>> Setting("cifar10", "exp", 100).imbalance
        'exp:100'
    """

    data: str = "cifar10"
    profile: Literal["exp", "step"] | None = None
    ratio: int = 1  # the largest class over the smallest
    label_noise: float = 0.0

    @property
    def imbalance(self) -> str | None:
        """As a recipe has it."""
        return None if self.profile is None or self.ratio == 1 else f"{self.profile}:{self.ratio}"


def _settings() -> dict[str, Setting]:
    settings = {data: Setting(data) for data in ("cifar10", "cifar100", "imagenet100")}
    for data in ("cifar10", "cifar100"):
        for ratio in (10, 20, 50, 100):
            settings[f"{data}-lt{ratio}"] = Setting(data, "exp", ratio)
            settings[f"{data}-step{ratio}"] = Setting(data, "step", ratio)
        for percent in (20, 40, 60):
            settings[f"{data}-noise{percent}"] = Setting(data, label_noise=percent / 100)
    return settings


SETTINGS: Mapping[str, Setting] = _settings()

# ---- at which size --------------------------------------------------------------------------------------------------

_PAPER = {
    "cifar10": ("resnet18", 200),
    "cifar100": ("resnet34", 200),
    "imagenet100": ("resnet50", 100),
    "fashion-mnist": ("resnet18", 200),  # not the paper's: few images of another kind
}
# Images of the largest class at the small scale, of uneven and of even classes: what a width of 16 fits within minutes.
_LARGEST = {"cifar10": (500, 500), "cifar100": (100, 100), "imagenet100": (100, 100), "fashion-mnist": (100, 100)}
# Steps at the small scale, likewise. PAL is the slowest to fit its rare classes. Of 1,500 images in the largest class
# it fitted 95.8 % of the whole after 1,600 steps and every class after 3,200; of 500, every class after 2,000. Even
# classes of 500 had one class at 98.6 % after 1,600 steps in one of three networks. Long tails of CIFAR-100 have a
# fifth of the images of even classes: with a radius, PAL had fitted all of them after 1,200 steps at the full rate.
_STEPS = {"cifar10": (2000, 2000), "cifar100": (2400, 4800), "imagenet100": (4800, 4800), "fashion-mnist": (1200, 1200)}
_MEASUREMENTS = 10  # at the small scale: the test images outnumber the training images


def recipe_of(setting: Setting, method: Method, scale: str = "quick", **changes: object) -> Recipe:
    """The recipe of a method on a task at a scale; `changes` are settings of the recipe to be set otherwise.

    Example:
        >>> recipe = recipe_of(
        ...     SETTINGS["cifar10-lt100"], METHODS["pal"], "small", epochs=60
        ... )
        >>> recipe.model, recipe.width, recipe.largest, recipe.epochs, recipe.augment
        ('resnet18', 16, 500, 60, False)
    """
    if scale not in SCALES:
        raise RecipeError(f"there is no scale {scale!r}. Choose one of: {', '.join(SCALES)}.")
    task = Recipe(data=setting.data, imbalance=setting.imbalance, label_noise=setting.label_noise)
    start = {"quick": _quick, "small": _small, "paper": _paper}[scale](task)
    settings: Settings = dict(changes)
    return replace(start, **method.changes(settings.get("batch", start.batch)) | settings)


def _paper(task: Recipe) -> Recipe:
    model, epochs = _PAPER[task.data]
    return replace(task, model=model, epochs=epochs, batch=PAPER_BATCH, lr=0.1, weight_decay=5e-4)


def _small(task: Recipe) -> Recipe:
    # Width 16 gives 128 features: enough for a simplex of 100 classes, which takes 99.
    even = int(task.imbalance is None)
    largest, steps = _LARGEST[task.data][even], _STEPS[task.data][even]
    recipe = replace(task, largest=largest, shrink=2, augment=False, model="resnet18", width=16, batch=128, lr=0.1)
    return of_steps(recipe, steps)


def _quick(task: Recipe) -> Recipe:
    return replace(task, data="digits", model="convnet", width=16, epochs=25, batch=64, lr=0.05)


def of_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with as many epochs as these steps take, of which some are measured.

    Example:
        >>> of_steps(Recipe(data="cifar10", largest=100, batch=128), 1200).epochs
        150
    """
    epochs = math.ceil(steps / math.ceil(train_images(recipe) / recipe.batch))
    return replace(recipe, epochs=epochs, measure_every=max(1, epochs // _MEASUREMENTS))


def train_images(recipe: Recipe) -> int:
    """How many images a recipe trains on (of digits about, since their classes differ by a few).

    Example:
        >>> train_images(Recipe(data="cifar10", imbalance="exp:100"))
        12406
    """
    each, classes = CLASSES[recipe.data]
    if recipe.characters is not None:
        classes = CHARACTERS[recipe.characters]
    if recipe.imbalance is None:
        return (recipe.largest or each) * classes
    # Imported here: completion reads the names in this book, and the data package brings torch.
    from unhinge.data import Imbalance

    return sum(Imbalance.parse(recipe.imbalance).counts([each] * classes, recipe.largest))


# ---- by name --------------------------------------------------------------------------------------------------------


def named_recipes() -> list[str]:
    """Every name, SETTING/METHOD."""
    return [f"{setting}/{method}" for setting in SETTINGS for method in METHODS]


def recipe_named(name: str, scale: str = "quick") -> Recipe:
    """The recipe of that name at a scale.

    Example:
        >>> recipe_named("cifar10-lt100/pal", "paper").imbalance
        'exp:100'
        >>> recipe_named("cifar10-lt100/pal").data
        'digits'
    """
    setting, _, method = name.partition("/")
    method = ALIASES.get(method, method)
    for what, part, known in (("setting", setting, SETTINGS), ("method", method, METHODS)):
        if part not in known:
            near = difflib.get_close_matches(part, known, n=3)
            hint = f"The nearest: {', '.join(near)}." if near else f"There are: {', '.join(known)}."
            raise RecipeError(f"a recipe's name is SETTING/METHOD, and there is no {what} {part!r}. {hint}")
    return recipe_of(SETTINGS[setting], METHODS[method], scale)
