"""A head whose rows lie in two processes is the head of one process that sees both batches."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from two_processes import run_in_two
from unhinge.nn import ManyClassHead

CLASSES, DIM, BATCH = 11, 4, 5


def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of both processes, one after the other."""
    generator = torch.Generator().manual_seed(step)
    features = torch.randn(2 * BATCH, DIM, generator=generator, dtype=torch.float64)
    return features, torch.randint(CLASSES, (2 * BATCH,), generator=generator)


def compare(rank: int) -> None:
    for loss in ("unhinged", "taylor_softmax"):
        weight = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        whole = ManyClassHead(DIM, CLASSES, loss, weight=weight, weight_decay=0.01, bias=True)
        part = ManyClassHead(
            DIM, CLASSES, loss, weight=weight, weight_decay=0.01, bias=True, process_group=dist.group.WORLD
        )
        assert len(part.store.own) == (6, 5)[rank]
        here = slice(rank * BATCH, (rank + 1) * BATCH)
        for step in range(20):
            features, target = batches(step)
            ours, theirs = features[here].clone().requires_grad_(), features.clone().requires_grad_()
            part(ours, target[here]).backward()
            part.step(0.3)
            whole(theirs, target).backward()
            whole.step(0.3)
            torch.testing.assert_close(ours.grad / 2, theirs.grad[here], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(part.dense(), whole.dense(), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(part.weight_sum, whole.weight_sum, rtol=1e-11, atol=1e-12)
        index = torch.tensor([0, 10, 5])
        torch.testing.assert_close(part.rows(index), whole.rows(index), rtol=1e-11, atol=1e-12)
        features, _ = batches(99)
        near, expected = part.predict(features[here], k=7), whole.predict(features[here], k=7)
        assert torch.equal(near.classes, expected.classes)
        torch.testing.assert_close(near.scores, expected.scores)


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_two_processes_are_one():
    run_in_two(compare)
