"""The plain hook: what it measures, what it predicts, and that training does not notice it."""

from __future__ import annotations

import copy
import gc
import io
import math
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unhinge.metrics import neural_collapse
from unhinge.monitor import Monitor
from unhinge.nn import ETFHead, UnhingedLoss
from unhinge.prediction import measure_arrays, predict

CLASSES, DIM = 3, 5


def network(head: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, DIM), nn.Tanh(), nn.Linear(DIM, CLASSES) if head is None else head)


def batches(count: int = 3, size: int = 12, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 4, generator=generator), (torch.arange(size) + shift) % CLASSES) for shift in range(count)
    ]


def together(model: nn.Sequential, data: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """All features and labels in memory, for the oracles."""
    return torch.cat([model[:-1](x) for x, _ in data]).detach().double(), torch.cat([y for _, y in data])


class Free(nn.Module):
    """Features that are parameters themselves: the model the theory is exact for."""

    def __init__(self, size: int, head: nn.Module) -> None:
        super().__init__()
        self.features = nn.Embedding(size, DIM).double()
        self.head = head.double()

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.features(index))


def test_streamed_numbers_are_those_of_all_features_at_once():
    model, data = network(), batches()
    with Monitor(model) as monitor:
        for _ in range(2):
            for x, y in data:
                model(x)
                monitor.update(y)
            actual = monitor.compute()
    features, labels = together(model, data)
    expected = neural_collapse(features, model[-1].weight.detach().double(), labels, model[-1].bias.detach())
    assert set(expected) <= set(actual)
    for key, value in expected.items():  # the network stood still: nc4 by the means of the epoch before is exact
        assert actual[key] == pytest.approx(value.item(), rel=1e-9, abs=1e-12), key
    assert actual["examples"] == 36
    assert actual["nonfinite"] == 0
    assert actual["feature_norm_rms"] == pytest.approx(features.pow(2).sum(1).mean().sqrt().item())
    assert actual["weight_norm_rms"] == pytest.approx(model[-1].weight.double().pow(2).sum(1).mean().sqrt().item())


def test_the_first_epoch_has_no_nc4_and_every_number_is_a_finite_float():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model)
    model(x)
    monitor.update(y)
    actual = monitor.compute()
    assert "nc4" not in actual
    assert all(type(value) is float and math.isfinite(value) for value in actual.values())


def test_the_prediction_is_that_of_predict():
    model, data = network(), batches()
    data[0] = (data[0][0], torch.zeros(12, dtype=torch.int64))  # imbalanced
    setting = {"gamma": 0.4, "feature_decay": 0.01, "weight_decay": 0.02, "distance": 0.05}
    with Monitor(model, lr=lambda: 0.3, **setting) as monitor:
        for x, y in data:
            model(x)
            monitor.update(y)
        actual = monitor.compute()
    features, labels = together(model, data)
    head = model[-1]
    expected = predict(measure_arrays(features, labels, head.weight.detach(), head.bias.detach()), lr=0.3, **setting)
    for name in ("growth", "rate", "critical_decay", "limit_accuracy", "limit_rank", "best_gamma", "imbalance"):
        assert actual[f"theory/{name}"] == pytest.approx(getattr(expected, name), rel=1e-9), name
    assert actual["theory/time_to_collapse"] == pytest.approx(expected.times[0.05], rel=1e-9)
    assert actual["theory/limit_nc3"] == pytest.approx(expected.collapse_limit["nc3"], abs=1e-9)
    sqrt = next(one for one in expected.weightings if one.name == "sqrt")
    assert actual["theory/limit_accuracy_sqrt"] == sqrt.limit_accuracy


@pytest.mark.parametrize("fixed", [False, True], ids=["trained head", "fixed head"])
def test_where_features_are_free_what_was_predicted_is_found(fixed):
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    head = ETFHead(DIM, CLASSES) if fixed else nn.Linear(DIM, CLASSES, bias=False)
    model, index = Free(6, head), torch.arange(6)
    optimizer, loss_fn, lr = torch.optim.SGD(model.parameters(), lr=0.01), UnhingedLoss(), 0.01
    monitor = Monitor(model, when="eval", lr=lr)
    for epoch in range(3):
        for _ in range(100 if epoch else 0):
            optimizer.zero_grad()
            loss_fn(model(index), labels).backward()
            optimizer.step()
        model.eval()
        model(index)
        monitor.update(labels)
        model.train()
        actual = monitor.compute(step=100 * epoch)
        predicted = {key: value for key, value in actual.items() if key.startswith("predicted/")}
        assert bool(predicted) == (epoch > 0)
        for key, value in predicted.items():
            # steps of size 0.01 against the flow; over an epoch the measures move by up to a half
            assert value == pytest.approx(actual[key.removeprefix("predicted/")], rel=2e-3, abs=2e-4), key
    assert {"predicted/nc3", "predicted/nc1_ratio", "predicted/feature_norm_rms"} <= set(predicted)
    assert ("theory/critical_decay" in actual) != fixed


def test_a_head_that_normalizes_is_measured_and_not_predicted():
    model, (x, y) = network(ETFHead(DIM, CLASSES, normalize=True)), batches(1)[0]
    monitor = Monitor(model)
    model(x)
    monitor.update(y)
    actual = monitor.compute()
    assert "nc1" in actual
    assert not any(key.startswith("theory/") for key in actual)


def trained(watched: bool, loss_hook: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """Weights and the state of the random numbers after three epochs of a network with dropout and batch norm."""
    torch.manual_seed(1)
    body = (nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, DIM))
    head = nn.utils.parametrizations.spectral_norm(nn.Linear(DIM, CLASSES))  # moves when it is read in training mode
    model, loss_fn = nn.Sequential(*body, head), UnhingedLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    monitor = Monitor(model, loss=loss_fn if loss_hook else None) if watched else None
    for epoch in range(3):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            if monitor is not None and not loss_hook:
                monitor.update(y)
            loss.backward()
            optimizer.step()
        if monitor is not None:
            assert monitor.compute(step=3 * epoch)["examples"] == 36
    return model.state_dict(), torch.get_rng_state()


@pytest.mark.parametrize("loss_hook", [False, True])
def test_training_is_the_same_to_the_last_bit(loss_hook):
    (weights, state), (expected, expected_state) = trained(True, loss_hook), trained(False)
    assert torch.equal(state, expected_state)
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(weights[key], value), key


def test_nothing_is_added_to_the_graph():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model)
    logits = model(x)
    assert not monitor._heard[0].requires_grad  # which would keep the whole graph alive
    monitor.update(y)
    assert monitor.summary is not None
    assert not monitor.summary.classes.sums.requires_grad
    logits.sum().backward()
    assert model[0].weight.grad is not None


def test_making_a_monitor_takes_back_what_tracing_does():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, DIM), nn.Linear(DIM, CLASSES)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.head(self.body(x) + torch.rand(()))

    model = Counting()
    state = torch.get_rng_state()
    Monitor(model)
    assert model.calls == 0
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_evaluation_batches_do_not_count_unless_asked_for():
    model, (x, y) = network(), batches(1)[0]
    monitors = {when: Monitor(model, when=when, theory=False) for when in ("train", "eval", "always")}
    for mode in (True, False, False):
        model.train(mode)
        model(x)
        for monitor in monitors.values():
            monitor.update(y)
    assert {when: monitor.compute()["examples"] / 12 for when, monitor in monitors.items()} == {
        "train": 1,
        "eval": 2,
        "always": 3,
    }


def test_a_loss_shared_with_evaluation_counts_in_training_alone():
    model, (x, y), loss_fn = network(), batches(1)[0], nn.CrossEntropyLoss()
    monitor = Monitor(model, loss=loss_fn, theory=False)
    loss_fn(model(x), target=y)
    loss_fn(model[-1].weight, torch.arange(CLASSES))  # another use of it, without a forward pass
    model.eval()
    loss_fn(model(x), y)
    assert monitor.compute()["examples"] == 12


def test_several_forward_passes_may_be_labelled_together_or_each_for_itself():
    model, data = network(), batches(4, size=6)
    one, other = Monitor(model, theory=False), Monitor(model, theory=False)
    for k, (x, y) in enumerate(data):
        model(x)
        one.update(y)
        if k % 2:
            other.update(torch.cat([data[k - 1][1], y]))
    actual, expected = other.compute(), one.compute()
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert actual[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_head_that_is_run_again_in_the_backward_pass_counts_once(reentrant):
    model, data = network(), batches()
    monitor = Monitor(model, theory=False)
    for x, y in data:
        logits = checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)
        monitor.update(y)
        logits.sum().backward()
    assert monitor.compute()["examples"] == 36


def test_half_precision_is_summed_in_double():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model, theory=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model[:-1](x)
        assert features.dtype == torch.bfloat16
        model[-1](features)
        monitor.update(y)
        actual = monitor.compute()
    expected = neural_collapse(features.detach().double(), model[-1].weight.detach().double(), y)
    assert actual["nc1"] == pytest.approx(expected["nc1"].item(), rel=1e-9)
    assert actual["nc3"] == pytest.approx(expected["nc3"].item(), rel=1e-9)


def test_tokens_are_examples_and_ignored_labels_are_left_out():
    model = nn.Sequential(nn.Linear(4, DIM), nn.Linear(DIM, CLASSES))
    x, y = torch.randn(4, 7, 4), torch.arange(28).reshape(4, 7) % CLASSES
    y[:, 5:] = -100
    monitor = Monitor(model, theory=False)
    model(x)
    monitor.update(y)
    actual = monitor.compute()
    features = model[0](x[:, :5]).reshape(-1, DIM).detach().double()
    assert actual["examples"] == 20
    expected = neural_collapse(features, model[1].weight.detach().double(), y[:, :5].reshape(-1))
    assert actual["nc1"] == pytest.approx(expected["nc1"].item(), rel=1e-9)


def test_features_that_are_not_finite_are_left_out_and_told_of():
    model, (x, y) = network(nn.Linear(DIM, CLASSES)), batches(1)[0]
    model[1] = nn.Identity()
    monitor = Monitor(model, theory=False)
    x = x.clone()
    x[3] = math.nan
    model(x)
    monitor.update(y)
    actual = monitor.compute()
    assert (actual["examples"], actual["nonfinite"]) == (11, 1)


@pytest.mark.parametrize(
    ("labels", "broken", "reason", "measured"),
    [
        (None, False, "nothing was counted", False),
        ([1] * 12, False, "one class", False),
        ([0, 1] * 6, False, "every class, and of 2", True),
        ([0, 1, 2] * 4, True, "not finite", False),
    ],
)
def test_what_cannot_be_measured_is_left_out_with_a_reason(labels, broken, reason, measured):
    model, (x, _) = network(), batches(1)[0]
    monitor = Monitor(model)
    if labels is not None:
        model(x)
        monitor.update(torch.tensor(labels))
    if broken:
        with torch.no_grad():
            model[-1].weight[0, 0] = math.inf
    with pytest.warns(UserWarning, match=reason) as told:
        actual = monitor.compute()
    assert told[0].filename == __file__
    assert ("nc1" in actual) == measured
    assert not any(key.startswith("theory/") for key in actual)


def test_a_network_that_is_dead_is_no_error():
    model, (x, y) = network(nn.Linear(DIM, CLASSES, bias=False)), batches(1)[0]
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    monitor = Monitor(model)
    model(x)
    monitor.update(y)
    with pytest.warns(UserWarning, match="there is no prediction"):
        assert monitor.compute()["feature_norm_mean"] == 0


def test_each_epoch_starts_anew():
    model, data = network(), batches()
    monitor = Monitor(model, theory=False)
    for x, y in data:
        model(x)
        monitor.update(y)
        assert monitor.compute()["examples"] == 12


def test_labels_without_features_are_an_error():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model)
    with pytest.raises(ValueError, match="labels, but no features"):
        monitor.update(y)
    model(x)
    monitor.update(y)
    with pytest.raises(ValueError, match="labels, but no features"):
        monitor.update(y)
    monitor.detach()
    model(x)
    with pytest.raises(ValueError, match="labels, but no features"):
        monitor.update(y)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(5, dtype=torch.int64), r"5 labels, but .* \(12, 5\)"),
        (torch.zeros(25, dtype=torch.int64), "25 labels"),
        (torch.eye(CLASSES).repeat(4, 1), "36 labels.*argmax"),
        (torch.zeros(12), "integer labels"),
        (torch.full((12,), CLASSES), "must lie in 0 .. 2"),
        ([], "0 labels"),
    ],
)
def test_labels_that_do_not_fit_are_an_error(labels, message):
    model, (x, _) = network(), batches(1)[0]
    monitor = Monitor(model)
    model(x)
    with pytest.raises(ValueError, match=message):
        monitor.update(labels)


def test_a_loss_without_integer_labels_is_an_error():
    model, (x, y), loss_fn = network(), batches(1)[0], nn.CrossEntropyLoss()
    Monitor(model)  # dropped at once: hears nothing, and is in nobody's way
    monitor = Monitor(model, loss=loss_fn)
    logits = model(x)
    with pytest.raises(ValueError, match="without integer labels"):
        loss_fn(logits, nn.functional.one_hot(y, CLASSES).float())
    monitor.detach()
    loss_fn(model(x), nn.functional.one_hot(y, CLASSES).float())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"when": "test"}, "when must be"),
        ({"distance": 3.0}, "distance"),
        ({"distance": "near"}, "distance must be a number, got str"),
        ({"lr": "fast"}, "lr must be a number, got str"),
        ({"lr": None}, "lr must be a number, got NoneType"),
        ({"gamma": "large"}, "gamma must be a number, got str"),
        ({"weight_decay": None}, "weight_decay must be a number, got NoneType"),
        ({"loss": nn.functional.cross_entropy}, "loss must be a module.*got function.*update"),
    ],
)
def test_settings_that_mean_nothing_are_an_error(setting, message):
    with pytest.raises(ValueError, match=message):
        Monitor(network(), **setting)


@pytest.mark.parametrize("lr", [np.float32(0.25), torch.tensor(0.25), lambda: torch.tensor(0.25)])
def test_the_rate_may_be_any_number(lr):
    model, (x, y) = network(), batches(1)[0]
    records = []
    for rate in (0.25, lr):
        monitor = Monitor(model, lr=rate)
        model(x)
        monitor.update(y)
        records.append(monitor.compute())
    assert records[0] == records[1]
    assert "theory/growth" in records[0]


def test_a_function_that_returns_no_rate_costs_the_prediction_alone():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model, lr=lambda: None)
    model(x)
    monitor.update(y)
    with pytest.warns(UserWarning, match="no prediction: lr must be a number, got NoneType"):
        assert monitor.compute()["examples"] == len(y)


def test_a_batch_without_examples_counts_nothing():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model, theory=False)
    model(x[:0])
    monitor.update(y[:0])
    model(x)
    monitor.update(y)
    assert monitor.compute()["examples"] == len(y)


def test_copies_and_files_of_the_model_hear_nothing():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        twin(x)
        assert [hook.owner for hook in twin[-1]._forward_pre_hooks.values()] == [None]
    with pytest.raises(ValueError, match="no features"):
        monitor.update(y)
    assert model.state_dict().keys() == network().state_dict().keys()


def test_forgetting_the_monitor_frees_it():
    model, (x, _) = network(), batches(1)[0]
    monitor = Monitor(model)
    model(x)
    gone = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert gone() is None
    model(x)


def test_forward_passes_without_labels_do_not_pile_up():
    model, (x, y) = network(), batches(1)[0]
    monitor = Monitor(model, theory=False)
    for _ in range(100):
        model(x)
    assert len(monitor._heard) < 50
    monitor.update(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert monitor.compute()["examples"] == 12


def test_of_a_loss_with_further_integers_the_first_is_the_target():
    class WithLengths(nn.Module):
        def forward(self, logits: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, target) + 0 * lengths.sum()

    model, loss = nn.Linear(4, 2), WithLengths()
    monitor = Monitor(model, loss=loss)
    target = torch.arange(40) % 2
    loss(model(torch.randn(40, 4)), target, torch.zeros(40, dtype=torch.long))
    assert monitor.summary is not None
    assert monitor.summary.counts.tolist() == [20, 20]
