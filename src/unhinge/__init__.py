"""Exact training dynamics of the last layer under the unhinged loss, and the parts that follow from them.

The public names are imported when first asked for: `unhinge --help` and shell completion need none of them, and
importing torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unhinge import theory as theory
    from unhinge.theory import (
        LayerPeeled,
        Schedule,
        Spherical,
        State,
        constant,
        cosine,
        empirical_ntk,
        exponential,
        minibatch_moments,
        piecewise,
        smooth_labels,
        step,
        summarize,
        symmetric_noise,
        warmup,
    )

__all__ = [
    "LayerPeeled",
    "Schedule",
    "Spherical",
    "State",
    "constant",
    "cosine",
    "empirical_ntk",
    "exponential",
    "minibatch_moments",
    "piecewise",
    "smooth_labels",
    "step",
    "summarize",
    "symmetric_noise",
    "warmup",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "theory" or name in __all__:
        module = importlib.import_module("unhinge.theory")
        value = module if name == "theory" else getattr(module, name)
        globals()[name] = value  # the next time it is found without this function
        return value
    raise AttributeError(f"module 'unhinge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "theory"})
