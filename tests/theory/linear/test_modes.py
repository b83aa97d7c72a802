"""The table of modes against dense matrices: singular values of M, spectral radii of one step or of the generator."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from oracles import singular_values
from strategies import make_case, named_cases
from unhinge import LayerPeeled, cosine

NAMED = named_cases()


@pytest.mark.parametrize("name", NAMED)
def test_singular_values_and_their_number_are_those_of_the_target_matrix(name):
    case = NAMED[name]
    modes = case.problem().modes()
    repeated = modes.sigma.repeat_interleave(modes.multiplicity)
    expected = torch.tensor(singular_values(case), dtype=torch.float64).sort(descending=True).values
    size = expected[0].item()
    assert len(repeated) == len(expected)
    assert (repeated - expected).abs().max().item() <= 64 * 2.0**-52 * size
    assert (modes.sigma[:-1] - modes.sigma[1:] > 0).all()


def step(sigma, case, momentum, dampening, nesterov, decoupled):
    """One later step of torch.optim.SGD on (x, y, b_x, b_y), written out."""
    (s1, s2), (l1, l2) = case.lr, (case.feature_decay, case.weight_decay)
    gradient = torch.tensor([[0.0, -sigma], [-sigma, 0.0]], dtype=torch.float64)
    decay = torch.diag(torch.tensor([l1, l2], dtype=torch.float64))
    rate = torch.diag(torch.tensor([s1, s2], dtype=torch.float64))
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    if not decoupled:
        gradient, decay = gradient + decay, zero
    buffer = torch.cat([(1 - dampening) * gradient, momentum * eye], 1)
    used = torch.cat([gradient, zero], 1) + momentum * buffer if nesterov else buffer
    return torch.cat([torch.cat([eye - rate @ decay, zero], 1) - rate @ used, buffer])


@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov"), [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.5, False), (0.9, 0.0, True)]
)
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.02, 0.05), (9.0, 3.0)])
def test_growth_per_step_is_the_spectral_radius_of_a_step(momentum, dampening, nesterov, decoupled, decays):
    """[eq: momentum]; the last decays are so large that a step overshoots."""
    case = make_case([3, 2, 2, 1], gamma=0.3, feature_decay=decays[0], weight_decay=decays[1], lr=(0.2, 0.3))
    modes = case.problem().modes(case.lr, momentum, dampening, nesterov, decoupled, discrete=True)
    assert modes.discrete
    for sigma, growth in zip(modes.sigma.tolist(), modes.growth.tolist(), strict=True):
        matrix = step(sigma, case, momentum, dampening, nesterov, decoupled)
        assert growth == pytest.approx(torch.linalg.eigvals(matrix).abs().max().log().item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("decays", list(product([0.0, 0.05], [0.0, 0.3])))
def test_growth_per_time_is_the_largest_eigenvalue_of_the_generator(decays):
    """[eq: eigenvalues]."""
    case = make_case([3, 2, 2, 1], gamma=0.3, feature_decay=decays[0], weight_decay=decays[1], lr=(0.2, 0.7))
    modes = case.problem().modes(lr=case.lr)
    assert not modes.discrete
    for sigma, growth in zip(modes.sigma.tolist(), modes.growth.tolist(), strict=True):
        generator = torch.tensor(
            [[-0.2 * decays[0], 0.2 * sigma], [0.7 * sigma, -0.7 * decays[1]]], dtype=torch.float64
        )
        assert growth == pytest.approx(torch.linalg.eigvals(generator).real.max().item(), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("kind", ["flow", "descent", "momentum"])
def test_the_first_mode_grows_as_the_path_does(kind):
    case = make_case([4, 2, 1], gamma=0.2, feature_decay=0.01, weight_decay=0.02)
    path = case.flow() if kind == "flow" else case.descent(momentum=0.9 if kind == "momentum" else 0.0)
    options = {"momentum": 0.9} if kind == "momentum" else {"discrete": kind == "descent"}
    assert case.problem().modes(case.lr, **options).growth[0].item() == pytest.approx(path.growth().item(), rel=1e-12)


def test_at_the_critical_decay_the_first_mode_neither_grows_nor_decays():
    critical = LayerPeeled([0, 0, 1, 1, 2, 2], gamma=0.1).critical_decay.item()
    for nudge, sign in ((1.0, 0), (1 + 2**-40, -1), (1 - 2**-40, 1)):
        problem = LayerPeeled([0, 0, 1, 1, 2, 2], gamma=0.1, feature_decay=critical * nudge, weight_decay=critical)
        growth = problem.modes(lr=1.0).growth[0].item()
        assert abs(growth) < 1e-12 * critical
        assert sign == 0 or (growth > 0) - (growth < 0) == sign


def test_a_schedule_counts_by_the_rate_it_ends_with():
    problem = LayerPeeled([0, 0, 1])
    ended = problem.modes(lr=cosine(0.1, total=10, end=0.05)).growth
    torch.testing.assert_close(ended, problem.modes(lr=0.05).growth, rtol=1e-14, atol=0)
    with pytest.raises(ValueError, match="does not end with a constant positive rate"):
        problem.modes(lr=cosine(0.1, total=10))


def test_options_of_descent_exclude_the_flow():
    problem = LayerPeeled([0, 0, 1])
    assert problem.modes(momentum=0.9).discrete
    assert problem.modes(decoupled=True).discrete
    with pytest.raises(ValueError, match="discrete=True"):
        problem.modes(momentum=0.9, discrete=False)
    with pytest.raises(ValueError, match="momentum must lie"):
        problem.modes(momentum=1.0)


@pytest.mark.parametrize("name", ["sqrt", "balanced"])
@pytest.mark.parametrize("soft", [False, True])
def test_named_class_weights_are_powers_of_the_counts(name, soft):
    counts = torch.tensor([5, 3, 1])
    target = torch.repeat_interleave(torch.arange(3), counts)
    given = torch.nn.functional.one_hot(target).double() if soft else target
    weights = counts.double() ** (-0.5 if name == "sqrt" else -1.0)
    named, plain = (LayerPeeled(given, gamma=0.2, class_weight=weight) for weight in (name, weights))
    torch.testing.assert_close(named.singular_values, plain.singular_values, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(named.bias_drive, plain.bias_drive, rtol=1e-13, atol=1e-16)


def test_the_repr_is_short():
    modes = LayerPeeled(torch.repeat_interleave(torch.arange(40), torch.arange(1, 41))).modes()
    assert len(modes) == 40
    assert len(repr(modes)) < 200
