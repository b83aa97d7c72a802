"""Where the other library is there, ours pass for its own: with stand-ins, and with the real one if it is installed."""

from __future__ import annotations

import copy
import pickle
import sys
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unhinge.metrics import ood_metrics
from unhinge.ood import ScoreDetector, ScorePostprocessor


class Detector(ABC):
    """An abstract class, as pytorch-ood's is."""

    def __call__(self, *args: Any) -> Tensor:
        raise AssertionError("ours comes first")

    @property
    def device(self) -> str:
        return "theirs"

    @abstractmethod
    def predict(self, x: Tensor) -> Tensor: ...


class BasePostprocessor:
    """A plain class, as OpenOOD's is."""

    def __init__(self, config: Any) -> None:
        raise AssertionError("ours comes first")

    def summary(self) -> str:
        return "theirs"


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("pytorch_ood.api", Detector), ("openood.postprocessors", BasePostprocessor)):
        module = ModuleType(name)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("_installed")
def test_ours_pass_for_theirs_where_theirs_are_there():
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    detector, postprocessor = ScoreDetector(model, "norm"), ScorePostprocessor(score="norm")
    assert isinstance(detector, Detector)
    assert isinstance(detector, ScoreDetector)
    assert isinstance(postprocessor, BasePostprocessor)
    assert detector.device == postprocessor.summary() == "theirs"
    assert type(detector).__name__ == "ScoreDetector"
    assert type(detector) is type(ScoreDetector(model))
    assert torch.equal(-detector(x), postprocessor.postprocess(model, x)[1])


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_twins_are_theirs_too(twin_of):
    x = torch.randn(5, 4)
    detector = ScoreDetector(nn.Linear(4, 3), "energy", temperature=2.0)
    twin = twin_of(detector)
    assert isinstance(twin, Detector)
    assert type(twin) is type(detector)
    assert torch.equal(twin(x), detector(x))


def test_without_the_libraries_ours_stand_alone(monkeypatch):
    for name in ("pytorch_ood", "pytorch_ood.api", "openood", "openood.postprocessors"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    assert type(ScoreDetector(nn.Linear(4, 3))) is ScoreDetector
    assert type(ScorePostprocessor()) is ScorePostprocessor
    assert type(pickle.loads(pickle.dumps(ScoreDetector(nn.Linear(4, 3))))) is ScoreDetector


@pytest.mark.parametrize("score", ["softmax", "energy", "norm"])
def test_the_real_pytorch_ood_measures_what_we_measure(score):
    reason = "pytorch-ood is not installed: it needs torchvision, which the pinned torch does not go with"
    api = pytest.importorskip("pytorch_ood.api", reason=reason)
    metrics = pytest.importorskip("pytorch_ood.metrics", reason=reason).OODMetrics()
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    inside, outside = torch.randn(40, 4), 0.3 * torch.randn(30, 4)
    detector = ScoreDetector(model, score)
    assert isinstance(detector, api.Detector)
    with torch.no_grad():
        metrics.update(detector(inside), torch.arange(40) % 3)
        metrics.update(detector(outside), torch.full((30,), -1))
        expected = ood_metrics(-detector(inside), -detector(outside), positive="ood")
    assert metrics.compute()["AUROC"] == pytest.approx(expected["auroc"], abs=1e-6)
    assert metrics.compute()["FPR95TPR"] == pytest.approx(expected["fpr95"], abs=1e-6)


@pytest.mark.parametrize("score", ["softmax", "energy", "norm"])
def test_the_real_openood_takes_ours_for_its_own(score):
    theirs = pytest.importorskip("openood.postprocessors", reason="OpenOOD is not installed")
    assert isinstance(ScorePostprocessor(score=score), theirs.BasePostprocessor)
