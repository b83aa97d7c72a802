"""A resample's measures are those of the set drawn, and intervals cover what they should."""

from __future__ import annotations

import pytest
import torch

from unhinge.metrics import ood_metrics
from unhinge.metrics.bootstrap import interval_of, ood_bootstrap


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("sizes", [(30, 17), (1, 1), (5, 40)])
def test_each_resample_is_measured_as_the_set_that_was_drawn(sizes, ties):
    n, m = sizes
    inside, outside = torch.randn(n).double() + 1, torch.randn(m).double()
    if ties:
        inside, outside = inside.round(), outside.round()
    samples = ood_bootstrap(inside, outside, resamples=6, seed=3)
    first, second = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    rows, columns = torch.randint(n, (6, n), generator=first), torch.randint(m, (6, m), generator=second)
    for r in range(6):
        expected = ood_metrics(inside[rows[r]], outside[columns[r]])
        assert {name: values[r].item() for name, values in samples.items()} == pytest.approx(expected, abs=1e-12)


def test_the_known_set_is_drawn_alike_for_all_unknown_ones():
    """Against a single unknown score the measure depends on the draw of the known set alone."""
    inside = torch.randn(50).double()
    one, same = (ood_bootstrap(inside, torch.zeros(size).double(), 20)["auroc"] for size in (1, 7))
    torch.testing.assert_close(one, same)


def test_chunks_of_resamples_do_not_matter_in_their_number(monkeypatch):
    inside, outside = torch.randn(40).double() + 1, torch.randn(30).double()
    monkeypatch.setattr("unhinge.metrics.bootstrap.NUMBERS_AT_ONCE", 200)
    assert all(len(values) == 11 for values in ood_bootstrap(inside, outside, 11).values())


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """AUROC of N(1, 1) against N(0, 1) is Phi(1/sqrt 2) = 0.7602; of 60 nominal 90 % intervals, about 54 cover it."""
    hits = 0
    for trial in range(60):
        g = torch.Generator().manual_seed(trial)
        inside, outside = torch.randn(80, generator=g) + 1, torch.randn(80, generator=g)
        low, high = interval_of(ood_bootstrap(inside, outside, 100, seed=trial)["auroc"], 0.9)
        hits += low <= 0.7602 <= high
    assert 46 <= hits <= 60


def test_mistakes_are_told():
    for resamples in (0, 2.5, "many"):
        with pytest.raises(ValueError, match="resamples must be a whole number of at least 1"):
            ood_bootstrap([1.0], [0.0], resamples=resamples)
    with pytest.raises(ValueError, match="level must lie"):
        interval_of(torch.ones(3), level=1.0)
