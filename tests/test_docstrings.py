"""Every public definition says what it is, and shows it in an example that runs (as a doctest)."""

from __future__ import annotations

import inspect

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
