"""A claim by any of its names: id, group, LaTeX label, erratum."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from unhinge.paper.claims.beyond import own_statements
from unhinge.paper.claims.registry import Claim, claims

__all__ = ["UnknownClaim", "find"]

# The remaining labels of the paper's theory, each under the claims it leads to: a label or the start of their ids.
LABELS = {
    "unconstrain-optimization": "objective",
    "closed-form-zt": "closed-form-dynamics",
    "proof-of-closed-form-dynamics": "closed-form-dynamics",
    "dynamics-of-z(t)": "convergence-unconstrained-case",
    "decomposition-h-w": "convergence-unconstrained-case",
    "fig:unconstrained-loss": "unconstrained-illustration",
    "fig:unconstrained-accuracy": "unconstrained-illustration",
    "fig:unconstrained-error-z": "unconstrained-illustration",
    "fig:unconstrained-norm-z": "unconstrained-illustration",
    "fig:unconstrained-log-w": "fig:unconstrained-behaviors",
    "fig:unconstrained-log-w-minus-p": "fig:unconstrained-behaviors",
    "fig:unconstrained-log-h-w": "fig:unconstrained-behaviors",
    "regularized-objective": "regularized-gradient-flow",
    "regularized-lambda": "fig:unconstrained-behaviors",
    "spherical-objective": "sec:spherical-case",
    "normalized-discrete-dynamics": "discrete-dynamics-of-h",
    "convergence-of-sperical-case-for-vector": "theorem-4",
    "lim-with-beta-ge-0": "theorem-4",
    "contradiction": "theorem-4",
    "spherical-lr-behaviors": "figure-spherical",
    "main-results": "theorem",
    "insights": "rescaled",
}
# A panel's label begins as its figure's does.
PANELS = {
    "fig:regularized-gamma-": "regularized-gamma",
    "fig:regularized-lr-": "regularized-lr",
    "fig:regularized-lambda-": "fig:unconstrained-behaviors",
    "fig:regularized-scale-": "regularized-scale",
    "fig:spherical-": "figure-spherical",
    "fig:pal-": "pal-toy",
}
GROUPS = "Groups: loss, lemma1, thm1 to thm5, cor1, cor2, projection, rescaled, appendix, figure; beyond."


class UnknownClaim(LookupError):
    """A name that no claim answers to."""


def find(name: str) -> tuple[Claim, ...]:
    """Claims by id (`theorem-2-bias`), group (`theorem-2`, `thm2`), LaTeX label, or erratum (`erratum-19`, `e19`);
    `beyond` has our own statements.

    Example:
        >>> [claim.id for claim in find("erratum-10")]
        ['theorem-2-bias']
    """
    every = (*claims(), *own_statements())
    label = _through_labels(name.strip().lower())
    wanted = _spelled_out(label)
    exact = tuple(claim for claim in every if claim.id == wanted)
    if exact:
        return exact
    number = re.fullmatch(r"e(?:rratum)?-?(\d+)", wanted)
    matching = tuple(
        claim
        for claim in every
        if label == claim.where.lower()
        or claim.id.startswith(wanted + "-")
        or (number and int(number[1]) in claim.errata)
    )
    if not matching:
        raise UnknownClaim(f"no claim is called {name!r}. {_hint(wanted, number, every)}")
    return matching


def _hint(wanted: str, number: re.Match[str] | None, every: tuple[Claim, ...]) -> str:
    if number and 1 <= int(number[1]) <= 40:
        return "That erratum is a misprint which no number decides; docs/errata.md of the repository has its words."
    near = difflib.get_close_matches(wanted, sorted(set(_names(every))), n=5, cutoff=0.5)
    words = f"Nearest: {', '.join(near)}." if near else GROUPS
    return f"{words} `unhinge verify --list` has all names."


def _through_labels(label: str) -> str:
    panel = next((figure for start, figure in PANELS.items() if label.startswith(start)), label)
    return LABELS.get(panel, panel)


def _spelled_out(name: str) -> str:
    """`thm2` and `Thm. 2` are `theorem-2`; `cor1`, `lem1`, `fig1` likewise."""
    text = re.sub(r"[\s._]+", "-", name)
    for start, full in (("thm|theorem", "theorem"), ("cor|corollary", "corollary"), ("lem|lemma", "lemma")):
        text = re.sub(rf"^(?:{start})-?(?=\d)", f"{full}-", text)
    return re.sub(r"^(?:fig|figure)-?(?=[\da-z])(?!ure)", "figure-", text)


def _names(every: tuple[Claim, ...]) -> Iterator[str]:
    yield from (label for label in LABELS if not label.startswith("fig:"))
    for claim in every:
        yield claim.id
        if " " not in claim.where:
            yield claim.where
        group = re.match(r"(?:theorem|corollary|lemma)-\d", claim.id)
        if group:
            yield group[0]
