"""Exact training dynamics of the last layer under the unhinged loss, and the parts that follow from them."""

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
