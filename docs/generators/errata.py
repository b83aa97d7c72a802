"""The errata and the claims, each with the verdict and the residuals that this very code gives.

The verdicts are computed when the site is built and kept by a hash of the code that decides them: they cannot drift.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import unhinge
from generators.pages import Pages, cell, table
from unhinge.paper.claims import claims
from unhinge.paper.claims.errata import ERRATA, Erratum

__all__ = ["generate", "listed"]

SEVERITY = {"A": "a false or undefined statement", "B": "a wrong formula that a reader may copy", "C": "a slip"}
NOT_RUN = "not run in this build"


def generate(pages: Pages, cache: Path | None) -> None:
    """Without a cache nothing is computed, and the pages say so."""
    records = {} if cache is None else {record["id"]: record for record in _verdicts(cache)}
    pages.write("errata.md", _errata(records))
    pages.write("claims.md", _claims(records))


def listed() -> str:
    """The page that is kept in the repository, docs/errata.md: no number in it depends on the machine."""
    lines = [
        "# Errata",
        "",
        f"The printed paper is wrong in {len(ERRATA)} places that we found. Here is each with what is printed, what is "
        "right, and the evidence. `unhinge verify erratum-19` puts an entry to the test, and `unhinge verify` all of "
        "them. Theorems have [our numbers](guide/for-readers.md#from-a-symbol-to-code): Theorem 1 is printed as "
        "Theorem 2.",
        "",
        "The letter after a number is the severity: "
        + "; ".join(f"**{key}** means {words}" for key, words in SEVERITY.items())
        + ".",
        "",
        "<!-- made by `python docs/build.py --errata` from src/unhinge/paper/claims/errata.py -->",
        "",
    ]
    for one in ERRATA:
        lines += [
            f'<a id="erratum-{one.number}"></a>',
            "",
            f"## {one.number} ({one.severity}). {cell(one.where)}",
            "",
            f"- Printed: {cell(one.printed)}",
            f"- Right: {cell(one.right)}",
            f"- Evidence: {cell(one.evidence)}",
            "",
        ]
    return "\n".join(lines)


def _verdicts(cache: Path) -> list[dict[str, Any]]:
    package = Path(unhinge.__file__).parent
    digest = hashlib.sha256()
    for folder in ("paper/claims", "theory", "nn", "metrics"):
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    kept = cache / f"claims-{digest.hexdigest()[:16]}.json"
    if not kept.is_file():
        print("testing every claim (half a minute) ...", flush=True)
        # exit code 1 is a verdict too: one of our own statements failed, and the page shall say so
        done = subprocess.run([sys.executable, "-m", "unhinge", "verify", "--json"], stdout=subprocess.PIPE)
        records = json.loads(done.stdout)
        cache.mkdir(parents=True, exist_ok=True)
        for stale in cache.glob("claims-*.json"):
            stale.unlink()
        kept.write_text(json.dumps(records), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def _errata(records: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Errata",
        "",
        f"This page lists {len(ERRATA)} places where the printed paper is wrong, with the right form and the evidence. "
        "The numbers were computed when the page was built. `unhinge verify erratum-19` computes one entry again. "
        "[All claims](claims.md) also has the statements that hold. Theorems have "
        "[our numbers](guide/for-readers.md#from-a-symbol-to-code): Theorem 1 is printed as Theorem 2.",
        "",
        "The letter after a number is the severity: "
        + "; ".join(f"**{key}** means {words}" for key, words in SEVERITY.items())
        + ".",
        "",
    ]
    rows = [
        (
            f"[{one.number}](#erratum-{one.number}) ({one.severity})",
            cell(one.where),
            cell(one.printed),
            cell(one.right),
            *_deciding(one, records),
        )
        for one in ERRATA
    ]
    lines += [
        "The last two columns compare both forms with an independent computation: how far the printed form is off, and "
        "how far the right form is off. A misprint needs no number.",
        "",
        table(("no.", "where", "printed", "right", "printed form is off by", "right form is off by"), rows),
        "",
    ]
    for one in ERRATA:
        lines += [
            f"(erratum-{one.number})=",
            f"## {one.number}. {cell(one.where)}",
            "",
            f"Severity {one.severity}: {SEVERITY[one.severity]}.",
            "",
            f"Printed\n: {cell(one.printed)}",
            "",
            f"Right\n: {cell(one.right)}",
            "",
            f"Evidence\n: {cell(one.evidence)}",
            "",
        ]
        tested = [_row(claim.id, records) for claim in claims() if one.number in claim.errata]
        if tested:
            lines += [
                table(("tested by", "verdict", "printed form is off by", "right form is off by", "tolerance"), tested)
            ]
    return "\n".join(lines)


def _deciding(entry: Erratum, records: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The residuals of the claim that tells the two forms apart the most; of a misprint, nothing."""
    tested = [_row(claim.id, records) for claim in claims() if entry.number in claim.errata]
    if not tested:
        return "a misprint", ""
    apart = [row for row in tested if row[1] not in ("holds", NOT_RUN)] or tested
    first = max(apart, key=lambda row: math.inf if row[2] == "undefined" else float(row[2] or 0))
    return (NOT_RUN, "") if first[1] == NOT_RUN else (first[2], first[3])


def _claims(records: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# All claims",
        "",
        "We tested every statement of the paper that a number can decide, in its printed and in its right form. Each "
        "test compares the statement with an independent computation on random problems. The table says how far each "
        "form is off; a form is right if it is off by less than the tolerance.",
        "",
        "- **holds**: the printed statement is true.",
        "- **corrected**: it is true once a symbol, a sign or a hypothesis is fixed.",
        "- **false as printed**: there is a counterexample that meets every printed hypothesis.",
        "",
        "`unhinge verify` makes this table, and `unhinge verify theorem-2-bias` explains one row.",
        "",
    ]
    if records:
        verdicts = [record["verdict"] for record in records.values()]
        counts = [f"{verdicts.count(one)} {'hold' if one == 'holds' else one}" for one in dict.fromkeys(verdicts)]
        lines += [f"{len(records)} claims: {', '.join(counts)}.", ""]
    rows = []
    for claim in claims():
        errata = ", ".join(f"[{number}](errata.md#erratum-{number})" for number in claim.errata)
        name, *measured = _row(claim.id, records)
        statement = cell(f"{claim.title}. {claim.remark}" if claim.remark else claim.title)
        rows.append((name, statement, *measured, errata))
    heads = ("claim", "statement", "verdict", "printed form is off by", "right form is off by", "tolerance", "errata")
    return "\n".join([*lines, table(heads, rows), ""])


def _row(claim: str, records: dict[str, dict[str, Any]]) -> tuple[str, str, str, str, str]:
    record = records.get(claim)
    if record is None:
        return f"`{claim}`", NOT_RUN, "", "", ""
    printed, ours = (_number(record[name], digits=2) for name in ("printed_residual", "our_residual"))
    return f"`{claim}`", record["verdict"], printed, ours, _number(record["tolerance"], digits=1)


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "undefined"
    return f"{value:.{digits}g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.{digits - 1}e}"
