"""The networks: sizes as published, features beside logits, heads of any kind."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from unhinge.nn.backbones import MODELS, Classifier, build_model, count_flops, count_parameters
from unhinge.nn.backbones.resnet import BasicBlock, Bottleneck, deep_body, thin_body

NAMES = [name for name in MODELS if name != "timm:NAME"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_173_962),
        ("resnet34", 21_282_122),
        ("resnet50", 23_520_842),
        ("resnet20", 269_722),  # He et al.'s option A; option B would have 272,474
        ("resnet32", 464_154),
        ("resnet56", 853_018),
    ],
)
def test_parameters_on_cifar_10_are_the_known_number(name, parameters):
    assert count_parameters(build_model(name, num_classes=10)) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032)]
)
def test_parameters_on_imagenet_are_torchvisions(name, parameters):
    assert count_parameters(build_model(name, num_classes=1000, image_size=224)) == parameters


@pytest.mark.parametrize(
    ("name", "size", "million_products"),
    [("resnet20", 32, 40.55), ("resnet32", 32, 68.86), ("resnet56", 32, 125.49), ("resnet18", 32, 555.42)],
)
def test_products_of_a_forward_pass_are_the_known_number(name, size, million_products):
    model = build_model(name, num_classes=10, image_size=size)
    assert count_flops(model, (1, 3, size, size)) / 2e6 == pytest.approx(million_products, abs=0.01)


def test_products_of_resnet_18_at_224_pixels_are_the_known_number():
    model = build_model("resnet18", num_classes=1000, image_size=224)
    assert count_flops(model, (1, 3, 224, 224)) / 2e9 == pytest.approx(1.814, abs=0.001)


def test_counting_leaves_the_model_as_it_was():
    model = build_model("resnet8", num_classes=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count_flops(model, (2, 3, 32, 32))
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def plain_resnet18(state: dict[str, torch.Tensor], x: torch.Tensor, last_relu: bool) -> torch.Tensor:
    """Oracle: CIFAR's ResNet-18 in evaluation mode, one layer after another, from nothing but its weights."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (state[f"{name}.{part}"][:, None, None] for part in parts)
        return (x - mean) * weight / (var + 1e-5).sqrt() + bias

    x = norm(F.conv2d(x, state["body.stem.0.weight"], padding=1), "body.stem.1").clamp(min=0)
    for block, stride in enumerate([1, 1, 2, 1, 2, 1, 2, 1]):
        at = f"body.blocks.{block}"
        y = norm(F.conv2d(x, state[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1").clamp(min=0)
        y = norm(F.conv2d(y, state[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
        if stride == 2:
            x = norm(F.conv2d(x, state[f"{at}.shortcut.0.weight"], stride=2), f"{at}.shortcut.1")
        x = x + y
        if block < 7 or last_relu:
            x = x.clamp(min=0)
    return x.flatten(2).sum(2) / (x.shape[2] * x.shape[3])


@pytest.mark.parametrize("last_relu", [True, False])
def test_resnet_18_computes_what_it_says(last_relu):
    model = build_model("resnet18", num_classes=5, width=4, last_relu=last_relu, seed=0).double()
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    model(x)  # so that the running statistics are not the initial ones
    model.eval()
    logits, features = model(x, return_features=True)
    torch.testing.assert_close(features, plain_resnet18(model.state_dict(), x, last_relu))
    torch.testing.assert_close(logits, features @ model.head.weight.T + model.head.bias)
    assert (features < 0).any() != last_relu


@pytest.mark.parametrize("last_relu", [True, False])
def test_the_features_of_the_network_for_glyphs_are_read_from_all_pixels(last_relu):
    """Moved by eight pixels, an image gives other features: a mean over the pixels would give the same."""
    body = build_model("glyphnet", 7, in_channels=1, image_size=24, width=4, last_relu=last_relu, seed=0).body.eval()
    image = torch.zeros(1, 1, 24, 24)
    image[..., 6:10, 6:10] = 1.0
    here, there = body(image), body(image.roll(8, 3))
    assert here.shape == (1, 32)
    assert (here < 0).any() != last_relu
    assert (here - there).abs().max() > 1e-2
    with pytest.raises(ValueError, match="at least 8"):
        build_model("glyphnet", 7, image_size=4)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "glyphnet"])
@pytest.mark.parametrize("last_relu", [True, False])
def test_maps_have_a_sign_exactly_where_the_last_relu_is_removed(name, last_relu):
    model = build_model(name, num_classes=7, width=4, last_relu=last_relu, seed=0)
    maps = []
    last = model.body.layers if name == "convnet" else model.body.blocks
    last.register_forward_hook(lambda module, arguments, output: maps.append(output))
    logits, features = model(torch.randn(4, 3, 32, 32), return_features=True)
    assert logits.shape == (4, 7)
    assert features.shape == (4, model.feature_dim)
    assert (maps[0] < 0).any() != last_relu
    torch.testing.assert_close(maps[0].mean((2, 3)), features)
    assert torch.equal(model.head(features), logits)


@pytest.mark.parametrize("name", NAMES)
def test_removing_the_last_relu_changes_no_parameter(name):
    with_it, without = (build_model(name, 3, width=4, last_relu=last, seed=0).state_dict() for last in (True, False))
    assert list(with_it) == list(without)
    assert all(torch.equal(with_it[key], without[key]) for key in with_it)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name):
    model = build_model(name, num_classes=3, width=4)
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@given(
    name=st.sampled_from(["resnet18", "resnet8", "tiny-resnet", "convnet"]),
    channels=st.integers(1, 4),
    size=st.sampled_from([8, 15, 28, 32, 65]),
    classes=st.integers(1, 5),
)
@settings(max_examples=20)
def test_any_channels_and_size_will_do(name, channels, size, classes):
    model = build_model(name, classes, channels, size, width=2)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)


def test_the_width_scales_every_stage():
    assert build_model("resnet18", 10, width=16).feature_dim == 128
    assert build_model("resnet50", 10, width=16).feature_dim == 512
    assert build_model("resnet20", 10, width=8).feature_dim == 32


def test_large_images_get_the_stem_for_large_images():
    small, large = (deep_body(18, width=2, large_images=is_large).stem for is_large in (False, True))
    x = torch.zeros(1, 3, 64, 64)
    assert small(x).shape[2:] == (64, 64)
    assert large(x).shape[2:] == (16, 16)
    assert build_model("resnet18", 2, image_size=64, width=2).body.stem[0].kernel_size == (3, 3)
    assert build_model("resnet18", 2, image_size=224, width=2).body.stem[0].kernel_size == (7, 7)


def test_the_tiny_network_is_resnet_8_at_half_the_size():
    small, tiny = build_model("resnet8", 10), build_model("tiny-resnet", 10)
    assert count_parameters(small) == count_parameters(tiny)
    assert count_flops(small, (1, 3, 16, 16)) > 0.9 * count_flops(tiny, (1, 3, 32, 32))
    assert 3.9 < count_flops(small, (1, 3, 32, 32)) / count_flops(tiny, (1, 3, 32, 32)) < 4.1


def test_the_shortcut_of_option_a_is_every_second_pixel_between_zeros():
    block = thin_body(8, width=4).blocks[1]
    x = torch.randn(2, 4, 6, 6)
    out = block.shortcut(x)
    assert not list(block.shortcut.parameters())
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2])
    assert out[:, :2].abs().sum() + out[:, 6:].abs().sum() == 0


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_a_block_leaves_its_input_as_it_was(block):
    # ReLUs work in place; the shortcut must not see their work.
    x = torch.randn(2, 4 * block.expansion, 5, 5)
    before = x.clone()
    block(4 * block.expansion, 4, 1)(x)
    assert torch.equal(x, before)


def test_convolutions_start_with_the_variance_of_he_by_fan_out():
    body = deep_body(18)
    for conv in (module for module in body.modules() if isinstance(module, nn.Conv2d)):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        deviation = (conv.weight.var() * fan_out / 2 - 1).abs().item()
        assert deviation < 6 * (2 / conv.weight.numel()) ** 0.5
        assert conv.bias is None


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = build_model("resnet8", 10, seed=1)
    assert torch.equal(torch.rand(1), expected)
    second, third = build_model("resnet8", 10, seed=1), build_model("resnet8", 10, seed=2)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, third.head.weight)


class Doubled(nn.Module):
    """A head that is no nn.Linear."""

    def forward(self, features):
        return 2 * features


def test_the_head_may_be_a_module_or_make_one():
    x = torch.randn(2, 3, 32, 32)
    assert build_model("resnet8", 10, head=Doubled())(x).shape == (2, 64)
    made = build_model("resnet8", 10, head=lambda features, classes: nn.Linear(features, classes, bias=False))
    assert made.head.bias is None
    assert made(x).shape == (2, 10)
    assert build_model("resnet8", 10, head=nn.Linear)(x).shape == (2, 10)
    with pytest.raises(ValueError, match="expects 5 features, but this network makes 64"):
        build_model("resnet8", 10, head=nn.Linear(5, 10))


def test_memory_format_does_not_change_the_result():
    model = build_model("resnet18", 10, width=4, seed=0).double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = model(x)
    last = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x.to(memory_format=torch.channels_last)), expected)


# In a process of its own, left without clean-up: a wrapper that is freed holds Python's lock while it waits for gloo's
# thread, and that thread may need the lock to free its last piece of work. Here it once waited for ever.
WRAPPED = """
import os, sys, torch
from torch import nn
from unhinge.nn.backbones import build_model

torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(build_model("resnet8", 4, width=4))
logits, features = model(torch.randn(2, 3, 32, 32), return_features=True)
(logits.sum() + features.square().sum()).backward()
assert model.module.head.weight.grad is not None
assert features.shape == (2, 16)
print("through", flush=True)
os._exit(0)
"""


def test_features_come_through_a_distributed_wrapper(tmp_path):
    command = [sys.executable, "-c", WRAPPED, str(tmp_path / "store")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "through\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("resnet19", 10), r"no model 'resnet19'; did you mean resnet18\? There are resnet18.*timm:NAME"),
        (("resnet8", 0), "num_classes must be at least 1"),
        (("resnet8", 10, 0), "in_channels must be at least 1"),
        (("resnet8", 10, 3, 32, 0), "width must be at least 1"),
    ],
)
def test_a_mistake_says_what_was_expected(arguments, why):
    with pytest.raises(ValueError, match=why):
        build_model(*arguments)


@pytest.mark.parametrize("depth", [6, 9, 18])
def test_thin_networks_have_six_n_plus_two_layers(depth):
    with pytest.raises(ValueError, match="6 n \\+ 2"):
        thin_body(depth)


# timm, played by a stand-in: the real one needs torchvision.


class Pooled(nn.Module):
    """Like timm's models without classifier: pooled features, more of them than it says."""

    num_features = 3

    def __init__(self, in_chans: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 6, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


@pytest.fixture
def timm(monkeypatch):
    calls = []

    def create_model(name, pretrained, num_classes, in_chans, **more):
        calls.append((name, pretrained, num_classes, in_chans, more))
        if name == "convolutional" and more:
            raise TypeError("unexpected keyword argument 'img_size'")
        if name == "unpooled":
            return nn.Conv2d(in_chans, 6, 3)
        return Pooled(in_chans)

    module = ModuleType("timm")
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


@pytest.mark.parametrize("name", ["convolutional", "transformer"])
def test_a_timm_model_has_its_features_counted_and_a_head_of_ours(timm, name):
    model = build_model(f"timm:{name}", num_classes=5, in_channels=2, image_size=16)
    logits, features = model(torch.randn(3, 2, 16, 16), return_features=True)
    assert (model.feature_dim, logits.shape, features.shape) == (6, (3, 5), (3, 6))
    assert model.training
    assert isinstance(model, Classifier)
    assert timm[-1][:4] == (name, False, 0, 2)


def test_what_timm_cannot_do_is_told(timm):
    with pytest.raises(ValueError, match="not \\(b, p\\)"):
        build_model("timm:unpooled", 5)
    with pytest.raises(ValueError, match="last_relu=False is for the networks of this package"):
        build_model("timm:transformer", 5, last_relu=False)
    with pytest.raises(ValueError, match="width is for the networks of this package"):
        build_model("timm:transformer", 5, width=3)


def test_without_timm_the_error_says_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="pip install timm"):
        build_model("timm:vit_tiny_patch16_224", 5)
