"""A head whose rows lie in two processes is the head of one process that sees both batches."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from two_processes import run_in, run_in_two, start_in
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
        for head in (part, whole):
            head.restart(weight.flip(0))
        torch.testing.assert_close(part.dense(), whole.dense(), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(part.weight_sum, whole.weight_sum, rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_two_processes_are_one():
    run_in_two(compare)


def sharded(**options: object) -> ManyClassHead:
    weight = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return ManyClassHead(DIM, CLASSES, "taylor_softmax", weight=weight, process_group=dist.group.WORLD, **options)


def train_and_save(rank: int, folder: str) -> None:
    head = sharded()
    for step in range(7):
        features, target = batches(step)
        here = slice(rank * BATCH, (rank + 1) * BATCH)
        head(features[here], target[here]).backward()
        head.step(0.3)
    save_file(head.state_dict(), f"{folder}/{rank}.safetensors")
    save_file({"weight": head.dense(), "sum": head.weight_sum}, f"{folder}/expected.{rank}.safetensors")


def load_and_go_on(rank: int, folder: str) -> None:
    head = sharded()
    head.load_state_dict(ManyClassHead.joined([load_file(f"{folder}/{k}.safetensors") for k in range(2)]))
    expected = load_file(f"{folder}/expected.0.safetensors")
    assert torch.equal(head.dense(), expected["weight"])
    assert torch.equal(head.weight_sum, expected["sum"])
    # A head of one process with the same rows takes the same step on all examples.
    alone = ManyClassHead(DIM, CLASSES, "taylor_softmax", weight=expected["weight"])
    count = dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2 * count, DIM, generator=generator, dtype=torch.float64)
    target = torch.randint(CLASSES, (2 * count,), generator=generator)
    here = slice(2 * rank, 2 * rank + 2)
    head(features[here], target[here]).backward()
    head.step(0.3)
    alone(features, target).backward()
    alone.step(0.3)
    torch.testing.assert_close(head.dense(), alone.dense(), rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_what_two_processes_save_any_number_loads(tmp_path):
    run_in_two(train_and_save, str(tmp_path))
    for count in (1, 3, 4):
        run_in(count, load_and_go_on, str(tmp_path))


def one_is_killed(rank: int, folder: str) -> None:
    head = sharded()
    for step in range(1000):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        features, target = batches(step)
        try:
            head(features, target).backward()
            head.step(0.3)
        except RuntimeError as error:
            Path(folder, "told").write_text(str(error))
            raise


@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
def test_a_killed_process_ends_the_others_with_an_error(tmp_path):
    """Not with a hang: the survivor raises, by itself, where it would have waited."""
    survivor, killed = start_in(2, one_is_killed, str(tmp_path))
    killed.join()
    survivor.join(timeout=300)  # a hang would last until gloo's own limit, half an hour
    ended = survivor.exitcode
    if ended is None:
        survivor.kill()
    assert killed.exitcode == -signal.SIGKILL
    assert ended == 1
    assert (tmp_path / "told").read_text()
