"""How good is a classifier: neural collapse, calibration, out-of-distribution detection, accuracy on long tails."""

from unhinge.metrics.adjustment import StrengthCurve, strength_curve
from unhinge.metrics.calibration import (
    Reliability,
    classwise_calibration_error,
    classwise_reliability,
    expected_calibration_error,
    reliability,
)
from unhinge.metrics.collapse import CollapseSummary, neural_collapse, summarize_collapse
from unhinge.metrics.longtail import shot_accuracy
from unhinge.metrics.ood import ood_metrics, ood_scores
from unhinge.metrics.plots import reliability_diagram, score_histogram, strength_plot
from unhinge.metrics.temperature import AfterTemperature, after_temperature, fit_temperature

__all__ = [
    "AfterTemperature",
    "CollapseSummary",
    "Reliability",
    "StrengthCurve",
    "after_temperature",
    "classwise_calibration_error",
    "classwise_reliability",
    "expected_calibration_error",
    "fit_temperature",
    "neural_collapse",
    "ood_metrics",
    "ood_scores",
    "reliability",
    "reliability_diagram",
    "score_histogram",
    "shot_accuracy",
    "strength_curve",
    "strength_plot",
    "summarize_collapse",
]
