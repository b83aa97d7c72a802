"""Where paths go, how fast, and when they arrive."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import DenseFlow, ThinFlow, assert_exact, joint_norm, singular_values
from strategies import Case, cases, make_case, named_cases
from unhinge import LayerPeeled, constant, cosine, exponential, step, warmup
from unhinge.theory import numerics, symmetric_noise
from unhinge.theory.numerics import first_time_below

NAMED = named_cases()
HARD = {name: case for name, case in NAMED.items() if not case.target.is_floating_point()}


def class_means(case: Case) -> torch.Tensor:
    """X: rows sqrt(n_c) times the mean of class c."""
    rows = [case.features[case.target == c] for c in range(case.num_classes)]
    return torch.stack([row.sum(0) / math.sqrt(len(row)) for row in rows])


def center(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(0)


def spread(case: Case, means: torch.Tensor) -> torch.Tensor:
    """Features of examples that all sit at x_c / sqrt(n_c)."""
    counts = torch.bincount(case.target).double()
    return (means / counts.sqrt()[:, None])[case.target]


def same_direction(state, features: torch.Tensor, weight: torch.Tensor, budget: float) -> None:
    size = joint_norm(features, weight)
    assert joint_norm(state.features - features / size, state.weight - weight / size).item() <= budget


# ---- direction ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_the_direction_is_what_huge_times_approach(name):
    """[eq: direction]."""
    case = NAMED[name]
    exact = DenseFlow(case).at(mp.mpf(10) ** 25)
    state = case.flow().direction()
    budget = 64 if name in HARD else 4096  # soft labels: an SVD, with its gaps
    assert_exact(state.features, exact.features, budget, scale=1.0)
    assert_exact(state.weight, exact.weight, budget, scale=1.0)


@settings(max_examples=25)
@given(cases())
def test_the_direction_of_any_problem_is_what_huge_times_approach(case):
    exact = DenseFlow(case).at(mp.mpf(10) ** 40)
    state = case.flow().direction()
    assert_exact(state.features, exact.features, 64, scale=1.0)
    assert_exact(state.weight, exact.weight, 64, scale=1.0)


@settings(max_examples=15)
@given(cases(kind="long"))
def test_the_direction_of_strong_imbalance_is_what_huge_times_approach(case):
    exact = ThinFlow(case).at(mp.mpf(10) ** 40)
    state = case.flow().direction()
    assert_exact(state.features, exact.features, 64, scale=1.0)
    assert_exact(state.weight, exact.weight, 64, scale=1.0)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 25.0])
@pytest.mark.parametrize("gamma", [None, 0.1, 0.9])
def test_without_decay_only_centred_means_plus_scaled_prototypes_survive(gamma, ratio):
    """Corollary 1: G = (X + sqrt(s) W) J  [eq: direction]."""
    case = make_case([3, 3, 3, 3], gamma=gamma, lr=(0.1 * ratio, 0.1))
    g = center(class_means(case) + math.sqrt(ratio) * case.weight)
    same_direction(case.flow().direction(), spread(case, g), g / math.sqrt(ratio), 1e-14)


def test_at_gamma_zero_the_mean_survives_too():
    case = make_case([2, 2, 2], gamma=0.0, lr=(0.4, 0.1))
    g = class_means(case) + 2 * case.weight
    same_direction(case.flow().direction(), spread(case, g), g / 2, 1e-14)


def test_at_the_edge_the_opposed_mean_survives_too():
    case = make_case([2, 2, 2, 2], gamma=1.0)
    x, w = class_means(case), case.weight
    g, a = center(x + w), (x - w).mean(0).expand(4, -1)
    same_direction(case.flow().direction(), spread(case, g + a), g - a, 1e-14)


def test_beyond_the_edge_all_features_become_one_vector_and_accuracy_tends_to_one_in_c():
    case = make_case([3, 3, 3, 3, 3], gamma=1.2, dim=4)
    path = case.flow()
    a = (class_means(case) - case.weight).mean(0).expand(5, -1)
    same_direction(path.direction(), spread(case, a), -a, 1e-14)
    assert path.accuracy(1e9).item() == pytest.approx(1 / 5)


@pytest.mark.parametrize("decays", [(0.1, 0.4), (0.3, 0.3), (2.0, 0.01)], ids=str)
@pytest.mark.parametrize("ratio", [0.2, 1.0, 7.0])
def test_prototypes_and_means_end_parallel_for_every_decay(decays, ratio):
    """W = rho X with rho = (s lambda_1 + omega) / (s sigma_1)  [eq: self-duality], [eq: eigenvalues]."""
    case = make_case([2, 2, 2], feature_decay=decays[0], weight_decay=decays[1], lr=(ratio, 1.0))
    sigma = 1.5 / (3 * math.sqrt(2))
    delta = ratio * decays[0] - decays[1]
    omega = (-(ratio * decays[0] + decays[1]) + math.sqrt(delta**2 + 4 * ratio * sigma**2)) / 2
    rho = (ratio * decays[0] + omega) / (ratio * sigma)
    state = case.flow().direction()
    counts = torch.bincount(case.target).double()
    x = torch.zeros(3, 3, dtype=torch.float64).index_add(0, case.target, state.features) / counts.sqrt()[:, None]
    assert (state.weight - rho * x).abs().max().item() <= 1e-14 * max(1, rho)
    assert case.flow().growth().item() == pytest.approx(omega, rel=1e-12)


@pytest.mark.parametrize("counts", [[9, 4, 2, 1], [21, 20, 20], [50, 3, 3, 2, 1]], ids=str)
def test_imbalance_ends_in_a_rank_one_direction_that_finds_the_two_largest_classes(counts):
    """[eq: minority-collapse], [eq: two-classes], [eq: secular-vectors]."""
    case = make_case(counts, gamma=0.3, dim=4)
    path = case.flow()
    state = path.direction()
    values = torch.linalg.svdvals(torch.cat([state.features, state.weight]))
    assert values[1] <= 1e-14 * values[0]
    ranked = sorted(counts, reverse=True)
    if ranked[1] != ranked[2]:
        assert path.accuracy(1e10).item() == pytest.approx((ranked[0] + ranked[1]) / sum(counts))


def test_classes_tied_at_the_top_leave_the_others_at_zero():
    """[eq: tied-classes]."""
    case = make_case([4, 4, 4, 2, 1], gamma=0.2, dim=4)
    state = case.flow().direction()
    assert state.weight[3:].abs().max().item() <= 1e-15
    assert state.features[case.target >= 3].abs().max().item() <= 1e-15
    assert state.weight[:3].sum(0).abs().max().item() <= 1e-15


def test_sqrt_weights_restore_the_balanced_dynamics():
    """[eq: class-weights]."""
    case = make_case([9, 4, 1], class_weight="sqrt", dim=4)
    path = case.flow()
    g = center(class_means(case) + case.weight)
    same_direction(path.direction(), spread(case, g), g, 1e-14)
    total = sum(math.sqrt(n) for n in (9, 4, 1))
    assert_exact(case.problem().singular_values, torch.tensor([1.5 / total, 1.5 / total, 0.0], dtype=torch.float64), 8)


def test_weights_that_meant_to_restore_balance_do_so_despite_rounding():
    counts = torch.tensor([7.0, 3.0, 5.0], dtype=torch.float64)
    case = make_case([7, 3, 5], class_weight=counts.rsqrt(), dim=4)
    exact = case.change(class_weight="sqrt")
    a, b = case.flow().at(1e12).normalized(), exact.flow().at(1e12).normalized()
    assert_exact(a.features, b.features, 64, scale=1.0)
    assert case.problem().balanced


# ---- starts that miss the leading modes -----------------------------------------------------------------------------


def test_a_start_with_opposed_parts_decays_along_the_smaller_eigenvalue():
    """W = -X: no part grows, Z = exp(-sigma t) Z_0 for ever, at every time."""
    case = make_case([1, 1, 1], gamma=0.0, lr=(1.0, 1.0))
    case = case.change(weight=-case.features[torch.argsort(case.target)])
    path = case.flow()
    same_direction(path.direction(), case.features, case.weight, 1e-14)
    assert path.growth().item() == pytest.approx(-1 / 3, rel=1e-14)
    size = joint_norm(case.features, case.weight).log().item()
    assert path.log_norm(1e6).item() == pytest.approx(size - 1e6 / 3, rel=1e-14)
    assert path.distance(1e6).item() <= 1e-14
    unit = path.at(1e6).normalized()
    same_direction(unit, case.features, case.weight, 1e-13)


@pytest.mark.parametrize("gamma", [0.2, 0.5, 1.3])
def test_equal_prototypes_and_no_features_stay_equal(gamma):
    """Only the mean mode is there: its growth is |sigma_2|, and the features follow with its sign."""
    case = make_case([2, 2, 2], gamma=gamma, lr=(1.0, 1.0))
    w = torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64).expand(3, 3).clone()
    case = case.change(features=torch.zeros_like(case.features), weight=w)
    path = case.flow()
    sigma = (1 + gamma - 3 * gamma) / (3 * math.sqrt(2))
    if sigma == 0:
        assert_exact(path.at(1e9).weight, w, 4)
        assert not path.at(1e9).features.any()
        return
    assert path.growth().item() == pytest.approx(abs(sigma), rel=1e-12)
    x = math.copysign(1, sigma) * w / math.sqrt(2)
    same_direction(path.direction(), x[case.target], w, 1e-14)
    assert path.log_norm(1e5).item() == pytest.approx(
        abs(sigma) * 1e5 + math.log(w.norm().item() / math.sqrt(2)), rel=1e-12
    )


@pytest.mark.parametrize("power", [-20, -46, -60, -100])
@pytest.mark.parametrize("gamma", [0.3, None])
def test_a_tiny_but_real_part_wins_in_the_end(power, gamma):
    """Prototypes exactly equal, features of 2^power: only they tell the classes apart, and nothing rounds them away."""
    case = make_case([2, 2, 2], gamma=gamma, lr=(1.0, 1.0))
    w = torch.tensor([0.25, -1.0, 0.5], dtype=torch.float64).expand(3, 3).clone()
    case = case.change(weight=w, features=case.features * 2.0**power)
    path, exact = case.flow(), DenseFlow(case).at(1000.0)
    unit = path.at(1000.0).normalized()
    assert_exact(unit.features, exact.features, 64, scale=1.0)
    assert_exact(unit.weight, exact.weight, 64, scale=1.0)
    assert path.log_norm(1000.0).item() == pytest.approx(float(exact.log_norm), rel=1e-13)
    sigma = (1 + (0.5 if gamma is None else gamma)) / (3 * math.sqrt(2))
    assert path.growth().item() == pytest.approx(sigma, rel=1e-14)


def test_features_within_their_classes_only_decay_by_themselves():
    """Zero class means and prototypes: the targets see nothing, H = exp(-eta lambda_1 t) H_0."""
    case = make_case([2, 2, 2], feature_decay=0.25, weight_decay=0.1, lr=(2.0, 1.0))
    features = case.features.clone()
    for c in range(3):
        first, second = (case.target == c).nonzero().flatten().tolist()
        features[second] = -features[first]
    case = case.change(features=features, weight=torch.zeros_like(case.weight))
    path = case.flow()
    same_direction(path.direction(), features, case.weight, 1e-15)
    assert path.growth().item() == pytest.approx(-0.5, rel=1e-14)
    assert_exact(path.at(3.0).features, features * math.exp(-1.5), 16)
    assert not path.at(3.0).weight.any()


@pytest.mark.parametrize("question", ["direction", "distance", "rate", "time_to"])
def test_a_start_at_zero_has_no_direction(question):
    case = make_case([2, 2, 2])
    path = case.change(features=case.features * 0, weight=case.weight * 0).flow()
    arguments = {"distance": (1.0,), "time_to": (0.1,)}.get(question, ())
    with pytest.raises(ValueError, match="zero"):
        getattr(path, question)(*arguments)
    assert not path.at(5.0).features.any()
    assert path.loss(5.0).item() == 0.0


# ---- limit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("split", [1.0, 2.0, 0.25])
def test_at_the_critical_decay_the_state_converges_to_a_known_limit(ratio, split):
    """lambda_1 lambda_2 = sigma_1^2 is exact here: sigma_1 = 1.5 / 6 = 0.25  [eq: critical-decay]."""
    case = make_case([4, 4, 4], feature_decay=0.25 * split, weight_decay=0.25 / split, lr=(0.1 * ratio, 0.1))
    path = case.flow()
    lam, sigma = 0.25 * split, 0.25
    part = center(sigma * class_means(case) + ratio * lam * case.weight) / (sigma**2 + ratio * lam**2)
    state = path.limit()
    x, w = sigma * part, lam * part
    assert (state.features - spread(case, x)).abs().max().item() <= 1e-14
    assert (state.weight - w).abs().max().item() <= 1e-14
    late = path.at(1e9)
    assert (late.features - state.features).abs().max().item() <= 1e-14
    assert (late.weight - state.weight).abs().max().item() <= 1e-14
    assert path.growth().item() == 0.0


def test_matched_critical_decays_average_means_and_prototypes():
    case = make_case([4, 4, 4], feature_decay=0.25, weight_decay=0.25, lr=(0.3, 0.1))
    expected = center(class_means(case) + 3 * case.weight) / 4
    assert (case.flow().limit().weight - expected).abs().max().item() <= 1e-15


@pytest.mark.parametrize("gamma", [0.2, None])
@pytest.mark.parametrize("counts", [[9, 4, 4], [3, 3, 1]], ids=str)
def test_critical_decay_of_imbalanced_classes_keeps_the_leading_mode(counts, gamma):
    case = make_case(counts, gamma=gamma)
    top = case.problem().critical_decay.item()
    case = case.change(feature_decay=top, weight_decay=top)
    exact = ThinFlow(case).at(1e8)
    features, weight = exact.unscaled()
    state = case.flow().limit()
    assert (state.features - torch.tensor(features)).abs().max().item() <= 1e-6
    assert (state.weight - torch.tensor(weight)).abs().max().item() <= 1e-6


def test_above_the_critical_decay_everything_dies():
    state = make_case([2, 2, 2], feature_decay=1.0, weight_decay=1.0).flow().limit()
    assert not state.features.any()
    assert not state.weight.any()


@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.0, 5.0), (0.01, 0.3)], ids=str)
def test_below_the_critical_decay_the_limit_is_an_error_that_points_to_the_direction(decays):
    case = make_case([2, 2, 2], feature_decay=decays[0], weight_decay=decays[1])
    with pytest.raises(ValueError, match=r"(?s)diverge.*direction"):
        case.flow().limit()


@pytest.mark.parametrize(
    ("kind", "ratio", "options"),
    [
        ("flow", 1.0, {}),
        ("flow", 0.3, {}),
        ("descent", 1.0, {}),
        ("descent", 0.3, {}),
        ("descent", 1.0, {"momentum": 0.9}),
    ],
    ids=str,
)
def test_that_error_tells_how_fast_the_norm_grows(kind, ratio, options):
    path = getattr(make_case([2, 2, 2], lr=(0.1 * ratio, 0.1)), kind)(**options)
    with pytest.raises(ValueError, match="diverges") as refused:
        path.limit()
    told = float(str(refused.value).partition("exp(")[2].partition(" x time")[0])
    seen = (path.log_norm(4000) - path.log_norm(2000)) / 2000
    assert told == pytest.approx(seen.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("schedule", "total"),
    [
        (cosine(0.3, total=40), 6.0),
        (warmup(cosine(0.3, total=40), duration=10), 7.5),
        (exponential(0.3, decay=0.9), 0.3 / -math.log(0.9)),
        (step(0.3, every=10, factor=0.5), 6.0),
    ],
    ids=["cosine", "warmup cosine", "exponential", "step"],
)
def test_a_schedule_that_ends_leaves_the_state_of_its_whole_integral(schedule, total):
    case = make_case([3, 2, 1], gamma=0.3, bias=True, weight_decay=0.1)
    state = case.flow(lr=schedule).limit()
    expected = case.flow(lr=1.0).at(total)
    assert_exact(state.features, expected.features, 256)
    assert_exact(state.weight, expected.weight, 256)
    assert_exact(state.bias, expected.bias, 256)


def test_the_limit_of_descent_with_a_schedule_that_ends_is_its_last_iterate():
    case = make_case([3, 2, 1], gamma=0.3, bias=True)
    path = case.descent(lr=cosine(0.3, total=40), momentum=0.9)
    limit, late = path.limit(), path.at(4000)
    # momentum coasts on after the rate is zero without moving anything
    assert_exact(limit.features, late.features, 256)
    assert_exact(limit.bias, late.bias, 256)


@pytest.mark.parametrize("name", ["balanced", "imbalanced", "weighted", "soft"])
def test_anchored_features_end_at_their_targets_over_the_decay(name):
    """[eq: anchored-rate]."""
    from oracles import dense_target_matrix

    case = NAMED[name].change(feature_decay=0.2, weight_decay=0.5)
    path = case.problem().anchored(case.features, case.weight, case.bias, lr=0.3)
    m = torch.tensor(dense_target_matrix(case))
    target = m.mT @ case.weight
    assert_exact(path.limit().features, target / 0.2, 32)
    assert_exact(path.direction().features, target / target.norm(), 32)
    assert_exact(path.at(1e5).features, target / 0.2, 32)
    assert_exact(path.limit().bias, m.sum(1) / 0.5, 32, scale=1.0)
    assert path.rate().item() == pytest.approx(-0.06, rel=1e-12)


def test_anchored_features_without_decay_diverge_along_their_targets():
    """[eq: anchored-rate]."""
    case = NAMED["balanced"]
    path = case.problem().anchored(case.features, case.weight, lr=0.3)
    with pytest.raises(ValueError, match=r"(?s)diverge.*direction"):
        path.limit()
    assert path.rate().item() == 0.0
    late = path.distance(torch.tensor([1e6, 2e6], dtype=torch.float64))
    assert (late[0] / late[1]).item() == pytest.approx(2.0, rel=1e-4)


# ---- growth and rate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HARD)
def test_growth_is_the_slope_of_the_log_norm(name):
    """[eq: growth]."""
    case = HARD[name]
    oracle = DenseFlow(case)
    with mp.workdps(50):
        a, b = oracle.at(mp.mpf(10) ** 12).log_norm, oracle.at(2 * mp.mpf(10) ** 12).log_norm
        slope = float((b - a) / mp.mpf(10) ** 12)
    assert case.flow().growth().item() == pytest.approx(slope, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("name", [name for name in HARD if name != "gamma tiny"])
def test_rate_is_the_slope_of_the_log_distance(name):
    """The distance at two late times, in 100 digits, from the exact state against its own far future."""
    case = HARD[name]
    path = case.flow()
    rate = path.rate().item()
    assert rate < 0
    oracle = DenseFlow(case)
    first, second = 60 / -rate, 70 / -rate

    def distance(time: float) -> mp.mpf:
        with mp.workdps(100):
            return high_distance(oracle, time, 400 / -rate)

    with mp.workdps(100):
        slope = float((mp.log(distance(second)) - mp.log(distance(first))) / (mp.mpf(second) - mp.mpf(first)))
    assert rate == pytest.approx(slope, rel=1e-6)


def high_distance(oracle: DenseFlow, time: float, far: float) -> mp.mpf:
    """|Z(t)/|Z(t)| - Z(far)/|Z(far)|| in full digits; the far factor is at least e^-300 off the limit."""

    def unit(moment: float) -> list[mp.mpf]:
        moved = oracle.coordinates.copy()
        top = max(oracle.values)
        for k in range(moved.rows):
            factor = mp.exp((oracle.values[k] - top) * mp.mpf(moment))
            for j in range(moved.cols):
                moved[k, j] = moved[k, j] * factor
        state = oracle.vectors * moved
        for i in range(state.rows):
            for j in range(state.cols):
                state[i, j] = state[i, j] * oracle.roots[i]
        norm = mp.sqrt(mp.fsum(x * x for x in state))
        return [x / norm for x in state]

    return mp.sqrt(mp.fsum((a - b) ** 2 for a, b in zip(unit(time), unit(far), strict=True)))


@pytest.mark.parametrize("name", HARD)
def test_the_distance_is_accurate_however_small(name):
    """[eq: chord]."""
    case = HARD[name]
    path = case.flow()
    rate = -path.rate().item()
    oracle = DenseFlow(case)
    for folds in (0.1, 3.0, 40.0, 80.0):
        time = folds / rate
        if time > 1e12:
            continue
        with mp.workdps(100):
            expected = float(high_distance(oracle, time, 350 / rate))
        assert path.distance(time).item() == pytest.approx(expected, rel=1e-12 * max(1.0, folds))


@pytest.mark.parametrize("gamma", [0.05, 0.2, None, 0.5, 0.9])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 9.0])
def test_the_rate_without_decay_is_that_of_corollary_1(gamma, ratio):
    """[eq: rate]."""
    case = make_case([5, 5, 5, 5], gamma=gamma, lr=(0.1 * ratio, 0.1))
    g = 1 / 3 if gamma is None else gamma
    exponent = max(-4 * g, 2 * g - 2) / (4 * math.sqrt(5))
    assert case.flow().rate().item() == pytest.approx(exponent * 0.1 * math.sqrt(ratio), rel=1e-12)


@pytest.mark.parametrize("decays", [(0.1, 0.1), (0.5, 0.02), (0.0, 0.8)], ids=str)
@pytest.mark.parametrize("ratio", [0.25, 1.0, 9.0])
@pytest.mark.parametrize("gamma", [0.1, None])
def test_the_rate_with_decay_is_that_of_theory_2_2(decays, ratio, gamma):
    """[eq: rate]."""
    case = make_case([2, 2, 2, 2], gamma=gamma, feature_decay=decays[0], weight_decay=decays[1], lr=(ratio, 1.0))
    g = 1 / 3 if gamma is None else gamma
    one, two = (1 + g) / (4 * math.sqrt(2)), (1 + g - 4 * g) / (4 * math.sqrt(2))
    delta = ratio * decays[0] - decays[1]
    omega = (math.sqrt(delta**2 + 4 * ratio * one**2) - math.sqrt(delta**2 + 4 * ratio * two**2)) / 2
    assert case.flow().rate().item() == pytest.approx(-omega, rel=1e-11)


def test_a_start_without_a_mean_part_converges_faster():
    """The exponent improves to -sigma_1 with, and -2 sigma_1 without, features within their classes  [eq: rate]."""
    case = make_case([2, 2, 2], gamma=0.2, lr=(1.0, 1.0))
    means = spread(case, class_means(case))
    features = case.features - means.mean(0)
    case = case.change(features=features, weight=center(case.weight))
    sigma = 1.2 / (3 * math.sqrt(2))
    assert case.flow().rate().item() == pytest.approx(-sigma, rel=1e-12)
    single = make_case([1, 1, 1], gamma=0.2, lr=(1.0, 1.0))
    single = single.change(features=center(single.features), weight=center(single.weight))
    assert single.flow().rate().item() == pytest.approx(-2 * 1.2 / 3, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}], ids=str)
def test_growth_and_rate_of_descent_are_slopes_per_step(options):
    case = make_case([3, 2, 1], gamma=0.3, feature_decay=0.02, weight_decay=0.05, lr=(0.4, 0.2))
    path = case.descent(**options)
    logs = path.log_norm(torch.tensor([10**6, 2 * 10**6]))
    assert path.growth().item() == pytest.approx((logs[1] - logs[0]).item() / 1e6, rel=1e-10)
    steps = torch.tensor([3000, 4000])
    logs = path.distance(steps).log()
    assert path.rate().item() == pytest.approx((logs[1] - logs[0]).item() / 1000, rel=1e-6)


def test_descent_without_momentum_grows_by_log1p_of_the_flow():
    case = make_case([2, 2, 2], lr=(0.1, 0.1))
    omega = case.flow().growth().item() / 0.1
    assert case.descent().growth().item() == pytest.approx(math.log1p(0.1 * omega), rel=1e-14)


def test_a_rate_can_be_asked_for_another_learning_rate():
    case = make_case([2, 2, 2], gamma=0.3)
    at_one = case.flow(lr=cosine(0.1, total=10)).rate(lr=1.0).item()
    assert at_one == pytest.approx(case.flow(lr=1.0).rate().item(), rel=1e-14)
    with pytest.raises(ValueError, match="lr="):
        case.flow(lr=cosine(0.1, total=10)).rate()


# ---- hitting times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [0.5, 1e-3, 1e-12, 1e-100])
def test_the_time_to_a_distance_is_that_of_the_closed_form(tolerance):
    """s = 1, equal decays, gamma = 1/(C-1)  [eq: time-to]."""
    case = make_case([3, 3, 3], feature_decay=0.1, weight_decay=0.1, lr=(1.0, 1.0))
    x, w = class_means(case), case.weight
    plus, minus = (center(x + w) / 2).norm() ** 2 * 2, (center(x - w) / 2).norm() ** 2 * 2
    mean = ((x.mean(0) ** 2).sum() + (w.mean(0) ** 2).sum()) * 3
    rest = (mean + (case.features - spread(case, x)).norm() ** 2).item()
    tangent = math.tan(2 * math.asin(tolerance / 2)) ** 2
    plus, minus = plus.item(), minus.item()
    sigma = 1.5 / (3 * math.sqrt(3))
    root = math.sqrt(rest**2 + 4 * plus * minus * tangent)
    expected = math.log((rest + root) / (2 * plus * tangent)) / (2 * sigma)
    assert case.flow().time_to(tolerance).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("tolerance", [0.3, 1e-5])
def test_the_time_to_a_distance_is_the_first_time_it_is_reached(name, tolerance):
    path = NAMED[name].flow()
    time = path.time_to(tolerance)
    assert path.distance(time).item() == pytest.approx(tolerance, rel=1e-9) or time.item() == 0.0
    earlier = torch.linspace(0, 0.999, 200, dtype=torch.float64) * time
    assert time.item() == 0.0 or bool((path.distance(earlier) > tolerance).all())


@settings(max_examples=25)
@given(cases())
def test_no_path_turns_faster_than_the_norm_of_its_generator(case):
    """What the search for a time relies on: before, no distance can be reached."""
    path = case.flow()
    times = torch.logspace(-6, 3, 40, dtype=torch.float64)
    fallen = path.distance(0.0) - path.distance(times)
    assert bool((fallen <= path._turning * times * (1 + 1e-9) + 1e-14).all())


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("tolerance", [0.3, 1e-5])
def test_the_time_to_a_distance_is_the_same_if_looked_for_from_the_very_beginning(name, tolerance):
    path = NAMED[name].flow()

    def distance(time: torch.Tensor) -> torch.Tensor:
        return path.distance(time).double()

    slow = first_time_below(distance, tolerance, 1e300, discrete=False)
    assert path.time_to(tolerance).item() == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}], ids=str)
def test_the_number_of_steps_to_a_distance_is_the_first_whole_one(options):
    path = make_case([3, 2, 1], gamma=0.3).descent(**options)
    steps = path.time_to(torch.tensor([0.1, 1e-4], dtype=torch.float64))
    for k, wanted in zip(steps.tolist(), (0.1, 1e-4), strict=True):
        assert k == int(k)
        assert path.distance(int(k)).item() <= wanted < path.distance(int(k) - 1).item()


def test_a_distance_never_reached_takes_forever():
    case = make_case([3, 2, 1], gamma=0.3)
    assert case.flow(lr=cosine(0.1, total=10)).time_to(1e-6).item() == math.inf


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan])
def test_a_distance_that_is_not_positive_is_refused(bad):
    with pytest.raises(ValueError, match="positive"):
        make_case([3, 2, 1]).flow().time_to(bad)


def test_anchored_time_to_a_distance_is_when_it_is_reached():
    case = NAMED["balanced"].change(feature_decay=0.1)
    path = case.problem().anchored(case.features, case.weight, lr=0.3)
    time = path.time_to(1e-6)
    assert path.distance(time).item() == pytest.approx(1e-6, rel=1e-9)


# ---- the best gamma -------------------------------------------------------------------------------------------------


def test_the_critical_decay_separates_growth_from_death():
    """[eq: growth], [eq: critical-decay]."""
    case = make_case([5, 3, 1], gamma=0.3)
    top = case.problem().critical_decay.item()
    assert top == pytest.approx(singular_values(case)[0], rel=1e-14)
    for factor, sign in ((0.999, 1), (1.001, -1)):
        changed = case.change(feature_decay=3 * top * factor, weight_decay=top / 3 * factor)
        assert math.copysign(1, changed.flow().growth().item()) == sign


@pytest.mark.parametrize("wanted", [0.5, 1e-2, 1e-5])
@pytest.mark.parametrize("name", list(HARD))
def test_a_time_is_the_same_float_whether_its_bracket_is_foreseen_or_looked_for(name, wanted, monkeypatch):
    """One question about the ends that a cubic foresees stands for three grids of 257 times."""
    path, asked = HARD[name].flow(), []

    def measured(times):
        asked.append(times.numel())
        return path.distance(times)

    foreseen = first_time_below(measured, wanted, 1e15, discrete=False)
    with_few = sum(asked)
    monkeypatch.setattr(numerics, "FORESEEN", math.inf)
    assert first_time_below(measured, wanted, 1e15, discrete=False) == foreseen
    if 0 < foreseen < math.inf:
        assert with_few <= sum(asked) - with_few - 3 * 257 + 6


@pytest.mark.parametrize("lr", [1.0, (1.0, 0.5), (1.0, 3.0)], ids=str)
def test_a_step_with_too_few_eigenvectors_still_has_limits_and_rates(lr):
    """lr * decay = 1 with Nesterov's momentum takes a mode to zero in two steps: its matrix cannot be diagonalized."""
    case = make_case([2, 2], feature_decay=1.0, weight_decay=1.0, lr=lr)
    path = case.descent(momentum=0.5, nesterov=True)
    assert path.growth().item() == pytest.approx(((path.log_norm(2000) - path.log_norm(1000)) / 1000).item(), abs=1e-4)
    path.learned()


@pytest.mark.parametrize(
    ("decays", "options"),
    [
        ((1.0, 0.9), {"lr": 0.05, "momentum": 0.9}),
        ((1.0, 0.9), {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        ((1.0, 0.9), {"lr": (0.05, 0.04), "momentum": 0.9}),
        ((1.0, 1.0), {"lr": 1.0}),
    ],
    ids=str,
)
def test_what_vanishes_while_it_turns_has_the_limit_zero(decays, options):
    path = make_case([2, 2], feature_decay=decays[0], weight_decay=decays[1]).descent(**options)
    assert path.log_norm(3000) < -30
    limit = path.limit()
    assert not limit.features.any()
    assert not limit.weight.any()
    with pytest.raises(ValueError, match=r"turns.*lr \* decay"):
        path.direction()


@pytest.mark.parametrize("noisy", ["noise", "equal", "one example"])
@pytest.mark.parametrize("weight_decay", [0.0, 1.0])
@pytest.mark.parametrize(
    "solve",
    [
        lambda problem, h, w: problem.flow(h, w, lr=0.5),
        lambda problem, h, w: problem.descent(h, w, lr=0.5, momentum=0.5),
        lambda problem, h, w: problem.descent(h, w, lr=(0.5, 0.3)),
    ],
    ids=["flow", "momentum", "pair"],
)
def test_labels_that_say_nothing_move_nothing(noisy, weight_decay, solve):
    generator = torch.Generator().manual_seed(0)
    size = 1 if noisy == "one example" else 5
    target = symmetric_noise(torch.arange(5), 5, 0.8) if noisy == "noise" else torch.full((size, 5), 0.2).double()
    features, weight = (torch.randn(k, 3, generator=generator, dtype=torch.float64) for k in (size, 5))
    path = solve(LayerPeeled(target, 5, weight_decay=weight_decay), features, weight)
    assert_exact(path.limit().features, features, 8)
    assert_exact(path.limit().weight, weight * (weight_decay == 0), 8, scale=1.0)
    assert path.distance(10**6) <= 1e-15


@pytest.mark.parametrize("kind", ["free", "pair", "anchored"])
def test_dampening_of_one_has_steps_but_no_limit(kind):
    case = make_case([2, 2, 2], bias=True)
    problem, options = case.problem(), {"momentum": 0.5, "dampening": 1.0}
    solve = problem.anchored_descent if kind == "anchored" else problem.descent
    lr = (0.5, step(0.5, every=[4], factor=0.5)) if kind == "pair" else 0.5
    path = solve(case.features, case.weight, case.bias, lr=lr, **options)
    assert_exact(path.at(2000).features, path.at(3000).features, 64)
    for question in (
        path.limit,
        path.direction,
        path.rate,
        path.growth,
        lambda: path.time_to(0.1),
        lambda: path.distance(5),
    ):
        with pytest.raises(ValueError, match=r"dampening = 1 no gradient.*at\(\)"):
            question()


@given(st.floats(0.01, 3.0), st.floats(0.01, 0.99))
def test_the_time_to_a_distance_that_is_jumped_over_is_a_number(decay, share):
    """In one dimension a feature on the other side of its pull goes through zero, and the distance from 2 to 0."""
    target = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
    problem = LayerPeeled(target, 2, feature_decay=decay)
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    time = problem.anchored(torch.tensor([[1.0]], dtype=torch.float64), weight, lr=0.7).time_to(2 * share)
    # h' = 0.7 (v - decay h) with v = -0.2 * 2 crosses zero at this time
    assert time.item() == pytest.approx(math.log1p(decay / 0.4) / (0.7 * decay), rel=1e-9)


@pytest.mark.parametrize("first", ["features", "prototypes"])
@pytest.mark.parametrize("kind", ["flow", "descent"])
def test_the_limit_where_one_rate_ends_and_the_other_goes_on_is_where_the_path_goes(kind, first):
    lr = (cosine(0.2, total=30), constant(0.2))
    case = make_case([2, 2, 2], gamma=0.3, feature_decay=0.05, weight_decay=0.05)
    path = getattr(case, kind)(lr=lr if first == "features" else lr[::-1])
    limit, late = path.limit(), path.at(10**5)
    scale = late.log_scale.exp()
    assert_exact(limit.features, scale * late.features, 4096)
    assert_exact(limit.weight, scale * late.weight, 4096)


@pytest.mark.parametrize("solve", ["flow", "descent"])
@pytest.mark.parametrize("lr", [(0.1, 0.0), (0.0, 0.1)], ids=["prototypes", "features"])
def test_a_frozen_side_without_decay_is_approached_as_one_over_time_at_rate_zero(solve, lr):
    case = make_case([3, 2, 1])
    path = getattr(case.problem(), solve)(case.features, case.weight, lr=lr)
    early, late, last = (path.at(time) for time in (10**4, 10**5, 10**9))
    distances = [_apart(state, last) for state in (early, late)]
    assert distances[0] / distances[1] == pytest.approx(10, rel=0.01)  # algebraic
    assert path.rate().item() == 0
    assert path.growth().item() == 0
    with pytest.raises(ValueError, match="not exponentially"):
        path.direction()


def _apart(state, other):
    """Distance of two states, each divided by its norm."""
    one, two = (torch.cat([each.features, each.weight]) for each in (state, other))
    return (one / one.norm() - two / two.norm()).norm().item()


DECOUPLED = {"momentum": 0.5, "nesterov": True, "decoupled": True}


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("lr", [(0.6, 0.2), (0.3, 0.4)])
def test_a_rate_counts_only_what_the_start_has(gamma, lr):
    """With gamma = 0 the modes see all of the prototypes, so nothing of them decays by itself."""
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = LayerPeeled(torch.arange(6) % 3, gamma=gamma, feature_decay=0.4, weight_decay=0.4)
    path = problem.descent(features, features[:3] - 1, lr=lr, **DECOUPLED)
    first, last = path.distance([60, 90])
    assert path.rate().item() == pytest.approx(((last / first).log() / 30).item(), rel=1e-3)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_what_feels_no_gradient_only_decays_however_slow_the_buffer(momentum):
    """At gamma = 1/(C-1) a mean over the classes feels none; its buffer stays empty."""
    problem = LayerPeeled(torch.arange(6) % 3, feature_decay=0.4, weight_decay=0.4)
    path = problem.descent(torch.ones(6, 4), torch.zeros(3, 4), lr=0.5, momentum=momentum, decoupled=True)
    assert path.growth().item() == pytest.approx(math.log(0.8))
    assert problem.modes(lr=0.5, momentum=momentum, decoupled=True).growth[-1].item() == pytest.approx(math.log(0.8))


def test_features_that_cancel_in_every_class_stay_as_they_are():
    """Without prototypes there is no mode that could lead."""
    half = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = torch.cat([half, -half])
    path = LayerPeeled(torch.arange(6) % 3).descent(features, 0 * half, momentum=0.5, decoupled=True)
    torch.testing.assert_close(path.at(100).features, features)
    assert path.growth().item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_stay_zeros_at_any_time(dtype):
    features, weight = torch.zeros(6, 4, dtype=dtype), torch.zeros(3, 4, dtype=dtype)
    problem = LayerPeeled(torch.arange(6) % 3)
    for path in (problem.flow(features, weight), problem.descent(features, weight)):
        state = path.at(10**9)
        assert not state.features.any()
        assert not state.weight.any()


@pytest.mark.parametrize("falling", [exponential(0.4, decay=0.9), step(0.4, every=3, factor=0.5)])
@pytest.mark.parametrize("solve", ["flow", "descent"])
def test_beside_a_rate_that_falls_for_ever_the_other_side_settles(solve, falling):
    """What is left of the rate, 1e-20 of it, would grow with the other to exp(1e-11 x time)."""
    case = make_case([2, 2, 2], dim=4, seed=3)
    path = getattr(case.problem(), solve)(case.features, case.weight, lr=(constant(0.3), falling))
    torch.testing.assert_close(path.at(10**12).weight, path.at(10**4).weight, rtol=1e-3, atol=0)  # 1e-16 a step
    assert path.growth() == 0
    with pytest.raises(ValueError, match="not exponentially"):
        path.limit()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("schedule", [cosine(0.3, total=9, end=0.05), step(0.4, every=[2, 7]), warmup(0.2, 5.5)])
def test_at_the_critical_decay_the_steps_before_the_rate_settles_count_in_the_limit(schedule, options):
    case = make_case([2, 2, 2], dim=4, seed=3)
    decay = LayerPeeled(case.target, 3).critical_decay
    problem = LayerPeeled(case.target, 3, feature_decay=decay, weight_decay=decay)
    path = problem.descent(case.features, case.weight, lr=schedule, **options)
    end, late = path.limit(), path.at(10**5)
    torch.testing.assert_close(end.features, late.features, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(end.weight, late.weight, rtol=1e-8, atol=1e-10)
