"""A few digits to train on: enough to learn from, few enough for a second."""

from __future__ import annotations

import pytest
import torch

from unhinge.data import load
from unhinge.training import Material


@pytest.fixture(scope="session")
def few() -> Material:
    """203 images, so that batches of 32 leave one of 11, and 60 to test on."""
    splits = load("digits")
    return Material(splits.training.subset(torch.arange(203)), splits.test.subset(torch.arange(60)), None)
