"""Exact training dynamics under the unhinged loss. Needs torch and numpy.

Two answers need more, which is imported when they are asked for: pictures (matplotlib), and the growth of minibatch
noise with unequal classes (SciPy).
"""

from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.collapse import collapse_measures
from unhinge.theory.early.path import EarlyPath
from unhinge.theory.early.problem import EarlyCrossEntropy, Linearized
from unhinge.theory.kernel.ntk import NTKOperator, empirical_ntk
from unhinge.theory.kernel.path import KernelPath
from unhinge.theory.linear.modes import Modes
from unhinge.theory.linear.path import LinearPath
from unhinge.theory.linear.summary import Summary, summarize
from unhinge.theory.minibatch.moments import MinibatchMoments, minibatch_moments
from unhinge.theory.noise import class_conditional_noise, slow_down, smooth_labels, symmetric_noise, tolerated_noise
from unhinge.theory.path import Path
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
from unhinge.theory.sphere.path import Hypotheses, SphericalPath
from unhinge.theory.sphere.problem import Spherical
from unhinge.theory.state import State

__all__ = [
    "AnchoredPath",
    "EarlyCrossEntropy",
    "EarlyPath",
    "Hypotheses",
    "KernelPath",
    "LayerPeeled",
    "LinearPath",
    "Linearized",
    "MinibatchMoments",
    "Modes",
    "NTKOperator",
    "Path",
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
