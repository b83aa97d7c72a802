"""The examples run, say what they should, and their notebooks are the same code, with its output."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
build = runpy.run_path(str(EXAMPLES / "notebooks" / "build.py"))
NAMES = build["NAMES"]

# A sentence that each has to print, with its numbers.
SAYS = {
    "exact_dynamics": r"1/9 +-0\.034533 +235 .* [0-9.]+e-1[4-9]\b",
    "long_tail": r"plain mean: .*\n.* \[100, 65\] .*\n.*\n.* \[100, 65, 42, 27, 18, 11, 7, 5, 3, 2\] ",
    "many_classes": r"Taylor softmax +\d\d\.\d% right[^\n]+\n  fixed prototypes +\d",
    "kernel_prediction": r"convnet +4 +0\.\d+",
    "young_cross_entropy": r"certified to 10 % until step 1\d\d\d; the last class is all right at step \d\d\d\b",
}


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    monkeypatch.setenv("MPLBACKEND", "Agg")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_these_are_all_the_examples():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NAMES)
    assert sorted(path.stem for path in (EXAMPLES / "notebooks").glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_and_says_what_it_should(name, tmp_path, capsys, monkeypatch):
    run(name, "--quick", "--out", str(tmp_path), monkeypatch=monkeypatch)
    assert re.search(SAYS[name], capsys.readouterr().out)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", NAMES)
def test_help_comes_before_any_work(name, capsys, monkeypatch):
    with pytest.raises(SystemExit) as left:
        run(name, "--help", monkeypatch=monkeypatch)
    said = capsys.readouterr().out
    assert left.value.code == 0
    assert said.startswith("usage: ")
    assert "--quick" in said
    assert "--out" in said


def test_the_ten_lines_are_ten():
    cells = build["notebook_of"]("exact_dynamics").cells
    after = next(k for k, cell in enumerate(cells) if "## The ten lines" in cell.source)
    core = [line for line in cells[after + 1].source.split("\n") if line.strip()]
    imports = {name.id for line in core for name in ast.walk(ast.parse(line)) if isinstance(name, ast.Name)}
    assert {"torch", "LayerPeeled"} <= imports  # the two lines of import that the text counts
    assert len(core) + 2 == 10


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script(name):
    stored = nbformat.read(EXAMPLES / "notebooks" / f"{name}.ipynb", 4)
    wanted = build["notebook_of"](name)
    assert [(cell.cell_type, cell.source) for cell in stored.cells] == [
        (cell.cell_type, cell.source) for cell in wanted.cells
    ], f"python examples/notebooks/build.py {name}"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_its_output_and_small(name):
    path = EXAMPLES / "notebooks" / f"{name}.ipynb"
    stored = nbformat.read(path, 4)
    nbformat.validate(stored)
    assert path.stat().st_size < 300_000
    outputs = [output for cell in stored.cells if cell.cell_type == "code" for output in cell.outputs]
    assert all(cell.execution_count for cell in stored.cells if cell.cell_type == "code")
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert all(output.name == "stdout" for output in outputs if output.output_type == "stream")
    assert any("image/png" in output.get("data", {}) for output in outputs)
    texts = "".join(output.text for output in outputs if output.output_type == "stream")
    assert re.search(SAYS[name].replace("convnet +4", "convnet +8"), texts)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_executes(name, tmp_path, monkeypatch):
    monkeypatch.setenv("UNHINGE_QUICK", "1")
    notebook = build["notebook_of"](name)
    build["execute"](notebook, tmp_path)
    assert not list(tmp_path.iterdir())  # a notebook shows its picture and writes nothing
