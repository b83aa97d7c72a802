r"""The certificate against real losses by autograd: never violated, and close while logits are small
[eq: certificate]."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.early import Young, make_young, relative_error, run_flow, run_sgd, value
from unhinge.nn import class_weights
from unhinge.theory import EarlyCrossEntropy, Linearized, constant, cosine, exponential, summarize, warmup
from unhinge.theory.early import certificate
from unhinge.theory.early.loss import binary_cross_entropy, cross_entropy, focal, squared_error
from unhinge.theory.early.norms import Weights, measure, spectral_norm, unseen_residuals

INTEGRATION = 1e-10  # what the oracle of the flow itself may be off


def check_steps(
    case: Young, schedules: tuple[Any, Any], steps: list[int], **options: Any
) -> list[tuple[float, float, float]]:
    """(true error, bound, largest logit) after each number of steps; fails where the bound is below the error."""
    path = case.problem().descent(case.features, case.weight, case.bias, lr=schedules, **options)
    rates = tuple(lambda k, s=s: s(float(k)).item() for s in schedules)
    found = []
    for step, real in zip(steps, run_sgd(case, rates, steps, **options), strict=True):  # type: ignore[arg-type]
        error, bound = relative_error(path.at(step), real), path.error_bound(step).item()
        # an infinite bound claims nothing, and real steps that are far too long end in inf - inf
        assert bound == math.inf or error <= bound, f"after {step} steps {error:.3e} is above its bound {bound:.3e}"
        found.append((error, bound, largest_logit(case, real)))
    return found


def check_times(
    case: Young, schedules: tuple[Any, Any], times: list[float], frozen: bool = False
) -> list[tuple[float, float, float]]:
    problem = case.problem()
    solve = problem.anchored if frozen else problem.flow
    path = solve(case.features, case.weight, case.bias, lr=schedules)
    rates = tuple(lambda t, s=s: s(t).item() for s in schedules)
    found = []
    for time, real in zip(times, run_flow(case, rates, times, frozen), strict=True):  # type: ignore[arg-type]
        error, bound = relative_error(path.at(time), real, weight_moves=not frozen), path.error_bound(time).item()
        assert error <= bound + INTEGRATION, f"at {time} the error {error:.3e} is above its bound {bound:.3e}"
        found.append((error, bound, largest_logit(case, real)))
    return found


def largest_logit(case: Young, real: tuple[Any, Any, Any]) -> float:
    logits = real[0] @ real[1].mT
    return ((logits if real[2] is None else logits + real[2]).abs().max() / case.temperature).item()


def test_the_table_of_the_theory() -> None:
    """C = 10, five examples each, p = 32, start 1e-2 normal, rate 0.05: within 1.5 of the truth below logits of 0.1,
    alive at logits of 0.6, and all labels learned inside the horizon  [eq: certificate]."""
    case = make_young([5] * 10, dim=32, scale=0.01)
    rows = check_steps(case, (constant(0.05),) * 2, [1, 5, 250, 500, 1000, 1250, 1450])
    for error, bound, logit in rows:
        if logit < 0.1:
            assert bound <= 1.5 * error
    assert rows[-1][2] > 0.5
    assert rows[-1][1] < 0.5
    path = case.problem().descent(case.features, case.weight, lr=0.05)
    horizon = int(path.horizon(0.1))
    assert path.error_bound(horizon) <= 0.1 < path.error_bound(horizon + 1)
    assert path.accuracy(horizon) == 1
    assert path.learned(1.0).max() < horizon


TAIL = [50, 30, 20, 10, 5, 3, 2, 1]
FREQUENCIES = (torch.tensor(TAIL, dtype=torch.float64) / sum(TAIL)).log()
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logit adjusted": {"logit_adjustment": FREQUENCIES},
    "weighted": {"class_weight": torch.tensor(TAIL, dtype=torch.float64) ** -0.5},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed and weighted": {"label_smoothing": 0.1, "class_weight": torch.tensor(TAIL, dtype=torch.float64) ** -0.5},
    "temperature": {"temperature": 5.0},
    "decays": {"feature_decay": 0.01, "weight_decay": 0.003},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_long_tail_is_bounded_closely(name: str) -> None:
    case = make_young(TAIL, dim=16, scale=0.01, **SETTINGS[name])
    rows = check_steps(case, (constant(0.05 * case.temperature),) * 2, [10, 100, 400, 800])
    for error, bound, logit in rows:
        if logit < 0.1:
            assert bound <= 10 * error


@pytest.mark.parametrize("name", ["sqrt", "balanced"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_named_weights_are_those_of_the_labels_whether_integer_or_one_hot(name: str, smoothing: float) -> None:
    case = make_young([6, 3, 2], scale=0.01)
    weights = class_weights([6.0, 3.0, 2.0], power={"sqrt": 0.5, "balanced": 1.0}[name]).double()
    one_hot = torch.nn.functional.one_hot(case.target, 3).double()
    states = [
        EarlyCrossEntropy(target, label_smoothing=smoothing, class_weight=given)
        .descent(case.features, case.weight, lr=0.1)
        .at(50)
        .weight
        for target in (case.target, one_hot)
        for given in (name, weights)
    ]
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.5, "decoupled": True},
        {"decoupled": True},
    ],
)
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.01, 0.03)])
def test_momentum_is_bounded_closely(options: dict[str, Any], decays: tuple[float, float]) -> None:
    case = make_young([5] * 6, dim=16, scale=0.01, feature_decay=decays[0], weight_decay=decays[1])
    for error, bound, logit in check_steps(case, (constant(0.01),) * 2, [1, 2, 30, 200, 600], **options):
        if logit < 0.1:
            assert bound <= 10 * error


@pytest.mark.parametrize(
    "schedules",
    [
        (constant(0.1), constant(0.1)),
        (constant(0.3), constant(0.05)),
        (cosine(0.2, 40.0), cosine(0.2, 40.0)),
        (constant(0.1), cosine(0.1, 50.0)),
        (warmup(0.1, 10.0), constant(0.1)),
    ],
)
def test_schedules(schedules: tuple[Any, Any]) -> None:
    case = make_young([4, 3, 2, 1], scale=0.05)
    check_times(case, schedules, [0.5, 5.0, 30.0, 80.0])
    check_steps(case, schedules, [1, 5, 30, 80])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", [exponential(0.1, 0.97), exponential(0.1, 0.5), cosine(0.1, 100.5)])
def test_a_rate_that_comes_to_rest_between_two_steps_is_followed(schedule: Any, momentum: float) -> None:
    """The time of rest is no whole number of steps, and was once asked for as if it were."""
    case = make_young([4, 3, 2, 1], scale=0.05)
    check_steps(case, (schedule,) * 2, [1, 30, 101, 130], momentum=momentum)
    path = case.problem().descent(case.features, case.weight, lr=schedule, momentum=momentum)
    assert path.error_bound(10**6) >= path.error_bound(5000)  # at rest, or with a buffer that fades
    assert path.horizon(1e-9) < math.inf
    assert path.horizon(0.1) > 0


def test_fixed_prototypes_are_bounded_for_ever() -> None:
    """The loss is convex in the features: differences never grow by themselves."""
    case = make_young([4, 3, 2, 1], scale=0.5, dim=4)
    rows = check_times(case, (constant(0.5),) * 2, [0.1, 1.0, 10.0, 100.0], frozen=True)
    assert all(math.isfinite(bound) for _, bound, _ in rows)
    biased = make_young([4, 3, 2, 1], scale=0.3, dim=4, bias=True, feature_decay=0.05, weight_decay=0.01)
    check_times(biased, (constant(0.5), constant(0.2)), [0.1, 1.0, 10.0], frozen=True)


def test_the_horizon_of_fixed_prototypes_with_decay_is_found() -> None:
    """Blocks of one length up to the end of time once made this a loop without end."""
    case = make_young([3, 2, 1], scale=0.05, dim=4, feature_decay=0.01)
    path = case.problem().anchored(case.features, case.weight)
    assert path.horizon(0.1) > 0
    assert path.certificate is not None
    assert len(path.certificate.stretches) < 10_000


@st.composite
def young_cases(draw: st.DrawFn) -> Young:
    classes = draw(st.integers(2, 5))
    counts = draw(st.lists(st.integers(1, 6), min_size=classes, max_size=classes))
    options: dict[str, Any] = {"loss": draw(st.sampled_from(["cross_entropy"] * 3 + ["focal", "squared_error"]))}
    if options["loss"] == "cross_entropy":
        options["label_smoothing"] = draw(st.sampled_from([0.0, 0.1, 0.4]))
        options["temperature"] = draw(st.sampled_from([1.0, 0.5, 4.0]))
        if draw(st.booleans()):
            options["logit_adjustment"] = torch.tensor(
                draw(st.lists(st.floats(-2, 2), min_size=classes, max_size=classes)), dtype=torch.float64
            )
    if draw(st.booleans()):
        options["class_weight"] = torch.tensor(
            draw(st.lists(st.floats(0.05, 20), min_size=classes, max_size=classes)), dtype=torch.float64
        )
    decays = draw(st.sampled_from([(0.0, 0.0), (0.01, 0.05), (0.2, 0.2)]))
    return make_young(
        counts,
        dim=draw(st.integers(1, 8)),
        scale=10 ** draw(st.floats(-2.5, 0)),
        seed=draw(st.integers(0, 10**6)),
        bias=draw(st.booleans()),
        soft=options["loss"] == "cross_entropy" and draw(st.booleans()),
        feature_decay=decays[0],
        weight_decay=decays[1],
        **options,
    )


@settings(max_examples=60, deadline=None)
@given(
    young_cases(),
    st.floats(-2, 0.3),
    st.floats(-1, 1),
    st.sampled_from([{}, {"momentum": 0.9}, {"momentum": 0.8, "nesterov": True}]),
)
def test_the_bound_of_descent_is_never_violated(
    case: Young, power: float, ratio: float, options: dict[str, Any]
) -> None:
    rate = 10**power * case.temperature
    check_steps(case, (constant(rate), constant(rate * 10**ratio)), [1, 2, 9, 40, 90], **options)


@settings(max_examples=15, deadline=None)
@given(young_cases(), st.floats(-2, 0.3), st.booleans())
def test_the_bound_of_the_flow_is_never_violated(case: Young, power: float, frozen: bool) -> None:
    rate = 10**power * case.temperature
    check_times(case, (constant(rate),) * 2, [0.3, 4.0, 30.0], frozen)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_soft_labels_with_very_different_weights_are_bounded(momentum: float) -> None:
    """One heavy example, of which the modes see a part: its two parts are orthogonal only without weights."""
    target = torch.tensor([[1.0, 0.0], [0.7, 0.3], [0.0, 1.0]], dtype=torch.float64)
    features, weight = torch.zeros(3, 1, dtype=torch.float64), torch.tensor([[0.1], [-0.1]], dtype=torch.float64)
    features[0] = 1e-3
    weights = torch.tensor([10.0, 1.0], dtype=torch.float64)
    case = Young(target, 2, features, weight, class_weight=weights)
    check_steps(case, (constant(1.0),) * 2, [1, 2, 5], momentum=momentum)


@pytest.mark.parametrize("seed", range(20))
def test_the_norms_of_weighted_soft_labels_are_no_smaller_than_their_definition(seed: int) -> None:
    """Against sums over the examples; three of them are equal."""
    generator = torch.Generator().manual_seed(seed)
    classes, size, dim = 3, 7, 2
    target = torch.rand(size, classes, generator=generator, dtype=torch.float64)
    target = target / target.sum(1, keepdim=True)
    each = 10 ** (2 * torch.rand(classes, generator=generator, dtype=torch.float64))
    features, weight = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for n in (size, classes))
    heavy = (target @ each).argmax()
    features[torch.arange(size) != heavy] *= seed % 2  # the heaviest alone, or all of them
    path = EarlyCrossEntropy(target, classes, class_weight=each).flow(features, weight)
    assert path.certificate is not None
    actual = path.certificate.measure(torch.zeros(1, dtype=torch.float64))
    alpha = (target @ each / size)[:, None]  # as F.cross_entropy: probabilities as targets are averaged over examples
    centered = weight - weight.mean(0)
    logits = features @ centered.mT
    slopes = alpha * logits / classes  # S is 1/C on vectors that sum to zero
    expected = {
        "features": (slopes @ centered).norm(),
        "weight": (slopes.mT @ features).norm(),
        "slopes": slopes.norm(),
        "logits": (alpha * logits).norm(),
        "body": torch.linalg.matrix_norm(features, 2),
        "largest_logits": logits.norm(dim=1).max(),
        "largest_feature": features.norm(dim=1).max(),
    }
    for name, norm in expected.items():
        assert getattr(actual, name).item() >= norm.item() * (1 - 1e-12), name
    for name in ("features", "slopes", "logits"):
        assert getattr(actual, name).item() == pytest.approx(expected[name].item(), rel=1e-9), name


@pytest.mark.parametrize("rate", [1e4, 1e8])
def test_steps_that_overflow_prove_nothing(rate: float) -> None:
    """States beyond 1e100 have no eigenvalues that converge; they once raised an error out of the horizon."""
    case = make_young([3, 2, 2, 1], dim=4, scale=1e-3, temperature=1e-3)
    path = case.problem().descent(case.features, case.weight, lr=rate)
    assert path.horizon(0.1) <= 1
    assert torch.isinf(path.error_bound([50, 1000])).all()


@pytest.mark.parametrize("bias", [False, True])
def test_more_classes_than_directions_have_the_same_norms(bias: bool) -> None:
    """The measured norms, against logits written out."""
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(2, 9, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    shift = torch.randn(2, 9, generator=generator, dtype=torch.float64) if bias else None
    roots = torch.arange(1.0, 10, dtype=torch.float64)
    alpha = torch.rand(9, generator=generator, dtype=torch.float64)
    weights = Weights(alpha, roots, 0.0, 1.0, 1.0, 1.0, True, 9)
    prior = torch.softmax(roots / 5, 0)
    residuals = unseen_residuals(0.0, 3, 1.0)
    actual = measure(rows, weight, shift, torch.ones(2).double(), residuals, weights, prior, prior, True)
    added = torch.zeros(2, 9, dtype=torch.float64) if shift is None else shift
    logits = rows @ weight.mT + roots[:, None] * added[:, None]
    logits = logits - logits.mean(-1, keepdim=True)
    slopes = alpha[:, None] * (logits @ (torch.diag(prior) - prior[:, None] * prior))
    centered = weight - weight.mean(1, keepdim=True)
    expected = {
        "logits": (alpha[:, None] * logits).norm(dim=(1, 2)),
        "slopes": slopes.norm(dim=(1, 2)),
        "features": (slopes @ centered).norm(dim=(1, 2)),
        "weight": (slopes.mT @ rows).norm(dim=(1, 2)),
        "bias": (roots[:, None] * slopes).sum(1).norm(dim=1),
        "largest_logits": (logits.norm(dim=2) / roots).amax(1),
    }
    for name, norm in expected.items():
        torch.testing.assert_close(getattr(actual, name), norm, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize("size", [3, 80])
def test_the_spectral_norm_is_never_below(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    batch = torch.randn(4, size, size + 7, generator=generator, dtype=torch.float64)
    exact = torch.linalg.matrix_norm(batch, 2)
    actual = spectral_norm(batch)
    assert bool((actual >= exact * (1 - 1e-12)).all())
    assert bool((actual <= exact * size ** (1 / 16) * 1.01).all())


@pytest.mark.parametrize("name", ["cross_entropy", "adjusted", "cool", "focal", "sharp focal", "binary", "squared"])
def test_derivatives_stay_below_their_bounds(name: str) -> None:
    """Second and third derivatives by autograd at random logits inside the ball."""
    classes = 4
    offsets = torch.tensor([0.5, -1.0, 0.2, 1.5], dtype=torch.float64)
    cases = {
        "cross_entropy": (cross_entropy(classes), {}),
        "adjusted": (cross_entropy(classes, offsets), {"logit_adjustment": offsets}),
        "cool": (cross_entropy(classes, None, 0.7), {"temperature": 0.7}),
        "focal": (focal(classes, 2.0), {"loss": "focal"}),
        "sharp focal": (focal(classes, 6.0), {"loss": "focal", "focus": 6.0}),
        "binary": (binary_cross_entropy(classes), {"loss": "binary_cross_entropy"}),
        "squared": (squared_error(classes), {"loss": "squared_error"}),
    }
    shape, options = cases[name]
    case = Young(torch.tensor([1]), classes, torch.zeros(1, 1), torch.zeros(classes, 1), **options)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return value(case, torch.ones(1, 1, dtype=torch.float64), z[:, None], None)

    def gradient(z: torch.Tensor) -> torch.Tensor:
        return torch.autograd.functional.jacobian(loss, z, create_graph=True)

    zero = torch.zeros(classes, dtype=torch.float64)
    assert abs(loss(zero).item() - shape.values[1].item()) < 1e-12
    aim = torch.eye(classes, dtype=torch.float64)[1]
    linear = shape.prior - aim if shape.prior is not None else shape.gamma - (1 + shape.gamma) * aim
    torch.testing.assert_close(gradient(zero), shape.scale * linear)
    if shape.common:
        hessian = torch.diag(shape.diagonal) - shape.vector[:, None] * shape.vector
        torch.testing.assert_close(torch.autograd.functional.hessian(loss, zero), hessian)
    generator = torch.Generator().manual_seed(0)
    for radius in (0.01, 0.3, 2.0, 8.0):
        for _ in range(10):
            z = torch.randn(classes, generator=generator, dtype=torch.float64)
            z = radius * z / z.norm()
            hessian = torch.autograd.functional.hessian(loss, z)
            assert torch.linalg.matrix_norm(hessian, 2) <= shape.curvature(radius) * (1 + 1e-9)
            assert torch.linalg.eigvalsh(hessian).min() >= -shape.concavity(radius) * (1 + 1e-9) - 1e-12
            u = torch.randn(classes, generator=generator, dtype=torch.float64)
            u = u / u.norm()
            step = 1e-4
            third = gradient(z + step * u) - 2 * gradient(z) + gradient(z - step * u)
            assert (third / step**2).norm() <= shape.bend(radius) * (1 + 1e-3) + 1e-6


@pytest.mark.parametrize("kind", ["anchored", "flow", "descent"])
@pytest.mark.parametrize("loss", ["focal", "cross_entropy"])
def test_differences_add_to_the_forcing_where_the_loss_is_not_convex(kind: str, loss: str) -> None:
    """The focal loss of many classes is not, at zero logits already; its bounds once took it for convex."""
    case = make_young([1] * 100, dim=4, scale=0.01, loss=loss, focus=5.0, bias=True)
    zero = torch.zeros(100, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(
        lambda z: value(replace(case, target=case.target[:1]), torch.zeros(1, 4).double(), case.weight, z), zero
    )
    lowest = torch.linalg.eigvalsh(hessian).min().item()
    path = getattr(case.problem(), kind)(case.features, case.weight, case.bias, lr=0.1)
    certificate = path.certificate
    assert certificate is not None
    assert certificate.forcing.loss.concavity(0.0) >= max(0.0, -lowest - 1e-12)
    assert (lowest < -0.1) == (loss == "focal")
    at, block = certificate._measured([0.0])[0].norms, certificate.mover.block(0.0, 1.0)
    apart = (1e-3, 0.0) if kind == "anchored" else (0.0, 1e-3)  # with fixed prototypes biases count with the features
    near, far = (certificate.forcing(at, *moved, block) for moved in ((0.0, 0.0), apart))
    which = 0 if kind == "anchored" else 1
    assert (far[which] > near[which]) == (loss == "focal")


# ---- questions -------------------------------------------------------------------------------------------------------


def test_the_loss_is_cross_entropy_to_first_order() -> None:
    for name, options in SETTINGS.items():
        errors = []
        for scale in (1e-3, 1e-4):
            case = make_young(TAIL, dim=5, scale=scale, bias=True, **options)
            path = case.problem().flow(case.features, case.weight, case.bias)
            real = value(case, case.features, case.weight, case.bias)
            errors.append(abs(path.loss(0.0).item() - real.item()))
        assert errors[1] <= 1e-3 * errors[0] + 1e-14, name  # logits a hundredfold smaller: 1e-4


def test_learned_is_the_first_step_at_which_the_share_is_right() -> None:
    case = make_young([6, 4, 3, 2], dim=8, scale=0.05)
    path = case.problem().descent(case.features, case.weight, lr=0.2)
    for fraction in (0.5, 1.0):
        times = path.learned(fraction).tolist()
        right = path.correct(torch.arange(0, 400))
        for c, time in enumerate(times):
            share = right[:, case.target == c].double().mean(1)
            first = (share >= fraction).nonzero().flatten()
            expected = float(first[0]) if len(first) else math.inf
            assert time == expected
    with pytest.raises(ValueError, match="fraction"):
        path.learned(0.0)


def test_growth_that_decay_makes_very_slow_ends_the_search_and_claims_nothing_beyond(monkeypatch) -> None:
    """Blocks as short as the decay asks for would take 1e8 to follow the growth: an answer that never came."""
    monkeypatch.setattr(certificate, "MOST_BLOCKS", 200)
    draw = torch.Generator().manual_seed(0)
    features, weight = (0.007 * torch.randn(n, 9, dtype=torch.float64, generator=draw) for n in (24, 4))
    problem = EarlyCrossEntropy(torch.arange(24) % 4, label_smoothing=0.6, temperature=8.0, weight_decay=0.6)
    path = problem.descent(features, weight, lr=0.1)
    horizon = path.horizon(0.01).item()
    assert 200 <= horizon < 1e4
    assert path.error_bound(horizon) <= 0.01
    assert path.error_bound(1e6) == math.inf


def test_a_streamed_start_is_bounded_too() -> None:
    case = make_young([5, 4, 3], dim=6, scale=0.02)
    summary = summarize([(case.features, case.target)], 3)
    whole = case.problem().descent(case.features, case.weight, lr=0.1)
    streamed = case.problem().descent(summary, case.weight, lr=0.1)
    steps = torch.tensor([1, 20, 100])
    assert bool((streamed.error_bound(steps) >= whole.error_bound(steps)).all())
    assert bool(torch.isfinite(streamed.error_bound(steps)).all())


def test_float32_is_rounded_upwards() -> None:
    case = make_young([3, 3, 3], dim=4, scale=0.03)
    double = case.problem().descent(case.features, case.weight, lr=0.1)
    single = case.problem().descent(case.features.float(), case.weight.float(), lr=0.1)
    bound = single.error_bound([0, 10, 100])
    assert bound.dtype == torch.float32
    assert bound[0] <= 1e-5
    assert bool((bound[1:].double() >= double.error_bound([10, 100])).all())


def test_where_biases_leave_the_range_of_floats_nothing_is_proved() -> None:
    """Steps far too long for the decay: it was once an error of the biases."""
    case = make_young([2, 2, 2], dim=3, weight_decay=0.5, bias=True)
    path = case.problem().descent(case.features, case.weight, case.bias, lr=250.0)
    assert path.error_bound([0, 150, 10**6]).isinf().tolist() == [False, True, True]


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("tolerance", [0.1, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_a_horizon_in_single_precision_is_rounded_downwards(kind: str, tolerance: float, seed: int) -> None:
    """Rounded to the nearest number it could lie behind the last time at which the bound holds."""
    case = make_young([2, 2, 2], dim=3, scale=1e-2 if kind == "flow" else 1e-4, seed=seed)
    rate = 0.1 if kind == "flow" else 1e-7  # hundreds of millions of steps, which float32 does not tell apart
    double, single = (
        getattr(case.problem(), kind)(case.features.float().to(dtype), case.weight.float().to(dtype), lr=rate)
        for dtype in (torch.float64, torch.float32)
    )
    horizon = single.horizon(tolerance)
    assert horizon.dtype == torch.float32
    assert horizon.item() <= double.horizon(tolerance).item() <= horizon.item() * (1 + 1e-3)
    assert single.error_bound(horizon) <= tolerance


def test_a_kernel_path_proves_nothing_and_says_so() -> None:
    case = make_young([3, 3, 3], dim=4)
    path = case.problem().kernel_flow(case.features, case.weight, torch.eye(9, dtype=torch.float64))
    assert torch.isinf(path.error_bound(1.0))
    assert path.horizon() == 0


def test_a_schedule_that_ends_has_no_horizon() -> None:
    case = make_young([3, 3, 3], dim=4)
    path = case.problem().flow(case.features, case.weight, lr=cosine(0.1, 10.0))
    assert torch.isinf(path.horizon(0.1))
    assert path.error_bound(1e6) == path.error_bound(10.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"logit_adjustment": [0.0, 1.0]}, "logit_adjustment"),
        ({"logit_adjustment": [0.0, math.inf, 0.0]}, "logit_adjustment"),
        ({"logit_adjustment": "frequencies"}, "logit_adjustment"),
        ({"class_weight": [0.0, 0.0, 0.0]}, "class_weight"),
        ({"class_weight": [1.0, 1.0]}, "class_weight"),
        ({"num_classes": 2}, "target|label"),
        ({"feature_decay": -1.0}, "feature_decay"),
    ],
)
def test_wrong_input_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EarlyCrossEntropy([0, 1, 2, 2], **options)


def test_other_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="loss must be one of"):
        Linearized([0, 1], loss="hinge")
    with pytest.raises(ValueError, match="focus"):
        Linearized([0, 1], loss="focal", focus=0.5)
    case = make_young([2, 2])
    path = case.problem().flow(case.features, case.weight)
    with pytest.raises(ValueError, match="tolerance"):
        path.horizon(0.0)


@pytest.mark.parametrize("kind", ["descent", "flow", "anchored"])
def test_a_rate_that_is_a_function_is_followed_for_so_many_steps(kind, monkeypatch):
    """Rows of rates would grow with time until they do not fit into memory."""
    monkeypatch.setattr("unhinge.theory.early.movers.FARTHEST", 500.0)
    generator = torch.Generator().manual_seed(0)
    features, weight = (0.01 * torch.randn(k, 5, generator=generator, dtype=torch.float64) for k in (12, 3))
    problem = EarlyCrossEntropy(torch.arange(12) % 3)
    path = getattr(problem, kind)(features, weight, lr=lambda time: 0.1 / (1 + time / 10))
    assert 500 <= path.horizon() <= 640
    assert path.error_bound(500) <= 0.1
    assert path.error_bound(5000) == torch.inf


@pytest.mark.parametrize("bias", [False, True])
def test_features_that_start_at_zero_towards_fixed_prototypes_have_a_bound(bias: bool) -> None:
    case = make_young([6] * 5, dim=8, scale=0.01)
    start = torch.zeros(5, dtype=torch.float64) if bias else None
    case = replace(case, features=torch.zeros_like(case.features), bias=start)
    rows = check_times(case, (constant(0.1),) * 2, [1.0, 10.0, 100.0, 1000.0], frozen=True)
    assert all(bound <= (3 if bias else 1.2) * error + 2e-7 for error, bound, _ in rows)
    assert case.problem().anchored(case.features, case.weight, start, lr=0.1).horizon(0.1) > 1e4


def test_where_nothing_moves_there_is_no_error() -> None:
    still = torch.zeros(6, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    problem = EarlyCrossEntropy(torch.arange(6) % 3)
    for kind in ("flow", "descent", "anchored"):
        path = getattr(problem, kind)(*still, lr=0.1)
        assert path.error_bound(1000).item() < 1e-13
        assert path.horizon() > 1000


@pytest.mark.parametrize("bias", [0.0, 7000.0])
def test_the_bound_holds_where_biases_are_far_longer_than_the_state(bias):
    """There the rounding of the biases is what differs."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 0, 0, 1, 2])
    features = 1e-6 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
    weight = torch.zeros(3, 3, dtype=torch.float64)
    start = torch.full((3,), bias, dtype=torch.float64)
    path = EarlyCrossEntropy(labels).descent(features, weight, start, lr=0.3)
    parts = [x.clone().requires_grad_() for x in (features, weight, start)]
    loss = torch.nn.functional.cross_entropy(parts[0] @ parts[1].T + parts[2], labels)
    real = [x.detach() - 0.3 * slope for x, slope in zip(parts, torch.autograd.grad(loss, parts), strict=True)]
    state = path.at(1)
    apart = [(a - b).norm() for a, b in zip((state.features, state.weight, state.bias), real, strict=True)]
    size = torch.hypot(state.features.norm(), state.weight.norm())
    assert torch.stack(apart).norm() / size <= path.error_bound(1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rate", [cosine(0.1, 50), lambda t: 0.1 / (1 + t)], ids=["cosine", "function"])
def test_biases_under_a_rate_that_changes_have_a_bound(rate, momentum):
    generator = torch.Generator().manual_seed(0)
    features, weight = (0.01 * torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (6, 3))
    bias = torch.zeros(3, dtype=torch.float64)
    path = EarlyCrossEntropy(torch.arange(6) % 3).descent(features, weight, bias, lr=rate, momentum=momentum)
    assert 0 < path.error_bound(5) < 0.1


def test_of_a_start_far_from_zero_nothing_is_proved():
    features = torch.full((6, 4), 1e200, dtype=torch.float64)
    path = EarlyCrossEntropy(torch.arange(6) % 3).flow(features, features[:3])
    assert path.error_bound(3.0) == math.inf
    assert path.horizon() == 0


def test_a_loss_has_the_dtype_of_the_start_at_one_time_too():
    path = EarlyCrossEntropy(torch.arange(6) % 3).flow(torch.ones(6, 4), torch.ones(3, 4))
    assert path.loss(1.0).dtype == path.loss([1.0]).dtype == torch.float32


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize(("name", "power"), [("sqrt", 0.5), ("balanced", 1.0)])
def test_a_name_of_class_weights_means_their_numbers_for_soft_labels_too(name: str, power: float, smoothing: float):
    """torch divides the loss of probabilities by the number of examples, so the size of the weights counts."""
    generator = torch.Generator().manual_seed(0)
    target = torch.softmax(torch.randn(7, 3, generator=generator, dtype=torch.float64), 1)
    features = 0.01 * torch.randn(7, 4, generator=generator, dtype=torch.float64)
    weight = 0.01 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    path = EarlyCrossEntropy(target, class_weight=name, label_smoothing=smoothing).descent(features, weight, lr=0.1)
    h, w = (part.clone().requires_grad_() for part in (features, weight))
    numbers = class_weights(target.sum(0), power=power)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(h @ w.mT, target, weight=numbers, label_smoothing=smoothing)
        slopes = torch.autograd.grad(loss, (h, w))
        h, w = (part.detach().sub(0.1 * slope).requires_grad_() for part, slope in zip((h, w), slopes, strict=True))
    state = path.at(20)
    apart = torch.cat([state.features - h, state.weight - w]).norm().item()
    assert apart <= path.error_bound(20).item() * torch.cat([state.features, state.weight]).norm().item()
