"""Which layer makes the logits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from unhinge.monitor import Monitor
from unhinge.nn import ETFHead, replace_head
from unhinge.nn.backbones import build_model
from unhinge.nn.probe import features_and_logits, find_head, head_parameters, listening, logits_in, only_features


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
        (nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.LogSoftmax(1)), "1"),
        (HeadFirst(), "head"),
    ],
)
def test_the_head_is_found(model, name):
    assert find_head(model) is model.get_submodule(name)
    assert find_head(model, inputs=torch.randn(2, 4)) is model.get_submodule(name)


@pytest.mark.parametrize("head", [None, ETFHead])
def test_the_head_of_our_networks_is_found_in_a_wrapped_one_too(head):
    model = build_model("resnet8", 10, width=4, head=head)
    assert find_head(model) is model.head
    assert find_head(torch.compile(model)) is model.head


@pytest.mark.parametrize("model", [nn.Conv2d(3, 3, 1), TwoOutputs(), nn.ReLU()])
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


# ---- models that return more than a tensor ----------------------------------------------------------------------


class Answer(NamedTuple):
    aux: Tensor
    logits: Tensor


@dataclass
class Record:
    logits: Tensor
    aux: Tensor


class ModelOutput(OrderedDict[str, Tensor]):
    """As the one of transformers: a mapping whose entries are attributes too."""

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Wordy(nn.Module):
    """An auxiliary head, registered and called last, beside the logits."""

    def __init__(self, pack: Callable[[Tensor, Tensor], object], by_data: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)
        self.pack, self.by_data = pack, by_data

    def forward(self, x: Tensor) -> object:
        features = self.body(x)
        if self.by_data and x.sum() > 0:
            features = -features
        return self.pack(self.head(features), self.aux(features))


PACKS = {
    "dict": lambda logits, aux: {"aux": aux, "logits": logits},
    "named tuple": lambda logits, aux: Answer(aux, logits),
    "dataclass": lambda logits, aux: Record(logits, aux),
    "model output": lambda logits, aux: ModelOutput(logits=logits, aux=aux),
}


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS.keys())
def test_an_entry_called_logits_tells_the_head(pack, by_data):
    model, x = Wordy(pack, by_data), torch.randn(6, 4)
    if not by_data:
        assert find_head(model) is model.head
    assert find_head(model, inputs=x) is model.head
    features, logits = features_and_logits(model, x, model.head)
    assert torch.equal(model.head(features), logits)
    replace_head(model, ETFHead, inputs=x if by_data else None)
    assert isinstance(model.head, ETFHead)
    assert isinstance(model.aux, nn.Linear)


def test_an_output_without_logits_is_refused_with_its_type():
    for wrong in ({"scores": torch.ones(2)}, "logits", (), ("text", torch.ones(2))):
        with pytest.raises(ValueError, match=f"got {type(wrong).__name__}"):
            logits_in(wrong)
    with pytest.raises(ValueError, match="'body', 'head', 'aux'"):
        find_head(Wordy(lambda logits, aux: {"scores": logits}))


# ---- forward passes that depend on their data -------------------------------------------------------------------


@pytest.mark.parametrize("model", [DependsOnData(), DependsOnData(after=nn.CrossEntropyLoss(), head=ETFHead(5, 3))])
def test_of_a_pass_that_depends_on_data_the_guess_is_named(model):
    with pytest.warns(UserWarning, match="'head', the linear layer registered last"):
        assert find_head(model) is model.head
    assert find_head(model, inputs=torch.randn(2, 4)) is model.head


class Hidden(nn.Module):
    """Untraceable, and the layer registered last is a hidden one."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) if x.sum() > 0 else self.body(-x))


@pytest.mark.parametrize(
    "model",
    [Hidden(), Wordy(lambda logits, aux: logits, by_data=True), DependsOnData(after=nn.LayerNorm(3))],
    ids=["a hidden layer last", "an auxiliary head last", "something after the head"],
)
def test_where_several_layers_could_be_the_head_nothing_is_guessed(model):
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(ValueError, match=r"Pass name=.*there are: .*'head'"):
        replace_head(model, ETFHead)
    assert {name: type(module) for name, module in model.named_modules()} == before
    if not hasattr(model, "after"):
        replace_head(model, ETFHead, inputs=torch.randn(2, 4))
        assert isinstance(model.head, ETFHead)


class MakesTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * torch.arange(4))


def test_looking_for_the_head_leaves_no_attribute_behind():
    model = MakesTensors()
    before = set(vars(model))
    assert find_head(model) is model.head
    assert set(vars(model)) == before


# ---- listening --------------------------------------------------------------------------------------------------


def test_listening_hears_keywords_keeps_the_graph_and_leaves_no_hook():
    head = nn.Linear(4, 3)
    x = torch.randn(2, 4, requires_grad=True)
    with listening(head) as heard:
        head(input=2 * x)
    heard[0].sum().backward()
    assert torch.equal(x.grad, torch.full((2, 4), 2.0))
    assert not head._forward_pre_hooks
    with pytest.raises(ValueError, match="once per batch, on 3 rows"):
        only_features(heard, 3)
    with pytest.raises(ValueError, match="called on nothing"):
        only_features([], 3)
