"""Every public definition of the theory says what it is, and shows it in an example that runs (as a doctest)."""

from __future__ import annotations

import inspect
import types

import pytest

from unhinge import theory

PUBLIC = {name: getattr(theory, name) for name in theory.__all__}
DEFINED = {name: value for name, value in PUBLIC.items() if not isinstance(value, types.UnionType)}
METHODS = {
    f"{name}.{key}": value
    for name, kind in DEFINED.items()
    if inspect.isclass(kind)
    for key, value in vars(kind).items()
    if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
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
