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

__all__ = ["generate"]

SEVERITY = {"A": "false or undefined", "B": "a formula one would copy", "C": "a slip"}
NOT_RUN = "not run in this build"


def generate(pages: Pages, cache: Path | None) -> None:
    """Without a cache nothing is computed, and the pages say so."""
    records = {} if cache is None else {record["id"]: record for record in _verdicts(cache)}
    pages.write("errata.md", _errata(records))
    pages.write("claims.md", _claims(records))


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
        f"What is wrong in the paper as printed, what is right, and the evidence: {len(ERRATA)} entries. "
        "The verdicts were computed with the code this page was built from; `unhinge verify erratum-N` computes one "
        "again, and [all claims](claims.md) shows the statements that hold as well.",
        "",
        "Severity: " + "; ".join(f"**{key}** {words}" for key, words in SEVERITY.items()) + ".",
        "",
    ]
    rows = [
        (
            f"[{one.number}](#erratum-{one.number}) ({one.severity})",
            cell(one.where),
            cell(one.printed),
            cell(one.right),
            _deciding(one, records),
        )
        for one in ERRATA
    ]
    lines += [
        "The last column has the number that decides: how far the printed form is from an independent reference, and "
        "how far the right one. Where no number decides, it is a misprint.",
        "",
        table(("no.", "where", "printed", "right", "printed / right is off by"), rows),
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
                table(("tested by", "verdict", "residual as printed", "residual as corrected", "tolerance"), tested)
            ]
    return "\n".join(lines)


def _deciding(entry: Erratum, records: dict[str, dict[str, Any]]) -> str:
    """The residuals of the claim that tells the two forms apart the most; of a misprint, nothing."""
    tested = [_row(claim.id, records) for claim in claims() if entry.number in claim.errata]
    if not tested:
        return "a misprint"
    apart = [row for row in tested if row[1] not in ("holds", NOT_RUN)] or tested
    first = max(apart, key=lambda row: math.inf if row[2] == "undefined" else float(row[2] or 0))
    return NOT_RUN if first[1] == NOT_RUN else f"{first[2]} / {first[3]} ({first[0]})"


def _claims(records: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# All claims",
        "",
        "Every statement of the paper, tested in its printed and in its corrected form on random problems, against "
        "references that share no algebra with either. A residual is 0 where a form is right. **holds**: literally "
        "true. **corrected**: true once a symbol, a sign or a hypothesis is mended. **false as printed**: contradicted "
        "by a counterexample that meets every printed hypothesis.",
        "",
        "`unhinge verify` makes this table, `unhinge verify theorem-2-bias` explains one row.",
        "",
    ]
    if records:
        verdicts = [record["verdict"] for record in records.values()]
        counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
        lines += [f"{len(records)} claims: {', '.join(counts)}.", ""]
    rows = []
    for claim in claims():
        errata = ", ".join(f"[{number}](errata.md#erratum-{number})" for number in claim.errata)
        rows.append(
            (*_row(claim.id, records), errata, cell(f"{claim.title}. {claim.remark}" if claim.remark else claim.title))
        )
    heads = ("claim", "verdict", "as printed", "as corrected", "tolerance", "errata", "statement")
    return "\n".join([*lines, table(heads, rows)])


def _row(claim: str, records: dict[str, dict[str, Any]]) -> tuple[str, str, str, str, str]:
    record = records.get(claim)
    if record is None:
        return f"`{claim}`", NOT_RUN, "", "", ""
    printed = "undefined" if record["printed_residual"] is None else f"{record['printed_residual']:.1e}"
    ours = "undefined" if record["our_residual"] is None else f"{record['our_residual']:.1e}"
    return f"`{claim}`", record["verdict"], _zero(printed), _zero(ours), _zero(f"{record['tolerance']:.0e}")


def _zero(text: str) -> str:
    return "0" if text.startswith(("0.0e", "0e")) else text
