"""Everything that can be reproduced, under one roof: numerical figures and studies of trained networks."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from unhinge.paper.figures.registry import Experiment, find, list_experiments
from unhinge.paper.numbers import find_float
from unhinge.paper.studies.registry import STUDIES, find_study
from unhinge.paper.studies.study import Study

__all__ = ["GROUPS", "choose", "list_studies"]

GROUPS = ("numerical", "trained", "all")


def list_studies() -> list[Study]:
    """Every study of trained networks, the paper's first."""
    return list(STUDIES.values())


def choose(names: Sequence[str]) -> tuple[list[Experiment], list[Study]]:
    """The figures and studies of these ids, printed numbers (Figure 3, tab2), LaTeX labels or groups; without any, the
    numerical figures.

    Example:
        >>> figures, studies = choose(["pal-toy", "tab:lt-cifar"])
        >>> [figure.id for figure in figures], [study.id for study in studies]
        (['anchored-decay'], ['long-tailed-cifar10', 'long-tailed-cifar100'])
    """
    figures: dict[str, Experiment] = {}
    studies: dict[str, Study] = {}
    for name in [id for given in names or ("numerical",) for id in _ids(given)]:
        if name in GROUPS:
            figures |= {figure.id: figure for figure in list_experiments()} if name != "trained" else {}
            studies |= STUDIES if name != "numerical" else {}
        elif named := find_study(name):
            studies |= {study.id: study for study in named}
        else:
            try:
                figure = find(name)
            except KeyError:
                raise KeyError(_unknown(name)) from None
            figures[figure.id] = figure
    return list(figures.values()), list(studies.values())


def _ids(name: str) -> tuple[str, ...]:
    """The ids behind the printed number of a figure or table; another name as it is."""
    printed = find_float(name)
    if printed is None:
        return (name,)
    if not printed.ids:
        raise KeyError(f"{printed.name} compares earlier papers: there is nothing in it to compute.")
    return printed.ids


def _unknown(name: str) -> str:
    entries: list[Experiment | Study] = [*list_experiments(), *list_studies()]
    known = [*(entry.id for entry in entries), *(entry.label for entry in entries if entry.label), *GROUPS]
    near = difflib.get_close_matches(name, dict.fromkeys(known), n=3, cutoff=0.4)
    near += [candidate for candidate in known if name.lower() in candidate and candidate not in near][:3]
    listed = f"The nearest: {', '.join(near)}." if near else f"There are the groups {', '.join(GROUPS)}."
    return f"there is nothing called {name!r} to reproduce. {listed} `unhinge list` shows everything."
