"""The callback, in a real trainer."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import unhinge
from unhinge.metrics import neural_collapse
from unhinge.monitor import MonitorCallback

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has much to say of small trainings
SOURCE = str(Path(unhinge.__file__).parents[1])


def module_of(library: Any) -> Any:
    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
            self.loss = nn.CrossEntropyLoss()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch.values() if isinstance(batch, dict) else batch
            return self.loss(self.net(x), y)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    return Module()


def loader(size: int = 24, seed: int = 0) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(size, 4, generator=generator), torch.arange(size) % 3), batch_size=8)


def fitted(callback: Any, library: Any = lightning, train: Any = None, **options: Any) -> tuple[Any, Any]:
    module = module_of(library)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2}
    trainer = library.Trainer(**(quiet | options), callbacks=[] if callback is None else [callback])
    trainer.fit(module, loader() if train is None else train, loader(12, seed=1))
    return trainer, module


def test_training_epochs_are_logged_and_training_does_not_notice():
    callback = MonitorCallback()
    assert isinstance(callback, lightning.Callback)
    trainer, module = fitted(callback, accumulate_grad_batches=3)
    logged = trainer.logged_metrics
    assert logged["train/examples"] == 24
    # nc4 and predictions come with the second epoch; one step of the optimizer each
    assert {"train/nc1", "train/nc4", "train/theory/rate", "train/predicted/nc3"} <= logged.keys()
    assert not module.net[-1]._forward_pre_hooks
    _, alone = fitted(None, accumulate_grad_batches=3)
    for key, value in alone.state_dict().items():
        assert torch.equal(module.state_dict()[key], value), key


def test_validation_epochs_are_those_of_the_network_at_rest():
    trainer, module = fitted(
        MonitorCallback(on="validation", head="net.3", prefix="watch_", theory=False), max_epochs=1
    )
    logged = trainer.logged_metrics
    x, y = loader(12, seed=1).dataset.tensors
    features, head = module.eval().net[:-1](x).detach().double(), module.net[-1]
    expected = neural_collapse(features, head.weight.detach().double(), y)
    assert logged["watch_examples"] == 12
    assert "watch_nc4" not in logged  # this is the first epoch: the sanity check is none
    for key in ("nc1", "nc3", "feature_norm_mean"):
        assert logged[f"watch_{key}"].item() == pytest.approx(expected[key].item(), rel=1e-5)
    assert not any("theory" in key for key in logged)


def test_the_rate_is_that_of_the_optimizer():
    given, _ = fitted(MonitorCallback(lr=0.05), max_epochs=1)
    read, _ = fitted(MonitorCallback(), max_epochs=1)
    other, _ = fitted(MonitorCallback(lr=0.1), max_epochs=1)
    key = "train/theory/growth"
    assert read.logged_metrics[key] == given.logged_metrics[key]
    assert other.logged_metrics[key] == pytest.approx(2 * read.logged_metrics[key])


def test_labels_are_found_where_one_says():
    batches = DataLoader([{"x": x, "y": y} for x, y in loader(6).dataset], batch_size=6)
    trainer, _ = fitted(MonitorCallback(labels=lambda batch: batch["y"], theory=False), train=batches)
    assert trainer.logged_metrics["train/examples"] == 6
    with pytest.raises(ValueError, match="labels=lambda"):
        fitted(MonitorCallback(), train=batches)


def test_the_older_name_of_lightning_works_too():
    library = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    callback = MonitorCallback(theory=False)
    assert isinstance(callback, library.Callback)
    trainer, _ = fitted(callback, library)
    assert trainer.logged_metrics["train/examples"] == 24


def test_the_callback_can_be_sent_to_another_process():
    twin = pickle.loads(pickle.dumps(MonitorCallback(on="validation", nc4=False)))
    assert isinstance(twin, lightning.Callback)
    assert (twin.on, twin.prefix, twin.settings) == ("validation", "val/", {"nc4": False})


def test_an_unknown_kind_of_epoch_is_an_error():
    with pytest.raises(ValueError, match='"train" or "validation"'):
        MonitorCallback(on="test")


def test_without_lightning_the_error_says_what_to_install():
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); "
        "sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "from unhinge.monitor import Monitor, MonitorCallback\n"
        "try: MonitorCallback()\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install lightning" in run.stdout
