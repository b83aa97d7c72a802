"""Records as a rich table, JSON, Markdown, an HTML fragment, CSV; and one claim at length."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from unhinge.paper.claims.errata import ERRATA
from unhinge.paper.claims.registry import CORRECTED, FAILS, FALSE, HOLDS, Record, record_of
from unhinge.paper.numbers import printed_statement
from unhinge.results import json, tables
from unhinge.results.sealed import stamped

__all__ = ["as_csv", "as_html", "as_json", "as_markdown", "as_sealed_json", "as_table", "explain", "summary"]

HEADS = "claim", "verdict", "printed", "ours", "errata", "statement"
STYLES = {HOLDS: "green", CORRECTED: "yellow", FALSE: "red", FAILS: "bold white on red"}
PLOT_WIDTH = 40  # letters
KEY = (
    "printed, ours: the largest error of the statement as it is printed and as we have it. An erratum beside a claim "
    "that holds is a remark on its wording."
)


def summary(records: Sequence[Record]) -> str:
    """One line: how many claims there are of each verdict.

    Example:
        >>> summary([])
        '0 claims'
    """
    counts = Counter(record.verdict for record in records)
    words = {
        HOLDS: ("holds", "hold"),
        CORRECTED: (CORRECTED, CORRECTED),
        FALSE: (FALSE, FALSE),
        FAILS: ("OURS FAILS", "OURS FAIL"),
    }
    parts = [f"{counts[verdict]} {words[verdict][counts[verdict] != 1]}" for verdict in STYLES if counts[verdict]]
    noun = "claim" if len(records) == 1 else "claims"
    return f"{len(records)} {noun}" + (f": {', '.join(parts)}" if parts else "")


def as_table(records: Sequence[Record], width: int) -> Table:
    """The verdicts; a terminal too narrow for the statements gets the rest, `unhinge verify ID` has the words.

    Below 80 columns the verdict stands under the claim, so that no name and no number is cut off.
    """
    wide, stacked = width >= 110, width < 80
    table = Table(
        caption=summary(records),
        caption_justify="left",
        pad_edge=False,
        box=box.HEAVY_HEAD if wide else box.SIMPLE_HEAD,
        show_edge=wide,
        padding=(0, 1) if wide else (0, 1, 0, 0),
    )
    own = all(record.claim.printed is record.claim.ours for record in records)  # nothing was printed
    for head in HEADS if wide else HEADS[:-1]:
        if (head == "verdict" and stacked) or (head == "printed" and own):
            continue
        number = head in ("printed", "ours")
        table.add_column(
            head,
            justify="right" if number else "left",
            no_wrap=head != "statement" and not stacked,
            overflow="fold",
        )
    for record in records:
        name, verdict, *rest = _cells(record)
        said = Text(verdict, style=STYLES[verdict])
        rest = rest[own:] if wide else rest[own:-1]
        if stacked:
            table.add_row(Text(f"{name}\n").append(said), *rest)
        else:
            table.add_row(name, said, *rest)
    return table


def as_json(records: Sequence[Record]) -> str:
    """A list of records, one JSON value."""
    return json.as_json([record_of(record) for record in records])


def as_sealed_json(records: Sequence[Record]) -> str:
    """The same, each record with its checksum, for a file that the report is made from."""
    return json.as_json([stamped(record_of(record)) for record in records])


def as_markdown(records: Sequence[Record]) -> str:
    """A Markdown table, and the summary below it."""
    rows = [(f"`{name}`", *rest) for name, *rest in map(_cells, records)]
    return f"{tables.markdown_text(HEADS, rows)}\n\n{summary(records)}\n"


def as_html(records: Sequence[Record]) -> str:
    """A fragment: one table, no page around it; the verdict is also the row's class."""
    rows = []
    for record in records:
        name, *rest = (html.escape(cell) for cell in _cells(record))
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        rows.append(f'<tr class="{record.verdict.lower().replace(" ", "-")}"><td><code>{name}</code></td>{cells}</tr>')
    head = "".join(f"<th>{head}</th>" for head in HEADS)
    body = "\n".join(rows)
    caption = html.escape(summary(records))
    return (
        f'<table class="claims">\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table>\n"
    )


def as_csv(records: Sequence[Record]) -> str:
    """The columns of the table, as CSV."""
    return tables.csv_text(HEADS, map(_cells, records))


def explain(record: Record, width: int = 80) -> RenderableType:
    """One claim at length: what is printed, what is right, the evidence, and the residuals of each problem.

    Of a statement of ours nothing is printed, so it has one wording and one residual. Where the residuals have no room
    beside the words they are left out: the worst is named.
    """
    claim = record.claim
    ours_alone = claim.says == claim.right
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")  # a label cut short leads nowhere
    facts.add_row("claim", Text(claim.title))
    facts.add_row("statement" if ours_alone else "printed", Text(claim.says))
    if not ours_alone:
        facts.add_row("right", Text(claim.right))
    if claim.remark:
        facts.add_row("remark", Text(claim.remark))
    number = printed_statement(claim.id)
    facts.add_row("where", Text(f"{claim.where} (printed as {number})" if number else claim.where))
    facts.add_row("compared with", Text(claim.oracle))
    facts.add_row("tolerance", _tolerance(claim.tolerance, claim.because))
    if not ours_alone:
        facts.add_row("errata", _errata(record) or "none")
        facts.add_row("printed form", _worst(record.worst_printed, record.undefined))
    facts.add_row("measured" if ours_alone else "our form", _worst(record.worst_ours, ""))
    if claim.sharper:
        allowed = _tolerance(claim.sharper.tolerance, claim.sharper.because)
        facts.add_row("sharper check", f"ours alone: {_worst(record.worst_sharper, '')}, tolerance {allowed}")
    if claim.tolerance == 0:
        facts.add_row("problems", f"printed form wrong in {_wrong(record.printed)}, ours in {_wrong(record.ours)}")
    elif claim.problems > 1 and width >= PLOT_WIDTH + 20:
        facts.add_row("residuals", residual_plot(record))
    title = Text.assemble((claim.id, "bold"), "  ", (record.verdict, STYLES[record.verdict]))
    return Group(Panel(facts, title=title, title_align="left"))


def residual_plot(record: Record) -> Text:
    """Log-scale marks, one row per problem: o the printed form, x ours, # both; the bar is the tolerance."""
    finite = [x for x in (*record.printed, *record.ours, record.claim.tolerance) if 0 < x < math.inf]
    low = math.floor(math.log10(min(finite, default=1e-1)))
    high = max(math.ceil(math.log10(max(finite, default=1.0))), low + 1)

    def column(value: float) -> int:
        if value <= 0:
            return 0
        if value == math.inf:
            return PLOT_WIDTH
        return 1 + round((math.log10(value) - low) / (high - low) * (PLOT_WIDTH - 2))

    worst_first = sorted(zip(record.printed, record.ours, strict=True), reverse=True)[:10]
    lines = [f"0 1e{low:+03d}".ljust(PLOT_WIDTH - 8) + f"1e{high:+03d} undef."]
    for printed, ours in worst_first:
        cells = [" "] * (PLOT_WIDTH + 1)
        cells[column(record.claim.tolerance)] = "|"
        for mark, value in (("o", printed), ("x", ours)):
            place = column(value)
            cells[place] = "#" if cells[place] == "o" else mark
        lines.append("".join(cells))
    marks = "# residual" if record.claim.says == record.claim.right else "o printed   x ours   # both"
    return Text("\n".join([*lines, f"{marks}   | tolerance"]))


def print_records(console: Console, records: Sequence[Record], at_length: bool) -> None:
    for record in records if at_length else ():
        console.print(explain(record, console.width))
    if not at_length or len(records) > 1:
        console.print(as_table(records, console.width))
        if any(record.claim.printed is not record.claim.ours for record in records):
            console.print(KEY, style="dim", highlight=False)


def _cells(record: Record) -> tuple[str, str, str, str, str, str]:
    claim = record.claim
    return (
        claim.id,
        record.verdict,
        _short(record.worst_printed),
        _short(record.worst_ours),
        ", ".join(map(str, claim.errata)),
        f"{claim.title}. {claim.remark}" if claim.remark else claim.title,
    )


def _short(residual: float) -> str:
    if residual == math.inf:
        return "undefined"
    return "0" if residual == 0 else f"{residual:.1e}"


def _worst(residual: float, why: str) -> str:
    return f"undefined: {why}" if residual == math.inf else f"worst residual {residual:.2g}"


def _wrong(residuals: Sequence[float]) -> str:
    return f"{sum(x > 0 for x in residuals)} of {len(residuals)}"


def _tolerance(value: float, because: str) -> str:
    return f"{value:.0e}: {because}" if value else f"0: {because}"


def _errata(record: Record) -> str:
    """Numbers, severity, and the evidence of the list, one line each."""
    known = {entry.number: entry for entry in ERRATA}
    return "\n".join(f"{n} (severity {known[n].severity}): {known[n].evidence}" for n in record.claim.errata)
