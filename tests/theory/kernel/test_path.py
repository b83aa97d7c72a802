"""Constant kernels: every answer against the dense exponential of the linear system, written from its definition."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from unhinge import LayerPeeled, constant, cosine, warmup
from unhinge.nn import simplex_etf

F64 = torch.float64
EPS = torch.finfo(F64).eps
LABELS = torch.tensor([0, 2, 1, 1, 0, 2, 1])
CLASSES, DIM, GAMMA = 3, 4, 0.4


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def random_kernel(size: int, rank: int, seed: int = 5) -> Tensor:
    factor = normal(size, rank, seed=seed)
    return factor @ factor.mT / math.sqrt(rank)


def start(size: int = 7, seed: int = 1) -> tuple[Tensor, Tensor]:
    return normal(size, DIM, seed=seed), normal(CLASSES, DIM, seed=seed + 1)


def one_hot(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, CLASSES).to(F64)


def target_matrix(soft: Tensor, gamma: float = GAMMA, weight: Tensor | None = None) -> Tensor:
    """M (C, n) of the weighted mean loss -(1 + gamma) q.z + gamma 1.z, for hard weights a_y."""
    each = torch.ones(len(soft), dtype=F64) if weight is None else soft @ weight
    return (((1 + gamma) * soft - gamma) * each[:, None] / each.sum()).mT


def full(kernel: Tensor) -> Tensor:
    return torch.kron(kernel, torch.eye(DIM, dtype=F64))


def dense(
    matrix: Tensor,
    features: Tensor,
    weight: Tensor,
    kernel: Tensor,
    time: float,
    rates: tuple[float, float] = (0.2, 0.1),
    decays: tuple[float, float] = (0.0, 0.0),
) -> tuple[Tensor, Tensor]:
    """h' = eta1 K (m w - lambda1 h), w' = eta2 (m^T h - lambda2 w), by one big matrix exponential."""
    pull = np.kron(matrix.numpy().T, np.eye(features.shape[1]))
    eye = np.eye(weight.numel())
    system = np.block(
        [
            [-rates[0] * decays[0] * kernel.numpy(), rates[0] * kernel.numpy() @ pull],
            [rates[1] * pull.T, -rates[1] * decays[1] * eye],
        ]
    )
    joined = np.concatenate([features.reshape(-1).numpy(), weight.reshape(-1).numpy()])
    moved = torch.from_numpy(scipy.linalg.expm(system * time) @ joined)
    return moved[: features.numel()].reshape(features.shape), moved[features.numel() :].reshape(weight.shape)


def error(state: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    size = max(part.abs().max().item() for part in expected)
    return max((a - b).abs().max().item() for a, b in zip(state, expected, strict=True)) / size


def simulate(
    matrix: Tensor, features: Tensor, weight: Tensor, kernel: Tensor, time: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Really training: steps of gradient descent on features that answer through the kernel; rates (0.2, 0.1)."""
    size = time / steps
    for _ in range(steps):
        h = features.clone().requires_grad_(True)
        w = weight.clone().requires_grad_(True)
        loss = -(matrix * (w @ h.mT)).sum()
        by_h, by_w = torch.autograd.grad(loss, (h, w))
        features = features - 0.2 * size * (kernel @ by_h.reshape(-1)).reshape(h.shape)
        weight = weight - 0.1 * size * by_w
    return features, weight


KERNELS = {
    "example": (random_kernel(7, 9), full(random_kernel(7, 9))),
    "example_singular": (random_kernel(7, 2), full(random_kernel(7, 2))),
    "full": (random_kernel(28, 40), random_kernel(28, 40)),
    "full_singular": (random_kernel(28, 3), random_kernel(28, 3)),
    "zero": (torch.zeros(7, 7, dtype=F64), torch.zeros(28, 28, dtype=F64)),
    "identity": (torch.eye(7, dtype=F64), torch.eye(28, dtype=F64)),
}
SOFT = torch.softmax(normal(7, CLASSES, seed=9), 1)
CLASS_WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=F64)


@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.0, 0.3), (0.2, 0.0), (0.3, 0.2), (2.0, 2.0)])
@pytest.mark.parametrize("targets", ["hard", "soft", "weighted", "sqrt"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_answer_is_that_of_the_dense_exponential(name: str, targets: str, decays: tuple[float, float]) -> None:
    """[eq: kernel-flow], [eq: kernel-damped]."""
    kernel, whole = KERNELS[name]
    weights = {"weighted": CLASS_WEIGHT, "sqrt": one_hot(LABELS).sum(0).rsqrt()}.get(targets)
    asked = {"weighted": CLASS_WEIGHT, "sqrt": "sqrt"}.get(targets)
    soft = SOFT if targets == "soft" else one_hot(LABELS)
    matrix = target_matrix(soft, weight=weights)
    problem = LayerPeeled(
        SOFT if targets == "soft" else LABELS,
        CLASSES,
        gamma=GAMMA,
        feature_decay=decays[0],
        weight_decay=decays[1],
        class_weight=asked,
    )
    features, weight = start()
    path = problem.kernel_flow(features, weight, kernel, lr=(0.2, 0.1))
    times = torch.tensor([0.0, 1e-3, 2.0, 25.0], dtype=F64)
    states, end = path.at(times), path.direction()
    expected = [dense(matrix, features, weight, whole, time, decays=decays) for time in times.tolist()]
    for k, truth in enumerate(expected):
        assert error((states.features[k], states.weight[k]), truth) < 1e-12  # the budget of scipy's expm, not ours
    h, w = (torch.stack(parts) for parts in zip(*expected, strict=True))
    h_norm, w_norm = h.norm(dim=(1, 2)), w.norm(dim=(1, 2))
    size = torch.hypot(h_norm, w_norm)
    away = [(part / size[:, None, None] - at).norm(dim=(1, 2)) for part, at in ((h, end.features), (w, end.weight))]
    loss = -(matrix * (w @ h.mT)).sum((1, 2))
    right = (h @ w.mT).argmax(-1) == soft.argmax(1)
    torch.testing.assert_close(path.loss(times), loss, rtol=1e-11, atol=0)
    torch.testing.assert_close(path.feature_norm(times), h_norm, rtol=1e-12, atol=0)
    torch.testing.assert_close(path.weight_norm(times), w_norm, rtol=1e-12, atol=0)
    torch.testing.assert_close(path.log_norm(times), size.log(), rtol=0, atol=1e-12)
    torch.testing.assert_close(path.distance(times), torch.hypot(*away), rtol=0, atol=1e-12)
    torch.testing.assert_close(path.accuracy(times), right.double().mean(1), rtol=0, atol=0)


@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_the_direction_of_the_state_is_exact_to_rounding(decays: tuple[float, float], rank: int) -> None:
    """Against mpmath with 60 digits: the state over its norm, and the logarithm of that norm."""
    labels = torch.tensor([0, 1, 1, 0])
    kernel = random_kernel(8, rank)
    features, weight = normal(4, 2), normal(2, 2, seed=1)
    matrix = target_matrix(torch.nn.functional.one_hot(labels, 2).to(F64), 0.5)
    pull = torch.kron(matrix.mT.contiguous(), torch.eye(2, dtype=F64))
    with mpmath.workdps(60):
        k, m = mpmath.matrix(kernel.tolist()), mpmath.matrix(pull.tolist())
        system = mpmath.zeros(12)
        system[:8, :8] = -mpmath.mpf(decays[0]) * k
        system[:8, 8:] = k * m
        system[8:, :8] = m.T
        system[8:, 8:] = -mpmath.mpf(decays[1]) * mpmath.eye(4)
        joined = mpmath.matrix(torch.cat([features.reshape(-1), weight.reshape(-1)]).tolist())
        eighth = mpmath.expm(system / 8)
        moved = [eighth**eighths * joined for eighths in (1, 8 * 30, 8 * 1000)]
        units = torch.tensor([[float(entry / mpmath.norm(state)) for entry in state] for state in moved], dtype=F64)
        logs = torch.tensor([float(mpmath.log(mpmath.norm(state))) for state in moved], dtype=F64)
    problem = LayerPeeled(labels, 2, gamma=0.5, feature_decay=decays[0], weight_decay=decays[1])
    path = problem.kernel_flow(features, weight, kernel, lr=1.0)
    times = torch.tensor([1 / 8, 30.0, 1000.0], dtype=F64)
    state = path.at(times).normalized()
    actual = torch.cat([state.features.flatten(1), state.weight.flatten(1)], 1)
    torch.testing.assert_close(actual, units, rtol=0, atol=64 * EPS)
    torch.testing.assert_close(path.log_norm(times), logs, rtol=64 * EPS, atol=0)


@pytest.mark.parametrize("name", ["example", "full_singular"])
def test_training_in_small_steps_tends_to_the_flow_at_first_order(name: str) -> None:
    kernel, whole = KERNELS[name]
    features, weight = start()
    state = LayerPeeled(LABELS, CLASSES, gamma=GAMMA).kernel_flow(features, weight, kernel, lr=(0.2, 0.1)).at(10.0)
    matrix = target_matrix(one_hot(LABELS))
    errors = [
        error((state.features, state.weight), simulate(matrix, features, weight, whole, 10.0, steps))
        for steps in (500, 1000)
    ]
    assert errors[1] < 1e-2
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.0, 0.1), (0.05, 0.1)])
def test_the_identity_kernel_is_the_free_flow(decays: tuple[float, float]) -> None:
    """[eq: kernel-example]."""
    problem = LayerPeeled(LABELS, CLASSES, feature_decay=decays[0], weight_decay=decays[1])
    features, weight = start()
    free = problem.flow(features, weight, bias=normal(CLASSES), lr=0.3)
    path = problem.kernel_flow(features, weight, torch.eye(7, dtype=F64), lr=0.3, bias=normal(CLASSES))
    times = torch.tensor([0.0, 5.0, 40.0, 1e4], dtype=F64)
    a, b = path.at(times), free.at(times)
    torch.testing.assert_close(a.normalized().features, b.normalized().features, rtol=0, atol=1e-13)
    torch.testing.assert_close(a.normalized().weight, b.normalized().weight, rtol=0, atol=1e-13)
    torch.testing.assert_close(a.bias, b.bias)
    for question in ("log_norm", "distance", "accuracy"):
        torch.testing.assert_close(
            getattr(path, question)(times), getattr(free, question)(times), rtol=1e-10, atol=1e-13
        )
    torch.testing.assert_close(path.loss(times[:3]), free.loss(times[:3]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(path.growth(), free.growth(), rtol=1e-12, atol=0)
    torch.testing.assert_close(path.rate(), free.rate(), rtol=1e-10, atol=0)
    torch.testing.assert_close(path.time_to(1e-3), free.time_to(1e-3), rtol=1e-10, atol=0)
    for key, value in path.collapse(times[:3]).items():
        torch.testing.assert_close(value, free.collapse(times[:3])[key], rtol=1e-8, atol=1e-10)


def operators() -> dict[str, object]:
    example, whole = random_kernel(7, 5), random_kernel(28, 12)

    class OnRows:
        kind = "example"

        def __call__(self, rows: Tensor) -> Tensor:
            return example @ rows

    return {
        "vector_function": (lambda v: whole @ v, whole),
        "row_function": (lambda rows: example @ rows, full(example)),
        "example_object": (OnRows(), full(example)),
        "scipy_full": (LinearOperator((28, 28), matvec=lambda v: whole.numpy() @ v, dtype=np.float64), whole),
        "scipy_example": (
            LinearOperator((7, 7), matvec=lambda v: example.numpy() @ v, dtype=np.float64),
            full(example),
        ),
    }


@pytest.mark.parametrize("name", operators())
def test_an_operator_acts_as_its_matrix(name: str) -> None:
    operator, whole = operators()[name]
    features, weight = start()
    path = LayerPeeled(LABELS, CLASSES, gamma=GAMMA).kernel_flow(features, weight, operator, lr=(0.2, 0.1))
    state = path.at(7.0)
    expected = dense(target_matrix(one_hot(LABELS)), features, weight, whole, 7.0)
    assert error((state.features, state.weight), expected) < 1e-13


def test_an_example_operator_is_asked_once() -> None:
    calls = []

    class Counting:
        kind = "example"

        def __call__(self, rows: Tensor) -> Tensor:
            calls.append(tuple(rows.shape))
            return random_kernel(7, 5) @ rows

    LayerPeeled(LABELS, CLASSES).kernel_flow(*start(), Counting())
    assert calls == [(7, CLASSES)]


@pytest.mark.parametrize("decays", [(0.0, 0.1), (0.2, 0.1), (2.0, 2.0)])
@pytest.mark.parametrize("kind", ["example", "full", "operator"])
def test_unseen_inputs_move_as_if_they_had_been_there_without_a_label(kind: str, decays: tuple[float, float]) -> None:
    """A kernel on 7 + 2 inputs, of which 2 exert no pull and, with feature decay, no penalty. The last decays, with a
    definite kernel, wipe out the training features but not those that nothing penalizes  [eq: kernel-prediction]."""
    each = DIM if kind == "full" else 1
    joint = random_kernel(9 * each, 6)
    if decays[0] > 1:
        joint = joint / 4 + 2 * torch.eye(9 * each, dtype=F64)
    train = joint[: 7 * each, : 7 * each]
    cross = joint[7 * each :, : 7 * each]
    features, weight = start(size=9)
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA, feature_decay=decays[0], weight_decay=decays[1])
    path = problem.kernel_flow(features[:7], weight, train, lr=(0.2, 0.1))
    times = torch.tensor([[0.0, 3.0], [9.0, 20.0]], dtype=F64)
    asked = (lambda rows: cross @ rows) if kind == "operator" else cross
    moved = path.predict(asked, features[7:], times)
    assert moved.shape == (2, 2, 2, DIM)
    # by definition: h_new' = eta1 K_new,train (m w - lambda1 h), integrated with the training path itself
    nodes, weights = np.polynomial.legendre.leggauss(40)
    for actual, time in zip(moved.reshape(4, 2, DIM), times.reshape(-1).tolist(), strict=True):
        state = path.at(time * (nodes + 1) / 2)
        forces = target_matrix(one_hot(LABELS)).mT @ state.weight - decays[0] * state.features
        force = 0.2 * time / 2 * torch.einsum("k,knp->np", torch.from_numpy(weights), forces)
        answer = cross @ force if each == 1 else (cross @ force.reshape(-1)).reshape(2, DIM)
        torch.testing.assert_close(actual, features[7:] + answer, rtol=1e-10, atol=1e-11)


def test_training_inputs_predict_themselves() -> None:
    features, weight = start()
    kernel = random_kernel(28, 11)
    path = LayerPeeled(LABELS, CLASSES, weight_decay=0.1).kernel_flow(features, weight, kernel)
    times = torch.tensor([0.0, 30.0, 1e9], dtype=F64)
    torch.testing.assert_close(path.predict(kernel, features, times), path.at(times).features, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.0, 0.3), (0.2, 0.1), (2.0, 2.0)])
@pytest.mark.parametrize("name", KERNELS)
def test_no_time_is_too_long(name: str, decays: tuple[float, float]) -> None:
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA, feature_decay=decays[0], weight_decay=decays[1])
    path = problem.kernel_flow(*start(), KERNELS[name][0])
    times = torch.tensor([1e3, 1e6, 1e12], dtype=F64)
    state = path.at(times)
    assert torch.isfinite(state.features).all()
    assert torch.isfinite(state.weight).all()
    assert torch.isfinite(path.log_norm(times)).all()
    assert not torch.isnan(path.loss(times)).any()
    assert not torch.isnan(path.accuracy(times)).any()
    assert path.distance(1e12) < 1e-9
    end, far = path.direction(), state.normalized()
    torch.testing.assert_close(far.features[-1], end.features, rtol=0, atol=1e-9)
    torch.testing.assert_close(far.weight[-1], end.weight, rtol=0, atol=1e-9)


@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.0, 0.3), (0.2, 0.1), (2.0, 2.0)])
@pytest.mark.parametrize("name", ["example", "example_singular", "full", "full_singular"])
def test_growth_and_rate_are_the_measured_exponents(name: str, decays: tuple[float, float]) -> None:
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA, feature_decay=decays[0], weight_decay=decays[1])
    path = problem.kernel_flow(*start(), KERNELS[name][0], lr=(0.2, 0.1))
    late = -math.log(1e-60) / abs(path.rate().item())
    times = torch.tensor([late, 1.5 * late], dtype=F64)
    grown = path.log_norm(times).diff().item() / (late / 2)
    assert grown == pytest.approx(path.growth().item(), rel=1e-8, abs=1e-12)
    fallen = path.distance(times).log().diff().item() / (late / 2)
    assert fallen == pytest.approx(path.rate().item(), rel=1e-2)
    assert path.rate() < 0
    wanted = torch.tensor([1e-2, 1e-5], dtype=F64)
    torch.testing.assert_close(path.distance(path.time_to(wanted)), wanted, rtol=1e-8, atol=0)


def test_ties_stay_tied_for_ever() -> None:
    """Balanced classes and equal examples: C - 1 equal eigenvalues that rounding must not tear apart."""
    labels = torch.arange(12) % 4
    kernel = torch.eye(12, dtype=F64) + 0.3
    features, weight = normal(12, 5), normal(4, 5, seed=3)
    path = LayerPeeled(labels, 4).kernel_flow(features, weight, kernel)
    assert torch.linalg.matrix_rank(path.direction().weight) == 3
    torch.testing.assert_close(path.at(1e12).normalized().weight, path.direction().weight, rtol=0, atol=1e-12)


def test_a_start_without_growing_part_decays_instead_of_exploding() -> None:
    """h0 = -sqrt(s) K m w0 / d is the decaying eigenvector; rounding must not feed the growing one."""
    problem = LayerPeeled(torch.arange(6) % 3, 3)
    weight = normal(3, DIM)
    weight = weight - weight.mean(0)
    sigma = problem.singular_values[0]
    pull = target_matrix(one_hot(torch.arange(6) % 3), 0.5).mT @ weight
    path = problem.kernel_flow(-pull / sigma, weight, torch.eye(6, dtype=F64), lr=1.0)
    assert path.log_norm(200.0) < path.log_norm(0.0) - 0.9 * 200 * sigma
    assert path.growth() < 0
    assert torch.isfinite(path.at(1e12).weight).all()
    assert path.limit().weight.abs().max() == 0


def test_without_a_kernel_prototypes_drift_linearly_to_the_class_sums() -> None:
    features, weight = start()
    path = LayerPeeled(LABELS, CLASSES, gamma=GAMMA).kernel_flow(features, weight, torch.zeros(7, 7, dtype=F64), lr=1.0)
    drift = target_matrix(one_hot(LABELS)) @ features
    torch.testing.assert_close(path.at(50.0).weight, weight + 50 * drift)
    torch.testing.assert_close(path.direction().weight, drift / drift.norm())
    assert path.growth() == 0
    assert path.rate() == 0
    with pytest.raises(ValueError, match="diverges"):
        path.limit()


def test_the_limit_is_where_a_damped_path_ends() -> None:
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA, feature_decay=2.0, weight_decay=2.0)
    path = problem.kernel_flow(*start(), random_kernel(7, 2))
    torch.testing.assert_close(path.limit().features, path.at(1e7).features, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(path.limit().weight, path.at(1e7).weight, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "schedule", [cosine(0.3, total=20.0), warmup(constant(0.2), duration=5.0), lambda t: 0.1 / (1 + t)]
)
def test_a_schedule_is_a_clock(schedule: object) -> None:
    problem = LayerPeeled(LABELS, CLASSES, weight_decay=0.1)
    features, weight = start()
    kernel = random_kernel(28, 12)
    path = problem.kernel_flow(features, weight, kernel, lr=schedule)
    plain = problem.kernel_flow(features, weight, kernel, lr=1.0)
    clock = path.schedule.integral(12.0)
    torch.testing.assert_close(path.at(12.0).features, plain.at(clock).features, rtol=1e-11, atol=1e-12)


def test_batched_times_are_single_times() -> None:
    path = LayerPeeled(LABELS, CLASSES).kernel_flow(*start(), random_kernel(7, 4), bias=normal(CLASSES))
    times = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1e4, 1e9]], dtype=F64)
    state = path.at(times)
    assert state.features.shape == (2, 3, 7, DIM)
    assert state.weight.shape == (2, 3, CLASSES, DIM)
    assert state.bias is not None
    assert state.bias.shape == (2, 3, CLASSES)
    for question in (path.loss, path.accuracy, path.distance, path.log_norm, path.feature_norm):
        whole = question(times)
        assert whole.shape == (2, 3)
        torch.testing.assert_close(whole[1, 0], question(3.0))


def test_float32_stays_float32_and_close() -> None:
    features, weight = start()
    kernel = random_kernel(7, 5)
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA)
    exact = problem.kernel_flow(features, weight, kernel).at(20.0)
    single = problem.kernel_flow(features.float(), weight.float(), kernel.float()).at(20.0)
    assert single.features.dtype == torch.float32
    torch.testing.assert_close(single.features.double(), exact.features, rtol=1e-4, atol=1e-5)


def test_answers_are_differentiable_in_the_start() -> None:
    features, weight = (part.requires_grad_(True) for part in start())
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA, weight_decay=0.1)

    def answers(h: Tensor, w: Tensor, first: bool = False) -> tuple[Tensor, ...]:
        path = problem.kernel_flow(h, w, random_kernel(7, 4))
        if first:
            path.time_to(0.1)  # works without gradients, and must not leave any of that behind
        return path.loss(4.0), path.log_norm(4.0), path.distance(4.0), path.at(4.0).features.sum()

    assert torch.autograd.gradcheck(answers, (features, weight))
    total = [sum(answers(features, weight, first)) for first in (False, True)]
    plain, after = (torch.autograd.grad(value, (features, weight)) for value in total)
    torch.testing.assert_close(after, plain, rtol=0, atol=0)


def differentiable(
    labels: Tensor, numbers: Tensor, features: Tensor, weight: Tensor, kernel: Tensor, time: float
) -> tuple[Tensor, Tensor]:
    """The state by torch's matrix exponential of the dense system, from gamma, both decays and the features' rate; the
    prototypes' rate is 0.2."""
    gamma, feature_decay, weight_decay, rate = numbers
    pull = ((1 + gamma) * one_hot(labels) - gamma) / len(labels)
    eye = torch.eye(CLASSES, dtype=F64)
    top = torch.cat([-rate * feature_decay * kernel, rate * kernel @ pull], 1)
    bottom = torch.cat([0.2 * pull.mT, -0.2 * weight_decay * eye], 1)
    moved = torch.linalg.matrix_exp(time * torch.cat([top, bottom])) @ torch.cat([features, weight])
    return moved[: len(labels)], moved[len(labels) :]


MEETING = {  # gamma, both decays and the features' rate; the prototypes' rate is 0.2
    "default": (0.5, 0.0, 0.0, 0.3),
    "default_prototypes": (0.5, 0.0, 0.3, 0.3),
    "default_equal": (0.5, 0.2, 0.3, 0.3),
    "overdamped": (0.5, 3.0, 2.0, 0.3),
    "apart": (0.3, 0.02, 0.0, 0.3),
    "largest": (2.0, 0.0, 0.1, 0.3),
}
STARTS = {
    "any": lambda h, w: (h, w),
    "no features": lambda h, w: (0 * h, w),
    "no prototypes": lambda h, w: (h, 0 * w),
    "nothing": lambda h, w: (0 * h, 0 * w),
    "centered": lambda h, w: (0 * h, w - w.mean(0)),
}


@pytest.mark.parametrize("begin", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("numbers", MEETING.values(), ids=MEETING)
@pytest.mark.parametrize("name", ["regular", "singular", "identity", "alike", "zero"])
def test_slopes_are_right_where_modes_meet_and_where_the_start_lacks_one(
    name: str, numbers: tuple[float, ...], begin: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    labels = torch.arange(6) % CLASSES
    kernel = {
        "regular": random_kernel(6, 8),
        "singular": random_kernel(6, 2),
        "identity": torch.eye(6, dtype=F64),
        "alike": one_hot(labels) @ one_hot(labels).mT + 0.3,
        "zero": torch.zeros(6, 6, dtype=F64),
    }[name]
    inputs = [part.requires_grad_() for part in (torch.tensor(numbers, dtype=F64), *begin(*start(6)))]
    (gamma, feature_decay, weight_decay, rate), features, weight = inputs
    problem = LayerPeeled(labels, CLASSES, gamma, feature_decay, weight_decay)
    path = problem.kernel_flow(features, weight, kernel, lr=(rate, 0.2))
    pull = ((1 + gamma) * one_hot(labels) - gamma) / len(labels)
    by = normal(6, DIM, seed=8), normal(CLASSES, DIM, seed=9)
    for time in (3.0, 25.0):
        state, expected = path.at(time), differentiable(labels, *inputs, kernel, time)
        answers = [
            ((by[0] * state.features).sum() + (by[1] * state.weight).sum(), by[0] * expected[0], by[1] * expected[1]),
            (path.loss(time), -pull * (expected[0] @ expected[1].mT)),
        ]
        if any(part.any() for part in (features, weight)):  # a norm of zero has no slope
            answers.append((path.feature_norm(time) ** 2, expected[0] ** 2))
            answers.append((path.weight_norm(time) ** 2, expected[1] ** 2))
        for answer, *terms in answers:
            slopes = torch.autograd.grad(answer, inputs, allow_unused=True, retain_graph=True)
            wanted = torch.autograd.grad(sum(term.sum() for term in terms), inputs, retain_graph=True)
            for slope, right in zip(slopes, wanted, strict=True):
                size = max(1.0, right.abs().max().item())
                assert (torch.zeros_like(right) if slope is None else slope).sub(right).abs().max() < 1e-10 * size


def test_held_prototypes_that_exert_no_pull_have_a_slope_that_does() -> None:
    labels, kernel = torch.arange(6) % CLASSES, random_kernel(6, 8)
    weight = torch.ones(CLASSES, DIM, dtype=F64, requires_grad=True)
    path = LayerPeeled(labels, CLASSES).kernel_flow(start(6)[0], weight, kernel, lr=(0.2, 0.0))
    by = normal(6, DIM, seed=8)
    (slope,) = torch.autograd.grad((by * path.at(3.0).features).sum(), weight)
    pull = (1.5 * one_hot(labels) - 0.5) / 6
    torch.testing.assert_close(slope, 3.0 * 0.2 * (kernel @ pull).mT @ by, rtol=0, atol=1e-13)


DECAYS = {"free": (0.0, 0.0), "features": (0.3, 0.0), "prototypes": (0.0, 0.2), "both": (0.3, 0.2)}


@pytest.mark.parametrize("singular", [False, True], ids=["regular", "singular"])
@pytest.mark.parametrize("per_entry", [False, True], ids=["example", "full"])
@pytest.mark.parametrize("rates", [(0.2, 0.0), (0.0, 0.1), (0.0, 0.0)], ids=["held", "frozen", "still"])
@pytest.mark.parametrize("decays", DECAYS.values(), ids=DECAYS)
def test_a_rate_of_zero_holds_its_side(
    decays: tuple[float, float], rates: tuple[float, float], per_entry: bool, singular: bool
) -> None:
    features, weight = start()
    kernel = random_kernel(28, 5 if singular else 30) if per_entry else random_kernel(7, 3 if singular else 9)
    matrix, bias = target_matrix(one_hot(LABELS)), normal(CLASSES, seed=9)
    path = LayerPeeled(LABELS, CLASSES, GAMMA, *decays).kernel_flow(features, weight, kernel, lr=rates, bias=bias)
    for time in (0.0, 0.5, 3.0, 20.0):
        expected = dense(matrix, features, weight, kernel if per_entry else full(kernel), time, rates, decays)
        state = path.at(time)
        assert error((state.features, state.weight), expected) < 1e-14
        assert path.log_norm(time).item() == pytest.approx(torch.cat(expected).norm().log().item(), abs=1e-13)
        logits = expected[0] @ expected[1].mT + state.bias
        assert path.loss(time).item() == pytest.approx(-(matrix.mT * logits).sum().item(), rel=1e-12)
        assert path.accuracy(time).item() == pytest.approx((logits.argmax(1) == LABELS).double().mean().item())
    if max(rates) > 0:
        late, direction = path.at(1e9), path.direction()
        both = torch.cat([late.features, late.weight])
        apart = (both / both.norm() - torch.cat([direction.features, direction.weight])).norm().item()
        assert apart < 1e-7
        assert path.distance(1e9).item() == pytest.approx(apart, abs=1e-12)
        assert path.growth() == 0


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_held_prototypes_move_unseen_inputs_through_the_kernel_alone(decay: float) -> None:
    features, weight = start(9)
    kernel, labels = random_kernel(9, 12), torch.cat([LABELS, LABELS[:2]])
    known = slice(0, 7)
    path = LayerPeeled(labels[known], CLASSES, GAMMA, decay).kernel_flow(
        features[known], weight, kernel[known, known], lr=(0.2, 0.0)
    )
    # the flow of all nine with a pull on the first seven only: what the other two do is the prediction
    matrix = torch.cat([target_matrix(one_hot(labels[known])).mT @ weight, torch.zeros(2, DIM, dtype=F64)])
    shown = torch.diag(torch.tensor([1.0] * 7 + [0.0] * 2, dtype=F64))
    system = torch.zeros(18, 18, dtype=F64)  # of (H, pull), the pull constant
    system[:9, :9], system[:9, 9:] = -0.2 * decay * kernel @ shown, 0.2 * kernel
    moved = (torch.linalg.matrix_exp(3.0 * system) @ torch.cat([features, matrix]))[:9]
    torch.testing.assert_close(path.at(3.0).features, moved[known], rtol=0, atol=1e-12)
    torch.testing.assert_close(path.predict(kernel[7:, known], features[7:], 3.0), moved[7:], rtol=0, atol=1e-12)


def test_held_prototypes_under_an_operator_a_schedule_and_with_slopes() -> None:
    features, weight = start()
    kernel = random_kernel(7, 9)
    problem = LayerPeeled(LABELS, CLASSES, gamma=GAMMA)
    schedule = cosine(0.2, total=5.0)
    given = problem.kernel_flow(features, weight, kernel, lr=(schedule, 0.0))
    asked = problem.kernel_flow(features, weight, lambda rows: kernel @ rows, lr=(schedule, 0.0))
    torch.testing.assert_close(asked.at(3.0).features, given.at(3.0).features, rtol=0, atol=1e-13)
    expected = features + schedule.integral(3.0) * kernel @ target_matrix(one_hot(LABELS)).mT @ weight
    torch.testing.assert_close(given.at(3.0).features, expected, rtol=0, atol=1e-13)

    def asks(h: Tensor, w: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, ...]:
        path = LayerPeeled(LABELS, CLASSES, GAMMA, decay).kernel_flow(h, w, kernel, lr=(rate, 0.0))
        return path.at(2.0).features, path.loss(2.0), path.log_norm(2.0)

    numbers = [torch.tensor(value, dtype=F64, requires_grad=True) for value in (0.2, 0.3)]
    starts = [part.clone().requires_grad_() for part in (features, weight)]
    assert torch.autograd.gradcheck(asks, (*starts, *numbers))


def bad_kernels() -> dict[str, tuple[object, str]]:
    good = random_kernel(7, 9)
    crooked = good.clone()
    crooked[0, 1] += 0.5
    spoiled = good.clone()
    spoiled[2, 2] = math.nan
    return {
        "not symmetric": (crooked, r"mirror image by up to 0\.5"),
        "indefinite": (good - 5 * torch.eye(7, dtype=F64), r"eigenvalue -[\d.]+"),
        "wrong shape": (random_kernel(8, 9), r"\(n, n\) = \(7, 7\) or \(n p, n p\) = \(28, 28\).*got \(8, 8\)"),
        "not a number": (spoiled, "NaN"),
        "other dtype": (good.float(), "share one dtype"),
        "a list of another size": ([[1.0]], r"got \(1, 1\)"),
        "text": ("kernel.npy", "got str"),
        "names": ([["a"]], "must be a torch.Tensor, a numpy array or a list"),
        "numpy of another size": (np.eye(3), r"got \(3, 3\)"),
        "function to nowhere": (lambda rows: rows[:2], "returned"),
        "function that fails": (lambda rows: rows @ torch.eye(5, dtype=F64), "neither to rows"),
        "NaN function": (lambda rows: rows * math.nan, "NaN or infinite"),
        "crooked function": (lambda v: crooked @ v, "symmetric"),
        "indefinite function": (lambda rows: -rows, "eigenvalue -"),
    }


@pytest.mark.parametrize("name", bad_kernels())
def test_a_bad_kernel_is_refused_with_the_reason(name: str) -> None:
    kernel, reason = bad_kernels()[name]
    with pytest.raises(ValueError, match=reason):
        LayerPeeled(LABELS, CLASSES, gamma=GAMMA).kernel_flow(*start(), kernel)


def test_other_bad_input_is_refused_with_the_reason() -> None:
    problem = LayerPeeled(LABELS, CLASSES)
    features, weight = start()
    kernel = random_kernel(7, 9)
    with pytest.raises(ValueError, match="proportional"):
        problem.kernel_flow(features, weight, kernel, lr=(constant(0.1), cosine(0.1, total=5.0)))
    with pytest.raises(ValueError, match="no slope by a rate of zero"):
        problem.kernel_flow(features, weight, kernel, lr=(0.1, torch.zeros((), requires_grad=True)))
    with pytest.raises(ValueError, match="weight must have shape"):
        problem.kernel_flow(features, weight[:, :2], kernel)
    with pytest.raises(ValueError, match="needs all eigenvectors"):
        LayerPeeled(LABELS, CLASSES, feature_decay=0.1).kernel_flow(features, weight, lambda rows: rows)
    with pytest.raises(ValueError, match="start is zero"):
        problem.kernel_flow(0 * features, 0 * weight, kernel).direction()
    path = problem.kernel_flow(features, weight, kernel)
    with pytest.raises(ValueError, match="cross_kernel must have shape"):
        path.predict(kernel[:3, :2], features[:3], 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        path.time_to(0.0)
    with pytest.raises(ValueError, match="lr="):
        problem.kernel_flow(features, weight, kernel, lr=cosine(0.1, total=5.0)).growth()


def test_shared_features_recover_the_clean_labels_that_free_features_forget() -> None:
    """One fixed labelling with 30% flipped: free features learn it by heart, a smooth kernel sees through it."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.arange(240) % 4
    centers = 3 * torch.randn(4, 6, generator=generator, dtype=F64)
    inputs = centers[clean] + torch.randn(240, 6, generator=generator, dtype=F64)
    noisy = clean.clone()
    flipped = torch.randperm(240, generator=generator)[:72]
    noisy[flipped] = (clean[flipped] + torch.randint(1, 4, (72,), generator=generator)) % 4
    kernel = torch.exp(-(torch.cdist(inputs, inputs) ** 2) / 40)
    features = 0.01 * torch.randn(240, 16, generator=generator, dtype=F64)
    weight = torch.randn(4, 16, generator=generator, dtype=F64) / 4
    problem = LayerPeeled(noisy, 4, class_weight="sqrt")
    free, shared = problem.flow(features, weight), problem.kernel_flow(features, weight, kernel)
    assert free.accuracy(2 / free.growth()) == 1.0  # agrees with every noisy label, hence with 70% of the clean ones
    state = shared.at(1 / shared.growth())
    guess = (state.features @ (state.weight - state.weight.mean(0)).mT).argmax(1)
    assert (guess == clean).double().mean() > 0.95
    assert (guess == noisy).double().mean() < 0.75


@pytest.mark.parametrize("size", [6, 9, 30])
def test_a_kernel_that_moves_all_examples_alike_separates_no_classes(size):
    """G is zero but for rounding, and rounding is neither symmetric nor a direction."""
    problem = LayerPeeled(torch.arange(size) % 3, num_classes=3)
    features, weight = random_kernel(size, 1)[:, :4].contiguous(), random_kernel(4, 2)[:3].contiguous()
    path = problem.kernel_flow(features, weight, torch.full((size, size), 0.3, dtype=F64))
    assert path.growth().item() == 0
    assert torch.equal(path.at(5.0).features, features)


@pytest.mark.parametrize(("classes", "per_class"), [(3, 2), (4, 3)])
@pytest.mark.parametrize("lift", [0.0, 0.5])
def test_modes_that_lead_together_under_feature_decay_do_so_in_spite_of_rounding(classes, per_class, lift):
    """Balanced classes have C - 1 equal exponents; an eigensolver tells them apart by their last bits."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(classes).repeat_interleave(per_class)
    features = torch.randn(len(labels), 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, 5, generator=generator, dtype=torch.float64)
    problem = LayerPeeled(labels, feature_decay=0.02, weight_decay=0.03)
    kernel = torch.eye(len(labels), dtype=torch.float64) + lift  # which moves what is common to all features only
    path, free = problem.kernel_flow(features, weight, kernel, lr=0.3), problem.flow(features, weight, lr=0.3)
    assert path.rate().item() == pytest.approx(free.rate().item(), rel=1e-9)
    assert path.distance(3000.0) < 1e-50
    late, end = path.at(3000.0), path.direction()
    norm = torch.hypot(late.features.norm(), late.weight.norm())
    assert (late.weight / norm - end.weight).abs().max() < 1e-12


# ---- prototypes that stay  [eq: kernel-anchored] ---------------------------------------------------------------------

STILL = (1.0, 1e-13)  # a rate so small that the prototypes do not move within these times


def uneven(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labels of a long tail, an invertible kernel of points whose classes overlap, a simplex, and features of zero."""
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor([20, 6, 2]))
    points = normal(len(labels), 2, seed=seed) + labels[:, None]
    kernel = torch.exp(-(torch.cdist(points, points) ** 2))
    simplex = simplex_etf(CLASSES, DIM, torch.Generator().manual_seed(seed), dtype=F64)
    return labels, kernel, simplex, torch.zeros(len(labels), DIM, dtype=F64)


@pytest.mark.parametrize("seed", range(6))
def test_without_decay_an_example_goes_to_the_class_of_the_largest_kernel_sum_for_ever(seed: int):
    labels, kernel, simplex, features = uneven(seed)
    chosen = (kernel @ one_hot(labels)).argmax(1)
    path = LayerPeeled(labels, CLASSES, GAMMA).kernel_flow(features, simplex, kernel, lr=STILL)
    for time in (0.1, 10.0, 1000.0):
        assert torch.equal((path.at(time).features @ simplex.mT).argmax(1), chosen)
    assert path.accuracy(1000.0) == (chosen == labels).to(F64).mean() < 1


@pytest.mark.parametrize("seed", range(6))
def test_with_decay_every_example_ends_on_its_own_prototype(seed: int):
    labels, kernel, simplex, features = uneven(seed)
    decay = 0.2
    slowest = 1 / (decay * torch.linalg.eigvalsh(kernel)[0].item())
    path = LayerPeeled(labels, CLASSES, GAMMA, feature_decay=decay).kernel_flow(
        features, simplex, kernel, lr=(1.0, 1e-6 / slowest)
    )
    end = path.at(40 * slowest).features
    expected = (1 + GAMMA) * simplex[labels] / (decay * len(labels))
    torch.testing.assert_close(end, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    assert path.accuracy(40 * slowest) == 1
