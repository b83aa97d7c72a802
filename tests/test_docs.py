"""The documentation keeps its promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LABELS = sorted(
    {label for file in (ROOT / "src").rglob("*.py") for label in re.findall(r"\[eq: ([\w-]+)\]", file.read_text())}
)


@pytest.mark.parametrize("label", LABELS)
def test_every_cited_formula_is_in_the_theory_page(label):
    assert f"**`{label}`**" in (ROOT / "docs" / "theory.md").read_text()


def test_the_five_lines_of_the_readme_print_what_it_says():
    found = re.search(r"```python\n(.*?)```\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    code, output = found.groups()
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

    readme = (ROOT / "README.md").read_text()
    rows = re.findall(
        r"^\| `([\w.]+)", readme[readme.index("| part |") : readme.index("**When not to.**")], re.MULTILINE
    )
    assert len(rows) > 10
    for name in rows:
        home = nn.functional if name.startswith("UF.") else nn
        assert hasattr(home, name.removeprefix("UF."))
