"""The kernel of a network: against its definition by plain autograd, and against really training the network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unhinge import LayerPeeled
from unhinge.theory.kernel import ntk
from unhinge.theory.kernel.ntk import NTKOperator, empirical_ntk

F64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    random = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=F64) / 2)
    return module.double()


def small_mlp() -> nn.Module:
    return fill(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))


def small_convnet() -> nn.Module:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
    )
    fill(network)
    norm = network[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    norm.running_mean += 0.1
    return network


def inputs_for(name: str, count: int = 6, seed: int = 3) -> Tensor:
    shape = (count, 5) if name == "mlp" else (count, 1, 4, 4)
    return torch.randn(*shape, generator=generator(seed), dtype=F64)


NETWORKS = {"mlp": small_mlp, "convnet": small_convnet}


def jacobian(network: nn.Module, inputs: Tensor) -> Tensor:
    """One backward pass for each entry of each feature: (n p, parameters)."""
    network.eval()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    features = network(inputs)
    rows = [torch.autograd.grad(entry, trained, retain_graph=True) for entry in features.reshape(-1)]
    network.train()
    return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


@pytest.mark.parametrize("room", [ntk.ROOM, 0])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_kernel_is_the_gram_matrix_of_the_jacobian(
    name: str, cross: bool, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[eq: ntk]."""
    monkeypatch.setattr(ntk, "ROOM", room)  # 0: by products with the columns of the identity
    network, inputs = NETWORKS[name](), inputs_for(name)
    new = inputs_for(name, 4, seed=8) if cross else inputs
    expected = jacobian(network, new) @ jacobian(network, inputs).mT
    actual = empirical_ntk(network, inputs, new if cross else None)
    torch.testing.assert_close(actual, expected)
    traced = torch.einsum("iaja->ij", expected.reshape(len(new), 3, 6, 3)) / 3
    torch.testing.assert_close(empirical_ntk(network, inputs, new if cross else None, kind="example"), traced)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("kind", ["full", "example"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_operator_multiplies_as_the_matrix(name: str, kind: str, batch_size: int) -> None:
    network, inputs, new = NETWORKS[name](), inputs_for(name), inputs_for(name, 5, seed=8)
    operator = empirical_ntk(network, inputs, new, kind=kind, form="operator", batch_size=batch_size)
    matrix = empirical_ntk(network, inputs, new, kind=kind, form="matrix")
    assert isinstance(operator, NTKOperator)
    assert isinstance(matrix, Tensor)
    assert operator.shape == matrix.shape
    rows = torch.randn(6, 3, generator=generator(), dtype=F64)
    expected = matrix @ rows if kind == "example" else (matrix @ rows.reshape(-1)).reshape(5, 3)
    torch.testing.assert_close(operator(rows), expected)


def test_frozen_parameters_do_not_count() -> None:
    network, inputs = small_mlp(), inputs_for("mlp")
    network[0].requires_grad_(False)
    hidden = network[1](network[0](inputs))
    torch.testing.assert_close(empirical_ntk(network, inputs, kind="example"), hidden @ hidden.mT + 1)
    network.requires_grad_(False)
    with pytest.raises(ValueError, match="Unfreeze"):
        empirical_ntk(network, inputs)


def test_the_network_is_left_alone_and_the_operator_remembers_it() -> None:
    network, inputs = small_convnet(), inputs_for("convnet")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    operator = empirical_ntk(network, inputs, form="operator")
    rows = torch.ones(6, 3, dtype=F64)
    assert callable(operator)
    first = operator(rows)
    assert network.training
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(operator(rows), first, rtol=0, atol=0)


def test_a_large_kernel_comes_as_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ntk, "SMALL", 100)
    assert isinstance(empirical_ntk(small_mlp(), inputs_for("mlp")), NTKOperator)
    assert isinstance(empirical_ntk(small_mlp(), inputs_for("mlp"), kind="example"), Tensor)


def test_bad_input_is_refused_with_the_reason() -> None:
    network, inputs = small_mlp(), inputs_for("mlp")
    with pytest.raises(ValueError, match="kind must be one of full, example"):
        empirical_ntk(network, inputs, kind="diagonal")
    with pytest.raises(ValueError, match="form must be one of"):
        empirical_ntk(network, inputs, form="sparse")
    with pytest.raises(ValueError, match=r"must be an nn\.Module"):
        empirical_ntk(lambda x: x, inputs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"features \(n, p\)"):
        empirical_ntk(ThreeAxes(), inputs)
    with pytest.raises(ValueError, match="shaped like inputs"):
        empirical_ntk(network, inputs, inputs[:, :2])
    with pytest.raises(ValueError, match="batch_size"):
        empirical_ntk(network, inputs, batch_size=0)


class ThreeAxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x[:, None]


class Sliced(nn.Module):
    """Slicing a ParameterList copies its tensors into new parameters, which torch.func cannot see through."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.eye(5, dtype=F64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:1]:
            x = x @ layer
        return x @ self.layers[1]


def test_a_module_that_hides_its_parameters_from_torch_func_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter 'layers\.0' is not the same"):
        empirical_ntk(Sliced(), inputs_for("mlp"))


# ---- the prediction against the network itself ---------------------------------------------------------------------

CLASSES, DIM = 3, 4


class Wide(nn.Module):
    """One hidden layer in the scaling in which the kernel of a wide network stands still."""

    def __init__(self, width: int) -> None:
        super().__init__()
        random = generator(1)
        self.inner = nn.Parameter(torch.randn(width, 5, generator=random, dtype=F64))
        self.outer = nn.Parameter(torch.randn(DIM, width, generator=random, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.inner.mT / math.sqrt(5))
        return hidden @ self.outer.mT / math.sqrt(len(self.inner))


def train(network: nn.Module, weight: Tensor, inputs: Tensor, target: Tensor, lr: float, steps: int) -> Tensor:
    """Full-batch gradient descent on the mean unhinged loss of a linear head, gamma = 1/(C-1); returns the head."""
    head = weight.clone().requires_grad_(True)
    optimizer = torch.optim.SGD([*network.parameters(), head], lr=lr)
    for _ in range(steps):
        logits = network(inputs) @ head.mT
        true = logits.gather(1, target[:, None])[:, 0]
        loss = (logits.sum(1) / (CLASSES - 1) - (1 + 1 / (CLASSES - 1)) * true).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.detach()


def prediction_error(width: int, form: str, steps: int = 400) -> tuple[float, float, float]:
    """Errors of features, prototypes and unseen features, relative to how far they moved in one e-fold."""
    target = torch.arange(24) % CLASSES
    inputs, new = inputs_for("mlp", 24), inputs_for("mlp", 8, seed=11)
    network = Wide(width)
    weight = torch.randn(CLASSES, DIM, generator=generator(2), dtype=F64) / 2
    features, unseen = network(inputs).detach(), network(new).detach()
    path = LayerPeeled(target, CLASSES).kernel_flow(features, weight, empirical_ntk(network, inputs, form=form), lr=1.0)
    time = 1 / path.growth().item()
    state = path.at(time)
    elsewhere = path.predict(empirical_ntk(network, inputs, new, form=form), unseen, time)
    head = train(network, weight, inputs, target, time / steps, steps)
    pairs = (
        (state.features, network(inputs), features),
        (state.weight, head, weight),
        (elsewhere, network(new), unseen),
    )
    return tuple(((guess - truth).norm() / (truth - begin).norm()).item() for guess, truth, begin in pairs)  # type: ignore[return-value]


@pytest.mark.parametrize("form", ["matrix", "operator"])
def test_a_wide_network_follows_its_kernel_at_initialization(form: str) -> None:
    narrow, wide = prediction_error(16, form), prediction_error(1024, form)
    for poor, good in zip(narrow, wide, strict=True):
        assert good < 0.04
        assert good < poor / 3


def test_a_linear_network_follows_its_kernel_exactly() -> None:
    """Features linear in the parameters: the kernel is constant, and only the step size is left of the error."""
    target = torch.arange(24) % CLASSES
    inputs = inputs_for("mlp", 24)
    weight = torch.randn(CLASSES, DIM, generator=generator(2), dtype=F64)
    errors = []
    for steps in (400, 800):
        network = fill(nn.Sequential(nn.Linear(5, DIM)))
        features = network(inputs).detach()
        path = LayerPeeled(target, CLASSES).kernel_flow(features, weight, empirical_ntk(network, inputs), lr=0.5)
        time = 1 / path.growth().item()
        train(network, weight, inputs, target, 0.5 * time / steps, steps)
        moved = network(inputs)
        errors.append(((path.at(time).features - moved).norm() / (moved - features).norm()).item())
    assert errors[1] < 2e-3
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
