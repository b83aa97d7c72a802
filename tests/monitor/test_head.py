"""Which layer makes the logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unhinge.monitor import Monitor
from unhinge.monitor.head import find_head, head_parameters
from unhinge.nn import ETFHead
from unhinge.nn.backbones import build_model


class DependsOnData(nn.Module):
    """A forward pass that cannot be traced."""

    def __init__(self, *, after: nn.Module | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3) if head is None else head
        if after is not None:
            self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) if x.sum() > 0 else self.body(-x))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.extra, self.head = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), self.extra(x)


class HeadFirst(nn.Module):
    """Registered in another order than called."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Linear(4, 3), ""),
        (ETFHead(4, 3), ""),
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Identity()), "2"),
        (nn.Sequential(nn.Linear(4, 5), ETFHead(5, 3, normalize=True)), "1"),
        (nn.Sequential(nn.Linear(4, 5), nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))), "1"),
        (HeadFirst(), "head"),
        (DependsOnData(), "head"),
        (DependsOnData(after=nn.CrossEntropyLoss(), head=ETFHead(5, 3)), "head"),
    ],
)
def test_the_head_is_found(model, name):
    assert find_head(model) is model.get_submodule(name)


@pytest.mark.parametrize("head", [None, ETFHead])
def test_the_head_of_our_networks_is_found_in_a_wrapped_one_too(head):
    model = build_model("resnet8", 10, width=4, head=head)
    assert find_head(model) is model.head
    assert find_head(torch.compile(model)) is model.head


@pytest.mark.parametrize("model", [nn.Conv2d(3, 3, 1), TwoOutputs(), DependsOnData(after=nn.LayerNorm(3)), nn.ReLU()])
def test_no_head_is_an_error_that_lists_what_there_is(model):
    names = [repr(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    with pytest.raises(ValueError, match="Pass head=") as told:
        Monitor(model)
    assert all(name in str(told.value) for name in names)


def test_a_head_may_be_given():
    model = TwoOutputs()
    assert find_head(model, "extra") is find_head(model, model.extra) is model.extra
    for wrong in ("body", "", nn.Linear(4, 3)):
        with pytest.raises(ValueError, match="'extra', 'head'"):
            find_head(model, wrong)


def test_copies_in_threads_are_refused():
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        Monitor(nn.DataParallel(nn.Linear(4, 3)))


def test_reading_a_head_does_not_move_it():
    head = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    before = {key: value.clone() for key, value in head.state_dict().items()}
    weight, bias = head_parameters(head)
    assert head.training
    assert weight.shape == (3, 4)
    assert not weight.requires_grad
    assert bias is not None
    assert all(torch.equal(value, before[key]) for key, value in head.state_dict().items())
