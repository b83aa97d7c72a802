"""Options, seeds and profiles. The default dtype stays torch's own, as users have it: tests name float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# Derandomized: a suite that passes today passes tomorrow. `--hypothesis-seed=random` explores further.
settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device of the tests that take one, such as cuda or mps")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
