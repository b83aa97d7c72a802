"""The numbers that the journal prints on figures, tables and theorems, and what here belongs to them.

They were counted from the source of the paper. Its style (jmlr2e) counts lemmas, theorems and corollaries in one row.
So what is called Theorem 1 here, the first theorem, is printed as Theorem 2.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["FLOATS", "STATEMENTS", "PrintedFloat", "find_float", "printed_number", "printed_statement"]


class PrintedFloat(NamedTuple):
    """A printed figure or table: its number, its LaTeX label, and the ids of what reproduces it."""

    name: str
    label: str
    ids: tuple[str, ...]


def _both(start: str) -> tuple[str, str]:
    return f"{start}-cifar10", f"{start}-cifar100"


FLOATS = (
    PrintedFloat("Figure 1", "unconstrained-illustration", ("unconstrained-gamma",)),
    PrintedFloat("Figure 2", "classification-results", (*_both("classification"), "classification-imagenet100")),
    PrintedFloat("Figure 3", "fig:cifar10-ood-energy-score", _both("ood-penalty")),
    PrintedFloat("Figure 4", "fig:unconstrained-behaviors", ("unconstrained-decay",)),
    PrintedFloat("Figure 5", "regularized-gamma", ("regularized-gamma",)),
    PrintedFloat("Figure 6", "regularized-lr", ("regularized-lr",)),
    PrintedFloat("Figure 7", "regularized-lambda", ("regularized-decay",)),
    PrintedFloat("Figure 8", "regularized-scale", ("regularized-scale",)),
    PrintedFloat("Figure 9", "spherical-lr-behaviors", ("spherical-lr",)),
    PrintedFloat("Figure 10", "fig:ece-lt-cifar10", ("reliability-cifar10",)),
    PrintedFloat("Figure 11", "fig:ece-lt-cifar100", ("reliability-cifar100",)),
    PrintedFloat("Figure 12", "ce-fsm-asm-cifar10", ("behaviour-cifar10",)),
    PrintedFloat("Figure 13", "ce-fsm-asm-cifar100", ("behaviour-cifar100",)),
    PrintedFloat("Figure 14", "imagenet100", ("behaviour-imagenet100",)),
    PrintedFloat("Figure 15", "pal-toy", ("anchored-decay",)),
    PrintedFloat("Figure 16", "fig:ood-softmax-score", _both("ood-penalty")),
    PrintedFloat("Figure 17", "fig:ood-energy-score", _both("ood-penalty")),
    PrintedFloat("Figure 18", "fig:ood-feat-norm", _both("ood-penalty")),
    PrintedFloat("Figure 19", "fig:collapse-of-unhinged", ("collapse",)),
    PrintedFloat("Table 1", "tab:recent-comparison", ()),
    PrintedFloat("Table 2", "tab:lt-cifar", _both("long-tailed")),
    PrintedFloat("Table 3", "tab:ood-cifar-unhinged", _both("ood")),
    PrintedFloat("Table 4", "tab:imbalanced-cifar-10", ("imbalanced-cifar10",)),
    PrintedFloat("Table 5", "tab:imbalanced-cifar-100", ("imbalanced-cifar100",)),
    PrintedFloat("Table 6", "tab:ood-cifar", _both("ood-penalty")),
)
STATEMENTS = {
    "lemma-1": "Lemma 1",
    "theorem-1": "Theorem 2",
    "corollary-1": "Corollary 3",
    "theorem-2": "Theorem 4",
    "corollary-2": "Corollary 5",
    "theorem-3": "Theorem 6",
    "theorem-4": "Theorem 7",
    "theorem-5": "Theorem 8",
}


def find_float(name: str) -> PrintedFloat | None:
    """The figure or table that a printed number or a label names, however it is written; None for another name.

    Example:
        >>> find_float("Figure 3").ids
        ('ood-penalty-cifar10', 'ood-penalty-cifar100')
        >>> find_float("fig3").name
        'Figure 3'
        >>> find_float("Tab. 2").label
        'tab:lt-cifar'
        >>> find_float("pal-toy").name
        'Figure 15'
    """
    written = re.fullmatch(r"(fig|tab)(?:ure|le|s)?\.?[\s_-]*(\d+)", name.strip(), re.IGNORECASE)
    if written:
        kind = "Figure" if written[1].lower() == "fig" else "Table"
        name = f"{kind} {int(written[2])}"
    return next((printed for printed in FLOATS if name in (printed.name, printed.label)), None)


def printed_number(id: str) -> str:
    """The printed figures and tables that a figure or study of ours reproduces; empty for what goes beyond the paper.

    Example:
        >>> printed_number("anchored-decay"), printed_number("beyond-noise")
        ('Figure 15', '')
    """
    return ", ".join(printed.name for printed in FLOATS if id in printed.ids)


def printed_statement(claim: str) -> str:
    """The printed number of the theorem, lemma or corollary that a claim belongs to, or nothing.

    Example:
        >>> printed_statement("theorem-2-bias"), printed_statement("rescaled-rate")
        ('Theorem 4', '')
    """
    return next((number for start, number in STATEMENTS.items() if claim.startswith(start)), "")
