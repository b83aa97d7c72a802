"""The parts under DistributedDataParallel: two processes on gloo take the step one process takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from two_processes import folder_of_two
from unhinge.nn import AdjustedMarginLoss, ETFHead, FeatureNormPenalty, RescaledGradient, UnhingedLoss
from unhinge.nn import functional as UF

CASES = ("pal", "fnpal", "rescaled", "adjusted", "from-features", "trainable")


class Net(nn.Module):
    """A body, and a head that returns what the loss needs; all through `forward`, as DDP wants it."""

    def __init__(self, case: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.case = case
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        self.rescale = RescaledGradient() if case == "rescaled" else nn.Identity()
        normalize = case in ("fnpal", "rescaled")
        self.head = ETFHead(5, 4, normalize=normalize, trainable=case == "trainable", generator=generator)
        self.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(self.rescale(features))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 6, generator=generator, dtype=torch.float64), torch.arange(12) % 4


def steps(net: nn.Module, plain: Net, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Three SGD steps; the state afterwards."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    penalty = FeatureNormPenalty(0.05, reduction="mean")
    for _ in range(3):
        optimizer.zero_grad()
        features, logits = net(x)
        match plain.case:
            case "adjusted":
                loss = AdjustedMarginLoss()(features, plain.head.weight, y)
            case "from-features":
                loss = UF.unhinged_loss_from_features(features, plain.head.weight, y, weight_sum=plain.head.weight_sum)
            case _:
                loss = UnhingedLoss()(logits, y)
        (loss + penalty(features)).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in plain.state_dict().items()}


def _worker(rank: int, folder: str) -> None:
    x, y = data()
    for case in CASES:
        net = Net(case)
        torch.save(steps(DistributedDataParallel(net), net, x[rank::2], y[rank::2]), Path(folder) / f"{case}-{rank}.pt")


folder = folder_of_two(_worker)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_two_processes_end_where_one_does(case: str, rank: int, folder: Path):
    net = Net(case)
    before = net.state_dict()["body.0.weight"].clone()
    expected = steps(net, net, *data())
    assert not torch.equal(expected["body.0.weight"], before)
    actual = torch.load(folder / f"{case}-{rank}.pt", weights_only=True)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-12, atol=1e-13)
