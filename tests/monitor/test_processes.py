"""Two processes find what one finds with the data of both."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from two_processes import folder_of_two
from unhinge.monitor import Monitor

SPLITS = (7, 0)  # examples of the first process; 0: it has none


def data() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(18, 4)
    x[5] = torch.nan
    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), x, torch.arange(18) % 3


def _found(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    with Monitor(model) as monitor:
        for step in (0, 10):  # twice: the second has nc4 and what the first predicted
            if len(x):
                model(x)
                monitor.update(y)
            numbers = monitor.compute(step)
    return numbers


def _worker(rank: int, folder: str) -> None:
    for split in SPLITS:
        model, x, y = data()
        part = slice(0, split) if rank == 0 else slice(split, None)
        torch.save(_found(DistributedDataParallel(model), x[part], y[part]), os.path.join(folder, f"{split}-{rank}.pt"))


folder = folder_of_two(_worker)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_find_what_one_finds(split, rank, folder):
    actual, expected = torch.load(folder / f"{split}-{rank}.pt"), _found(*data())
    assert actual.keys() == expected.keys()
    assert (expected["examples"], expected["nonfinite"]) == (17, 1)
    assert {"nc4", "predicted/nc3", "theory/rate"} <= expected.keys()
    for key, value in expected.items():
        assert actual[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
