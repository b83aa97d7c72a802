"""A new head changes the head and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.nn.backbones.build import build_model
from unhinge.nn.heads import ETFHead
from unhinge.nn.surgery import replace_head


class Block(nn.Module):
    """The residual block of torchvision: one ReLU module, called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + x)


class ResNet(nn.Module):
    """Registered in the wrong order on purpose, with an argument that has a default."""

    def __init__(self, relu: str = "shared", width: int = 6) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 4)
        self.stem = nn.Conv2d(3, width, 3)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.kind = relu
        self.act = nn.ReLU()

    def forward(self, x: Tensor, return_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        x = self.blocks(self.stem(x))
        if self.kind == "function":
            x = F.relu(x)
        elif self.kind == "own":
            x = self.act(x - 1)
        features = torch.flatten(self.pool(x), 1)
        logits = self.fc(F.dropout(features, 0.1, self.training))
        return (logits, features) if return_features else logits


class Branching(nn.Module):
    """Depends on its data, so it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.fc(h if x.sum() > 0 else -h)


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)),
        nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.Tanh(), nn.Dropout(0.0), nn.Linear(5, 4))),
        nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Flatten()),
    ],
    ids=["flat", "nested", "something after it"],
)
def test_the_last_linear_is_replaced_in_place(model):
    model = copy.deepcopy(model).eval()
    seen = {}
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    last.register_forward_pre_hook(lambda _, inputs: seen.update(features=inputs[0]))
    x = torch.randn(6, 3)
    model(x)
    result = replace_head(model, ETFHead)
    assert result is model
    (head,) = (m for m in model.modules() if isinstance(m, ETFHead))
    assert last not in list(model.modules())
    torch.testing.assert_close(model(x), seen["features"] @ head.weight.T)


def test_a_head_of_ours_can_be_replaced_again():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), ETFHead(5, 4, normalize=True))
    replace_head(model, lambda inputs, classes: nn.Linear(inputs, classes), remove_last_relu=True)
    assert isinstance(model[2], nn.Linear)
    assert isinstance(model[1], nn.Identity)


def test_of_an_untraceable_network_the_guess_is_named_and_can_be_confirmed():
    with pytest.warns(UserWarning, match="name='fc' to confirm it"):
        model = replace_head(Branching(), ETFHead)
    assert isinstance(model.fc, ETFHead)
    assert isinstance(replace_head(Branching(), ETFHead, name="fc").fc, ETFHead)
    assert isinstance(replace_head(Branching(), ETFHead, inputs=torch.randn(2, 3)).fc, ETFHead)


def test_a_linear_by_itself_becomes_the_head():
    head = replace_head(nn.Linear(6, 4), ETFHead)
    assert isinstance(head, ETFHead)
    assert (head.in_features, head.out_features) == (6, 4)


@pytest.mark.filterwarnings("ignore:the features come out of a ReLU")  # it is about where the head is
def test_the_order_of_registration_does_not_matter_where_the_pass_can_be_traced():
    model = ResNet().eval()
    replace_head(model, ETFHead)
    assert isinstance(model.fc, ETFHead)
    logits, features = model(images(), return_features=True)
    torch.testing.assert_close(logits, features @ model.fc.weight.T)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_the_head_takes_dtype_and_mode_of_the_linear(dtype, training):
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4)).to(dtype).train(training)
    replace_head(model, ETFHead(5, 4))
    assert model[1].weight.dtype == model[1].weight_sum.dtype == dtype
    assert model[1].training is training
    assert model(torch.randn(2, 3).to(dtype)).dtype == dtype


def test_the_head_goes_to_the_device_of_the_linear():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4)).to("meta")
    assert replace_head(model, ETFHead)[1].weight.is_meta


def test_a_linear_with_two_names_is_replaced_under_both():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4))
    model.alias = model[1]
    model.forward = lambda x: model[1](model[0](x))
    replace_head(model, ETFHead, name="1")
    assert model[1] is model.alias
    assert isinstance(model.alias, ETFHead)


def test_a_function_may_choose_the_number_of_classes():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4))
    replace_head(model, lambda inputs, _: nn.Linear(inputs, 7, bias=False))
    assert model(torch.zeros(1, 3)).shape == (1, 7)


# ---- the last ReLU --------------------------------------------------------------------------------------------------


def test_a_relu_of_its_own_becomes_the_identity():
    model = replace_head(ResNet("own").eval(), ETFHead, remove_last_relu=True)
    assert isinstance(model.act, nn.Identity)
    _, features = model(images(), return_features=True)
    assert (features < 0).any()


@pytest.mark.parametrize("again", ["as it is", "copied", "after an interruption"])
def test_of_a_relu_called_twice_only_the_last_call_goes(again):
    model = ResNet().eval()
    reference = copy.deepcopy(model)
    replace_head(model, ETFHead, remove_last_relu=True)
    assert list(model.state_dict()) == [key for key in reference.state_dict() if key != "fc.bias"]
    if again == "copied":
        model = copy.deepcopy(model)
    elif again == "after an interruption":
        hook = model.blocks[1].conv2.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(images())
        hook.remove()
    x = reference.blocks[0](reference.stem(images()))
    block = reference.blocks[1]
    expected = block.bn2(block.conv2(torch.relu(block.bn1(block.conv1(x))))) + x
    for _ in range(3):
        _, features = model(images(), return_features=True)
        torch.testing.assert_close(features, expected.mean((2, 3)))
        # a part of the network that is called by itself counts on by itself
        torch.testing.assert_close(model.blocks(model.stem(images())), expected)
    assert isinstance(model.blocks[0].relu, nn.ReLU)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet8", "convnet"])
def test_our_networks_lose_their_last_relu(name):
    """The built one and the changed one are one network."""
    model = build_model(name, 10, width=8, seed=0).eval()
    built = build_model(name, 10, width=8, last_relu=False, head=model.head, seed=0).eval()
    x = torch.randn(2, 3, 32, 32)
    assert (model(x, return_features=True)[1] >= 0).all()
    result = replace_head(model, ETFHead, remove_last_relu=True)
    assert isinstance(result.head, ETFHead)
    features = model(x, return_features=True)[1]
    assert (features < 0).any()
    torch.testing.assert_close(features, built(x, return_features=True)[1])


def test_a_function_call_cannot_be_taken_out():
    model = ResNet("function")
    with pytest.raises(ValueError, match="function call in the forward pass of ResNet"):
        replace_head(model, ETFHead, remove_last_relu=True)
    assert isinstance(model.fc, nn.Linear)


def test_where_there_is_no_relu_the_error_says_what_there_is():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    with pytest.raises(ValueError, match=r"no ReLU before the head: its input comes from _1"):
        replace_head(model, ETFHead, remove_last_relu=True)


def test_an_untraceable_pass_cannot_lose_its_relu():
    with pytest.raises(ValueError, match=r"torch\.fx"):
        replace_head(Branching(), ETFHead, name="fc", remove_last_relu=True)


# ---- what it refuses ------------------------------------------------------------------------------------------------


def test_a_network_that_ends_otherwise_is_refused_with_the_linears_there_are():
    with pytest.raises(ValueError, match=r"comes from _1.*there are: '0'"):
        replace_head(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), ETFHead)
    with pytest.raises(ValueError, match="there are: none"):
        replace_head(nn.Sequential(nn.Conv2d(3, 5, 3)), ETFHead)


def test_several_outputs_need_a_name():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(x), self.two(x)

    with pytest.raises(ValueError, match="name=, the name of the layer; there are: 'one', 'two'"):
        replace_head(Two(), ETFHead)
    model = replace_head(Two(), ETFHead, name="one")
    assert isinstance(model.one, ETFHead)
    assert isinstance(model.two, nn.Linear)


def test_a_wrong_name_lists_the_right_ones():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    with pytest.raises(ValueError, match=r"'1', which is Tanh. There are: '0', '2'"):
        replace_head(model, ETFHead, name="1")
    with pytest.raises(ValueError, match=r"got 'head'\. There are"):
        replace_head(model, ETFHead, name="head")


def test_a_head_of_the_wrong_size_is_refused_and_nothing_is_changed():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
    with pytest.raises(ValueError, match="takes 6 features, but the network has 5"):
        replace_head(model, ETFHead(6, 4), remove_last_relu=True)
    assert isinstance(model[2], nn.Linear)
    assert isinstance(model[1], nn.ReLU)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_a_network_of_timm_gets_a_new_head(name):
    try:
        import timm
    except Exception as error:  # timm imports torchvision, which may be absent or not fit the torch there is
        pytest.skip(f"timm cannot be imported here: {error}")
    residual = name == "resnet18"
    # zero_init_last would make the last block the identity at the start, and its input has passed a ReLU
    options = {"zero_init_last": False} if residual else {}
    model = timm.create_model(name, num_classes=10, **options).eval()
    replace_head(model, ETFHead, remove_last_relu=residual)
    assert model(torch.randn(1, 3, 224, 224)).shape == (1, 10)
    assert any(isinstance(module, ETFHead) for module in model.modules())
    if residual:
        assert (model.forward_features(torch.randn(1, 3, 64, 64)) < 0).any()


class Restless(nn.Module):
    """A block whose forward pass counts and draws, as a moving average or a stochastic depth would."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return x * torch.rand(())


def test_looking_for_the_head_leaves_buffers_modes_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(4, 4), Restless(), nn.ReLU(), nn.Linear(4, 3))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    replace_head(model, nn.Linear(4, 3, bias=False), remove_last_relu=True)
    torch.manual_seed(0)
    replace_head(model, lambda p, c: nn.Identity())
    assert torch.equal(torch.rand(3), expected)
    assert model[1].count == 0
    assert all(module.training for module in model.modules())


def test_a_scripted_model_and_what_is_no_head_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="or a function of"):
        replace_head(model, 3)
    with pytest.raises(ValueError, match="must return the new head"):
        replace_head(model, lambda in_features, num_classes: ETFHead)
    with pytest.raises(ValueError, match="got function"):
        replace_head(lambda x: x, ETFHead)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.script"):
        scripted = torch.jit.script(model)
    with pytest.raises(ValueError, match="script the model then"):
        replace_head(scripted, ETFHead)
