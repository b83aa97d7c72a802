"""The monitor can show what cross-entropy does first, as far as it is proved."""

from __future__ import annotations

import torch

from unhinge.monitor.forecast import Setting, forecast
from unhinge.prediction import measure_arrays
from unhinge.theory import EarlyCrossEntropy


def test_the_first_phase_is_that_of_the_measured_features():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    features = 0.01 * torch.randn(24, 6, generator=generator, dtype=torch.float64)
    weight = 0.01 * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    measured = measure_arrays(features, labels, weight=weight)
    outlook = forecast(measured, Setting(None, 0.0, 0.0, 0.1, first_phase=True), lr=0.1, fixed=False)
    path = EarlyCrossEntropy(labels).descent(features, weight, lr=0.1)
    horizon = outlook.numbers["young_horizon"]
    assert 0 < horizon <= path.horizon(0.1)  # of sums only: never beyond what the features themselves prove
    torch.testing.assert_close(torch.tensor(outlook.at(5)["cross_entropy"]).double(), path.loss(5), rtol=1e-6, atol=0)
    assert "cross_entropy" not in outlook.at(10 * horizon)
    assert "young_horizon" not in forecast(measured, Setting(None, 0.0, 0.0, 0.1), lr=0.1, fixed=False).numbers
