"""What the theory says of an epoch's features and head, as numbers for a logger."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from unhinge.prediction import Measured, predict
from unhinge.theory import EarlyCrossEntropy, EarlyPath, LayerPeeled
from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.linear.path import LinearPath

__all__ = ["Forecast", "Setting", "forecast"]


@dataclass(frozen=True)
class Setting:
    """What the theory assumes of the training; see :func:`unhinge.prediction.predict`."""

    gamma: float | None
    feature_decay: float
    weight_decay: float
    distance: float
    first_phase: bool = False  # whether cross-entropy's first phase is predicted too


@dataclass(frozen=True, eq=False)
class Forecast:
    """The exact path of free features from here on, and what is known of its end."""

    numbers: dict[str, float]
    path: LinearPath | AnchoredPath
    num_samples: int
    num_classes: int
    early: EarlyPath | None = None  # cross-entropy's first phase from here on

    def norms(self, steps: float) -> dict[str, float]:
        """Root mean squares of the norms of features and prototypes after so many steps."""
        return {
            "feature_norm_rms": self.path.feature_norm(steps).item() / math.sqrt(self.num_samples),
            "weight_norm_rms": self.path.weight_norm(steps).item() / math.sqrt(self.num_classes),
        }

    def at(self, steps: float) -> dict[str, float]:
        """Norms and neural collapse after so many steps."""
        numbers = self.norms(steps) | {key: float(value) for key, value in self.path.collapse(steps).items()}
        if self.early is not None and steps <= self.numbers["young_horizon"]:
            numbers["cross_entropy"] = self.early.loss(round(steps)).item()
        return numbers


def forecast(measured: Measured, setting: Setting, lr: float, fixed: bool) -> Forecast:
    """The path under the unhinged loss: of features and head, or of the features alone where the head is `fixed`.

    Example:
        >>> import torch
        >>> from unhinge.prediction import measure_arrays
        >>> frame = torch.eye(3, dtype=torch.float64)
        >>> measured = measure_arrays(
        ...     frame.repeat(4, 1), torch.arange(12) % 3, weight=frame
        ... )
        >>> outlook = forecast(
        ...     measured, Setting(None, 0.0, 0.0, 0.1), lr=0.1, fixed=False
        ... )
        >>> outlook.numbers["critical_decay"], outlook.numbers["limit_accuracy"]
        (0.25, 1.0)
    """
    size, classes = measured.size, measured.num_classes
    counts = measured.counts
    numbers = {"imbalance": float(counts.max() / counts.min())}
    if fixed:
        problem = LayerPeeled.from_summary(measured.classes, setting.gamma, setting.feature_decay, setting.weight_decay)
        anchored = problem.anchored(measured.classes, measured.start_weight, measured.bias, lr=lr)
        numbers |= {
            "growth": anchored.growth().item(),
            "rate": anchored.rate().item(),
            "time_to_collapse": anchored.time_to(setting.distance).item(),
        }
        return Forecast(numbers, anchored, size, classes)
    prediction = predict(
        measured,
        gamma=setting.gamma,
        lr=lr,
        feature_decay=setting.feature_decay,
        weight_decay=setting.weight_decay,
        distance=setting.distance,
    )
    numbers |= {
        "growth": prediction.growth,
        "rate": prediction.rate,
        "time_to_collapse": prediction.times[setting.distance],
        "critical_decay": prediction.critical_decay,
        "best_gamma": prediction.best_gamma,
        "limit_accuracy": prediction.limit_accuracy,
        "limit_rank": float(prediction.limit_rank),
    }
    numbers |= {f"limit_{key}": value for key, value in prediction.collapse_limit.items()}
    numbers |= {f"limit_accuracy_{weighting.name}": weighting.limit_accuracy for weighting in prediction.weightings[1:]}
    early: EarlyPath | None = None
    if setting.first_phase:
        labels = torch.arange(classes).repeat_interleave(counts.round().long().cpu())
        loss = EarlyCrossEntropy(
            labels, classes, feature_decay=setting.feature_decay, weight_decay=setting.weight_decay
        )
        early = loss.descent(measured.classes, measured.start_weight, measured.bias, lr=lr)
        numbers["young_horizon"] = early.horizon(0.1).item()
    return Forecast(numbers, prediction.path, size, classes, early)
