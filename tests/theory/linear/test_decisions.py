"""Which examples are right, against the logits of the full state, for every way the path takes to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strategies import make_case, named_cases
from unhinge import LayerPeeled, Spherical
from unhinge.theory.linear.decisions import _largest

NAMED = named_cases()
TIMES = torch.tensor([[0, 3], [25, 400]])


def right(path) -> torch.Tensor:
    """From the definition: the largest logit of each example, one state after the other."""
    rows = []
    for time in TIMES.reshape(-1):
        state = path.at(time)
        logits = state.features @ (state.weight - state.weight.mean(0)).mT
        logits = logits if state.bias is None else logits * torch.exp(2 * state.log_scale) + state.bias
        rows.append(logits.argmax(1) == path.labels)
    return torch.stack(rows).reshape(*TIMES.shape, -1)


@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "anchored_descent", "kernel_flow"])
@pytest.mark.parametrize("name", NAMED)
def test_each_example_is_right_where_its_largest_logit_is_its_label(name, kind):
    case = NAMED[name]
    extra = [torch.eye(len(case.target), dtype=torch.float64)] if kind == "kernel_flow" else []
    bias = {"bias": case.bias}
    path = getattr(case.problem(), kind)(case.features, case.weight, *extra, lr=0.1, **bias)
    expected = right(path)
    assert torch.equal(path.correct(TIMES), expected)
    torch.testing.assert_close(path.accuracy(TIMES), expected.double().mean(-1).to(case.features))


@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "kernel_flow"])
@pytest.mark.parametrize("empty", [0, 1, 2])
@pytest.mark.parametrize("prior", [None, [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], ids=str)
def test_a_class_at_the_origin_hides_no_other(prior, empty, kind):
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-1.0, -0.5]], dtype=torch.float64)  # their mean is at the origin too
    weight = rows.roll(empty, 0)
    extra = [torch.eye(3, dtype=torch.float64)] if kind == "kernel_flow" else []
    path = getattr(LayerPeeled(torch.arange(3), prior=prior), kind)(weight.clone(), weight, *extra)
    assert torch.equal(path.correct(TIMES), right(path))


def test_of_equal_logits_the_first_counts_as_the_largest():
    logits = torch.randint(0, 3, (50, 4, 30), generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(30) % 4
    assert torch.equal(_largest(logits.clone(), labels), logits.argmax(1) == labels)


@pytest.mark.parametrize("name", NAMED)
def test_some_examples_are_right_where_they_are_among_all(name):
    case = NAMED[name]
    path = case.flow()
    some = torch.arange(0, len(case.target), 2)
    times = TIMES.reshape(-1).double()
    assert torch.equal(path._correct_of(times, some), path.correct(times)[:, some])


def test_on_the_sphere_too():
    case = make_case([4, 3, 2], dim=5)
    path = Spherical(case.target, case.weight).descent(case.features, lr=0.5)
    assert torch.equal(path.correct(TIMES), right(path))
    torch.testing.assert_close(path.accuracy(TIMES), right(path).double().mean(-1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("counts", [[6, 6, 6, 6], [6, 6, 2, 2], [9, 6, 3, 1]])
@pytest.mark.parametrize("dim", [2, 30])
def test_the_shortcut_for_few_groups_is_the_product_of_matrices(counts, dim, bias, monkeypatch):
    """Fixed products with the residuals and products of matrices give the same answers."""
    case = make_case(counts, dim=dim, bias=bias, gamma=0.2)
    times = torch.linspace(0, 40, 57, dtype=torch.float64)
    path = case.flow()
    short, plain = path._decisions, replace(path._decisions)
    monkeypatch.setitem(plain.__dict__, "_fixed", None)
    assert (short._fixed is not None) == (len(set(counts)) == 1)
    blocks, biases = path.propagator.blocks(times), path.biases.at(times) if bias else None
    assert torch.equal(short.correct(blocks, biases), plain.correct(blocks, biases))


def test_more_examples_than_fit_the_cache_are_classified_in_pieces():
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(3000) % 30
    features = torch.randn(3000, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(30, 8, generator=generator, dtype=torch.float64)
    path = LayerPeeled(target).flow(features, weight)
    times = torch.tensor([0.0, 5.0, 500.0])
    one_by_one = torch.stack([path.accuracy(time) for time in times])
    assert torch.equal(path.accuracy(times), one_by_one)
    assert path.accuracy(times[:0]).shape == (0,)
