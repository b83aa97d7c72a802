"""The references of the checks, against each other and against arithmetic with sixty digits."""

from __future__ import annotations

import math
from itertools import islice

import mpmath
import pytest
import torch

from unhinge.paper.claims import captions, spherical
from unhinge.paper.claims.oracles import apart, dense_flow, drive_matrix, expand, generator_matrix
from unhinge.paper.claims.problems import Problem, draw


def problem_of(seed: int, gamma: float | None = None, classes: int = 4) -> tuple[Problem, float]:
    generator = torch.Generator().manual_seed(seed)
    problem = draw(generator, gamma, classes)
    return problem.with_decay(0.3 * problem.leading, 0.7 * problem.leading), 0.4 + 0.5 * seed


@pytest.mark.parametrize("seed", range(4))
def test_the_expansion_adds_up_to_the_matrix_exponential(seed: int):
    problem, ratio = problem_of(seed)
    modes = expand(problem, ratio)
    clock = 7.0
    state = torch.einsum("k,kmp->mp", torch.exp(modes.exponents * clock), modes.parts)
    assert torch.allclose(state, dense_flow(problem, ratio * clock, clock), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("folds", [0.0, 0.5, 3.0, 12.0])
def test_the_log_distance_is_that_of_the_matrix_exponential_where_it_can_be_seen(seed: int, folds: float):
    problem, ratio = problem_of(seed)
    modes = expand(problem, ratio)
    clock = folds / (modes.exponents[0] - modes.exponents[1]).item()
    seen = apart(dense_flow(problem, ratio * clock, clock), modes.parts[0])
    assert math.isclose(modes.log_distance(clock), math.log(seen), abs_tol=1e-7)


def test_the_log_distance_agrees_with_eighty_digits_where_it_is_far_below_rounding():
    """Gamma so near 1/(C - 1) that the second and third exponents differ by less than a thousandth."""
    problem, ratio = problem_of(1, 1 / 3 + 1e-3)
    modes = expand(problem, ratio)
    unit = 1 / (modes.exponents[0] - modes.exponents[1]).item()
    with mpmath.workdps(80):
        matrix = mpmath.matrix(generator_matrix(problem, ratio, 1.0).tolist())
        start = mpmath.matrix(problem.state.tolist())
        states = [mpmath.expm(matrix * (folds * unit)) * start for folds in (50, 90, 180)]
        near, far, end = (state / mpmath.mnorm(state, "f") for state in states)
        exact = [float(mpmath.log(mpmath.mnorm(unit_state - end, "f"))) for unit_state in (near, far)]
    assert math.isclose(modes.log_distance(50 * unit), exact[0], abs_tol=1e-10)
    assert math.isclose(modes.log_distance(90 * unit), exact[1], abs_tol=1e-10)


def test_a_part_that_the_start_lacks_is_left_out():
    problem, _ = problem_of(0)
    no_means = Problem(
        4, problem.per_class, problem.gamma, problem.features, problem.weight - problem.weight.mean(0), problem.bias
    )
    no_means.features.sub_(no_means.features.mean(0))
    assert len(expand(no_means, 1.0).exponents) == len(expand(problem, 1.0).exponents) - 2


@pytest.mark.parametrize("seed", range(3))
def test_descent_in_the_plane_is_descent_by_autograd(seed: int):
    h, w = spherical.pair(torch.Generator().manual_seed(seed), 0.7)
    path = spherical.descend(h, w, lambda k: 0.9 / (k + 1), 30)
    for (theta, square), x in zip(spherical.plain_path(h, w, lambda k: 0.9 / (k + 1)), path, strict=False):
        assert math.isclose(theta, spherical.angle(x, w), abs_tol=1e-12)
        assert math.isclose(square, x.norm().item() ** 2, rel_tol=1e-12)


def test_descent_along_singular_vectors_is_descent_with_the_dense_matrix():
    gamma, steps = 0.1, 40
    norms = captions.descent_norms(torch.Generator().manual_seed(3), gamma, steps)
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(captions.CLASSES).repeat_interleave(captions.EXAMPLES)
    drive = drive_matrix(labels, captions.CLASSES, gamma)
    decay = (1 + gamma) / (captions.CLASSES * math.sqrt(captions.EXAMPLES))
    h = torch.randn(len(labels), 2, generator=generator, dtype=torch.float64)
    w = torch.randn(captions.CLASSES, 2, generator=generator, dtype=torch.float64)
    for norm in islice(norms, steps):
        h, w = h + captions.RATE * (drive.T @ w - decay * h), w + captions.RATE * (drive @ h - decay * w)
        assert math.isclose(norm, h.norm().item(), rel_tol=1e-12)
