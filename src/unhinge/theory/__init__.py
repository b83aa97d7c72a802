"""Exact training dynamics under the unhinged loss. Needs nothing but torch."""

from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.collapse import collapse_measures
from unhinge.theory.kernel import KernelPath
from unhinge.theory.moments import MinibatchMoments, minibatch_moments
from unhinge.theory.noise import class_conditional_noise, slow_down, smooth_labels, symmetric_noise, tolerated_noise
from unhinge.theory.ntk import NTKOperator, empirical_ntk
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
from unhinge.theory.spherical import Hypotheses, Spherical, SphericalPath
from unhinge.theory.state import State
from unhinge.theory.summary import Summary, summarize

__all__ = [
    "AnchoredPath",
    "Hypotheses",
    "KernelPath",
    "LayerPeeled",
    "LinearPath",
    "MinibatchMoments",
    "NTKOperator",
    "Schedule",
    "Spherical",
    "SphericalPath",
    "State",
    "Summary",
    "best_gamma",
    "class_conditional_noise",
    "collapse_measures",
    "constant",
    "cosine",
    "empirical_ntk",
    "exponential",
    "minibatch_moments",
    "piecewise",
    "slow_down",
    "smooth_labels",
    "step",
    "summarize",
    "symmetric_noise",
    "tolerated_noise",
    "warmup",
]
