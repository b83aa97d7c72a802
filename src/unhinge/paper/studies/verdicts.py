"""verdicts.md of a folder of results: each ordering that is claimed, with what became of it, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from unhinge.paper.studies.judge import OrderingRecord
from unhinge.paper.studies.study import Study
from unhinge.paper.studies.write import read_study
from unhinge.results.json import JsonRecord

__all__ = ["write_verdicts"]

HEAD = """# What became of each ordering

Confirmed, not confirmed, undecided, or regime not reached (a network in the comparison does not fit every class of its
training images to 99 %), with effect, 95 % interval, p-value (paired, corrected by Holm for all questions of its table)
and seeds. The heads say how many of the runs of a table are there.
"""


def write_verdicts(studies: Sequence[Study], folder: Path) -> Path:
    """One section for each study, also for those of which no run is there yet."""
    lines = [HEAD]
    for study in studies:
        if not study.orderings:
            continue
        record = _read(folder / study.id)
        done = f": {record['runs']} of {record['runs_wanted']} runs" if "runs" in record else ""
        lines += [f"## {study.id}{f' ({study.label})' if study.label else ''}{done}", ""]
        known = [one for one in record.get("orderings", []) if isinstance(one, dict) and "text" in one]
        judged = [cast(OrderingRecord, one) for one in known]
        statements = {judgement["statement"] for judgement in judged}
        lines += [_line(judgement) for judgement in judged]
        missing = dict.fromkeys(
            ordering.statement for ordering in study.orderings if ordering.statement not in statements
        )
        lines += [f"- {statement}: not run yet" for statement in missing]
        lines.append("")
    path = folder / "verdicts.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _read(place: Path) -> JsonRecord:
    try:
        return read_study(place)
    except FileNotFoundError:
        return {}


def _line(judgement: OrderingRecord) -> str:
    decided = judgement["verdict"] in ("confirmed", "not confirmed")
    verdict = "**{verdict}**" if decided else "{verdict}"
    return ("- {statement} ({column}; claimed by {claimed_by}): " + verdict + "; {text}").format_map(judgement)
