"""What a public definition takes and returns is said by its types: no signature leaves it open with Any."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import unhinge

ROOMS = ("theory", "nn", "nn.functional", "metrics", "ood", "streams", "data", "sklearn", "training", "prediction")
ROOMS += ("monitor", "nn.backbones", "paper.claims")


def public_functions():
    """Every public function and method of a public class, by its full name."""
    modules = [unhinge, *(importlib.import_module(f"unhinge.{room}") for room in ROOMS)]
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and value.__module__.startswith("unhinge"):
                for key, member in vars(value).items():
                    function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
                    if inspect.isfunction(function) and (key == "__init__" or not key.startswith("_")):
                        yield f"{value.__module__}.{value.__qualname__}.{key}", function
            elif inspect.isfunction(value):
                yield f"{value.__module__}.{value.__qualname__}", value


FUNCTIONS = dict(public_functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_signature_says_what_it_means(name):
    annotations = {key: str(value) for key, value in inspect.get_annotations(FUNCTIONS[name]).items()}
    assert not {key: text for key, text in annotations.items() if re.search(r"\bAny\b", text)}
