"""The paper's symbols, in their corrected form, are corners of the generic machinery."""

from __future__ import annotations

import pytest
import torch

from unhinge import LayerPeeled
from unhinge.paper import notation as paper

CASES = [(2, 1, 3), (3, 4, 2), (5, 3, 6)]


def start(num_classes: int, per_class: int, dim: int):
    generator = torch.Generator().manual_seed(num_classes)
    labels = torch.arange(num_classes).repeat(per_class)[torch.randperm(num_classes * per_class, generator=generator)]
    features = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)
    return features, weight, labels


def stacked(state) -> torch.Tensor:
    return torch.cat([state.features, state.weight])


@pytest.mark.parametrize("size", CASES)
def test_the_five_parts_add_up_are_orthogonal_and_are_projections(size):
    features, weight, labels = start(*size)
    parts = paper.projections(features, weight, labels)
    flat = torch.stack([stacked(part).flatten() for part in parts])
    torch.testing.assert_close(flat.sum(0), torch.cat([features, weight]).flatten(), rtol=0, atol=1e-14)
    gram = flat @ flat.T
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-13)
    for index, part in enumerate(parts):
        again = paper.projections(part.features, part.weight, labels)
        torch.testing.assert_close(stacked(again[index]), stacked(part), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 2.0])
def test_each_part_is_an_eigenspace_of_the_gradient_map(size, gamma):
    """[eq: balanced-modes]."""
    features, weight, labels = start(*size)
    first, second = paper.eigenvalues(size[0], size[1], gamma)
    for part, value in zip(
        paper.projections(features, weight, labels), (first, -first, second, -second, 0.0), strict=True
    ):
        h, w = part.features.clone().requires_grad_(), part.weight.clone().requires_grad_()
        logits = h @ w.T
        true = logits.gather(1, labels[:, None]).squeeze(1)
        loss = (gamma * logits.sum(1) - (1 + gamma) * true).mean()
        pull = torch.autograd.grad(-loss, (h, w))
        torch.testing.assert_close(torch.cat(pull), value * stacked(part), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.3, 0.02)])
@pytest.mark.parametrize("gamma", [0.0, 0.2, 1.0])
def test_theorem_1_is_the_flow_without_decay(size, rates, gamma):
    """[eq: flow-solution]."""
    features, weight, labels = start(*size)
    time = torch.tensor(13.0, dtype=torch.float64)
    clocks = rates[0] * time, rates[1] * time
    first, second = paper.eigenvalues(size[0], size[1], gamma)
    parts = paper.projections(features, weight, labels)
    h, w = parts.within.features, parts.within.weight
    for part, sigma, sign in zip(parts[:4], (first, first, second, second), (1, -1, 1, -1), strict=True):
        alpha, beta = paper.alpha_beta(sigma, sign, *clocks)
        h = h + (alpha * clocks[0] + beta) * part.features
        w = w + (alpha * clocks[1] + beta) * part.weight
    state = LayerPeeled(labels, size[0], gamma).flow(features, weight, lr=rates).at(time)
    torch.testing.assert_close(torch.cat([h, w]), stacked(state), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("decays", [(0.3, 0.3), (0.05, 0.4), (0.0, 0.2)])
@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.3, 0.02)])
def test_theorem_2_is_the_flow_with_decay(size, decays, rates):
    """[eq: flow-solution], [eq: phi]."""
    features, weight, labels = start(*size)
    gamma = 0.3
    time = torch.tensor(7.0, dtype=torch.float64)
    clocks = rates[0] * time, rates[1] * time
    first, second = paper.eigenvalues(size[0], size[1], gamma)
    h, w = torch.zeros_like(features), torch.zeros_like(weight)
    modes = ((first, 1), (first, -1), (second, 1), (second, -1), (0.0, 1))
    for part, (sigma, sign) in zip(paper.projections(features, weight, labels), modes, strict=True):
        a, b = paper.a_b(sigma, sign, *decays, *clocks)
        h, w = h + a * part.features, w + b * part.weight
    state = LayerPeeled(labels, size[0], gamma, *decays).flow(features, weight, lr=rates).at(time)
    torch.testing.assert_close(torch.cat([h, w]), stacked(state), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("ratio", [1.0, 0.2, 9.0])
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.3, 0.3), (0.05, 0.4)])
def test_z_bar_z_pi_and_omega_are_direction_and_rate(ratio, decays):
    """[eq: direction], [eq: rate]."""
    features, weight, labels = start(5, 3, 6)
    gamma = 0.2
    path = LayerPeeled(labels, 5, gamma, *decays).flow(features, weight, lr=(ratio * 0.1, 0.1))
    limit = paper.z_pi(features, weight, labels, gamma, *decays, ratio).normalized()
    torch.testing.assert_close(stacked(path.direction()), stacked(limit), rtol=0, atol=1e-14)
    rate = paper.convergence_rate(5, 3, gamma, *decays, ratio)
    torch.testing.assert_close(path.rate(lr=1.0).item(), -rate, rtol=1e-13, atol=0)
    if decays == (0.0, 0.0):
        bar = paper.z_bar(features, weight, labels, ratio).normalized()
        torch.testing.assert_close(stacked(path.direction()), stacked(bar), rtol=0, atol=1e-14)


def test_imbalanced_labels_are_refused():
    with pytest.raises(ValueError, match="same number of examples"):
        paper.projections(torch.zeros(3, 2), torch.zeros(2, 2), torch.tensor([0, 0, 1]))
