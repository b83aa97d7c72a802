"""The claims for a page in one file: filtered by verdict and by part of the paper, each opened to its two forms.

Filters are radio buttons and rules of style. There is no script: the page works offline, from a mail and on paper.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import cast

from unhinge.paper.claims.errata import ERRATA
from unhinge.paper.claims.registry import CORRECTED, FAILS, FALSE, HOLDS, Claim, ClaimRecord, claims
from unhinge.paper.numbers import STATEMENTS, printed_statement
from unhinge.results.sealed import SealError, checked

__all__ = ["STYLE", "claims_section", "read_claims", "residual_text"]

STYLE = """
.filters { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .6rem 0; } .filters label { white-space: nowrap; }
details.claim { border-bottom: 1px solid var(--line); padding: .25rem 0; break-inside: avoid; }
.heads { font-weight: 600; padding-bottom: .3rem; border-bottom: 2px solid var(--strong); }
.heads, details.claim > summary { display: grid; gap: .6rem; font-size: .87rem;
  grid-template-columns: 1.1rem minmax(13rem, 1fr) 8.5rem 5.5rem 5.5rem minmax(12rem, 2fr); }
details.claim > summary { cursor: pointer; }
details.claim > summary::before { content: "▸"; } details.claim[open] > summary::before { content: "▾"; }
details.claim > summary::-webkit-details-marker { display: none; }
.claim .verdict { font-weight: 600; } .claim.holds .verdict { color: var(--good); }
.claim.corrected .verdict { color: var(--fair); } .claim.false-as-printed .verdict { color: var(--bad); }
.claim dl { display: grid; grid-template-columns: 9rem 1fr; gap: .2rem .8rem; margin: .4rem 0 .6rem 1.7rem;
  font-size: .87rem; }
.claim dt { color: var(--faint); } .claim dd { margin: 0; overflow-wrap: anywhere; }
@media screen and (max-width: 50rem) { .heads { display: none; }
  details.claim > summary { grid-template-columns: 1.1rem 1fr auto; }
  details.claim > summary span:nth-of-type(n + 3) { display: none; }
  .claim dl { grid-template-columns: 1fr; margin-left: 0; } }
@media print { .filters { display: none; } details.claim { padding: .08rem 0; }
  .heads, details.claim > summary { grid-template-columns: 11rem 5.6rem 4rem 4rem 1fr; gap: .4rem; }
  .heads, details.claim > summary, .claim dl { font-size: 7pt; }
  .heads span:first-child { display: none; } details.claim > summary::before { display: none; } }
"""
# The printed number of a part, and how its filter is called.
PARTS = {"Lemma": "Lemma"} | {
    number: f"{number}, {name}" for name, number in STATEMENTS.items() if not number.startswith("Lemma")
}
REST = "the rest"


def read_claims(folder: Path) -> list[ClaimRecord]:
    """The verdicts that ``unhinge verify --out`` left there, where they are what was written."""
    path = folder / "claims.json"
    try:
        records = json.loads(path.read_bytes())
        if not isinstance(records, list):
            raise SealError(f"{path} holds no list of verdicts.")
        return [cast(ClaimRecord, checked(record, str(path))) for record in records]
    except (ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, SealError) else f"{path} is cut off or damaged: it is no JSON."
        raise SealError(f"{words} `unhinge verify --out {folder}` makes it again.") from None


def claims_section(records: Sequence[ClaimRecord]) -> str:
    """HTML of the records that ``unhinge verify --out`` wrote into claims.json.

    Example:
        >>> claims_section([])
        '<p>No claim was tested.</p>'
    """
    if not records:
        return "<p>No claim was tested.</p>"
    known = {claim.id: claim for claim in claims()}
    verdicts = Counter(record["verdict"] for record in records)
    parts = Counter(_part(record["id"]) for record in records)
    shown = {name: verdicts[name] for name in (HOLDS, CORRECTED, FALSE, FAILS) if verdicts[name]}
    places = {name: parts[name] for name in (*PARTS, REST) if parts[name]}
    rules = [_rule("verdict", name) for name in shown] + [_rule("part", name) for name in places]
    rows = "\n".join(_claim(record, known.get(record["id"])) for record in records)
    counted = ", ".join(f"{count} {'hold' if name == HOLDS else escape(name)}" for name, count in shown.items())
    return f"""<style>{"".join(rules)}</style>
<p>{len(records)} claims: {counted}. Click on a claim to see its printed form, its right form and the evidence. The two
numbers say how far each form is from an independent computation. "Corrected" means true once a symbol, a
sign or a hypothesis is fixed, and "false as printed" means contradicted. The filters use the numbers of the journal,
with our names of the same statements beside them.</p>
<div class="filters">{_radios("verdict", shown)}</div>
<div class="filters">{_radios("part", places)}</div>
<div class="heads"><span></span><span>claim</span><span>verdict</span><span>printed is off by</span>
<span>right is off by</span><span>statement</span></div>
<div id="list-of-claims">
{rows}
</div>"""


def _part(id: str) -> str:
    number = printed_statement(id)
    return "Lemma" if number.startswith("Lemma") else number or REST


def _key(name: str) -> str:
    return name.lower().replace(" ", "-")


def _rule(kind: str, name: str) -> str:
    return f"body:has(#{kind}-{_key(name)}:checked) .claim:not(.{_key(name)}) {{ display: none; }}\n"


def _radios(kind: str, counts: Mapping[str, int]) -> str:
    choices = [("every", f"every {kind}", " checked")]
    choices += [(_key(name), f"{PARTS.get(name, name)} ({count})", "") for name, count in counts.items()]
    return "".join(
        f'<label><input type="radio" name="{kind}" id="{kind}-{key}"{checked}> {escape(words)}</label>'
        for key, words, checked in choices
    )


def _claim(record: ClaimRecord, claim: Claim | None) -> str:
    printed, ours = residual_text(record["printed_residual"]), residual_text(record["our_residual"])
    facts = [("claim", record["claim"])]
    if claim is not None:
        facts += [("printed form", claim.says), ("right form", claim.right)]
    if record["remark"]:
        facts.append(("remark", record["remark"]))
    number = printed_statement(record["id"])
    facts.append(("where", f"{record['where']} (printed as {number})" if number else record["where"]))
    problems = record["problems"]
    worst = f"; worst of {problems} random problems" if problems > 1 else ""
    facts.append(("compared with", f"{record['oracle']}{worst}"))
    why = f": {record['printed_undefined']}" if record["printed_undefined"] else ""
    facts.append(
        ("off by", f"printed form {printed}{why}; right form {ours}; allowed {residual_text(record['tolerance'])}")
    )
    evidence = {entry.number: entry.evidence for entry in ERRATA}
    lines = [f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts]
    lines += [
        f'<dt><a href="#erratum-{n}">erratum {n}</a></dt><dd>{escape(evidence[n])}</dd>' for n in record["errata"]
    ]
    kinds = " ".join(("claim", _key(record["verdict"]), _key(_part(record["id"]))))
    return (
        f'<details class="{kinds}" id="claim-{record["id"]}"><summary><span><code>{record["id"]}</code></span>'
        f'<span class="verdict">{escape(record["verdict"])}</span><span>{printed}</span><span>{ours}</span>'
        f"<span>{escape(record['claim'])}</span></summary><dl>{''.join(lines)}</dl></details>"
    )


def residual_text(residual: float | None) -> str:
    """How far a form is off, for a reader.

    Example:
        >>> residual_text(1.3), residual_text(2.8e-16), residual_text(None)
        ('1.3', '2.8e-16', 'undefined')
    """
    if residual is None:
        return "undefined"
    return f"{residual:.2g}" if residual == 0 or abs(residual) >= 1e-3 else f"{residual:.1e}"
