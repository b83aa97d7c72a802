"""Losses, penalties and rules as pure functions, to be imported as ``from unhinge.nn import functional as UF``."""

from __future__ import annotations

from unhinge.nn.decision import adjust_logits, balanced_decision, centered_logits, posterior
from unhinge.nn.hinge import multiclass_hinge_loss
from unhinge.nn.ldam import ldam_loss
from unhinge.nn.margins import adjusted_margin_loss
from unhinge.nn.penalty import feature_norm_penalty, penalty_strength
from unhinge.nn.rescaling import rescale_gradient
from unhinge.nn.spherical_softmax import spherical_softmax_loss
from unhinge.nn.taylor_softmax import taylor_softmax_loss
from unhinge.nn.unhinged import unhinged_loss, unhinged_loss_from_features
from unhinge.nn.z_loss import z_loss

__all__ = [
    "unhinged_loss",
    "unhinged_loss_from_features",
    "adjusted_margin_loss",
    "multiclass_hinge_loss",
    "ldam_loss",
    "taylor_softmax_loss",
    "spherical_softmax_loss",
    "z_loss",
    "feature_norm_penalty",
    "penalty_strength",
    "rescale_gradient",
    "centered_logits",
    "posterior",
    "adjust_logits",
    "balanced_decision",
]
