"""Losses, heads and regularizers for PyTorch."""

from unhinge.nn import functional
from unhinge.nn.bounds import angle_bound
from unhinge.nn.frames import prototypes, separation, simplex_etf
from unhinge.nn.generated import GeneratedPrototypes
from unhinge.nn.heads import ETFHead
from unhinge.nn.ldam import LDAMLoss
from unhinge.nn.losses import (
    AdjustedMarginLoss,
    MultiClassHingeLoss,
    SphericalSoftmaxLoss,
    TaylorSoftmaxLoss,
    UnhingedLoss,
    ZLoss,
)
from unhinge.nn.many_classes import ManyClassHead
from unhinge.nn.regularizers import FeatureNormPenalty, RescaledGradient
from unhinge.nn.search import nearest_prototype
from unhinge.nn.surgery import replace_head
from unhinge.nn.weighting import class_weights

__all__ = [
    "functional",
    # losses
    "UnhingedLoss",
    "AdjustedMarginLoss",
    "MultiClassHingeLoss",
    "LDAMLoss",
    "TaylorSoftmaxLoss",
    "SphericalSoftmaxLoss",
    "ZLoss",
    "class_weights",
    # heads and prototypes
    "ETFHead",
    "replace_head",
    "simplex_etf",
    "prototypes",
    "separation",
    "angle_bound",
    # what acts on the features
    "FeatureNormPenalty",
    "RescaledGradient",
    # many classes
    "ManyClassHead",
    "GeneratedPrototypes",
    "nearest_prototype",
]
