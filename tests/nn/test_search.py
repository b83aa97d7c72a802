"""Both ways of searching find what sorting all logits finds."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unhinge.nn.frames import prototypes
from unhinge.nn.generated import GeneratedPrototypes
from unhinge.nn.search import nearest_prototype

HAS_FAISS = importlib.util.find_spec("faiss") is not None
ENGINES = ["torch", pytest.param("faiss", marks=pytest.mark.skipif(not HAS_FAISS, reason="faiss is not installed"))]
FOUND = ["torch", "faiss"] if HAS_FAISS else ["torch"]


def by_sorting(features: torch.Tensor, weight: torch.Tensor, k: int) -> list[list[int]]:
    """All inner products in float64, sorted by score and then by class."""
    answers = []
    for h in features.double():
        scores = [(-sum(a * b for a, b in zip(h.tolist(), w.tolist(), strict=True)), c) for c, w in enumerate(weight)]
        answers.append([c for _, c in sorted(scores)[:k]])
    return answers


@pytest.mark.parametrize("engine", ENGINES)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 6), st.integers(1, 12), st.integers(0, 99), st.data())
def test_the_answer_is_that_of_sorting_all_scores(engine, classes, dim, queries, block, seed, data):
    """Whole numbers: every product is exact, and ties abound."""
    k = data.draw(st.integers(1, classes))
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-2, 3, (classes, dim), generator=generator).float()
    features = torch.randint(-2, 3, (queries, dim), generator=generator).float()
    actual = nearest_prototype(features, weight, k, block=block, engine=engine)
    assert actual.scores.shape == actual.classes.shape == (queries, k)
    assert actual.classes.tolist() == by_sorting(features, weight, k)
    for row, h in zip(actual.classes, features, strict=True):
        expected = (weight @ h).sort(descending=True).values[:k]
        assert torch.equal(weight[row] @ h, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_slightly_moved_prototype_finds_itself(engine, dtype):
    weight = prototypes(5000, 32, torch.Generator().manual_seed(0), method="random", dtype=dtype)
    target = torch.arange(0, 5000, 37)
    features = weight[target] + 0.02 * torch.randn(len(target), 32).to(dtype)
    actual = nearest_prototype(features, weight, block=999, engine=engine)
    assert torch.equal(actual.classes[:, 0], target)
    assert actual.scores.dtype == dtype
    expected = (features.double() * weight[target].double()).sum(1).to(dtype)
    torch.testing.assert_close(actual.scores[:, 0], expected)


@pytest.mark.skipif(not HAS_FAISS, reason="faiss is not installed")
@pytest.mark.parametrize("generated", [False, True])
def test_faiss_and_torch_agree_in_every_rank(generated):
    frame = GeneratedPrototypes(6001, 24, seed=3)
    weight = frame if generated else frame.rows(torch.arange(6001))
    features = torch.randn(40, 24)
    ours = nearest_prototype(features, weight, 10, block=1000, engine="torch")
    theirs = nearest_prototype(features, weight, 10, block=2500, engine="faiss")
    assert torch.equal(ours.classes, theirs.classes)
    assert torch.equal(ours.scores, theirs.scores)


@pytest.mark.parametrize("engine", ENGINES)
def test_of_equal_prototypes_the_lowest_class_comes_first(engine):
    row = torch.randn(16, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(300, 16, generator=torch.Generator().manual_seed(1)) * 0.1
    weight[[250, 17, 90]] = row
    actual = nearest_prototype(row, weight, 3, block=64, engine=engine)
    assert actual.classes.tolist() == [17, 90, 250]


@pytest.mark.parametrize("engine", ENGINES)
def test_of_hundreds_of_equal_prototypes_the_lowest_classes_come_first(engine):
    actual = nearest_prototype(torch.ones(2, 3), torch.ones(500, 3), 4, engine=engine)
    assert actual.classes.tolist() == [[0, 1, 2, 3]] * 2
    assert nearest_prototype(torch.zeros(3), torch.randn(500, 3), 2, engine=engine).classes.tolist() == [0, 1]


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-200])
def test_prototypes_that_only_float64_tells_apart_are_told_apart_at_every_scale(engine, scale):
    generator = torch.Generator().manual_seed(0)
    weight = torch.ones(64, 8, dtype=torch.float64)
    weight = scale * (weight + 1e-12 * torch.randn(64, 8, generator=generator, dtype=torch.float64))
    features = torch.rand(5, 8, generator=generator, dtype=torch.float64) / scale
    actual = nearest_prototype(features, weight, 3, engine=engine)
    assert actual.classes.tolist() == by_sorting(features, weight, 3)
    torch.testing.assert_close(actual.scores, (features @ weight.T).sort(descending=True).values[:, :3])


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_scores_beyond_the_largest_number_still_have_an_order(engine):
    weight = 1e200 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    actual = nearest_prototype(1e200 * torch.tensor([[2.0, 1.0]], dtype=torch.float64), weight, 3, engine=engine)
    assert actual.classes.tolist() == [[2, 0, 1]]


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_without_an_order_are_refused(engine, bad):
    broken, whole = torch.tensor([[1.0, bad]]), torch.ones(20, 2)
    with pytest.raises(ValueError, match="features must be finite"):
        nearest_prototype(broken, whole, engine=engine)
    with pytest.raises(ValueError, match="weight must be finite"):
        nearest_prototype(whole, torch.cat([whole, broken]), engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_leading_axes_are_kept_and_may_be_empty(engine):
    weight = torch.randn(20, 4)
    features = torch.randn(2, 3, 4)
    actual = nearest_prototype(features, weight, 2, engine=engine)
    assert actual.classes.shape == actual.scores.shape == (2, 3, 2)
    assert torch.equal(actual.classes[1, 2], nearest_prototype(features[1, 2], weight, 2, engine=engine).classes)
    empty = nearest_prototype(torch.zeros(0, 4), weight, 2, engine=engine)
    assert empty.classes.shape == (0, 2)
    assert empty.classes.dtype == torch.int64


def test_many_features_are_searched_for_in_parts():
    weight, features = torch.randn(50, 4), torch.randn(2500, 4)
    assert torch.equal(nearest_prototype(features, weight).classes[:, 0], (features @ weight.T).argmax(1))


def test_without_faiss_auto_searches_with_torch(monkeypatch):
    weight, features = torch.randn(50, 4), torch.randn(5, 4)
    expected = nearest_prototype(features, weight, 3)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch.equal(nearest_prototype(features, weight, 3).classes, expected.classes)
    with pytest.raises(ValueError, match=r"unhinge\[search\]"):
        nearest_prototype(features, weight, engine="faiss")


@pytest.mark.parametrize(
    ("options", "what"),
    [({"k": 0}, "k must lie"), ({"k": 51}, "k must lie"), ({"block": 0}, "block"), ({"engine": "best"}, "engine")],
)
def test_impossible_questions_are_refused(options, what):
    with pytest.raises(ValueError, match=what):
        nearest_prototype(torch.zeros(1, 4), torch.zeros(50, 4), **options)
    with pytest.raises(ValueError, match=r"shape \(..., 4\)"):
        nearest_prototype(torch.zeros(1, 3), torch.zeros(50, 4))


def test_what_would_be_rounded_to_whole_numbers_is_refused():
    whole, rows = torch.ones(1, 4, dtype=torch.int64), torch.rand(5, 4)
    with pytest.raises(ValueError, match=r"features must be a floating tensor.*int64"):
        nearest_prototype(whole, rows)
    with pytest.raises(ValueError, match=r"weight must be a floating tensor.*int64"):
        nearest_prototype(rows, whole)
    with pytest.raises(ValueError, match=r"features must be a torch.Tensor, got ndarray"):
        nearest_prototype(rows.numpy(), rows)
