"""verdicts.md of a folder of results: each ordering that is claimed, with what became of it, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from unhinge.paper.studies.judge import OrderingRecord
from unhinge.paper.studies.study import Study
from unhinge.paper.studies.write import read_study
from unhinge.results.json import JsonRecord

__all__ = ["write_verdicts"]

HEAD = """# What became of each ordering

Confirmed, not confirmed, undecided, or regime not reached (a network in the comparison does not fit every class of its
training images to 99 %), with effect, 95 % interval, p-value and seeds. The test is paired by seed. The p-values of a
table are corrected together (Holm's method: the more questions, the stricter), except those of questions whose regime
was not reached, which are not decided either way. Intervals are not corrected, and nothing is corrected over all
tables: take a p-value near 0.05 as a hint. One comparison can stand in several tables.
"""
DECIDED = ("confirmed", "not confirmed")


def write_verdicts(studies: Sequence[Study], folder: Path) -> Path:
    """What is decided first; then one section for each study, also for those of which no run is there yet."""
    decided, sections, counts = [], [], Counter[str]()
    for study in studies:
        if not study.orderings:
            continue
        record = _read(folder / study.id)
        done = f": {record['runs']} of {record['runs_wanted']} runs" if "runs" in record else ""
        sections += [f"## {study.id}{f' ({study.label})' if study.label else ''}{done}", ""]
        known = [one for one in record.get("orderings", []) if isinstance(one, dict) and "text" in one]
        judged = [cast(OrderingRecord, one) for one in known]
        statements = {judgement["statement"] for judgement in judged}
        sections += [_line(judgement) for judgement in judged]
        missing = dict.fromkeys(
            ordering.statement for ordering in study.orderings if ordering.statement not in statements
        )
        sections += [f"- {statement}: not run yet" for statement in missing]
        sections.append("")
        decided += [(study.id, judgement) for judgement in judged if judgement["verdict"] in DECIDED]
        counts.update(judgement["verdict"] for judgement in judged)
        counts["not run yet"] += len(missing)
    path = folder / "verdicts.md"
    path.write_text("\n".join([HEAD, *_summary(decided, counts), *sections]), encoding="utf-8")
    return path


def _summary(decided: Sequence[tuple[str, OrderingRecord]], counts: Mapping[str, int]) -> list[str]:
    """How many questions ended how, and those that are decided."""
    order = (*DECIDED, "undecided", "regime not reached", "not run yet")
    said = ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in order)
    lines = ["## What is decided", "", f"Of {sum(counts.values())} questions: {said}.", ""]
    if decided:
        lines += ["| statement | claimed by | verdict | effect | table, column |", "|---|---|---|---|---|"]
    for table, judgement in decided:
        row = "| {statement} | {claimed_by} | {verdict} | {text} | " + table + ", {column} |"
        lines.append(row.format_map(judgement))
    return [*lines, ""]


def _read(place: Path) -> JsonRecord:
    try:
        return read_study(place)
    except FileNotFoundError:
        return {}


def _line(judgement: OrderingRecord) -> str:
    verdict = "**{verdict}**" if judgement["verdict"] in DECIDED else "{verdict}"
    return ("- {statement} ({column}; claimed by {claimed_by}): " + verdict + "; {text}").format_map(judgement)
