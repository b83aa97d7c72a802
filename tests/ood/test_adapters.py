"""What pytorch-ood and OpenOOD expect of a detector, held without either."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unhinge.metrics import ood_metrics, ood_scores
from unhinge.nn import ETFHead
from unhinge.ood import CollapseDetector, ScoreDetector, ScorePostprocessor

SCORES = ("softmax", "energy", "norm")


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(11, 4)


def reference(model: nn.Sequential, images: Tensor, temperature: float = 1.0) -> dict[str, Tensor]:
    with torch.no_grad():
        features = model[:-1](images)
        return ood_scores(model[-1](features), features, temperature)


def loaded(images: Tensor, labels: Tensor, size: int = 4) -> list[dict[str, Tensor]]:
    pairs = zip(images.split(size), labels.split(size), strict=True)
    return [{"data": x, "label": y} for x, y in pairs]


@pytest.mark.parametrize("temperature", [1.0, 10.0])
@pytest.mark.parametrize("score", SCORES)
def test_a_detector_gives_our_scores_with_the_sign_turned(score, temperature, model, images):
    detector = ScoreDetector(model, score, temperature=temperature)
    expected = -reference(model, images, temperature)[score]
    torch.testing.assert_close(detector.predict(images), expected, rtol=0, atol=0)
    torch.testing.assert_close(detector(images), expected, rtol=0, atol=0)
    torch.testing.assert_close(detector.predict_features(model[:-1](images)), expected)
    if score == "norm":
        with pytest.raises(ValueError, match="predict_features"):
            detector.predict_logits(model(images))
    else:
        torch.testing.assert_close(detector.predict_logits(model(images)), expected)


def test_a_detector_keeps_the_signatures_of_pytorch_ood(model):
    wanted = {"fit": ["data_loader"], "fit_features": ["x", "y"], "predict": ["x"], "predict_features": ["x"]}
    for name, names in wanted.items():
        actual = inspect.signature(getattr(ScoreDetector, name)).parameters
        assert list(actual)[1 : 1 + len(names)] == names
    detector = ScoreDetector(model, "norm")
    assert detector.fit([]) is detector
    assert detector.fit([], device="cpu") is detector
    assert detector.fit_features(torch.ones(2, 6), torch.tensor([0, 1])) is detector
    assert not detector.requires_fit


@pytest.mark.parametrize("score", SCORES)
def test_a_detector_leaves_no_hook_and_can_be_differentiated(score, model, images):
    detector = ScoreDetector(model, score)
    images.requires_grad_()
    detector(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    assert not model[-1]._forward_pre_hooks


@pytest.mark.parametrize("score", SCORES)
def test_a_postprocessor_gives_predictions_and_our_scores(score, model, images):
    predicted, confidence = ScorePostprocessor(score=score).postprocess(model, images)
    assert torch.equal(predicted, model(images).argmax(1))
    assert torch.equal(confidence, reference(model, images)[score])
    assert not confidence.requires_grad


@pytest.mark.parametrize("score", SCORES)
def test_inference_goes_over_a_loader(score, model, images):
    labels = torch.arange(11) % 3
    postprocessor = ScorePostprocessor(score=score)
    postprocessor.setup(model, {"train": []}, {"val": []})
    predicted, confidence, actual = postprocessor.inference(model, loaded(images, labels), False)
    assert predicted.dtype == actual.dtype == np.dtype(int)
    assert np.array_equal(predicted, model(images).argmax(1).numpy())
    assert np.array_equal(actual, labels.numpy())
    np.testing.assert_allclose(confidence, reference(model, images)[score].numpy(), rtol=1e-6)


def test_inference_can_show_its_progress(model, images, capsys):
    ScorePostprocessor().inference(model, loaded(images, torch.zeros(11, dtype=torch.int64)))
    assert "scoring" in capsys.readouterr().out


def test_a_postprocessor_keeps_the_signatures_of_openood():
    wanted = {
        "__init__": ["config"],
        "setup": ["net", "id_loader_dict", "ood_loader_dict"],
        "postprocess": ["net", "data"],
        "inference": ["net", "data_loader", "progress"],
    }
    for name, names in wanted.items():
        actual = list(inspect.signature(getattr(ScorePostprocessor, name)).parameters)
        assert actual[1 : 1 + len(names)] == names
    assert ScorePostprocessor().APS_mode is False


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_a_configuration_sets_score_and_temperature(kind, model, images):
    args = kind(score="softmax", temperature=10.0)
    config = kind(postprocessor=kind(postprocessor_args=args, postprocessor_sweep={"temperature_list": [1, 10]}))
    postprocessor = ScorePostprocessor(config, score="norm")
    assert postprocessor.config is config
    assert postprocessor.args_dict == {"temperature_list": [1, 10]}
    assert torch.equal(postprocessor.postprocess(model, images)[1], reference(model, images, 10.0)["softmax"])
    postprocessor.set_hyperparam([1.0])
    assert postprocessor.get_hyperparam() == 1.0
    assert torch.equal(postprocessor.postprocess(model, images)[1], reference(model, images)["softmax"])
    for empty in (None, kind(), {}):
        assert ScorePostprocessor(empty, score="norm").score == "norm"


@pytest.mark.parametrize("score", SCORES)
def test_both_conventions_give_the_same_auroc(score, model, images):
    outside = 0.1 * torch.randn(9, 4)
    expected = ood_metrics(reference(model, images)[score], reference(model, outside)[score])
    detector, postprocessor = ScoreDetector(model, score), ScorePostprocessor(score=score)
    with torch.no_grad():
        assert ood_metrics(-detector(images), -detector(outside)) == expected
    confidences = [
        postprocessor.inference(model, loaded(x, torch.zeros(len(x), dtype=torch.int64), len(x)), False)[1]
        for x in (images, outside)
    ]
    assert ood_metrics(*confidences) == expected
    if score == "norm":
        assert expected["auroc"] > 0.8  # shorter inputs have shorter features: the sign is the right one


def test_a_network_that_returns_more_than_logits_will_do(images):
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(4, 6), ETFHead(6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.body(x)
            return self.fc(features), features

    model = Both()
    actual = ScoreDetector(model, "norm", head="fc")(images)
    torch.testing.assert_close(actual, -model.body(images).norm(dim=1))
    assert torch.equal(actual, -ScorePostprocessor(score="norm", head="fc").postprocess(model, images)[1])


def test_a_head_that_is_called_twice_is_an_error(images):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + self.fc(-x)

    with pytest.raises(ValueError, match="once per batch"):
        ScoreDetector(Twice(), "norm", head="fc")(images)


@pytest.mark.parametrize("make", [lambda **given: ScoreDetector(nn.Linear(2, 2), **given), ScorePostprocessor])
@pytest.mark.parametrize(
    ("given", "message"),
    [({"score": "odin"}, "softmax, energy, norm"), ({"temperature": 0.0}, "temperature must be greater than 0")],
)
def test_what_is_not_known_is_an_error(make, given: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        make(**given)


def test_a_missing_head_is_told_before_any_batch():
    with pytest.raises(ValueError, match="Pass head="):
        ScoreDetector(nn.Conv2d(3, 3, 1), "norm")
    with pytest.raises(ValueError, match="Pass head="):
        ScorePostprocessor(score="norm").setup(nn.Conv2d(3, 3, 1), {}, {})
    ScorePostprocessor(score="energy").setup(nn.Conv2d(3, 3, 1), {}, {})


def test_an_empty_loader_is_an_error(model):
    with pytest.raises(ValueError, match="the loader is empty"):
        ScorePostprocessor().inference(model, [], False)


# ---- scores that learn from training data ----------------------------------------------------------------------------

FITTED = ("mahalanobis", "neco", "nci", "fdbd", "vim", "knn")


@pytest.mark.parametrize("score", FITTED)
def test_both_adapters_give_the_fitted_scores(score, model, images):
    inputs, labels = torch.randn(60, 4), torch.arange(60) % 3
    with torch.no_grad():
        features = model[:-1](inputs)
        detector = CollapseDetector.fit(features, labels, model[-1].weight, model[-1].bias, neighbors=50)
        expected = detector.scores(model[:-1](images))[score]
    ours = ScoreDetector(model, score)
    assert ours.requires_fit
    with pytest.raises(ValueError, match=f"'{score}' needs the features of the training set"):
        ours(images)
    loader = [(x, y) for x, y in zip(inputs.split(25), labels.split(25), strict=True)]
    strangers = [(torch.randn(5, 4), torch.full((5,), -1))]  # unknown examples, as pytorch-ood marks them
    assert ours.fit(loader + strangers) is ours
    torch.testing.assert_close(ours(images), -expected)
    torch.testing.assert_close(ours.predict_features(model[:-1](images)), -expected)
    torch.testing.assert_close(ScoreDetector(model, score).fit_features(features, labels)(images), -expected)
    with pytest.raises(ValueError, match="predict_features"):
        ours.predict_logits(model(images))
    with pytest.raises(ValueError, match="fit_features"):
        ours.fit_logits(model(images), labels)
    postprocessor = ScorePostprocessor(score=score)
    with pytest.raises(ValueError, match=r"setup\(\) first"):
        postprocessor.postprocess(model, images)
    postprocessor.setup(model, {"train": loaded(inputs, labels, 25)}, {})
    torch.testing.assert_close(postprocessor.postprocess(model, images)[1], expected)


def test_a_normalizing_head_can_be_scored_unnormalized(images):
    model = nn.Sequential(nn.Linear(4, 6), ETFHead(6, 3, normalize=True)).eval()
    with torch.no_grad():
        raw = model[0](images) @ model[1].weight.T
        expected = ood_scores(raw)["energy"]
        plain = ood_scores(model(images))["energy"]
        for given, wanted in ((True, expected), (False, plain)):
            detector = ScoreDetector(model, "energy", unnormalized=given)
            torch.testing.assert_close(detector(images), -wanted)
            torch.testing.assert_close(detector.predict_features(model[0](images)), -wanted)
            actual = ScorePostprocessor(score="energy", unnormalized=given).postprocess(model, images)[1]
            torch.testing.assert_close(actual, wanted)
    assert not torch.allclose(expected, plain)


def test_an_empty_training_loader_is_told(model):
    with pytest.raises(ValueError, match="training data is empty"):
        ScoreDetector(model, "neco").fit([])


def test_the_configuration_comes_before_the_arguments_also_where_it_says_no():
    given = {"postprocessor": {"postprocessor_args": {"unnormalized": False, "score": "norm"}}}
    made = ScorePostprocessor(given, "energy", unnormalized=True)
    assert (made.unnormalized, made.score) == (False, "norm")
    with pytest.raises(ValueError, match="temperature"):
        ScorePostprocessor({"postprocessor": {"postprocessor_args": {"temperature": 0}}})
