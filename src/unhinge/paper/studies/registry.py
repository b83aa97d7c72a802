"""Every table and figure of trained networks, the paper's and ours, by its id.

Nothing here needs torch, so that completion can offer the names.
"""

from __future__ import annotations

from unhinge.paper.studies.study import Study
from unhinge.paper.studies.tables import behaviour, beyond, classification, long_tail, many_classes, ood, tails

__all__ = ["STUDIES", "find_study"]

TABLES = (classification, long_tail, ood, behaviour, tails, beyond, many_classes)
STUDIES: dict[str, Study] = {study.id: study for module in TABLES for study in module.studies()}


def find_study(name: str) -> list[Study]:
    """The studies with that id, LaTeX label or alias (a table over two data sets is two studies); none if unknown."""
    bare = name.removeprefix("fig:").removeprefix("tab:")
    if not bare:  # a study beyond the paper has no label
        return []
    return [
        study
        for study in STUDIES.values()
        if name == study.id
        or bare in {(label or "").removeprefix("fig:").removeprefix("tab:") for label in (study.label, *study.aliases)}
    ]
