"""Curves over epochs: the behaviour figures in both readings of "weight decay", and the collapse of the raw loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.study import Study
from unhinge.training.recipes import Method, Setting, recipe_of

__all__ = ["studies"]

LABELS = {"cifar10": "ce-fsm-asm-cifar10", "cifar100": "ce-fsm-asm-cifar100", "imagenet100": "imagenet100"}
KINDS = ("ce", "pal", "fnpal")
PENALTIES = {"ce": (0.0, 5e-6, 1e-5, 5e-5), "pal": (0.0, 1e-7, 5e-7, 1e-6), "fnpal": (0.0, 1e-7, 5e-7, 1e-6)}
DECAYS = (0.0, 1e-4, 5e-4)
READING = (
    'The captions speak of "different weight decay coefficients" without naming them. The reliability captions of the '
    "same appendix use the word for the penalty on the features, so {here} The other reading is `{other}`."
)


def _penalties(data: str, scale: str) -> list[Cell]:
    cells = []
    for kind in KINDS:
        for penalty in PENALTIES[kind]:
            method = Method(kind, penalty=penalty)
            cells.append(Cell(method, Column(penalty=penalty), recipe_of(Setting(data), method, scale)))
    return cells


def _decays(data: str, scale: str) -> list[Cell]:
    return [
        Cell(
            Method(kind), Column(weight_decay=decay), recipe_of(Setting(data), Method(kind), scale, weight_decay=decay)
        )
        for kind in KINDS
        for decay in DECAYS
    ]


def _collapse(scale: str) -> list[Cell]:
    # The printed rate, and one at which the growth, exponential in the integrated rate, can be watched.
    rates = {"quick": (0.05, 0.3), "small": (0.1, 0.01), "paper": (0.1, 0.01)}
    method = Method("unhinged")
    cells = []
    for rate in rates[scale]:
        recipe = recipe_of(Setting("cifar10"), method, scale, lr=rate)
        if scale == "small":  # the caption tells of 21 epochs: every one of them is looked at
            recipe = replace(recipe, measure_every=1)
        cells.append(Cell(method, Column(data=recipe.data, lr=rate), recipe))
    return cells


def studies() -> list[Study]:
    """The paper's reading first, then the variant, then the collapse."""
    made = []
    for data, label in LABELS.items():
        made.append(
            Study(
                f"behaviour-{data}",
                label,
                "Feature norm, loss and accuracy over the penalty on the features",
                "behaviour",
                partial(_penalties, data),
                ("accuracy", "feature_norm", "training.accuracy"),
                note=READING.format(
                    here="the coefficients here are those of that penalty.", other=f"behaviour-decay-{data}"
                ),
            )
        )
    for data in LABELS:
        made.append(
            Study(
                f"behaviour-decay-{data}",
                None,
                "Feature norm, loss and accuracy over the network's own weight decay",
                "behaviour",
                partial(_decays, data),
                ("accuracy", "feature_norm", "training.accuracy"),
                note=READING.format(
                    here="that is the likelier one; the coefficients here are the network's.", other=f"behaviour-{data}"
                ),
            )
        )
    made.append(
        Study(
            "collapse",
            "fig:collapse-of-unhinged",
            "The raw loss with a trainable head blows up: norms grow by orders of magnitude, prototypes fall together",
            "collapse",
            _collapse,
            ("epochs", "feature_norm"),
            note="The paper's run is at a rate of 0.1 and lasts 21 epochs; the first column is that setting.",
            seeds={"quick": 1, "small": 1, "paper": 1},
        )
    )
    return made
