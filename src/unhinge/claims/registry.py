"""A claim of the paper, how it is tested, and where to find it by name."""

from __future__ import annotations

import difflib
import importlib
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["Claim", "Formula", "Record", "Undefined", "UnknownClaim", "claim", "claims", "find", "record_of"]

Formula = Callable[..., Any]
Check = Callable[[torch.Generator, Formula], float]
Severity = Literal["", "A", "B", "C"]

HOLDS, CORRECTED, FALSE, FAILS = "holds", "corrected", "false as printed", "OURS FAILS"

GROUPS = (
    "lemma1",
    "unconstrained",
    "projections",
    "regularized",
    "anchored",
    "spherical",
    "kernel",
    "appendix",
    "conventions",
    "captions",
)

_CLAIMS: dict[str, Claim] = {}


class Undefined(ArithmeticError):
    """What a formula raises where it has no value; the message says why."""


class UnknownClaim(LookupError):
    """A name that no claim answers to."""


@dataclass(frozen=True)
class Record:
    """The outcome of one claim: a row of the table."""

    claim: Claim
    printed: tuple[float, ...]  # residual of the printed form per random problem, infinite where undefined
    ours: tuple[float, ...]
    undefined: str  # why the printed form has no value, or nothing

    @property
    def worst_printed(self) -> float:
        return max(self.printed)

    @property
    def worst_ours(self) -> float:
        return max(self.ours)

    @property
    def verdict(self) -> str:
        """Derived from the residuals; the erratum's severity only chooses between the last two words."""
        if not self.worst_ours <= self.claim.tolerance:
            return FAILS
        if self.worst_printed <= self.claim.tolerance:
            return HOLDS
        return FALSE if self.claim.severity == "A" else CORRECTED


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, its printed and its right form, and a check that either form can fail.

    `check` draws a random problem, asks the formula it is given, and compares the answer with a reference that shares
    no algebra with the formula. It returns a residual: 0 where the formula is right.
    """

    id: str
    title: str  # the statement, one line, in our words
    where: str  # LaTeX label, or the section where there is none
    says: str  # the printed form, in words
    right: str  # the right form, in words
    oracle: str  # what both are compared with
    check: Check
    printed: Formula
    ours: Formula
    tolerance: float
    because: str  # where the tolerance comes from
    errata: tuple[int, ...] = ()
    severity: Severity = ""
    problems: int = 5

    def residual(self, formula: Formula, seed: int = 0) -> float:
        """Worst residual of any formula over the claim's random problems; infinite where it is undefined."""
        return max(self._residuals(formula, seed)[0])

    def run(self, seed: int = 0) -> Record:
        """Test both forms on the same problems."""
        ours, _ = self._residuals(self.ours, seed)
        if self.printed is self.ours:
            return Record(self, ours, ours, "")
        printed, why = self._residuals(self.printed, seed)
        return Record(self, printed, ours, why)

    def _residuals(self, formula: Formula, seed: int) -> tuple[tuple[float, ...], str]:
        found, why = [], ""
        for problem in range(self.problems):
            # The seed depends on nothing but the claim, so that a claim alone gives the numbers it gives in the table.
            number = zlib.crc32(f"{self.id}/{seed}/{problem}".encode())
            generator = torch.Generator().manual_seed(number)
            try:
                value = float(self.check(generator, formula))
            except Undefined as error:
                value, why = math.inf, str(error)
            found.append(math.inf if math.isnan(value) else value)
        return tuple(found), why


def claim(
    id: str,
    *,
    title: str,
    where: str,
    says: str,
    ours: Formula,
    oracle: str,
    tolerance: float,
    because: str,
    printed: Formula | None = None,
    right: str = "",
    errata: tuple[int, ...] = (),
    severity: Severity = "",
    problems: int = 5,
) -> Callable[[Check], Claim]:
    """Register the decorated check. Without `printed` the paper's form is ours; without `right` so is its wording."""

    def register(check: Check) -> Claim:
        if id in _CLAIMS:
            raise ValueError(f"two claims are called {id!r}; a claim's id must be its own.")
        _CLAIMS[id] = Claim(
            id,
            title,
            where,
            says,
            right or says,
            oracle,
            check,
            printed or ours,
            ours,
            tolerance,
            because,
            errata,
            severity,
            problems,
        )
        return _CLAIMS[id]

    return register


def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the paper."""
    for name in GROUPS:  # imported here: the modules register themselves, and need this one to be complete
        importlib.import_module(f"unhinge.claims.{name}")
    order = "loss lemma theorem-1 corollary-1 subspace projection theorem-2 corollary-2 imbalance theorem-3 theorem-4"
    order += " rescaled theorem-5 appendix figure"

    def place(one: Claim) -> int:
        return next((i for i, start in enumerate(order.split()) if one.id.startswith(start)), len(order))

    return tuple(sorted(_CLAIMS.values(), key=place))


def find(name: str) -> tuple[Claim, ...]:
    """Claims by id (`theorem-2-bias`), group (`theorem-2`, `thm2`), LaTeX label, or erratum (`erratum-19`, `e19`).

    Example:
        >>> [one.id for one in find("erratum-10")]
        ['theorem-2-bias']
    """
    every = claims()
    wanted = _spelled_out(name)
    exact = tuple(one for one in every if one.id == wanted)
    if exact:
        return exact
    number = re.fullmatch(r"e(?:rratum)?-?(\d+)", wanted)
    found = tuple(
        one
        for one in every
        if wanted == one.where.lower() or one.id.startswith(wanted + "-") or (number and int(number[1]) in one.errata)
    )
    if not found:
        near = difflib.get_close_matches(wanted, sorted(set(_names(every))), n=5, cutoff=0.4)
        hint = f"Nearest: {', '.join(near)}." if near else "Run `unhinge verify --list` for the names there are."
        raise UnknownClaim(f"no claim is called {name!r}. {hint}")
    return found


def record_of(record: Record) -> dict[str, Any]:
    """A record as plain values for JSON; a residual that is not finite becomes null, with the reason beside it."""
    one = record.claim
    return {
        "id": one.id,
        "claim": one.title,
        "where": one.where,
        "verdict": record.verdict,
        "printed_residual": _finite(record.worst_printed),
        "printed_undefined": record.undefined or None,
        "our_residual": _finite(record.worst_ours),
        "tolerance": one.tolerance,
        "errata": list(one.errata),
        "severity": one.severity or None,
        "problems": one.problems,
        "oracle": one.oracle,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _spelled_out(name: str) -> str:
    """`thm2` and `Thm. 2` are `theorem-2`; `cor1`, `lem1` likewise."""
    text = re.sub(r"[\s._]+", "-", name.strip().lower())
    for short, full in (("thm", "theorem"), ("theorem", "theorem"), ("cor", "corollary"), ("corollary", "corollary")):
        text = re.sub(rf"^{short}-?(?=\d)", f"{full}-", text)
    return re.sub(r"^(?:lem|lemma)-?(?=\d)", "lemma-", text)


def _names(every: tuple[Claim, ...]) -> Iterator[str]:
    for one in every:
        yield one.id
        if " " not in one.where:
            yield one.where
        group = re.match(r"(?:theorem|corollary|lemma)-\d", one.id)
        if group:
            yield group[0]
