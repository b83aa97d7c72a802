"""Tables as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unhinge.results.tables import markdown_text, narrowed

CELLS = st.text("ab|± ", max_size=9).map(str.strip)


@given(st.data(), st.integers(1, 5), st.integers(0, 4), st.integers(1, 60))
def test_a_table_cut_for_a_terminal_loses_no_cell(data, columns, rows, width):
    table = [[data.draw(CELLS) for _ in range(columns + 1)] for _ in range(rows + 1)]
    whole = markdown_text(table[0], table[1:])
    cut = narrowed(f"before\n\n{whole}\n\nafter\n", width)
    before, *parts, after = cut.strip("\n").split("\n\n")
    assert (before, after) == ("before", "after")
    read = [[line.replace(r"\|", "/").strip("|").split("|") for line in part.split("\n")] for part in parts]
    names = [line[0] for line in read[0]]
    assert all([line[0] for line in part] == names for part in read)
    joined = [[name, *(cell for part in read for cell in part[n][1:])] for n, name in enumerate(names)]
    assert joined == [line.replace(r"\|", "/").strip("|").split("|") for line in whole.split("\n")]


def test_as_many_columns_stay_together_as_fit():
    table = markdown_text(("", *"abcde"), [("name", *["31.85 ± 0.95"] * 5)])
    heads = [part.split("\n")[0] for part in narrowed(table, 40).split("\n\n")]
    assert heads == ["|  | a | b |", "|  | c | d |", "|  | e |"]


def test_a_table_that_fits_stays_as_it_is():
    text = "# Title\n\n" + markdown_text(("", "one", "two"), [("a", 1, 2)]) + "\n"
    assert narrowed(text, 80) == text
