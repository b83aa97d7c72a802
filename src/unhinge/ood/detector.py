"""A detector as pytorch-ood has them."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from unhinge.nn.borrowed_bases import BorrowedBases
from unhinge.nn.probe import device_of, find_head
from unhinge.ood.scores import Score, check_score, outputs, score_of

__all__ = ["ScoreDetector"]


class ScoreDetector(BorrowedBases):
    r"""Outlier scores in the convention of pytorch-ood: **larger means out-of-distribution**.

    They are the scores of :func:`unhinge.metrics.ood_scores` with the sign turned, and differentiable. There is nothing
    to fit. Where pytorch-ood is installed it is one of its ``Detector``, with their ``to()`` and for their benchmarks.
    As there, the mode of the model is yours to set: ``model.eval()``.

    Arguments:
        model: Any classifier that returns logits, or a tuple that begins with them.
        score: ``"softmax"``, ``"energy"`` or ``"norm"`` (of the features that enter the head).
        head: The last linear layer, or its name, where it is not found; only ``"norm"`` and :meth:`predict_features`
            ask for it.
        temperature: :math:`T` of softmax and energy.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).eval()
        >>> detector = ScoreDetector(model, "norm")
        >>> x = torch.randn(5, 4)
        >>> torch.equal(detector(x), -model[:2](x).norm(dim=1))
        True
    """

    _lenders: ClassVar = (("pytorch_ood.api", "Detector"),)
    requires_fit: ClassVar = False
    hyperparameter_space: ClassVar = {"temperature": [1.0, 10.0, 100.0, 1000.0]}

    def __init__(
        self,
        model: nn.Module,
        score: Score = "energy",
        *,
        head: nn.Module | str | None = None,
        temperature: float = 1.0,
    ) -> None:
        check_score(score, temperature)
        self.model = model
        self.score = score
        self.temperature = temperature
        self.head = find_head(model, head) if score == "norm" or head is not None else None  # others may do without

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.predict(*args, **kwargs)

    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores of inputs to the model, shape :math:`(n,)`."""
        head = self.head if self.score == "norm" else None
        logits, features = outputs(self.model, x.to(device_of(self.model)), head)
        return -score_of(self.score, self.temperature, logits, features)

    def predict_features(self, x: Tensor) -> Tensor:
        """Outlier scores of features, as they enter the head, shape :math:`(n, p)`."""
        head = find_head(self.model) if self.head is None else self.head
        features = x.to(device_of(self.model))
        return -score_of(self.score, self.temperature, head(features), features)

    def predict_logits(self, logits: Tensor) -> Tensor:
        """Outlier scores of logits, shape :math:`(n, C)`."""
        if self.score == "norm":
            raise ValueError("the norm is that of the features; logits do not tell it. Use predict_features().")
        return -score_of(self.score, self.temperature, logits)

    def fit(self, data_loader: Any = None, device: torch.device | str | None = None) -> Self:
        """Nothing to do: the scores have no parameters."""
        return self

    def fit_features(self, x: Any = None, y: Any = None) -> Self:
        """Nothing to do."""
        return self

    def fit_logits(self, logits: Any = None, y: Any = None) -> Self:
        """Nothing to do."""
        return self
