"""Unknown inputs: scores from one pass over training features, and the same for pytorch-ood and OpenOOD.

Neither library needs to be installed.

| | :class:`ScoreDetector` | :class:`ScorePostprocessor` |
|---|---|---|
| speaks the language of | pytorch-ood | OpenOOD |
| a larger score means | out-of-distribution | in-distribution |
| where that is installed | is a ``pytorch_ood.api.Detector`` | is an ``openood.postprocessors.BasePostprocessor`` |

>>> import torch
>>> from torch import nn
>>> from unhinge.ood import ScoreDetector, ScorePostprocessor
>>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
>>> images = torch.randn(5, 8)
>>> outlier = ScoreDetector(model, "norm")(images)
>>> predicted, confidence = ScorePostprocessor(score="norm").postprocess(
...     model, images
... )
>>> torch.equal(outlier, -confidence)
True
"""

from unhinge.ood.collapse import CollapseDetector
from unhinge.ood.detector import ScoreDetector
from unhinge.ood.postprocessor import ScorePostprocessor

__all__ = ["CollapseDetector", "ScoreDetector", "ScorePostprocessor"]
