"""The monitor as a callback of Lightning, under either of its names."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypedDict, Unpack

import torch.distributed as dist
from torch import nn

from unhinge.metrics.checks import Labels
from unhinge.monitor.hook import Monitor
from unhinge.nn.borrowed_bases import BorrowedBases

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ["MonitorCallback"]


FindLabels: TypeAlias = Callable[[Any], Labels]  # from a batch, which is whatever the loader yields


class MonitorSettings(TypedDict, total=False):
    """The arguments of :class:`~unhinge.monitor.Monitor`, by name."""

    head: nn.Module | str | None
    loss: nn.Module | None
    when: Literal["train", "eval", "always"]
    lr: float | Callable[[], float]
    gamma: float | None
    feature_decay: float
    weight_decay: float
    distance: float
    theory: bool
    first_phase: bool
    nc4: bool
    ignore_index: int
    group: dist.ProcessGroup | None


class MonitorCallback(BorrowedBases):
    """Logs neural collapse, norms and the theory's prediction at the end of each epoch.

    It is a callback of ``lightning.pytorch`` or ``pytorch_lightning``, whichever is in use, and imports neither before
    it is made.

    Arguments:
        on: Which epochs: ``"train"`` or ``"validation"``.
        labels: Finds the labels in a batch; by default they are ``batch[1]``.
        prefix: Before each name; by default ``train/`` or ``val/``.
        settings: As in :class:`~unhinge.monitor.Monitor`. `head` is named as in the LightningModule (``"net.fc"``);
            `lr` is that of the first optimizer, if not given.

    Example:
        >>> callback = MonitorCallback(on="validation", head="net.fc")  # doctest: +SKIP
        >>> Trainer(callbacks=[callback]).fit(module, datamodule)  # doctest: +SKIP
    """

    _base_candidates: ClassVar = (("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback"))
    _missing: ClassVar = "MonitorCallback needs Lightning: pip install lightning"

    def __init__(
        self,
        on: Literal["train", "validation"] = "train",
        *,
        labels: FindLabels | None = None,
        prefix: str | None = None,
        **settings: Unpack[MonitorSettings],
    ) -> None:
        if on not in ("train", "validation"):
            raise ValueError(f'on must be "train" or "validation", got {on!r}.')
        self.on = on
        self.labels = _second if labels is None else labels
        self.prefix = {"train": "train/", "validation": "val/"}[on] if prefix is None else prefix
        self.settings = settings
        self.monitor: Monitor | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" or (stage == "validate" and self.on == "validation"):
            settings: MonitorSettings = {"lr": _Rate(trainer), "when": "train" if self.on == "train" else "eval"}
            self.monitor = Monitor(pl_module, **(settings | self.settings))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.monitor is not None:
            self.monitor.detach()
            self.monitor = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if self.on == "train":
            self._update(batch)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.on == "validation" and not trainer.sanity_checking:
            self._update(batch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.on == "train":
            self._log(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.on == "validation" and not trainer.sanity_checking:
            self._log(trainer, pl_module)

    def _update(self, batch: object) -> None:
        # A step may well return before its forward pass; an epoch without any will be told of.
        if self.monitor is not None and self.monitor.waiting:
            self.monitor.update(self.labels(batch))

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor is not None:
            numbers = self.monitor.compute(step=trainer.global_step)
            # Equal in all processes: to average them changes nothing, and Lightning asks for it.
            pl_module.log_dict({self.prefix + key: value for key, value in numbers.items()}, sync_dist=True)


class _Rate:
    """The learning rate of a trainer's first optimizer; the monitor's default where there is none, as in validate()."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = weakref.ref(trainer)

    def __call__(self) -> float:
        trainer = self.trainer()
        optimizers = [] if trainer is None else trainer.optimizers
        return float(optimizers[0].param_groups[0]["lr"]) if optimizers else 0.1


def _second(batch: object) -> Labels:
    if isinstance(batch, list | tuple) and len(batch) > 1:
        return batch[1]
    raise ValueError(
        f"batches must be pairs (inputs, labels), got {type(batch).__name__}. "
        'Say where the labels are: MonitorCallback(labels=lambda batch: batch["labels"]).'
    )
