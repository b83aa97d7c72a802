"""The detector's scores are those of the papers, however the training features come in."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import ood as papers
from unhinge.metrics import CollapseSummary, ood_metrics
from unhinge.nn import ETFHead, simplex_etf
from unhinge.ood import CollapseDetector
from unhinge.ood.collapse import SCORES, is_simplex

SIZES = [(60, 5, 3), (200, 16, 7), (90, 6, 12)]  # n, p, C


def drawn(n: int, p: int, classes: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training features with an offset and clusters, labels, head."""
    target = torch.arange(n) % classes
    means = torch.randn(classes, p, dtype=torch.float64)
    features = 1.5 + 2 * means[target] + torch.randn(n, p, dtype=torch.float64)
    weight, bias = torch.randn(classes, p, dtype=torch.float64), torch.randn(classes, dtype=torch.float64)
    return features.to(dtype), target, weight.to(dtype), bias.to(dtype)


def by_the_papers(
    h: Tensor, features: Tensor, target: Tensor, weight: Tensor, bias: Tensor, principal: int, k: int
) -> dict[str, list[float]]:
    x, train, w, b = (value.double().numpy() for value in (h, features, weight, bias))
    return {
        "softmax": papers.softmax(x, w, b),
        "energy": papers.energy(x, w, b),
        "norm": papers.norm(x),
        "mahalanobis": papers.mahalanobis(x, train, target.numpy()),
        "neco": papers.neco(x, train, min(len(w) - 1, x.shape[1])),
        "nci": papers.nci(x, train, w, b, 1e-4),
        "fdbd": papers.fdbd(x, train, w, b),
        "vim": papers.vim(x, train, w, b, principal),
        "knn": papers.knn(x, train, k),
    }


@pytest.mark.parametrize(("dtype", "budget"), [(torch.float64, 1e-9), (torch.float32, 1e-6)])
@pytest.mark.parametrize("size", SIZES)
def test_every_score_is_that_of_its_paper(size, dtype, budget):
    features, target, weight, bias = drawn(*size, dtype)
    h = 2 * torch.randn(20, size[1], dtype=dtype)
    detector = CollapseDetector.fit(features, target, weight, bias, neighbors=4)
    scores = detector.scores(h)
    expected = by_the_papers(h, features, target, weight, bias, size[1] // 2, 4)
    assert list(scores) == list(SCORES)
    for name, values in expected.items():
        assert scores[name].dtype == dtype
        wanted = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(scores[name].double(), wanted, rtol=budget, atol=budget)


def test_without_a_bias_and_with_other_options():
    features, target, weight, _ = drawn(80, 9, 4)
    h = torch.randn(10, 9, dtype=torch.float64)
    detector = CollapseDetector.fit(features, target, weight, principal=3, neco_dim=5, nci_strength=0.01)
    scores = detector.scores(h)
    x, train, w = h.numpy(), features.numpy(), weight.numpy()
    none = np.zeros(4)
    for name, values in {
        "vim": papers.vim(x, train, w, none, 3),
        "neco": papers.neco(x, train, 5),
        "nci": papers.nci(x, train, w, none, 0.01),
    }.items():
        torch.testing.assert_close(scores[name], torch.tensor(values, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("split", [1, 7, 80])
def test_batches_give_what_the_whole_gives(split):
    features, target, weight, bias = drawn(80, 9, 4)
    h = torch.randn(10, 9, dtype=torch.float64)
    whole = CollapseDetector.fit(features, target, weight, bias).scores(h)
    streamed = CollapseDetector.from_batches(
        lambda: zip(features.split(split), target.split(split), strict=True), weight, bias
    ).scores(h)
    assert list(whole) == list(streamed)
    for name in whole:
        torch.testing.assert_close(streamed[name], whole[name], rtol=1e-10, atol=1e-10)


def test_summaries_of_parts_add_up_and_the_second_pass_brings_vim():
    features, target, weight, bias = drawn(80, 9, 4)
    parts = [CollapseSummary.of(features[half], target[half], 4) for half in (slice(0, 33), slice(33, 80))]
    detector = CollapseDetector.from_summary(parts[0] + parts[1], weight, bias)
    assert "vim" not in detector.available
    with pytest.raises(ValueError, match="with_vim"):
        detector.scores(features, ["vim"])
    whole = CollapseDetector.fit(features, target, weight, bias)
    with_vim = detector.with_vim(features.split(11))
    assert with_vim.vim_scale == pytest.approx(whole.vim_scale, rel=1e-12)
    torch.testing.assert_close(with_vim.scores(features)["vim"], whole.scores(features)["vim"])


def test_large_sets_are_scored_in_chunks(monkeypatch):
    features, target, weight, bias = drawn(80, 9, 4)
    detector = CollapseDetector.fit(features, target, weight, bias, neighbors=3)
    whole = detector.scores(features)
    monkeypatch.setattr("unhinge.ood.collapse.CHUNK", 100)
    for name, values in detector.scores(features).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-12, atol=1e-12)


# ---- a simplex head -------------------------------------------------------------------------------------------------


def test_on_a_simplex_head_necos_subspace_is_its_span():
    head = ETFHead(12, 5)
    assert is_simplex(head.weight.double())
    features, target = torch.randn(100, 12), torch.arange(100) % 5
    detector = CollapseDetector.fit(features, target, head.weight)
    span = torch.linalg.qr(head.weight.double().mT[:, :-1]).Q
    h = torch.randn(8, 12)
    expected = (h.double() @ span).norm(dim=1) / h.double().norm(dim=1)
    torch.testing.assert_close(detector.scores(h)["neco"].double(), expected, rtol=1e-5, atol=1e-6)
    # asked for another dimension, it goes by the features again
    other = CollapseDetector.fit(features, target, head.weight, neco_dim=6)
    torch.testing.assert_close(
        other.scores(h)["neco"].double(),
        torch.tensor(papers.neco(h.double().numpy(), features.double().numpy(), 6), dtype=torch.float64),
        rtol=1e-5,
        atol=1e-6,
    )


def test_at_collapse_pca_and_simplex_agree():
    frame = simplex_etf(5, 12, dtype=torch.float64)
    target = torch.arange(50) % 5
    features = 3 * frame[target]
    turned = frame + 1e-3 * torch.randn_like(frame)  # no simplex any more, so it goes by the features
    h = torch.randn(6, 12, dtype=torch.float64)
    by_head, by_features = (CollapseDetector.fit(features, target, w).scores(h)["neco"] for w in (frame, turned))
    torch.testing.assert_close(by_head, by_features, rtol=1e-9, atol=1e-9)


def test_a_normalizing_head_is_scored_unnormalized():
    """T2FNorm: the length of a feature, which training on the sphere leaves free, tells known from unknown."""
    head = ETFHead(8, 4, normalize=True)
    target = torch.arange(80) % 4
    known = 6 * head.weight[target] + 0.3 * torch.randn(80, 8)
    unknown = known / 4  # the same directions, shorter
    detector = CollapseDetector.fit(known, target, head.weight)
    normalized = head(known).amax(1), head(unknown).amax(1)
    assert ood_metrics(*normalized)["auroc"] == pytest.approx(0.5, abs=0.02)
    for name in ("softmax", "energy", "norm"):
        assert ood_metrics(detector.scores(known)[name], detector.scores(unknown)[name])["auroc"] > 0.99


# ---- degenerate inputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features",
    [
        torch.randn(6, 20, dtype=torch.float64),  # fewer examples than dimensions
        torch.randn(60, 3, dtype=torch.float64) @ torch.randn(3, 20, dtype=torch.float64),  # rank 3
        torch.eye(20, dtype=torch.float64)[torch.arange(60) % 3],  # collapsed: no variance at all
        torch.zeros(60, 20, dtype=torch.float64),
        1e-150 * torch.randn(60, 20, dtype=torch.float64),
        1e150 * torch.randn(60, 20, dtype=torch.float64),
    ],
    ids=["few", "low rank", "collapsed", "zeros", "tiny", "huge"],
)
def test_degenerate_features_give_finite_scores(features):
    target = torch.arange(len(features)) % 3
    detector = CollapseDetector.fit(features, target, torch.randn(3, 20, dtype=torch.float64), neighbors=2)
    h = torch.cat([features[:3], detector.global_mean[None], torch.zeros(1, 20, dtype=torch.float64)])
    for name, values in detector.scores(h).items():
        assert values.isfinite().all(), name


def test_a_degenerate_covariance_is_inverted_where_it_has_an_inverse():
    factor = torch.randn(3, 20, dtype=torch.float64)
    features, target = torch.randn(60, 3, dtype=torch.float64) @ factor, torch.arange(60) % 3
    detector = CollapseDetector.fit(features, target, torch.randn(3, 20, dtype=torch.float64))
    assert detector.whitening.shape == (20, 3)
    expected = papers.mahalanobis(features.numpy()[:5], features.numpy(), target.numpy())
    got = detector.scores(features[:5])["mahalanobis"]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_prototypes_that_coincide_have_no_boundary():
    weight = torch.eye(3, 4, dtype=torch.float64)[[0, 1, 2, 2]]
    features, target = torch.randn(40, 4, dtype=torch.float64), torch.arange(40) % 4
    scores = CollapseDetector.fit(features, target, weight).scores(10 * weight[:1])
    assert scores["fdbd"].isfinite().all()


def test_the_largest_size_of_the_brief():
    """p = 2,048 and C = 1,000 in one go; cheap scores only, the eigenvectors cost seconds and nothing new."""
    weight = torch.randn(1000, 2048)
    features, target = torch.randn(1200, 2048), torch.arange(1200) % 1000
    summary = CollapseSummary.of(features, target, 1000)
    detector = CollapseDetector.from_summary(summary, weight)
    assert (detector.principal, detector.neco_dim) == (1000, 999)
    scores = detector.scores(features[:5], ["softmax", "energy", "norm", "nci", "fdbd"])
    w, x, none = weight.double().numpy(), features[:5].double().numpy(), np.zeros(1000)
    train = features.double().numpy()
    for name, values in {
        "softmax": papers.softmax(x, w, none),
        "nci": papers.nci(x, train, w, none, 1e-4),
        "fdbd": papers.fdbd(x, train, w, none),
    }.items():
        torch.testing.assert_close(scores[name].double(), torch.tensor(values), rtol=1e-6, atol=1e-6)


# ---- what one may do with it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_differentiable(name):
    features, target, weight, bias = drawn(60, 5, 3)
    detector = CollapseDetector.fit(features, target, weight, bias, neighbors=4)
    h = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: detector.scores(x, [name])[name], h)


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda detector: pickle.loads(pickle.dumps(detector))])
def test_a_twin_gives_the_same_scores(twin_of):
    features, target, weight, bias = drawn(60, 5, 3)
    detector = CollapseDetector.fit(features, target, weight, bias, neighbors=4)
    for asked in (False, True):
        if asked:
            detector.scores(features)
        twin = twin_of(detector)
        for name, values in twin.scores(features).items():
            assert torch.equal(values, detector.scores(features)[name])


def test_lists_and_arrays_will_do():
    features, target, weight, bias = drawn(60, 5, 3)
    by_arrays = CollapseDetector.fit(features.numpy(), target.tolist(), weight.tolist(), bias.numpy())
    expected = CollapseDetector.fit(features, target, weight, bias).scores(features)
    for name, values in by_arrays.scores(features.numpy()).items():
        torch.testing.assert_close(values, expected[name])


def test_softmax_does_not_saturate():
    weight = torch.eye(3) * 1000
    features = torch.eye(3).repeat(4, 1)
    detector = CollapseDetector.fit(features, torch.arange(12) % 3, weight)
    first, second = detector.scores(torch.tensor([[1.0, 0, 0], [2.0, 0, 0]]))["softmax"].tolist()
    assert math.isfinite(second)
    assert second > first > 900


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.randn(3, 4)}, "weight must have shape"),
        ({"bias": torch.randn(4)}, "bias must have shape"),
        ({"target": torch.zeros(60, dtype=torch.int64)}, "at least 2 classes"),
        ({"principal": 6}, "principal must be a whole number and lie between 1 and the dimension 5"),
        ({"neco_dim": 0}, "neco_dim must be a whole number and lie between"),
        ({"nci_strength": -1.0}, "nci_strength must be finite and not negative"),
        ({"nci_strength": math.inf}, "nci_strength must be finite and not negative"),
        ({"nci_strength": "a"}, "nci_strength must be a number"),
        ({"neighbors": 61}, "between 1 and 60"),
        ({"features": torch.full((60, 5), math.nan)}, "NaN or infinite"),
    ],
)
def test_mistakes_are_told(change, message):
    features, target, weight, bias = drawn(60, 5, 3)
    given = {"features": features, "target": target, "weight": weight, "bias": bias} | change
    with pytest.raises(ValueError, match=message):
        CollapseDetector.fit(**given)


def test_a_summary_without_covariance_is_refused():
    features, target, weight, _ = drawn(60, 5, 3)
    with pytest.raises(ValueError, match="covariance=True"):
        CollapseDetector.from_summary(CollapseSummary.of(features, target, 3, covariance=False), weight)
    with pytest.raises(ValueError, match="there is no score 'odin'; there are softmax"):
        CollapseDetector.fit(features, target, weight).scores(features, ["odin"])


@pytest.mark.parametrize(("examples", "dim"), [(100, 512), (10, 30), (20, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_residuals_vim_is_the_energy(examples, dim, dtype):
    """Fewer examples than dimensions: what is left outside of the principal subspace is rounding."""
    draw = torch.Generator().manual_seed(0)
    features, weight = (torch.randn(n, dim, generator=draw, dtype=dtype) for n in (examples, 4))
    detector = CollapseDetector.fit(features, torch.arange(examples) % 4, weight)
    scores = detector.scores(torch.randn(3, dim, generator=draw, dtype=dtype))
    torch.testing.assert_close(scores["vim"], scores["energy"])


@pytest.mark.parametrize("classes", [2, 4])
def test_a_simplex_in_its_own_span_leaves_nothing_outside(classes):
    """C - 1 dimensions: features cannot leave the span of the head, so that NECO's share is 1."""
    weight = simplex_etf(classes, classes - 1).double()
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(20, classes - 1, generator=draw, dtype=torch.float64)
    detector = CollapseDetector.fit(features, torch.arange(20) % classes, weight)
    torch.testing.assert_close(detector.scores(features)["neco"], torch.ones(20, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_features_whose_squares_are_no_numbers_are_scored(scale):
    torch.manual_seed(0)
    features, target = torch.randn(60, 5, dtype=torch.float64), torch.arange(60) % 3
    weight = torch.randn(3, 5, dtype=torch.float64)
    one, other = (CollapseDetector.fit(s * features, target, weight).scores(s * features) for s in (1.0, scale))
    assert all(torch.isfinite(score).all() for score in other.values())
    torch.testing.assert_close(other["norm"] / scale, one["norm"])
    for name in ("mahalanobis", "neco", "fdbd"):
        torch.testing.assert_close(other[name], one[name])


def test_a_training_feature_of_zero_is_a_neighbour_at_distance_one():
    train, target = torch.tensor([[0.0, 0], [1, 0.2], [0, 1], [0.3, 1]]), torch.tensor([0, 0, 1, 1])
    detector = CollapseDetector.fit(train, target, torch.eye(2), neighbors=1)
    asked = torch.tensor([[-1.0, 0.5], [0.0, 0.0]])
    assert detector.scores(asked)["knn"].tolist() == pytest.approx([-1.0, 0.0])


def test_scores_of_collapsed_features_stay_finite_in_single_precision():
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(30) % 3
    train = torch.eye(3, 6, dtype=torch.float64)[target]
    train = train + 1e-20 * torch.randn(30, 6, generator=generator, dtype=torch.float64)
    detector = CollapseDetector.fit(train, target, torch.eye(3, 6))
    scores = detector.scores(torch.randn(5, 6, generator=generator))
    assert all(torch.isfinite(score).all() for score in scores.values())


@pytest.mark.parametrize("option", ["neighbors", "principal", "neco_dim"])
@pytest.mark.parametrize("value", [2.5, "2", math.nan, math.inf, True])
def test_fractions_are_no_dimensions(option, value):
    features, target = torch.randn(30, 6), torch.arange(30) % 3
    with pytest.raises(ValueError, match=f"{option} must be a whole number"):
        CollapseDetector.fit(features, target, torch.randn(3, 6), **{option: value})


def test_batches_that_are_there_only_once_are_refused():
    """Without the second pass the score vim was the energy, and nobody was told."""
    features, target, weight, _ = drawn(60, 5, 3)
    once = iter([(features, target)])
    with pytest.raises(ValueError, match="no features in the second pass"):
        CollapseDetector.from_batches(lambda: once, weight)
    with pytest.raises(ValueError, match="batches must be a function"):
        CollapseDetector.from_batches([(features, target)], weight)


def test_one_score_may_be_asked_for_by_its_name():
    features, target, weight, _ = drawn(60, 5, 3)
    detector = CollapseDetector.fit(features, target, weight)
    assert torch.equal(detector.scores(features, "norm")["norm"], detector.scores(features)["norm"])
    with pytest.raises(ValueError, match="there is no score 'odin'"):
        detector.scores(features, "odin")
