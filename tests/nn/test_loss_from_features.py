"""The loss without logits: equal to the loss on logits, and blind to the number of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from unhinge.nn import functional as UF


@dataclass(frozen=True)
class Call:
    features: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor
    cached: bool
    gamma: float | None
    class_weight: Tensor | None
    options: dict[str, Any]

    def leaves(self) -> list[Tensor]:
        return [x.requires_grad_() for x in (self.features, self.weight, self.bias) if x is not None]

    def without_logits(self) -> Tensor:
        cache: dict[str, Tensor] = {}
        if self.cached:
            cache["weight_sum"] = self.weight.detach().sum(0)
            if self.bias is not None:
                cache["bias_sum"] = self.bias.detach().sum()
        return UF.unhinged_loss_from_features(
            self.features,
            self.weight,
            self.target,
            self.gamma,
            self.bias,
            self.class_weight,
            **cache,
            **self.options,
        )

    def with_logits(self) -> Tensor:
        logits = self.features @ self.weight.mT
        logits = logits if self.bias is None else logits + self.bias
        return UF.unhinged_loss(logits, self.target, self.gamma, self.class_weight, dim=-1, **self.options)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    classes, dim = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    leading = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 4]), max_size=3)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    options: dict[str, Any] = {
        "reduction": draw(st.sampled_from(["none", "mean", "sum"])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
    }
    if draw(st.booleans()):
        target = normal(*leading, classes).softmax(-1)
    else:
        target = torch.randint(classes, leading, generator=generator)
        options["ignore_index"] = draw(st.sampled_from([-100, 0, 255]))
        target = torch.where(torch.rand(leading, generator=generator) < 0.2, options["ignore_index"], target)
    return Call(
        normal(*leading, dim),
        normal(classes, dim),
        normal(classes) if draw(st.booleans()) else None,
        target,
        draw(st.booleans()),
        draw(st.sampled_from([None, 0.0, 0.3, 2.0])),
        normal(classes).exp() if draw(st.booleans()) else None,
        options,
    )


@given(calls())
def test_value_and_gradients_are_those_of_the_loss_on_logits(call: Call):
    """[eq: many-classes]."""
    leaves = call.leaves()
    ours, theirs = call.without_logits(), call.with_logits()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)
    probe = torch.arange(ours.numel(), dtype=torch.float64).reshape(ours.shape) + 1
    gradients = [torch.autograd.grad((x * probe).nan_to_num().sum(), leaves) for x in (ours, theirs)]
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_first_and_second_derivatives_pass_gradcheck(cached: bool, soft: bool):
    features, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 2), (4, 2), (4,)))
    target = torch.rand(3, 4, dtype=torch.float64) if soft else torch.tensor([0, 3, 3])
    options = {"class_weight": torch.rand(4, dtype=torch.float64), "label_smoothing": 0.1}

    def loss(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        cache = {"weight_sum": w.sum(0), "bias_sum": b.sum()} if cached else {}
        return UF.unhinged_loss_from_features(h, w, target, bias=b, **cache, **options)

    assert torch.autograd.gradcheck(loss, (features, weight, bias))
    assert torch.autograd.gradgradcheck(loss, (features, weight, bias))


def test_a_cached_sum_carries_first_and_second_derivatives_to_the_weight():
    features, weight = (torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cached, target = weight.detach().sum(0), torch.tensor([0, 1, 1])
    results = []
    for weight_sum in (None, cached):
        loss = UF.unhinged_loss_from_features(features, weight, target, weight_sum=weight_sum)
        first = torch.autograd.grad(loss**2, (features, weight), create_graph=True)
        results.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (features, weight))))
    for plain, quick in zip(*results, strict=True):
        torch.testing.assert_close(quick, plain)


@pytest.mark.parametrize("prior", [False, True])
def test_forward_mode_sees_the_weight_behind_a_cached_sum(prior: bool):
    features, weight, shares = torch.randn(3, 2).double(), torch.randn(4, 2).double(), torch.rand(4).double().softmax(0)
    options = {"prior": shares} if prior else {}
    cached = {"prior_mean": shares @ weight} if prior else {"weight_sum": weight.sum(0)}

    def loss(w: Tensor, **sums: Tensor) -> Tensor:
        return UF.unhinged_loss_from_features(features, w, torch.tensor([0, 1, 3]), **options, **sums) ** 2

    torch.testing.assert_close(jacfwd(partial(loss, **cached))(weight), jacrev(loss)(weight))
    torch.testing.assert_close(jacrev(jacfwd(partial(loss, **cached)))(weight), jacrev(jacrev(loss))(weight))


class Shapes(TorchDispatchMode):
    """Every operation and the sizes of what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, Tensor):
                self.made.append((str(func), tuple(item.shape)))
        return out


def made_by(run: Callable[[], Any]) -> list[tuple[str, tuple[int, ...]]]:
    with Shapes() as shapes:
        run()
    return shapes.made


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_with_a_fixed_weight_and_its_sum_every_tensor_made_is_the_same_for_ten_and_a_million_classes(
    label_smoothing: float,
):
    features, target = torch.randn(6, 2, requires_grad=True), torch.randint(10, (6,))
    records = []
    for classes in (10, 1_000_000):
        weight, bias = torch.randn(classes, 2), torch.randn(classes)
        sums = {"weight_sum": weight.sum(0), "bias_sum": bias.sum()}

        def step(weight: Tensor = weight, bias: Tensor = bias, sums: dict[str, Tensor] = sums) -> None:
            loss = UF.unhinged_loss_from_features(
                features, weight, target, bias=bias, label_smoothing=label_smoothing, **sums
            )
            torch.autograd.grad(loss, features)

        records.append(made_by(step))
    assert records[0] == records[1]
    assert max(max(shape, default=1) for _, shape in records[1]) <= 6


def test_a_trained_weight_costs_its_gradient_but_never_logits():
    features, target = torch.randn(6, 2, requires_grad=True), torch.randint(10, (6,))
    weight = torch.randn(1000, 2, requires_grad=True)
    made = made_by(lambda: UF.unhinged_loss_from_features(features, weight, target).backward())
    assert {shape for _, shape in made if 1000 in shape} == {(1000, 2)}


def test_probabilities_cost_no_logits_either():
    features, weight = torch.randn(6, 2, requires_grad=True), torch.randn(1000, 2)
    target = torch.rand(6, 1000)
    made = made_by(lambda: UF.unhinged_loss_from_features(features, weight, target).backward())
    assert not [name for name, shape in made if shape == (6, 1000)]


def test_vmap_and_function_transforms_see_the_same_loss():
    features, weight = torch.randn(5, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    target, cached = torch.tensor([0, 1, 3, 3, 2]), weight.sum(0)

    def loss(h: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return UF.unhinged_loss_from_features(h, w, y, weight_sum=cached, reduction="sum")

    by_features = vmap(grad(loss), (0, None, 0))(features, weight, target)
    torch.testing.assert_close(by_features, grad(loss)(features, weight, target))
    by_weight = vmap(grad(loss, argnums=1), (0, None, 0))(features, weight, target).sum(0)
    expected = grad(lambda w: UF.unhinged_loss(features @ w.T, target, reduction="sum"))(weight)
    torch.testing.assert_close(by_weight, expected)
    torch.testing.assert_close(grad(loss, argnums=1)(features, weight, target), expected)


def test_it_compiles_to_one_graph_under_autocast_and_without():
    torch._dynamo.reset()
    weight, target = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, -100, 3, 2])

    def loss(h: Tensor, weight_sum: Tensor) -> Tensor:
        return UF.unhinged_loss_from_features(h, weight, target, weight_sum=weight_sum)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    features, cached = torch.randn(5, 3, requires_grad=True), weight.detach().sum(0)
    for enabled in (False, True):
        with torch.autocast("cpu", enabled=enabled):
            pair = [torch.autograd.grad(f(features, cached), (features, weight)) for f in (loss, compiled)]
        for actual, expected in zip(*pair, strict=True):
            torch.testing.assert_close(actual, expected)


def test_autocast_keeps_single_precision():
    features, weight, target = torch.randn(8, 64), torch.randn(10, 64), torch.randint(10, (8,))
    probabilities = torch.rand(8, 10)
    for aim in (target, probabilities):
        plain = UF.unhinged_loss_from_features(features, weight, aim)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert UF.unhinged_loss_from_features(features, weight, aim) == plain
            halved = UF.unhinged_loss_from_features(features.bfloat16(), weight, aim)
        assert halved.dtype == torch.float32
        torch.testing.assert_close(halved, plain, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_of_many_classes_are_summed_in_single_precision(dtype: torch.dtype):
    features, weight = torch.randn(4, 2).to(dtype), (10 + torch.randn(20_000, 2)).to(dtype)
    target = torch.tensor([0, 1, 19_999, 7])
    exact = UF.unhinged_loss_from_features(features.double(), weight.double(), target, reduction="none")
    actual = UF.unhinged_loss_from_features(features, weight, target, reduction="none")
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-2)
    gradient = torch.autograd.grad(
        UF.unhinged_loss_from_features(features.requires_grad_(), weight, target, reduction="sum"), features
    )[0]
    assert gradient.dtype == dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.zeros(2, 4)}, "rows of one length"),
        ({"weight": torch.zeros(3)}, "rows of one length"),
        ({"features": torch.zeros(2, 2, dtype=torch.int64)}, "floating"),
        ({"target": torch.tensor([[0], [1]])}, r"must have shape \(2,\)"),
        ({"target": torch.zeros(2)}, r"must have shape \(2, 3\)"),
        ({"weight_sum": torch.zeros(3)}, "weight_sum"),
        ({"bias": torch.zeros(2)}, "bias"),
        ({"bias": torch.zeros(3), "bias_sum": torch.zeros(3)}, "bias_sum"),
        ({"class_weight": torch.zeros(2)}, "class_weight"),
        ({"reduction": "all"}, "reduction"),
        ({"gamma": -1.0}, "gamma"),
        ({"target": torch.full((2, 3), 1 / 3), "ignore_index": 0}, "ignore_index"),
    ],
)
def test_a_wrong_call_says_what_was_expected(change: dict[str, Any], message: str):
    call: dict[str, Any] = {
        "features": torch.zeros(2, 2),
        "weight": torch.zeros(3, 2),
        "target": torch.tensor([0, 1]),
    } | change
    with pytest.raises(ValueError, match=message):
        UF.unhinged_loss_from_features(**call)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_is_an_index_error(label: int):
    with pytest.raises(IndexError):
        UF.unhinged_loss_from_features(torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([label]))


@pytest.mark.parametrize("name", ["bias", "weight_sum"])
def test_rows_that_are_lists_are_refused_in_our_words(name):
    features, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=f"{name} must be a torch.Tensor"):
        UF.unhinged_loss_from_features(features, torch.randn(2, 3), target, **{name: [0.0, 0.0, 0.0]})
