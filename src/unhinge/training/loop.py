"""`fit`: from a recipe to a trained network in a folder, read from top to bottom.

Nothing but the recipe and the data decides the numbers: batches and augmentation are functions of (seed, epoch, step),
so a run that was killed continues from its last checkpoint to the bits it would have reached anyway.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unhinge.data import ImageSet, augment_for, batches, imbalanced, load, num_batches, shrink, with_label_noise
from unhinge.nn.precision import widened
from unhinge.results.json import plain
from unhinge.training import checkpoint
from unhinge.training.checkpoint import CheckpointError
from unhinge.training.machine import differences, machine, using_threads
from unhinge.training.measure import collapse_record, prototype_record, sample_of, score
from unhinge.training.network import biases_of, network_of, prototypes_of
from unhinge.training.objective import Objective, objective_of
from unhinge.training.parallel import Alone, Processes
from unhinge.training.recipe import Recipe, RecipeError
from unhinge.training.records import Log

__all__ = ["Material", "Progress", "Run", "fit", "learning_rate", "material_of"]

NON_FINITE = "the loss is not finite any more"
Progress = Callable[[int, int, dict[str, Any] | None], None]  # steps done, steps in all, the record of an epoch


@dataclass(frozen=True)
class Run:
    """A run as it lies in its folder: whole, or stopped for a reason."""

    folder: Path
    recipe: Recipe
    records: list[dict[str, Any]]
    stopped: str | None = None
    complaints: tuple[str, ...] = ()  # damaged checkpoints that were passed over
    warnings: tuple[str, ...] = ()  # what is not as it was when the run began, and may change its last bits

    @property
    def last(self) -> dict[str, Any]:
        return self.records[-1]


@dataclass(frozen=True, eq=False)
class Material:
    """The images a recipe asks for: trained on, tested on, and which of the original training images were kept."""

    train: ImageSet
    test: ImageSet
    kept: Tensor | None  # (n,) int64, where the recipe thins out classes


def material_of(recipe: Recipe, data_root: str | Path | None = None) -> Material:
    """Load, shrink, thin out and mislabel, in that order."""
    splits = load(recipe.data, data_root)
    train, test, kept = splits.training, splits.test, None
    if recipe.shrink > 1:
        train, test = shrink(train, recipe.shrink), shrink(test, recipe.shrink)
    if recipe.imbalance is not None or recipe.largest is not None:
        part = imbalanced(train, recipe.imbalance, seed=recipe.seed_for("data"), largest=recipe.largest)
        train, kept = part.images, part.indices
    if recipe.label_noise:
        train = with_label_noise(train, recipe.label_noise, seed=recipe.seed_for("data"))
    return Material(train, test, kept)


def learning_rate(recipe: Recipe, epoch: int) -> float:
    r"""Of an epoch: :math:`\frac{\eta}{2}\big(1+\cos\frac{\pi e}{E}\big)`, after a linear warm-up if there is one.

    Example:
        >>> [round(learning_rate(Recipe(epochs=4, lr=1.0), epoch), 3) for epoch in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """
    if epoch < recipe.warmup:
        return recipe.lr * (epoch + 1) / (recipe.warmup + 1)
    share = (epoch - recipe.warmup) / (recipe.epochs - recipe.warmup)
    return recipe.lr * (1 + math.cos(math.pi * share)) / 2


def fit(
    recipe: Recipe,
    folder: str | Path,
    *,
    data_root: str | Path | None = None,
    material: Material | None = None,
    processes: Processes | None = None,
    progress: Progress | None = None,
    save_every: float = 300.0,
    tensorboard: bool = False,
) -> Run:
    """Train as the recipe says, in `folder`; what is there already is continued, and a finished run returned as it is.

    Arguments:
        recipe: Everything that decides the numbers.
        folder: Gets recipe.json, machine.json, log.jsonl, log.csv, times.jsonl, checkpoints, last.safetensors and
            best.safetensors.
        data_root: Where the data sets lie; see :func:`unhinge.data.load`.
        material: The images, where they are loaded already.
        processes: Who shares the work; None: this process alone, on the CPU.
        progress: Called about once a second, and after each epoch with its record.
        save_every: Seconds between checkpoints within an epoch. After each epoch there is one in any case.
        tensorboard: Write TensorBoard's files as well, where it is installed.
    """
    crew, place = processes or Alone(), Path(folder)
    _claim(place, recipe, crew)
    images = material or material_of(recipe, data_root)
    with using_threads(recipe.threads):
        warnings = _compared(place / "machine.json") if crew.rank == 0 else ()
        if crew.rank == 0:
            _write_json(place / "data.json", _described(recipe, images))
        run = _Training(recipe, place, images, crew, save_every, tensorboard)
        return replace(run.finish(progress), warnings=warnings)


class _Training:
    """The moving parts of one run."""

    def __init__(
        self, recipe: Recipe, folder: Path, material: Material, crew: Processes, save_every: float, tensorboard: bool
    ) -> None:
        self.recipe, self.folder, self.crew, self.save_every = recipe, folder, crew, save_every
        self.train, self.test = material.train.to(crew.device), material.test.to(crew.device)
        self.sample = sample_of(self.train, recipe.seed_for("data"))
        self.objective: Objective = objective_of(recipe, material.train.counts)
        self.network = network_of(recipe, material.train).to(crew.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        self.names = {parameter: name for name, parameter in self.network.named_parameters()}
        self.steps = num_batches(self.train, recipe.batch)
        optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.model, self.optimizer = crew.prepare(self.network, optimizer)
        self.epoch = self.step = 0
        self.running = torch.zeros(4, dtype=torch.float64)  # loss x images, right, norms, images
        self.best = -1.0
        kept = self._resume()
        self.log = Log(folder, kept, tensorboard and crew.rank == 0) if crew.rank == 0 else None

    # ---- the run

    def finish(self, progress: Progress | None) -> Run:
        while self.epoch < self.recipe.epochs:
            began, entered = time.perf_counter(), self.step
            stopped = self._train_epoch(progress)
            seconds = time.perf_counter() - began
            images = min(self.step * self.recipe.batch, len(self.train)) - entered * self.recipe.batch
            record = self._record(stopped)
            if self.log is not None:
                self.log.add(record, seconds=seconds, images_per_second=images / max(seconds, 1e-9))
            if stopped is not None:
                return self._end(progress, record, stopped)
            accuracy = record.get("test_accuracy", -1.0)
            if self.crew.rank == 0:
                self._export("last", record)
                if accuracy > self.best:
                    self._export("best", record)
            self.best = max(self.best, accuracy)
            self.epoch, self.step = self.epoch + 1, 0
            self.running.zero_()
            self._save()
            if progress is not None:
                progress(self.epoch * self.steps, self.recipe.epochs * self.steps, record)
        return self._run(None)

    def _train_epoch(self, progress: Progress | None) -> str | None:
        """Steps from `self.step` to the end of the epoch; a reason if it has to stop there."""
        recipe, crew = self.recipe, self.crew
        self.network.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.epoch)
        feed = batches(
            self.train,
            recipe.batch,
            seed=recipe.seed_for("order"),
            epoch=self.epoch,
            augment=augment_for(self.train) if recipe.augment else None,
            start=self.step,
            shard=(crew.rank, crew.count),
            memory_format=torch.channels_last,
        )
        saved = told = time.monotonic()
        for x, y in feed:
            whole = min(recipe.batch, len(self.train) - self.step * recipe.batch)  # over all processes
            prototypes = prototypes_of(self.network)
            total = crew.total(self.objective.weight_of(y).sum(dtype=widened(prototypes.dtype)))
            logits, features = self.model(x, return_features=True)
            loss = self.objective(logits, features, y, prototypes, total, whole)
            # Several processes average their gradients, and the parts of the objective add up.
            crew.backward(loss * crew.count)
            self.optimizer.step()
            self.optimizer.zero_grad()
            now = time.monotonic()
            # Whether to save is rank 0's clock's to say: it travels with the sums, so that all do the same.
            due = float(crew.rank == 0 and now - saved > self.save_every)
            with torch.no_grad():
                right, norms = (logits.argmax(-1) == y).sum(), _norms(features).sum()
                value = loss * whole
                part = torch.stack([value, right.to(value), norms.to(value), value.new_tensor(due)])
                *sums, due = crew.total(part).tolist()
            if not math.isfinite(sums[0]):
                return f"{NON_FINITE} (epoch {self.epoch + 1}, step {self.step + 1} of {self.steps})"
            self.running += torch.tensor([*sums, whole], dtype=torch.float64)
            self.step += 1
            if due and self.step < self.steps:
                self._save()
                saved = now
            if progress is not None and now - told > 1:
                progress(self.epoch * self.steps + self.step, recipe.epochs * self.steps, None)
                told = now
        return None

    def _record(self, stopped: str | None) -> dict[str, Any]:
        """What is known after the epoch, or at the step it stopped at."""
        # Stopped at the first step of an epoch, nothing was seen, and 0 would be a false report.
        loss, right, norms, seen = self.running.tolist() if self.step else (math.nan, math.nan, math.nan, 1.0)
        self.crew.synchronize(self.network)
        weight = prototypes_of(self.network)
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "lr": learning_rate(self.recipe, self.epoch),
            "train_loss": loss / seen,
            "train_accuracy": right / seen,
            "feature_norm": norms / seen,
            **prototype_record(weight),
        }
        if stopped is not None:
            return record | {"stopped": stopped}
        # On small subsets the test images outnumber the training images, and measuring would take most of the time.
        if (self.epoch + 1) % self.recipe.measure_every and self.epoch + 1 < self.recipe.epochs:
            return record
        right_of = self.crew.total(score(self.network, self.test, (self.crew.rank, self.crew.count)))
        record["test_accuracy"] = (right_of[0] / right_of[1]).item()
        return record | collapse_record(self.network, self.sample, weight, biases_of(self.network))

    # ---- files

    def _save(self) -> None:
        if self.crew.rank != 0:
            return
        assert self.log is not None
        tensors = {f"model.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for parameter, name in self.names.items():
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        tensors["running"] = self.running
        standing = {
            "recipe": self.recipe.key,
            "epoch": self.epoch,
            "step": self.step,
            "records": len(self.log.records),
            "best": self.best,
        }
        checkpoint.save(self.folder, self.epoch * self.steps + self.step, tensors, standing)

    def _resume(self) -> int:
        """Go on where the newest whole checkpoint stands; the number of records that belong to it."""
        found, complaints = checkpoint.load_newest(self.folder)
        self.complaints = tuple(complaints)
        if found is None:
            return 0
        standing, tensors = found.standing, found.tensors
        if standing.get("recipe") != self.recipe.key:
            raise CheckpointError(
                f"the checkpoints in {self.folder} are of another recipe, or of another version. Choose another folder."
            )
        self.network.load_state_dict(_below("model.", tensors))
        momenta = _below("momentum.", tensors)
        for parameter, name in self.names.items():
            if name in momenta:
                # In the parameter's own memory layout: another one would add up in another order.
                buffer = torch.empty_like(parameter).copy_(momenta[name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.detach()
        self.running = tensors["running"].clone()
        self.epoch, self.step, self.best = standing["epoch"], standing["step"], standing["best"]
        return int(standing["records"])

    def _export(self, name: str, record: dict[str, Any]) -> None:
        about = {"recipe": json.loads(self.recipe.to_json()), "record": plain(record, names=True)}
        checkpoint.write_tensors(self.folder / f"{name}.safetensors", self.network.state_dict(), about)

    def _end(self, progress: Progress | None, record: dict[str, Any], stopped: str) -> Run:
        if progress is not None:
            progress(self.epoch * self.steps + self.step, self.recipe.epochs * self.steps, record)
        return self._run(stopped)

    def _run(self, stopped: str | None) -> Run:
        records = self.log.records if self.log is not None else []
        return Run(self.folder, self.recipe, records, stopped, self.complaints)


def _norms(features: Tensor) -> Tensor:
    """Length of each feature, :math:`(b,)`, also where its square overflows: a run that blows up is to be watched."""
    wide = features.to(widened(features.dtype))
    peak = wide.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
    return torch.linalg.vector_norm(wide / peak, dim=-1) * peak.squeeze(-1)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _claim(folder: Path, recipe: Recipe, crew: Processes) -> None:
    """Make the folder this run's; another run's is left alone."""
    path = folder / "recipe.json"
    if path.is_file():
        try:
            there = Recipe.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(f"cannot tell which run {folder} holds. Its recipe.json is damaged: {error}") from None
        if there != recipe:
            differing = [name for name in vars(recipe) if getattr(there, name) != getattr(recipe, name)]
            if differing == ["threads"]:
                raise RecipeError(
                    f"{folder} holds this run with threads = {there.threads}, and with {recipe.threads} it would not "
                    "end in the same bits. Continue it with its own number, or choose another folder."
                )
            raise RecipeError(
                f"{folder} holds another run; they differ in {', '.join(differing)}. Choose another folder."
            )
    elif crew.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(path, (recipe.to_json() + "\n").encode())
    if crew.rank == 0:
        for leftover in folder.glob(checkpoint.PARTIAL):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)


def _compared(path: Path) -> tuple[str, ...]:
    """Write down on what a run begins; where that was done, say what has changed since. A damaged note is made anew."""
    now = machine()
    try:
        then = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        then = None
    if not isinstance(then, dict):
        _write_json(path, now)
        return ()
    changed = differences(then, now)
    if not changed:
        return ()
    return (f"this run began on another machine or build ({'; '.join(changed)}): its last bits may differ.",)


def _described(recipe: Recipe, material: Material) -> dict[str, Any]:
    about: dict[str, Any] = {
        "data": recipe.data,
        "train_images": len(material.train),
        "test_images": len(material.test),
        "counts": material.train.counts.tolist(),
    }
    if material.kept is not None:
        about["kept"] = material.kept.tolist()
    return about


def _write_json(path: Path, value: Any) -> None:
    checkpoint.write_atomically(path, (json.dumps(value) + "\n").encode())
