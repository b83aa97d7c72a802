"""Two processes on the loopback device reduce their parts to the whole."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from two_processes import folder_of_two
from unhinge.metrics import CollapseSummary, Reliability, classwise_reliability, neural_collapse, reliability

CLASSES, DIM = 4, 6
SPLITS = (11, 0)  # examples of the first process; 0: it has none


def data() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    features = 5 + torch.randn(30, DIM, generator=generator)
    weight = torch.randn(CLASSES, DIM, generator=generator)
    return features, weight, torch.randint(CLASSES, (30,), generator=generator)


def _reduced(part: slice) -> tuple[dict[str, torch.Tensor], tuple[float, float]]:
    """What a process with this part of the data knows after the reduction."""
    features, weight, target = data()
    h, y = features[part], target[part]
    p = (h @ weight.T).softmax(1)
    mine = CollapseSummary.of(h, y, CLASSES) if len(h) else CollapseSummary.empty(CLASSES, DIM)
    bins = reliability(p, y) if len(h) else Reliability.empty()
    classwise = classwise_reliability(p, y) if len(h) else Reliability.empty(num_classes=CLASSES)
    kept = mine.classes.sums.clone()
    whole = mine.all_reduce()
    assert torch.equal(mine.classes.sums, kept)  # reducing leaves the part as it was
    wrong = whole.disagrees(h, weight).sum() if len(h) else torch.zeros((), dtype=torch.int64)
    dist.all_reduce(wrong)
    return whole.measures(weight) | {"nc4": wrong / 30}, (bins.all_reduce().error, classwise.all_reduce().error)


def _worker(rank: int, folder: str) -> None:
    for split in SPLITS:
        part = slice(0, split) if rank == 0 else slice(split, None)
        torch.save(_reduced(part), os.path.join(folder, f"{split}-{rank}.pt"))


folder = folder_of_two(_worker)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("split", SPLITS)
def test_processes_reduce_their_parts_to_the_whole(split, rank, folder):
    features, weight, target = data()
    p = (features @ weight.T).softmax(1)
    expected = neural_collapse(features, weight, target)
    actual, errors = torch.load(folder / f"{split}-{rank}.pt")
    assert set(actual) == set(expected)
    for key, value in expected.items():
        assert actual[key].item() == pytest.approx(value.item(), rel=1e-6, abs=1e-9), key
    assert errors == pytest.approx((reliability(p, target).error, classwise_reliability(p, target).error), rel=1e-12)
