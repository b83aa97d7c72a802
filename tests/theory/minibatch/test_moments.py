"""Moments of minibatch SGD against every batch in turn, the full second moment, and simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oracles import EPS
from oracles.moments import Sgd, enumerated, full_recursion, invariants, simulated
from unhinge.theory import LayerPeeled, cosine
from unhinge.theory.minibatch.moments import MinibatchMoments, minibatch_moments

BALANCED = {"three pairs": [0, 1, 2, 2, 1, 0], "two pairs": [1, 0, 0, 1], "one of each": [2, 0, 1]}
IMBALANCED = {"three and one": [0, 0, 1, 0], "two, one, three": [0, 2, 1, 2, 0, 2], "one and two": [0, 1, 1]}
LABELS = BALANCED | IMBALANCED


def make(labels: list[int], batch_size: int, replacement: bool, seed: int = 0, dim: int = 3, **changes: object) -> Sgd:
    generator = torch.Generator().manual_seed(seed)
    target = torch.tensor(labels)
    features = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(int(target.max()) + 1, dim, generator=generator, dtype=torch.float64)
    known = {"gamma": 0.4, "lr": (0.7, 0.3), "feature_decay": 0.2, "weight_decay": 0.1} | changes
    return Sgd(target, features, weight, batch_size=batch_size, replacement=replacement, **known)


def solve(sgd: Sgd, lr: object = None) -> MinibatchMoments:
    return minibatch_moments(
        sgd.target,
        len(sgd.weight),
        sgd.features,
        sgd.weight,
        sgd.gamma,
        sgd.batch_size,
        sgd.replacement,
        sgd.lr if lr is None else lr,
        sgd.feature_decay,
        sgd.weight_decay,
    )


def answers(solved: MinibatchMoments, steps: Tensor) -> Tensor:
    questions = (
        solved.loss,
        solved.feature_norm_squared,
        solved.weight_norm_squared,
        solved.within_scatter,
        solved.between_scatter,
    )
    return torch.stack([question(steps) for question in questions], -1)


def assert_close(actual: Tensor, expected: Tensor, eps: float) -> None:
    """Errors in eps of the squared norms, which bound all five answers."""
    scale = expected[..., 1:3].sum(-1, keepdim=True)
    assert ((actual - expected).abs() / scale).max().item() <= eps * EPS


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize(("batch_size", "replacement"), [(1, False), (2, False), (2, True), (3, False)])
def test_every_sequence_of_batches_in_turn(labels, batch_size, replacement):
    """[eq: sgd-moments], [eq: batch-draws]."""
    sgd = make(labels, batch_size, replacement)
    assert_close(answers(solve(sgd), torch.arange(3)), enumerated(sgd, 2), eps=32)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("batch_size", [1, 2, "all"])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("changes", [{}, {"gamma": 0.0, "feature_decay": 0.0}, {"gamma": 2.0, "lr": (0.1, 2.5)}])
def test_the_recursion_of_the_full_second_moment(labels, batch_size, replacement, changes):
    sgd = make(labels, len(labels) if batch_size == "all" else batch_size, replacement, **changes)
    assert_close(answers(solve(sgd), torch.arange(61)), full_recursion(sgd, 60), eps=256)


@pytest.mark.parametrize(
    "labels", [list(range(5)) * 8, [0] * 20 + [1] * 10 + [2] * 6 + [3] * 3 + [4]], ids=["equal", "tail"]
)
@pytest.mark.parametrize("replacement", [False, True])
def test_simulation_agrees_within_its_standard_error(labels, replacement):
    """2,000 runs of 40 examples: the five answers within four standard errors, which are below two per cent."""
    sgd = make(labels, 4, replacement, lr=(1.5, 0.3), feature_decay=0.05, gamma=0.25)
    mean, error = simulated(sgd, steps=25, runs=2000)
    actual = answers(solve(sgd), torch.tensor(25))
    assert ((actual - mean).abs() <= 4 * error).all()
    assert (error <= 0.02 * mean.abs()).all()


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_the_full_batch_is_gradient_descent(labels):
    """[eq: mean-iterate]."""
    sgd = make(labels, len(labels), False)
    problem = LayerPeeled(sgd.target, len(sgd.weight), sgd.gamma, sgd.feature_decay, sgd.weight_decay)
    path = problem.descent(sgd.features, sgd.weight, lr=sgd.lr)
    expected = [invariants(sgd, path.at(k).features, path.at(k).weight) for k in (0, 1, 10, 80)]
    solved = solve(sgd)
    assert_close(answers(solved, torch.tensor([0, 1, 10, 80])), torch.stack(expected), eps=2048)
    assert abs(solved.excess_growth().item()) < 1e-13
    assert solved.descent_growth().item() == pytest.approx(path.growth().item(), rel=1e-12)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_noise_makes_the_second_moment_grow_faster(labels):
    """[eq: excess-growth]."""
    growths = [solve(make(labels, size, False)).excess_growth().item() for size in (1, 2, len(labels))]
    assert growths[0] > growths[1] > growths[2] - 1e-14
    assert growths[1] > 0 or len(labels) == 2


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_growth_is_what_late_steps_show(labels):
    solved = solve(make(labels, 1, False))
    slope = solved.log_norm_squared(torch.tensor([2000, 3000])).diff() / 1000
    assert slope.item() == pytest.approx(solved.growth().item(), rel=1e-9)


@pytest.mark.parametrize("name", ["three pairs", "two, one, three"])
def test_a_schedule_is_the_steps_one_by_one(name):
    sgd = make(LABELS[name], 2, True)
    schedule = cosine(0.5, total=12)
    solved, expected = solve(sgd, lr=schedule), solve(sgd)
    now = expected.start
    for k in range(12):
        rate = schedule(float(k)).item()
        now = expected.rule.step(now, rate, rate)
    actual = answers(solved, torch.tensor([12, 50]))
    for row in actual:  # the rate is 0 from step 12 on
        assert_close(row, expected.rule.answers(now), eps=64)


@pytest.mark.parametrize("labels", IMBALANCED.values(), ids=IMBALANCED)
@pytest.mark.parametrize("lr", [(0.7, 0.3), cosine(0.5, total=90)], ids=["constant", "cosine"])
def test_numpy_without_a_gradient_is_torch_with_one(labels, lr):
    """Both follow the same formulas, so they agree to the last digits."""
    sgd = make(labels, 2, False)
    steps = torch.tensor([[0, 1], [70, 200]])
    plain = answers(solve(sgd, lr=lr), steps)
    start = sgd.weight.clone().requires_grad_()
    with_gradient = answers(solve(replace(sgd, weight=start), lr=lr), steps)
    assert with_gradient.requires_grad
    assert not plain.requires_grad
    assert_close(plain, with_gradient.detach(), eps=4)


def test_seven_numbers_are_the_class_pairs_averaged():
    """[eq: seven]."""
    sgd = make([0, 1, 2, 3] * 3, 2, False, gamma=1 / 3)
    solved = solve(sgd)
    assert solved.balanced
    steps = torch.arange(0, 200, 7)
    log, values = solved._solve_class_pairs(steps)
    assert_close(answers(solved, steps), torch.exp(log)[:, None] * values, eps=512)


def test_scatter_within_classes_dies_under_descent_and_lives_on_noise():
    labels = [0, 1, 2] * 4
    quiet = solve(make(labels, 12, False, feature_decay=0.5))
    noisy = solve(make(labels, 1, False, feature_decay=0.5))
    assert quiet.within_scatter(400).item() < 1e-60 * quiet.feature_norm_squared(400).item()
    assert noisy.within_scatter(400).item() > 1e-3 * noisy.feature_norm_squared(400).item()


def test_no_number_of_steps_is_too_large():
    for labels in ([0, 1, 2], [0, 1, 1]):
        solved = solve(make(labels, 1, False))
        late = 10**9 if labels == [0, 1, 2] else 3000
        assert math.isfinite(solved.log_norm_squared(late).item())
        assert not torch.isnan(answers(solved, torch.tensor([late]))).any()


def test_shapes_and_dtypes_follow_the_input():
    sgd = make([0, 1, 2], 1, False)
    single = minibatch_moments(sgd.target, 3, sgd.features.float(), sgd.weight.float())
    assert single.loss(torch.tensor([[0, 1], [2, 3]])).shape == (2, 2)
    assert single.loss(3).dtype == torch.float32
    assert single.loss(3).shape == ()


REFUSED = {
    "soft labels": ({"target": torch.full((3, 3), 1 / 3)}, "integer labels only"),
    "an empty class": ({"target": torch.tensor([0, 0, 1])}, "every class"),
    "batch of none": ({"batch_size": 0}, "batch_size"),
    "batch too large": ({"batch_size": 4}, "without replacement"),
    "other shape": ({"weight": torch.zeros(2, 3, dtype=torch.float64)}, "shape"),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_moments_is_refused(changes, words):
    sgd = make([0, 1, 2], 1, False)
    known = {"target": sgd.target, "num_classes": 3, "features": sgd.features, "weight": sgd.weight}
    with pytest.raises(ValueError, match=words):
        minibatch_moments(**(known | changes))
