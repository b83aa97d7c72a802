"""Two processes on the loopback device make the detector of the whole."""

from __future__ import annotations

import os

import pytest
import torch

from two_processes import folder_of_two
from unhinge.ood import CollapseDetector

SPLITS = (11, 0)  # examples of the first process; 0: it has none


def data() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(3)
    features = 5 + torch.randn(60, 6, generator=g)
    return features, torch.arange(60) % 4, torch.randn(4, 6, generator=g), torch.randn(4, generator=g)


def _worker(rank: int, folder: str) -> None:
    features, target, weight, bias = data()
    for split in SPLITS:
        part = slice(0, split) if rank == 0 else slice(split, None)
        mine = [(features[part], target[part])] if len(features[part]) else []
        detector = CollapseDetector.from_batches(lambda mine=mine: mine, weight, bias, reduce=True)
        torch.save(detector.scores(features[:9]), os.path.join(folder, f"{split}-{rank}.pt"))


folder = folder_of_two(_worker)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_both_processes_have_the_detector_of_the_whole(split, rank, folder):
    features, target, weight, bias = data()
    expected = CollapseDetector.fit(features, target, weight, bias).scores(features[:9])
    scores = torch.load(folder / f"{split}-{rank}.pt")
    assert list(scores) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(scores[name], values, rtol=1e-5, atol=1e-6)
