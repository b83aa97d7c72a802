"""verdicts.md of a folder of results: each ordering that is claimed, with what became of it, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from unhinge.paper.studies.judge import OrderingRecord
from unhinge.paper.studies.study import Study
from unhinge.paper.studies.write import read_study

__all__ = ["write_verdicts"]

HEAD = """# What became of each ordering

Confirmed, not confirmed, undecided, or regime not reached (a network in the comparison does not fit every class of its
training images to 99 %), with effect, 95 % interval, p-value (paired, corrected by Holm over its table) and seeds.
"""


def write_verdicts(studies: Sequence[Study], folder: Path) -> Path:
    """One section for each study, also for those of which no run is there yet."""
    lines = [HEAD]
    for study in studies:
        if not study.orderings:
            continue
        lines += [f"## {study.id}{f' ({study.label})' if study.label else ''}", ""]
        judged = _read(folder / study.id)
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


def _read(place: Path) -> list[OrderingRecord]:
    try:
        records = read_study(place)["orderings"]
    except (FileNotFoundError, KeyError):
        return []
    return [cast(OrderingRecord, record) for record in records if isinstance(record, dict) and "text" in record]


def _line(judgement: OrderingRecord) -> str:
    decided = judgement["verdict"] in ("confirmed", "not confirmed")
    verdict = "**{verdict}**" if decided else "{verdict}"
    return ("- {statement} ({column}; claimed by {claimed_by}): " + verdict + "; {text}").format_map(judgement)
