"""Exact training dynamics of the last layer under the unhinged loss, and the parts that follow from them."""

from unhinge.theory import (
    LayerPeeled,
    Schedule,
    State,
    constant,
    cosine,
    exponential,
    piecewise,
    step,
    summarize,
    warmup,
)

__all__ = [
    "LayerPeeled",
    "Schedule",
    "State",
    "constant",
    "cosine",
    "exponential",
    "piecewise",
    "step",
    "summarize",
    "warmup",
]

__version__ = "0.1.0"
