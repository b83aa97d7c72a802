"""Learning rates know their integral, and refuse what is none."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from oracles.schedules import SCHEDULES
from unhinge import LayerPeeled, Spherical, constant, cosine, exponential, piecewise, step, warmup
from unhinge.theory.schedules import as_schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_knows_its_rate_and_its_integral(name):
    """[eq: clock]."""
    import scipy.integrate

    given, rate, breaks = SCHEDULES[name]
    schedule = as_schedule(given)  # a number or a callable becomes a schedule
    for time in (0.0, 1.3, 6.0, 12.4, 19.99, 25.0):
        assert schedule(time).item() == pytest.approx(rate(time), rel=1e-13, abs=1e-16)
        edges = [0.0, *[b for b in breaks if b < time], time]
        area = sum(scipy.integrate.quad(rate, a, b, epsabs=1e-13, epsrel=1e-13)[0] for a, b in pairwise(edges))
        assert schedule.integral(time).item() == pytest.approx(area, rel=1e-11, abs=1e-13)


REFUSED = {
    "cosine without duration": (lambda: cosine(0.1, total=0), ["total", "0"]),
    "cosine of negative duration": (lambda: cosine(0.1, total=-5), ["total", "-5"]),
    "cosine with a negative end": (lambda: cosine(0.1, total=5, end=-0.1), ["end", "-0.1"]),
    "step without duration": (lambda: step(0.1, every=0), ["every", "0"]),
    "step that grows for ever": (lambda: step(0.1, every=10, factor=2.0), ["factor", "2"]),
    "step at falling times": (lambda: step(0.1, every=[20, 10]), ["increasing", "[20, 10]"]),
    "exponential growth": (lambda: exponential(0.1, decay=1.1), ["decay", "1.1"]),
    "exponential zero": (lambda: exponential(0.1, decay=0.0), ["decay", "0"]),
    "warmup without duration": (lambda: warmup(0.1, duration=0), ["duration", "0"]),
    "piecewise with too few values": (lambda: piecewise([1.0], [0.1]), ["one more", "1 values", "1 boundaries"]),
    "piecewise with a negative value": (lambda: piecewise([1.0], [0.1, -0.1]), ["values", "-0.1"]),
    "piecewise with falling boundaries": (lambda: piecewise([2.0, 1.0], [0.1, 0.2, 0.3]), ["increasing"]),
    "constant negative": (lambda: constant(-1.0), ["lr", "-1"]),
}


@pytest.mark.parametrize(("attempt", "words"), REFUSED.values(), ids=REFUSED)
def test_a_schedule_that_makes_no_sense_is_refused(attempt, words):
    with pytest.raises(ValueError, match=r".") as raised:
        attempt()
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(("rate", "came"), [("fast", "str"), (None, "NoneType"), (torch.zeros(3), r"shape \(3,\)")])
def test_a_function_that_returns_no_number_is_told_so(rate, came):
    with pytest.raises(ValueError, match=f"must return one number for one time, got {came}"):
        LayerPeeled([0, 1]).descent(torch.eye(2), torch.eye(2), lr=lambda time: rate).at(4)


@pytest.mark.parametrize("make", [lambda: cosine(0.1, -5), lambda: warmup(0.1, -1), lambda: constant(math.nan)])
def test_what_is_not_a_rate_is_not_told_to_be_reversed(make):
    with pytest.raises(ValueError, match=r"must be finite and not negative, got [-\w.]+\.$"):
        make()


def test_a_warm_up_leads_to_where_a_function_begins():
    rates = warmup(lambda t: 0.1 / (1 + t), 5)([0, 2.5, 5, 6])
    torch.testing.assert_close(rates, torch.tensor([0, 0.05, 0.1, 0.05], dtype=torch.float64))
    with pytest.raises(ValueError, match="begins, and that is 0"):
        warmup(lambda t: 0.1 * t, 5)


@pytest.mark.parametrize("time", [1e4, 1e12, 1e50, 1e100, 1e300])
def test_the_integral_of_a_function_is_right_at_any_time(time):
    area = as_schedule(lambda t: 0.1 / (1 + t)).integral(time)
    assert area.item() == pytest.approx(0.1 * math.log1p(time), rel=1e-13)


def test_a_rate_that_swings_for_ever_is_followed_as_far_as_possible_and_then_refused():
    swinging = as_schedule(lambda t: 1 + torch.sin(torch.as_tensor(t)))
    assert swinging.integral(1e4).item() == pytest.approx(1e4 + 1 - math.cos(1e4), rel=1e-12)
    with pytest.raises(ValueError, match="changes too often until then"):
        swinging.integral(1e12)


@pytest.mark.parametrize("time", [0.7, 3.0, 40.0])
def test_a_distance_under_a_rate_that_is_a_function_is_found_when_it_is_there(time):
    """The same time has another last digit when its integral is asked for among others."""
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, weight = torch.arange(6) % 3, features[:3] + 1
    for rate in (lambda t: 0.5 / (1 + t), lambda t: 0.3 + 0.1 * math.cos(t)):
        free = LayerPeeled(labels).flow(features, weight, lr=rate)
        for path in (free, Spherical(labels, weight).flow(features, rate)):
            assert path.time_to(path.distance(time)).item() == pytest.approx(time, rel=1e-9)
