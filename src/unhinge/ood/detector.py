"""A detector as pytorch-ood has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from unhinge.nn.borrowed_bases import BorrowedBases
from unhinge.nn.probe import device_of, find_head
from unhinge.ood.collapse import CollapseDetector
from unhinge.ood.scores import PLAIN, Score, check_score, fitted, outputs, raw_logits, score_of, training_features

__all__ = ["ScoreDetector"]


class ScoreDetector(BorrowedBases):
    r"""Outlier scores in the convention of pytorch-ood: **larger means out-of-distribution**.

    They are the scores of :func:`unhinge.metrics.ood_scores` and of :class:`~unhinge.ood.CollapseDetector` with the
    sign turned, and differentiable. The first three have nothing to fit; the others take :meth:`fit` with the training
    data. Where pytorch-ood is installed it is one of its ``Detector``, with their ``to()`` and for their benchmarks. As
    there, the mode of the model is yours to set: ``model.eval()``.

    Arguments:
        model: Any classifier that returns logits, a tuple that begins with them, or something with an entry `logits`.
        score: ``"softmax"``, ``"energy"``, ``"norm"``; or, after a fit, ``"mahalanobis"``, ``"neco"``, ``"nci"``,
            ``"fdbd"``, ``"vim"``, ``"knn"``.
        head: The last linear layer, or its name, where it is not found.
        temperature: :math:`T` of softmax and energy.
        unnormalized: For a head that normalizes features: score the logits :math:`Wh + b` of the features as they are,
            in whose length such networks say how familiar an input is. The fitted scores always do.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).eval()
        >>> x = torch.randn(5, 4)
        >>> torch.allclose(ScoreDetector(model, "norm")(x), -model[:2](x).norm(dim=1))
        True
        >>> loader = [(torch.randn(20, 4), torch.arange(20) % 2)]
        >>> ScoreDetector(model, "fdbd").fit(loader)(x).shape
        torch.Size([5])
    """

    _base_candidates: ClassVar = (("pytorch_ood.api", "Detector"),)
    hyperparameter_space: ClassVar = {"temperature": [1.0, 10.0, 100.0, 1000.0]}

    def __init__(
        self,
        model: nn.Module,
        score: Score = "energy",
        *,
        head: nn.Module | str | None = None,
        temperature: float = 1.0,
        unnormalized: bool = False,
    ) -> None:
        check_score(score, temperature)
        self.model = model
        self.score: Score = score
        self.temperature = temperature
        self.unnormalized = unnormalized
        self.detector: CollapseDetector | None = None
        # Softmax and energy of the model's own logits do without, so a model without a linear head will do for them.
        looks_inside = score not in ("softmax", "energy") or unnormalized or head is not None
        self.head = find_head(model, head) if looks_inside else None

    @property
    def requires_fit(self) -> bool:
        """Whether :meth:`fit` must be called first."""
        return self.score not in PLAIN

    def __call__(self, x: Tensor) -> Tensor:
        return self.predict(x)

    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores of inputs to the model, shape :math:`(n,)`."""
        head = self.head if self.score not in ("softmax", "energy") or self.unnormalized else None
        logits, features = outputs(self.model, x.to(device_of(self.model)), head, self.unnormalized)
        return -score_of(self.score, self.temperature, logits, features, self.detector)

    def predict_features(self, x: Tensor) -> Tensor:
        """Outlier scores of features, as they enter the head, shape :math:`(n, p)`."""
        head = find_head(self.model) if self.head is None else self.head
        features = x.to(device_of(self.model))
        logits = raw_logits(features, head) if self.unnormalized else head(features)
        return -score_of(self.score, self.temperature, logits, features, self.detector)

    def predict_logits(self, logits: Tensor) -> Tensor:
        """Outlier scores of logits, shape :math:`(n, C)`."""
        if self.score not in ("softmax", "energy"):
            raise ValueError(f"the score {self.score!r} is one of features; logits do not tell it: predict_features().")
        return -score_of(self.score, self.temperature, logits)

    def fit(self, data_loader: Iterable[tuple[Tensor, Tensor]], device: torch.device | str | None = None) -> Self:
        """Learn from training data; a score that has nothing to learn does not look at them.

        Arguments:
            data_loader: Yields `(inputs, labels)`; examples with negative labels (unknown ones, in pytorch-ood) are
                left out.
            device: Where to move the model first; by default it stays where it is.
        """
        if not self.requires_fit:
            return self
        if device is not None:
            self.model.to(device)
        assert self.head is not None
        return self.fit_features(*training_features(self.model, self.head, data_loader))

    def fit_features(self, x: Tensor, y: Tensor) -> Self:
        """Learn from features :math:`(n, p)`, as they enter the head, and labels :math:`(n,)`."""
        if self.requires_fit:
            assert self.head is not None
            device, known = device_of(self.model), y >= 0
            self.detector = fitted(self.score, self.head, x[known].to(device), y[known].to(device))
        return self

    def fit_logits(self, logits: Tensor, y: Tensor) -> Self:
        """Softmax and energy have nothing to learn; the other scores are not of logits."""
        if self.requires_fit:
            raise ValueError(f"the score {self.score!r} is one of features: fit() or fit_features().")
        return self
