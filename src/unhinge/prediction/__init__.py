"""What training will do to given features: from a file, from arrays, or from a live model and its loader.

>>> from unhinge.prediction import measure_arrays, predict, recommend
>>> import torch
>>> features, labels = torch.randn(60, 8), torch.arange(60) % 3
>>> prediction = predict(measure_arrays(features, labels))
>>> prediction.outcome
'diverges'
"""

from unhinge.prediction.advice import Recommendation, recommend
from unhinge.prediction.analysis import Prediction, predict
from unhinge.prediction.cure import Cure, cure_for
from unhinge.prediction.files import FileError, read_features
from unhinge.prediction.measured import Measured, measure_arrays

__all__ = [
    "Cure",
    "FileError",
    "Measured",
    "Prediction",
    "Recommendation",
    "cure_for",
    "measure_arrays",
    "predict",
    "read_features",
    "recommend",
]
