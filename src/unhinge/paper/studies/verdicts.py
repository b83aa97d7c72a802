"""verdicts.md of a folder of results: each figure and table of the paper, and each ordering that is claimed, with what
became of it, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from unhinge.paper.numbers import FLOATS
from unhinge.paper.studies.judge import DECIDED, OrderingRecord
from unhinge.paper.studies.study import Study
from unhinge.paper.studies.write import read_study
from unhinge.results.json import JsonRecord

__all__ = ["write_verdicts"]

HEAD = """# What became of each ordering

Each question ends as confirmed, not confirmed (the opposite is significant), undecided, or regime not reached (a
network in the comparison does not fit every class of its training images to 99 %). Beside it stand the effect, its 95 %
interval, the p-value and the number of seeds. A positive difference is in favour of the statement. The tests are paired
by seed, and corrected by Holm's method for all questions of a table: the more questions, the stricter. Intervals are
not corrected, and nothing is corrected over all tables, so take a p-value near 0.05 as a hint. One comparison can stand
in several tables.
"""
PRINTED = """
## Where each trained figure and table of the paper is

Our tables have the paper's numbers in brackets, where it prints any. A cell is a method in a column of a table; it
is in the regime if all of its runs are. Cells without a run are not counted. Where there is no run at all, `unhinge
reproduce ID --scale small --data-root DIR` makes the table from your own copy of the images.

| in the paper | ours | runs | cells in the regime | its questions |
|---|---|---|---|---|
""".strip()
VERDICTS = (*DECIDED, "undecided", "regime not reached")


def write_verdicts(studies: Sequence[Study], folder: Path) -> Path:
    """What is decided first, and where each figure and table of the paper is; then one section for each study, also for
    those of which no run is there yet."""
    decided, sections, counts, records = [], [], Counter[str](), dict[str, JsonRecord]()
    for study in studies:
        record = records[study.id] = _read(folder / study.id)
        if not study.orderings:
            continue
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
        counts["not run yet"] += max(len(missing), record.get("questions", 0) - len(judged))
    path = folder / "verdicts.md"
    path.write_text("\n".join([HEAD, *_summary(decided, counts), *_printed(records), *sections]), encoding="utf-8")
    return path


def _summary(decided: Sequence[tuple[str, OrderingRecord]], counts: Mapping[str, int]) -> list[str]:
    """How many questions ended how, and those that are decided."""
    said = ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in (*VERDICTS, "not run yet"))
    lines = ["## What is decided", "", f"Of {sum(counts.values())} questions: {said}.", ""]
    if decided:
        lines += ["| statement | claimed by | verdict | effect | table, column |", "|---|---|---|---|---|"]
    rows: dict[tuple[object, ...], list[tuple[str, OrderingRecord]]] = {}  # a comparison once, whichever tables have it
    for table, judgement in decided:
        same = tuple(judgement.get(name) for name in ("better", "worse", "quantity", "difference", "verdict"))
        rows.setdefault(same, []).append((table, judgement))
    for places in rows.values():
        row = "| {statement} | {claimed_by} | {verdict} | {text} | ".format_map(places[0][1])
        named = [_place(*place, alone=len(places) == 1) for place in places]
        lines.append(f"{row}{'; '.join(named)} |")
    return [*lines, ""]


def _printed(records: Mapping[str, JsonRecord]) -> list[str]:
    """The trained figures and tables of the paper in its order: where ours are, how much of them, and what they say."""
    places: dict[str, list[str]] = {}  # one table of ours can be several of the paper's
    for name, _, ids in FLOATS:
        for id in (id for id in ids if id in records):
            places.setdefault(id, []).append(name)
    rows = []
    for id, names in places.items():
        record = records[id]
        if not record.get("runs"):
            rows.append(f"| {', '.join(names)} | {id} | none | | |")
            continue
        cells = [cell["interpolated"] for cell in record["cells"] if cell["interpolated"] is not None]
        found = Counter(judgement["verdict"] for judgement in record["orderings"])
        verdicts = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if verdict in found)
        runs = f"{record['runs']} of {record['runs_wanted']}"
        fitted = f"{sum(cells)} of {len(cells)}"
        rows.append(f"| {', '.join(names)} | [{id}]({id}/table.md) | {runs} | {fitted} | {verdicts} |")
    return [PRINTED, *rows, ""] if rows else []


def _place(table: str, judgement: OrderingRecord, alone: bool) -> str:
    """A table and its column; of several, each with the p-value that it has there."""
    p = judgement.get("p_value")
    return f"{table}, {judgement['column']}" + ("" if alone or p is None else f" (p = {p:.2g})")


def _read(place: Path) -> JsonRecord:
    try:
        return read_study(place)
    except FileNotFoundError:
        return {}


def _line(judgement: OrderingRecord) -> str:
    verdict = "**{verdict}**" if judgement["verdict"] in DECIDED else "{verdict}"
    return ("- {statement} ({column}; claimed by {claimed_by}): " + verdict + "; {text}").format_map(judgement)
