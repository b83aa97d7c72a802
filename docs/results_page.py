"""Fill the numbers of the tables in results/small/README.md from the tables beside it; its words are written by hand.

    python docs/results_page.py          # after `unhinge reproduce ... --collect --out results/small`

Above such a table stands a comment: the studies its numbers come from, and what else is to be known.

    <!-- numbers of long-tailed-cifar10 imbalanced-cifar10; seeds=3 -->

`quantity` is what its cells are (accuracy), `adjusted` what those of rows and columns called adjusted are
(decided_accuracy), `seeds` how many of the first seeds count (all there are), `regime=no` leaves out the daggers of
networks that do not fit their training images. A cell that ends with ² is left alone: its footnote says what it is.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "results" / "small" / "README.md"
MARK = re.compile(r"<!-- numbers of ([\w -]+?)((?:; \w+=[\w.]+)*) -->")
NOT_REACHED, ONE_SEED, BY_HAND = "†", "¹", "²"
MARKS = rf" [{NOT_REACHED}{ONE_SEED}]"
# As the page writes them, for people, and as the tables do.
WORDS = (
    (r"λ = ", "λ="),
    (r"radius 434 \(λ=5e-6\)|radius 434", "λ=5e-6"),
    (r" trained with adjusted logits", ", logits adjusted"),
    (r"weights on loss and penalty", "weights, penalty too"),
    (r"rescaled rate", "rescaled"),
    (r"^(Z-loss|Taylor softmax|unhinged)$", r"\1, many-class head"),
)
QUANTITIES = {
    "plain": "accuracy",
    "test accuracy": "accuracy",
    "fitted": "training.accuracy",
    "rarer half fitted": "rare_training_accuracy",
}


@dataclass(frozen=True)
class Table:
    """What the comment above a table says, and the runs of its studies: by row and column, then by seed."""

    runs: dict[tuple[str, str], dict[int, dict[str, str]]]
    reached: dict[tuple[str, str], bool]
    quantity: str = "accuracy"
    adjusted: str = "decided_accuracy"
    seeds: int | None = None
    regime: bool = True
    last: str = field(default="")  # the row above, for "the same"

    def value(self, row: str, column: str, quantity: str) -> str:
        """A cell with its marks, empty where nothing was measured."""
        runs = self.runs.get((row, column), {})
        chosen = [runs[seed] for seed in sorted(runs) if self.seeds is None or seed < self.seeds]
        if quantity == self.adjusted:  # what states no probabilities has no decision to adjust
            chosen = [run for run in chosen if run.get("adjusted_accuracy.1")]
        numbers = [100 * Decimal(run[quantity]) for run in chosen if run.get(quantity)]
        if not numbers:
            return ""
        share = quantity in ("rare_training_accuracy", "training.accuracy")
        # In decimals, since these are counts of 10,000 images: 28.95 is 29.0, and a float of it is a hair below.
        mean = (sum(numbers, Decimal()) / len(numbers)).quantize(Decimal(1 if share else "0.1"), ROUND_HALF_UP)
        return " ".join([f"{mean} %" if share else f"{mean}", *self.marks(row, column, len(numbers))])

    def marks(self, row: str, column: str, seeds: int) -> list[str]:
        """What stands behind a number."""
        missed = [NOT_REACHED] if self.regime and not self.reached.get((row, column), True) else []
        return missed + ([ONE_SEED] if seeds == 1 else [])


def main() -> int:
    """Write the page again where a number has changed."""
    before = PAGE.read_text(encoding="utf-8")
    after = fill(before, PAGE.parent)
    PAGE.write_text(after, encoding="utf-8")
    changed = sum(old != new for old, new in zip(before.splitlines(), after.splitlines(), strict=True))
    print(f"{PAGE}: {changed} rows changed")
    return 0


def fill(page: str, folder: Path) -> str:
    """The page with the numbers of the tables in `folder`."""
    lines, table, heads = [], None, None
    for line in page.splitlines():
        mark = MARK.fullmatch(line)
        if mark:
            table, heads = _table(folder, mark[1].split(), dict(re.findall(r"; (\w+)=([\w.]+)", mark[2]))), None
        elif table is not None and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if heads is None:
                heads = cells[1:]
            elif not set(line) <= set("|-: "):
                table, cells = _row(table, heads, cells)
                line = f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"
        elif line or heads is not None:  # a blank line may stand before the table, not in it
            table = None
        lines.append(line)
    return "\n".join(lines) + "\n"


def _table(folder: Path, studies: list[str], options: dict[str, str]) -> Table:
    table = Table({}, {})
    for study in studies:
        with (folder / study / "runs.csv").open(encoding="utf-8", newline="") as file:
            for run in csv.DictReader(file):
                table.runs.setdefault((run["row"], run["column"]), {})[int(run["seed"])] = run
        with (folder / study / "table.csv").open(encoding="utf-8", newline="") as file:
            table.reached.update(
                {(line["row"], line["column"]): line["interpolated"] == "yes" for line in csv.DictReader(file)}
            )
    return replace(
        table,
        quantity=options.get("quantity", table.quantity),
        adjusted=options.get("adjusted", table.adjusted),
        seeds=int(options["seeds"]) if "seeds" in options else None,
        regime=options.get("regime") != "no",
    )


def _row(table: Table, heads: list[str], cells: list[str]) -> tuple[Table, list[str]]:
    """A row with its numbers, and the table that remembers its name."""
    label = re.sub(MARKS, "", cells[0])
    name, quantity = label, table.quantity
    for ending, other in ((", adjusted", table.adjusted), (", softmax", quantity), (", posterior", quantity)):
        if name.endswith(ending):
            name, quantity = name.removesuffix(ending), other
    for written, meant in WORDS:
        name = re.sub(written, meant, name)
    name = table.last if name == "the same" else name
    known = {column for row, column in table.runs if row == name}
    if not known:
        raise ValueError(f"no run of these studies is called {name!r}, which {label!r} stands for.")
    columns = [_column(head, known) for head in heads]
    if not any(columns):  # one column: its quantities are side by side, and the marks beside the name
        (column,) = known
        kinds = [table.adjusted if head == "adjusted" else QUANTITIES.get(head) for head in heads]
        seeds = len(table.runs[name, column])
        shown = [kind and re.sub(MARKS, "", table.value(name, column, kind)) for kind in kinds]
        shown = [str(seeds) if head == "seeds" else one for head, one in zip(heads, shown, strict=True)]
        label = " ".join([label, *table.marks(name, column, seeds)])
    else:
        shown = [None if column is None else table.value(name, column, quantity) for column in columns]
    kept = [old if new is None or BY_HAND in old else new for old, new in zip(cells[1:], shown, strict=True)]
    return replace(table, last=name), [label, *kept]


def _column(head: str, known: set[str]) -> str | None:
    """The column of the studies that a head means, such as "step 100 : 1" or a rate; None for another."""
    ratio = re.fullmatch(r"(step )?(\d+) : 1", head)
    if ratio:
        profiles = ("step, ",) if ratio[1] else ("long-tailed, ", "")
        return next((name for profile in profiles if (name := f"{profile}ρ={ratio[2]}") in known), f"{head} is missing")
    return next((name for name in known if name == head or name.endswith(f", lr {head}")), None)


if __name__ == "__main__":
    sys.exit(main())
