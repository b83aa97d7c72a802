"""Exact training dynamics under the unhinged loss. Needs nothing but torch."""

from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.collapse import collapse_measures
from unhinge.theory.path import LinearPath
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.rates import best_gamma
from unhinge.theory.schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    piecewise,
    step,
    warmup,
)
from unhinge.theory.state import State
from unhinge.theory.summary import Summary, summarize

__all__ = [
    "AnchoredPath",
    "LayerPeeled",
    "LinearPath",
    "Schedule",
    "State",
    "Summary",
    "best_gamma",
    "collapse_measures",
    "constant",
    "cosine",
    "exponential",
    "piecewise",
    "step",
    "summarize",
    "warmup",
]
