"""The parts under FSDP2 (`fully_shard`): two processes, each with half of the parameters, end where one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from two_processes import folder_of_two, run_in_two
from unhinge.nn import AdjustedMarginLoss, ETFHead, FeatureNormPenalty, RescaledGradient, UnhingedLoss
from unhinge.nn import functional as UF

CASES = ("fixed", "normalized", "rescaled", "adjusted", "from-features", "trainable", "trainable-adjusted")


class Net(nn.Module):
    """A body and a head; it returns what every loss may ask for, the prototypes too, since sharded ones are whole only
    inside `forward`."""

    def __init__(self, case: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
        self.rescale = RescaledGradient() if case == "rescaled" else nn.Identity()
        normalize = case in ("normalized", "rescaled")
        self.head = ETFHead(6, 4, normalize=normalize, trainable=case.startswith("trainable"))
        self.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(self.rescale(features)), self.head.weight, self.head.weight_sum


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 6, generator=generator, dtype=torch.float64), torch.arange(12) % 4


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def trained(net: nn.Module, case: str, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The state after three steps of SGD with momentum."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    penalty = FeatureNormPenalty(0.05, reduction="mean")
    for _ in range(3):
        optimizer.zero_grad()
        features, logits, weight, weight_sum = net(x)
        if case.endswith("adjusted"):
            loss = AdjustedMarginLoss()(features, weight, y)
        elif case == "from-features":
            loss = UF.unhinged_loss_from_features(features, weight, y, weight_sum=weight_sum)
        else:
            loss = UnhingedLoss()(logits, y)
        (loss + penalty(features)).backward()
        optimizer.step()
    return {name: whole(tensor) for name, tensor in net.state_dict().items()}


def _worker(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    x, y = data()
    for case in CASES:
        net = Net(case)
        fully_shard(net.body, mesh=mesh)
        if case == "trainable":  # its forward is called by the root's; the other one's rows are used outside of it
            fully_shard(net.head, mesh=mesh)
        fully_shard(net, mesh=mesh)
        halves = [parameter.to_local().numel() for parameter in net.parameters()]
        assert 2 * sum(halves) == sum(parameter.numel() for parameter in net.parameters())
        assert isinstance(net.head.weight, DTensor) == case.startswith("trainable")
        torch.save(trained(net, case, x[rank::2], y[rank::2]), Path(folder) / f"{case}-{rank}.pt")


folder = folder_of_two(_worker)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_two_processes_with_half_of_each_parameter_end_where_one_does(case: str, rank: int, folder: Path):
    net = Net(case)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    expected = trained(net, case, *data())
    assert not torch.equal(expected["body.0.weight"], before["body.0.weight"])
    assert torch.equal(expected["head.weight"], before["head.weight"]) != case.startswith("trainable")
    actual = torch.load(folder / f"{case}-{rank}.pt", weights_only=True)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-12, atol=1e-13)


def _split_batch(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    logits, target = data()
    split = distribute_tensor(logits, mesh, [Shard(0)]).requires_grad_()
    loss = UnhingedLoss()(split, distribute_tensor(target, mesh, [Shard(0)]))
    loss.backward()
    torch.save((whole(loss), whole(split.grad)), Path(folder) / f"{rank}.pt")


def test_the_loss_of_logits_split_over_two_processes_is_that_of_the_whole(tmp_path):
    run_in_two(_split_batch, str(tmp_path))
    logits, target = data()
    logits.requires_grad_()
    loss = UnhingedLoss()(logits, target)
    loss.backward()
    for rank in (0, 1):
        actual = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(actual, (loss.detach(), logits.grad), rtol=1e-12, atol=1e-13)
