"""What can be reproduced: each experiment with its claim, its panels and the function that computes its table."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unhinge.paper.figures.scale import Scale

__all__ = ["Check", "Experiment", "Outcome", "Panel", "Row", "experiment", "find", "list_experiments"]

MODULES = ("unconstrained", "regularized", "spherical", "anchored", "beyond", "young", "speed")


@dataclass(frozen=True)
class Row:
    """One point of one curve. `kind`: exact, sgd (simulated step by step), flow, slope (predicted rate) or level."""

    panel: str
    series: str
    kind: str
    step: float
    value: float
    error: float | None = None  # standard error of a mean over runs


@dataclass(frozen=True)
class Panel:
    """How one panel is drawn; its curves are the rows of the table with this key."""

    key: str
    title: str
    ylabel: str
    yscale: str = "log"
    xscale: str = "linear"
    xlabel: str = "step"
    floor: float | None = None  # smallest value shown on a logarithmic axis
    top: float | None = None  # largest value shown, as a multiple of the largest at the start
    zoom: float | None = None  # the share of the steps, from the end, that an inset magnifies


@dataclass(frozen=True)
class Check:
    """A statement the figure makes, whether it held in this run, and the number that says so."""

    statement: str
    holds: bool
    number: str


@dataclass(frozen=True)
class Outcome:
    """What an experiment computes: the table the figure is drawn from, and what was found."""

    rows: list[Row]
    summary: list[dict[str, str | float]]
    checks: list[Check]
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A figure that can be made again."""

    id: str
    label: str | None  # the paper's LaTeX label; None for what the paper does not have
    claim: str  # the finding, as the title of the figure
    panels: tuple[Panel, ...]
    compute: Callable[[Scale, int], Outcome]
    errata: tuple[int, ...]  # those this figure shows
    note: str  # where the caption is wrong, and what really happens
    seconds: Mapping[str, float]  # measured on 2 cores, by scale
    columns: int
    words: Mapping[str, str]  # of the key, where marks and levels are not what they are elsewhere
    module: str


_KNOWN: dict[str, Experiment] = {}


def experiment(
    id: str,
    *,
    claim: str,
    panels: tuple[Panel, ...],
    quick: float,
    paper: float,
    label: str | None = None,
    errata: tuple[int, ...] = (),
    note: str = "",
    columns: int = 3,
    words: Mapping[str, str] | None = None,
) -> Callable[[Callable[[Scale, int], Outcome]], Callable[[Scale, int], Outcome]]:
    """Register a function ``(scale, seed) -> Outcome`` under `id`; `quick` and `paper` are its seconds."""

    def register(compute: Callable[[Scale, int], Outcome]) -> Callable[[Scale, int], Outcome]:
        assert id not in _KNOWN, f"two experiments are called {id}"
        seconds = {"quick": quick, "paper": paper}
        module = compute.__module__.rpartition(".")[2]
        _KNOWN[id] = Experiment(id, label, claim, panels, compute, errata, note, seconds, columns, words or {}, module)
        return compute

    return register


def list_experiments() -> list[Experiment]:
    """Every experiment, the paper's figures first and in its order."""
    for name in MODULES:
        importlib.import_module(f"unhinge.paper.figures.{name}")
    return list(_KNOWN.values())


def find(name: str) -> Experiment:
    """The experiment with that id or LaTeX label; otherwise an error that lists the nearest ones.

    Example:
        >>> find("pal-toy").id
        'anchored-decay'
    """
    known = {entry.id: entry for entry in list_experiments()}
    aliases = {entry.label: entry for entry in known.values() if entry.label is not None}
    aliases |= {label.removeprefix("fig:"): entry for label, entry in aliases.items()}
    entry = known.get(name) or aliases.get(name)
    if entry is not None:
        return entry
    near = difflib.get_close_matches(name, [*known, *aliases], n=3, cutoff=0.4)
    near += [key for key in known if name.lower() in key and key not in near]
    listed = f"The nearest: {', '.join(near)}." if near else f"There are: {', '.join(known)}."
    raise KeyError(f"there is no experiment {name!r}. {listed} `unhinge list` shows all of them.")
