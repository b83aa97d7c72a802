"""Every public definition says what it is, and shows it in an example that runs (as a doctest)."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import unhinge
from unhinge import metrics, nn, ood, theory
from unhinge.nn import functional

DEFINED = {
    f"{value.__module__}.{name}": value
    for room in (unhinge, theory, nn, functional, metrics, ood)
    for name in room.__all__
    if inspect.isclass(value := getattr(room, name)) or inspect.isfunction(value)
}
METHODS = {
    f"{name}.{key}": value
    for name, kind in DEFINED.items()
    if inspect.isclass(kind)
    for key, value in vars(kind).items()
    if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
    # of torch.nn.Module: the class itself says what goes in and out
    if key not in ("forward", "extra_repr")
}


@pytest.mark.parametrize("name", DEFINED)
def test_a_public_definition_is_explained_by_an_example(name):
    told = inspect.getdoc(DEFINED[name])
    assert told
    own = [value.__doc__ for key, value in METHODS.items() if key.startswith(f"{name}.")]
    assert any(">>> " in (text or "") for text in (told, *own))


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_says_what_it_answers(name):
    assert METHODS[name].__doc__


SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: "/".join(file.parts[-2:]))
def test_an_example_is_at_most_80_columns_wide(file):
    """As the pages of the API show it: without the indentation of its docstring, with its prompts."""
    texts = re.findall(r'r?"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL)
    examples = [example for text in texts for example in doctest.DocTestParser().get_examples(text)]
    typed = [f">>> {line}" for example in examples for line in example.source.splitlines()]
    printed = [line for example in examples for line in example.want.splitlines()]
    assert [line for line in typed + printed if len(line) > 80] == []
