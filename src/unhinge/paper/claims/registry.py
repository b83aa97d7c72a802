"""A claim of the paper, how it is tested, and the verdict that follows.

The rule of the verdicts. A check puts the printed form to the test as what it says, literally: a bound as a bound, a
sufficient condition as a sufficient condition, an equation as an equation. Then

- **holds**: the printed statement is literally true. Where it says less than could be said (a loose bound, a condition
  nobody needs), a remark says so, and our sharper form has a stricter check of its own to pass (`SharperCheck`).
- **corrected**: imprecise or incomplete. It fails, or has no value, as the symbols stand, and mending a symbol, a sign,
  a step of a proof, or adding the missing hypothesis restores it: errata of severity B and C.
- **false as printed**: contradicted. A counterexample meets every printed hypothesis, or the statement is no statement
  (its matrices do not fit), and what is right is another statement: errata of severity A.
- **OURS FAILS**: our own form misses its tolerance, whatever the printed one does.

The first and the last are decided by residuals alone; the severity of the erratum tells the two in the middle apart.
"""

from __future__ import annotations

import importlib
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch

__all__ = [
    "Check",
    "Claim",
    "ClaimRecord",
    "Formula",
    "Record",
    "SharperCheck",
    "Undefined",
    "claim",
    "claims",
    "record_of",
]

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


@dataclass(frozen=True)
class SharperCheck:
    """A stricter check, for our form only, of a claim whose printed form is true but says less."""

    check: Check
    tolerance: float
    because: str  # where the tolerance comes from


@dataclass(frozen=True)
class Record:
    """The outcome of one claim: a row of the table."""

    claim: Claim
    printed: tuple[float, ...]  # residual of the printed form per random problem, infinite where undefined
    ours: tuple[float, ...]
    undefined: str  # why the printed form has no value, or nothing
    sharper: tuple[float, ...] = ()  # residual of our form in the stricter check, where there is one

    @property
    def worst_printed(self) -> float:
        return max(self.printed)

    @property
    def worst_ours(self) -> float:
        return max(self.ours)

    @property
    def worst_sharper(self) -> float:
        return max(self.sharper, default=0.0)

    @property
    def verdict(self) -> str:
        """By the rule at the top of this module."""
        strict = self.claim.sharper.tolerance if self.claim.sharper else 0.0
        if not (self.worst_ours <= self.claim.tolerance and self.worst_sharper <= strict):
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
    remark: str = ""  # for a statement that holds but says less than it could
    sharper: SharperCheck | None = None

    def residual(self, formula: Formula) -> float:
        """Worst residual of any formula over the claim's random problems; infinite where it is undefined."""
        return max(self._residuals(self.check, formula, seed=0)[0])

    def sharper_residual(self, formula: Formula) -> float:
        """The same in the stricter check; 0 for a claim without one."""
        return max(self._residuals(self.sharper.check, formula, seed=0)[0]) if self.sharper else 0.0

    def run(self, seed: int = 0) -> Record:
        """Test both forms on the same problems."""
        ours, _ = self._residuals(self.check, self.ours, seed)
        strict = self._residuals(self.sharper.check, self.ours, seed)[0] if self.sharper else ()
        if self.printed is self.ours:
            return Record(self, ours, ours, "", strict)
        printed, why = self._residuals(self.check, self.printed, seed)
        return Record(self, printed, ours, why, strict)

    def _residuals(self, check: Check, formula: Formula, seed: int) -> tuple[tuple[float, ...], str]:
        residuals, why = [], ""
        for problem in range(self.problems):
            # The seed depends on nothing but the claim, so that a claim alone gives the numbers it gives in the table.
            number = zlib.crc32(f"{self.id}/{seed}/{problem}".encode())
            generator = torch.Generator().manual_seed(number)
            try:
                value = float(check(generator, formula))
            except Undefined as error:
                value, why = math.inf, str(error)
            residuals.append(math.inf if math.isnan(value) else value)
        return tuple(residuals), why


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
    remark: str = "",
    sharper: SharperCheck | None = None,
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
            remark,
            sharper,
        )
        return _CLAIMS[id]

    return register


def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the paper."""
    for name in GROUPS:  # imported here: the modules register themselves, and need this one to be complete
        importlib.import_module(f"unhinge.paper.claims.{name}")
    order = "loss lemma theorem-1 corollary-1 subspace projection theorem-2 corollary-2 imbalance theorem-3 theorem-4"
    order += " rescaled theorem-5 appendix figure"

    def place(claim: Claim) -> int:
        return next((i for i, start in enumerate(order.split()) if claim.id.startswith(start)), len(order))

    return tuple(sorted(_CLAIMS.values(), key=place))


class ClaimRecord(TypedDict):
    """What claims.json has of a claim."""

    id: str
    claim: str
    where: str
    verdict: str
    printed_residual: float | None  # null where it is not finite
    printed_undefined: str | None  # why
    our_residual: float | None
    tolerance: float
    sharper_residual: float | None
    sharper_tolerance: float | None
    remark: str | None
    errata: list[int]
    severity: str | None
    problems: int
    oracle: str


def record_of(record: Record) -> ClaimRecord:
    """A record as plain values for JSON; a residual that is not finite becomes null, with the reason beside it."""
    claim = record.claim
    return {
        "id": claim.id,
        "claim": claim.title,
        "where": claim.where,
        "verdict": record.verdict,
        "printed_residual": _finite(record.worst_printed),
        "printed_undefined": record.undefined or None,
        "our_residual": _finite(record.worst_ours),
        "tolerance": claim.tolerance,
        "sharper_residual": _finite(record.worst_sharper) if claim.sharper else None,
        "sharper_tolerance": claim.sharper.tolerance if claim.sharper else None,
        "remark": claim.remark or None,
        "errata": list(claim.errata),
        "severity": claim.severity or None,
        "problems": claim.problems,
        "oracle": claim.oracle,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
