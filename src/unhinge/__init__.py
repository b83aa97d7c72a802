"""Exact training dynamics of the last layer under the unhinged loss, and the parts that follow from them.

The public names are imported when first asked for: `unhinge --help` and shell completion need none of them, and
importing torch takes seconds.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from unhinge import metrics as metrics
    from unhinge import nn as nn
    from unhinge import theory as theory
    from unhinge.nn import (
        AdjustedMarginLoss,
        ETFHead,
        FeatureNormPenalty,
        ManyClassHead,
        RescaledGradient,
        SphericalSoftmaxLoss,
        TaylorSoftmaxLoss,
        UnhingedLoss,
        ZLoss,
        class_weights,
        prototypes,
        replace_head,
        simplex_etf,
    )
    from unhinge.theory import (
        EarlyCrossEntropy,
        LayerPeeled,
        Linearized,
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
    # exact dynamics: unhinge.theory
    "EarlyCrossEntropy",
    "LayerPeeled",
    "Linearized",
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
    # parts for networks: unhinge.nn
    "AdjustedMarginLoss",
    "ETFHead",
    "FeatureNormPenalty",
    "ManyClassHead",
    "RescaledGradient",
    "SphericalSoftmaxLoss",
    "TaylorSoftmaxLoss",
    "UnhingedLoss",
    "ZLoss",
    "class_weights",
    "prototypes",
    "replace_head",
    "simplex_etf",
]

__version__ = "0.1.0"

_ROOMS = ("theory", "nn", "metrics", "data", "training", "prediction", "monitor", "ood", "sklearn")
_PARTS = __all__[__all__.index("AdjustedMarginLoss") :]


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return _importlib.import_module(f"unhinge.{name}")  # which makes it an attribute of this package
    if name in __all__:
        room = _importlib.import_module("unhinge.nn" if name in _PARTS else "unhinge.theory")
        value: object = getattr(room, name)
        globals()[name] = value  # the next time it is found without this function
        return value
    raise AttributeError(f"module 'unhinge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
