"""The README and the theory's labels keep their promises; what the pages of the site say is run by test_site.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THEORY = sorted((ROOT / "docs" / "theory").glob("*.md"))
# A formula is a MyST target with its label shown in the next line, once; a citation may be broken over two lines.
FORMULAS = [
    label for page in THEORY for label in re.findall(r"^\(eq-([\w-]+)\)=\n\*\*`\1`\*\*", page.read_text(), re.M)
]
TARGETS = [label for page in THEORY for label in re.findall(r"^\(eq-([\w-]+)\)=", page.read_text(), re.M)]
CITED = {
    label
    for folder in ("src", "tests")
    for file in (ROOT / folder).rglob("*.py")
    for label in re.findall(r"\[eq:\s+([\w-]+)\]", file.read_text(encoding="utf-8"))
}


def test_every_formula_has_one_place_and_shows_its_label():
    assert FORMULAS == TARGETS
    assert len(set(FORMULAS)) == len(FORMULAS) > 40


@pytest.mark.parametrize("label", sorted(CITED))
def test_every_cited_formula_is_in_the_theory_pages(label):
    assert label in FORMULAS


@pytest.mark.parametrize("label", sorted(FORMULAS))
def test_every_formula_is_cited_by_the_code_or_its_tests(label):
    assert label in CITED


@pytest.mark.parametrize("page", THEORY, ids=lambda page: page.stem)
def test_formulas_that_a_theory_page_points_to_exist(page):
    assert set(re.findall(r"\(#eq-([\w-]+)\)", page.read_text())) <= set(FORMULAS)


def test_the_page_of_errata_in_the_repository_is_that_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from generators.errata import listed

    assert (ROOT / "docs" / "errata.md").read_text(encoding="utf-8") == listed(), "run python docs/build.py --errata"


def test_the_five_lines_of_the_readme_print_what_it_says():
    actual = re.search(r"```python\n(.*?)```\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert actual is not None
    code, output = actual.groups()
    lines = code.strip().splitlines()
    scope: dict[str, object] = {}
    shown = []
    for line in lines:
        if line.startswith("path.") and not line.startswith("path ="):
            shown.append(repr(eval(line, scope)))
        else:
            exec(line, scope)
    assert "\n".join(shown) == output.strip()


def test_the_loop_of_the_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    loop = next(block for block in blocks if "replace_head" in block)
    scope: dict[str, object] = {}
    exec(loop, scope)
    model = scope["model"]
    assert model[1].weight.grad.abs().sum() > 0
    assert not list(model[-1].parameters())


def test_every_part_of_the_catalogue_is_exported():
    from unhinge import nn

    page = (ROOT / "docs" / "guide" / "parts.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)", page[page.index("| part |") : page.index("**When not to.**")], re.MULTILINE)
    assert len(rows) > 10
    for name in rows:
        home = nn.functional if name.startswith("UF.") else nn
        assert hasattr(home, name.removeprefix("UF."))


PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_on_a_page_is_at_most_80_columns_wide(page):
    blocks = re.findall(
        r"^```(?:python|pycon|console|text|sh)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert [line for block in blocks for line in block.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    named = re.findall(
        r"\b(?:benchmarks|examples|src|tests)/[\w./-]+\.(?:py|md|ipynb)\b", page.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_a_page_elsewhere_in_the_repository_has_its_page_on_the_site(page, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from generators.pages import repointed

    text = page.read_text(encoding="utf-8")
    above = [link for link in re.findall(r"\]\(([^)#\s]+\.md)", repointed(text)) if not link.startswith("/")]
    assert [link for link in above if not (page.parent / link).resolve().is_relative_to(ROOT / "docs")] == []
