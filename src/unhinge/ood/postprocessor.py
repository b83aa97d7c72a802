"""A postprocessor as OpenOOD has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from unhinge.extras import needed_for
from unhinge.nn.borrowed_bases import BorrowedBases
from unhinge.nn.probe import device_of, find_head
from unhinge.ood.collapse import CollapseDetector
from unhinge.ood.scores import PLAIN, Score, check_score, fitted, outputs, score_of, training_features

__all__ = ["ScorePostprocessor"]


Loader: TypeAlias = Iterable[Mapping[str, Any]]  # batches as OpenOOD has them: {"data": ..., "label": ...} and more
Loaders: TypeAlias = Mapping[str, Loader]  # of the training, validation and test data


class ScorePostprocessor(BorrowedBases):
    r"""Predictions and confidences in the convention of OpenOOD: **larger means in-distribution**.

    The confidences are the scores of :func:`unhinge.metrics.ood_scores` and :class:`~unhinge.ood.CollapseDetector`.
    Where OpenOOD is installed it is one of its ``BasePostprocessor``:
    ``Evaluator(net, id_name="cifar10", postprocessor=ScorePostprocessor(score="neco"))``.

    Arguments:
        config: OpenOOD's configuration, of which ``postprocessor.postprocessor_args`` may hold `score`, `head`,
            `temperature` and `unnormalized`, and ``postprocessor.postprocessor_sweep`` a list of temperatures; they
            come before the rest.
        score: ``"softmax"``, ``"energy"``, ``"norm"``; or ``"mahalanobis"``, ``"neco"``, ``"nci"``, ``"fdbd"``,
            ``"vim"``, ``"knn"``, for which :meth:`setup` goes over the training data.
        head: The last linear layer, or its name, where it is not found.
        temperature: :math:`T` of softmax and energy.
        unnormalized: For a head that normalizes features: score the logits of the features as they are.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).eval()
        >>> loader = [
        ...     {"data": torch.randn(5, 4), "label": torch.tensor([0, 1, 0, 1, 1])}
        ...     for _ in range(2)
        ... ]
        >>> predicted, confidence, label = ScorePostprocessor(score="energy").inference(
        ...     net, loader, progress=False
        ... )
        >>> predicted.shape, confidence.shape, label.tolist()
        ((10,), (10,), [0, 1, 0, 1, 1, 0, 1, 0, 1, 1])
    """

    _base_candidates: ClassVar = (("openood.postprocessors", "BasePostprocessor"),)
    APS_mode = False  # whether the evaluator searches for a temperature among those of args_dict
    hyperparam_search_done = False

    def __init__(
        self,
        config: object = None,
        score: Score = "energy",
        *,
        head: nn.Module | str | None = None,
        temperature: float = 1.0,
        unnormalized: bool = False,
    ) -> None:
        self.config = config
        section = _entry(config, "postprocessor")
        given = _entry(section, "postprocessor_args")
        self.args_dict: Any = _entry(section, "postprocessor_sweep", {})
        self.score: Score = _entry(given, "score", score)
        self.head: nn.Module | str | None = _entry(given, "head", head)
        self.temperature: float = _entry(given, "temperature", temperature)
        self.unnormalized = bool(_entry(given, "unnormalized", unnormalized))
        self.detector: CollapseDetector | None = None
        check_score(self.score, self.temperature)
        self._found: tuple[nn.Module, nn.Module] | None = None

    def setup(self, net: nn.Module, id_loader_dict: Loaders, ood_loader_dict: object) -> None:
        """Find the head, and go over ``id_loader_dict["train"]`` for the scores that need training features."""
        head = self._head_of(net)
        if self.score not in PLAIN:
            assert head is not None
            batches = ((batch["data"], torch.as_tensor(batch["label"])) for batch in id_loader_dict["train"])
            self.detector = fitted(self.score, head, *training_features(net, head, batches))

    @torch.no_grad()
    def postprocess(self, net: nn.Module, data: object) -> tuple[Tensor, Tensor]:
        """Predicted classes and confidences of one batch, shape :math:`(n,)` each."""
        logits, features = outputs(net, data, self._head_of(net), self.unnormalized)
        return logits.argmax(1), score_of(self.score, self.temperature, logits, features, self.detector)

    def inference(
        self, net: nn.Module, data_loader: Loader, progress: bool = True
    ) -> tuple[NDArray[np.int_], NDArray[np.float32], NDArray[np.int_]]:
        """Predicted classes, confidences and labels of a loader of ``{"data": ..., "label": ...}``, as arrays."""
        quiet = not progress or (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0)
        device = device_of(net)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in data_loader if quiet else _with_bar(data_loader):
            predicted, confidence = self.postprocess(net, batch["data"].to(device))
            parts.append((predicted.cpu(), confidence.cpu(), torch.as_tensor(batch["label"]).cpu()))
        if not parts:
            raise ValueError('the loader is empty; it must yield {"data": ..., "label": ...}.')
        classes, scores, labels = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
        return classes.astype(int), scores, labels.astype(int)

    def set_hyperparam(self, hyperparam: list[float]) -> None:
        """Take the first as the temperature, as OpenOOD's search over `args_dict` does."""
        self.temperature = hyperparam[0]

    def get_hyperparam(self) -> float:
        """The temperature, which OpenOOD's search may have set."""
        return self.temperature

    def _head_of(self, net: nn.Module) -> nn.Module | None:
        if self.score in ("softmax", "energy") and not self.unnormalized:
            return None
        if self._found is None or self._found[0] is not net:
            self._found = net, find_head(net, self.head)
        return self._found[1]


def _with_bar(batches: Loader) -> Loader:
    with needed_for("a progress bar (progress=True)"):
        from rich.progress import track
    return track(batches, "scoring")


def _entry(config: object, name: str, otherwise: object = None) -> Any:
    """Of a mapping or an object, if it has one."""
    found = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return otherwise if found is None else found
