"""`fit`: from a recipe to a trained network in a folder, read from top to bottom.

Nothing but the recipe and the data decides the numbers: batches and augmentation are functions of (seed, epoch, step),
so a run that was killed continues from its last checkpoint to the bits it would have reached anyway.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from unhinge.data import (
    DataError,
    ImageSet,
    Splits,
    augment_for,
    batches,
    imbalanced,
    load,
    num_batches,
    shrink,
    with_label_noise,
)
from unhinge.data.glyphs import font_faces
from unhinge.nn.precision import widened
from unhinge.results.json import JsonRecord, plain
from unhinge.results.lock import only_writer
from unhinge.results.sealed import SealError, read_sealed, remove_leftovers, write_atomically, write_sealed
from unhinge.training import checkpoint
from unhinge.training.checkpoint import CheckpointError
from unhinge.training.machine import differences, machine, using_threads
from unhinge.training.measure import class_means, collapse_record, outputs, prototype_record, sample_of, score
from unhinge.training.network import ManyClassAdapter, biases_of, network_of, prototypes_of
from unhinge.training.objective import Objective, objective_of
from unhinge.training.parallel import Processes, SingleProcess
from unhinge.training.recipe import Recipe, RecipeError
from unhinge.training.records import Log, read_data

__all__ = ["Interrupted", "Material", "Progress", "Run", "fit", "learning_rate", "material_of"]


class Interrupted(Exception):
    """Someone asked the run to end; it is saved, and the same call continues it."""


NON_FINITE = "the loss is not finite any more"
Progress = Callable[[int, int, JsonRecord | None], None]  # steps done, steps in all, the record of an epoch


@dataclass(frozen=True)
class Run:
    """A run as it lies in its folder: whole, or stopped for a reason."""

    folder: Path
    recipe: Recipe
    records: list[JsonRecord]
    stopped: str | None = None
    complaints: tuple[str, ...] = ()  # damaged checkpoints that were passed over, and what was done instead
    warnings: tuple[str, ...] = ()  # what is not as it was when the run began, and may change its last bits

    @property
    def last(self) -> JsonRecord:
        return self.records[-1]


@dataclass(frozen=True, eq=False)
class Material:
    """The images a recipe asks for: trained on, tested on, and which of the original training images were kept."""

    train: ImageSet
    test: ImageSet
    kept: Tensor | None  # (n,) int64, where the recipe thins out classes


def material_of(recipe: Recipe, data_root: str | Path | None = None, splits: Splits | None = None) -> Material:
    """Load (or take `splits` instead), shrink, thin out and mislabel, in that order."""
    if splits is None:
        splits = load(
            recipe.data,
            data_root,
            image_size=recipe.image_size,
            fonts=recipe.fonts or None,
            characters=recipe.characters,
        )
    train, test, kept = splits.training, splits.test, None
    if train.num_classes < 2:
        raise DataError(f"{recipe.data} has one class, {train.classes[0]!r}, and a classifier needs at least 2.")
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
        >>> [
        ...     round(learning_rate(Recipe(epochs=4, lr=1.0), epoch), 3)
        ...     for epoch in range(4)
        ... ]
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
    interrupted: Callable[[], bool] = lambda: False,
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
        interrupted: Asked after each step; once it says yes, a checkpoint is written and :class:`Interrupted` raised.
            So a signal's handler only has to set a flag, and never meets a half-done step.
    """
    processes, place = processes or SingleProcess(), Path(folder)
    if processes.rank == 0:
        place.mkdir(parents=True, exist_ok=True)
    with only_writer(place) if processes.rank == 0 else nullcontext(), using_threads(recipe.threads):
        _claim(place, recipe, processes)
        images = material or material_of(recipe, data_root)
        described = _described(recipe, images)
        _check_images(place, described)
        warnings = _compared(place / "machine.json") if processes.rank == 0 else ()
        if processes.rank == 0:
            write_atomically(place / "data.json", (json.dumps(described) + "\n").encode())
        run = _Training(recipe, place, images, processes, save_every, tensorboard, interrupted)
        return replace(run.finish(progress), warnings=warnings)


class _Training:
    """The moving parts of one run."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        material: Material,
        processes: Processes,
        save_every: float,
        tensorboard: bool,
        interrupted: Callable[[], bool],
    ) -> None:
        self.recipe, self.folder, self.processes, self.save_every = recipe, folder, processes, save_every
        self.interrupted = interrupted
        self.train, self.test = material.train.to(processes.device), material.test.to(processes.device)
        self.sample = sample_of(self.train, recipe.seed_for("data"))
        self.objective: Objective = objective_of(recipe, material.train.counts)
        self.network = network_of(recipe, material.train).to(processes.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
        self.many = self.network.head if isinstance(self.network.head, ManyClassAdapter) else None
        if self.many is not None and processes.count > 1:
            raise RecipeError("head many trains in one process here; in several, give ManyClassHead a process_group.")
        self.names = {parameter: name for name, parameter in self.network.named_parameters()}
        self.steps = num_batches(self.train, recipe.batch)
        optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.model, self.optimizer = processes.prepare(self.network, optimizer)
        self.dtype = next(self.network.parameters()).dtype  # prepared: the precision asked for
        self.epoch = self.step = 0
        self.ended = False
        self.running = torch.zeros(4, dtype=torch.float64)  # loss x images, right, norms, images
        self.best = -1.0
        kept = self._resume()
        self.log = Log(folder, kept, tensorboard and processes.rank == 0) if processes.rank == 0 else None

    # ---- the run

    def finish(self, progress: Progress | None) -> Run:
        while self.epoch < self.recipe.epochs:
            began, entered = time.perf_counter(), self.step
            stopped = self._train_epoch(progress) or self._overflown()
            seconds = time.perf_counter() - began
            images = min(self.step * self.recipe.batch, len(self.train)) - entered * self.recipe.batch
            record = self._record(stopped)
            if self.log is not None:
                self.log.add(record, seconds=seconds, images_per_second=images / max(seconds, 1e-9))
            if stopped is not None:
                self._tell(progress, record)
                return self._run(stopped)
            accuracy = record.get("test_accuracy", -1.0)
            if self.processes.rank == 0:
                self._export("last", record)
                if accuracy > self.best:
                    self._export("best", record)
            self.best = max(self.best, accuracy)
            self.epoch, self.step = self.epoch + 1, 0
            self.running.zero_()
            self._save()
            self._raise_if_interrupted()
            self._tell(progress, record)
        if self.processes.rank == 0:
            self._complete()
        return self._run(None)

    def _train_epoch(self, progress: Progress | None) -> str | None:
        """Steps from `self.step` to the end of the epoch; a reason if it has to stop there."""
        recipe, processes = self.recipe, self.processes
        if self.step == 0 and self.epoch == recipe.restart:
            assert self.many is not None
            self.many.restart(class_means(self.network, self.train))
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
            shard=(processes.rank, processes.count),
            memory_format=torch.channels_last,
        )
        saved = reported = time.monotonic()
        for x, y in feed:
            whole = min(recipe.batch, len(self.train) - self.step * recipe.batch)  # over all processes
            total = processes.total(self.objective.weight_of(y).sum(dtype=widened(self.dtype)))
            logits, features = self.model(x, return_features=True)
            if self.many is None:
                loss = self.objective(logits, features, y, prototypes_of(self.network), total, whole)
            else:
                loss = self.objective.combined(self.many.losses(features, y), features, y, total, whole)
            # Several processes average their gradients, and the parts of the objective add up.
            processes.backward(loss * processes.count)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.many is not None and math.isfinite(loss.item()):
                share = learning_rate(recipe, self.epoch) / recipe.lr if recipe.lr else 1.0
                self.many.step(recipe.head_rate * share, whole)
            now = time.monotonic()
            # Whether to save is rank 0's clock's to say, and whether to end any one's: both travel with the sums, so
            # that all do the same.
            due = float(processes.rank == 0 and now - saved > self.save_every)
            ended = float(self.interrupted())
            with torch.no_grad():
                guessed = logits.argmax(-1) if self.many is None else torch.full_like(y, -1)
                right, norms = (guessed == y).sum(), _norms(features).sum()
                value = loss * whole
                part = torch.cat(
                    [torch.stack([value, right.to(value), norms.to(value)]), value.new_tensor([due, ended])]
                )
                *sums, due, ended = processes.total(part).tolist()
            if not math.isfinite(sums[0]):
                return f"{NON_FINITE} (epoch {self.epoch + 1}, step {self.step + 1} of {self.steps})"
            self.running += torch.tensor([*sums, whole], dtype=torch.float64)
            self.step += 1
            self.ended = bool(ended)
            if (due or ended) and self.step < self.steps:
                self._save()
                saved = now
                self._raise_if_interrupted()  # after the last step of an epoch, the epoch is measured and saved first
            if now - reported > 1:
                self._tell(progress, None)
                reported = now
        return None

    def _tell(self, progress: Progress | None, record: JsonRecord | None) -> None:
        if progress is not None:
            progress(self.epoch * self.steps + self.step, self.recipe.epochs * self.steps, record)

    def _overflown(self) -> str | None:
        """A reason to stop if the last step of all, after which no loss is computed, broke the network.

        Weights can be finite and so large that what they answer is not.
        """
        if self.epoch + 1 < self.recipe.epochs:
            return None
        few = self.sample.subset(torch.arange(min(len(self.sample), self.recipe.batch)))
        numbers = [*self.network.state_dict().values(), outputs(self.network, few).logits]
        if all(bool(torch.isfinite(part).all()) for part in numbers):
            return None
        return f"what the network answers is not finite any more (epoch {self.epoch + 1}, after its last step)"

    def _raise_if_interrupted(self) -> None:
        if self.ended and self.epoch < self.recipe.epochs:
            raise Interrupted(f"saved after step {self.step} of epoch {self.epoch + 1}")

    def _record(self, stopped: str | None) -> JsonRecord:
        """What is known after the epoch, or at the step it stopped at."""
        # Stopped at the first step of an epoch, nothing was seen, and 0 would be a false report.
        loss, right, norms, seen = self.running.tolist() if self.step else (math.nan, math.nan, math.nan, 1.0)
        self.processes.synchronize(self.network)
        weight = prototypes_of(self.network)
        record: JsonRecord = {
            "epoch": self.epoch + 1,
            "lr": learning_rate(self.recipe, self.epoch),
            "train_loss": loss / seen,
            "train_accuracy": right / seen if self.many is None else math.nan,  # it makes no logits in training
            "feature_norm": norms / seen,
            **prototype_record(weight),
        }
        if stopped is not None:
            return record | {"stopped": stopped}
        # On small subsets the test images outnumber the training images, and measuring would take most of the time.
        if (self.epoch + 1) % self.recipe.measure_every and self.epoch + 1 < self.recipe.epochs:
            return record
        right_of = self.processes.total(score(self.network, self.test, (self.processes.rank, self.processes.count)))
        record["test_accuracy"] = (right_of[0] / right_of[1]).item()
        return record | collapse_record(self.network, self.sample, weight, biases_of(self.network))

    # ---- files

    def _save(self) -> None:
        if self.processes.rank != 0:
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
        newest, complaints = checkpoint.load_newest(self.folder)
        if complaints:
            used = "The one before it was used." if newest else "No whole one is left, so the run began anew."
            complaints[-1] = f"{complaints[-1]} {used}"
        self.complaints = tuple(complaints)
        if newest is None:
            return 0
        standing, tensors = newest.standing, newest.tensors
        if standing.get("recipe") != self.recipe.key:
            raise CheckpointError(
                f"the checkpoints in {self.folder} are of another recipe, or of another version. Choose another folder."
            )
        try:
            self._take(standing, tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"the newest checkpoint in {self.folder} is whole, but not of this run ({reason}). Remove it to go "
                "on from the one before, or choose another folder."
            ) from None
        return int(standing["records"])

    def _take(self, standing: JsonRecord, tensors: dict[str, Tensor]) -> None:
        epoch, step, records = (standing[name] for name in ("epoch", "step", "records"))
        if not (0 <= epoch <= self.recipe.epochs and 0 <= step < max(self.steps, 1) and epoch <= records <= epoch + 1):
            raise ValueError(f"epoch {epoch}, step {step}, {records} records")
        self.network.load_state_dict(_without_prefix("model.", tensors))
        momenta = _without_prefix("momentum.", tensors)
        for parameter, name in self.names.items():
            if name in momenta:
                # In the parameter's own memory layout: another one would add up in another order.
                buffer = torch.empty_like(parameter).copy_(momenta[name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.detach()
        self.running = tensors["running"].reshape(4).double()
        self.epoch, self.step, self.best = int(epoch), int(step), float(standing["best"])

    def _complete(self) -> None:
        """See that the weights a finished run speaks of are there, and write those of its end again if not."""
        assert self.log is not None
        accuracies = [record.get("test_accuracy", -1.0) for record in self.log.records]
        best_is_last = accuracies.index(max(accuracies)) == len(accuracies) - 1
        for name in ("last", "best"):
            path = self.folder / f"{name}.safetensors"
            try:
                checkpoint.read_tensors(path)
            except CheckpointError as error:
                if name == "best" and not best_is_last:
                    raise CheckpointError(
                        f"{error if path.exists() else f'{path} is missing.'} The run is finished and its last weights "
                        "are whole; put the file back, or train again in another folder to have its best ones."
                    ) from None
                self._export(name, self.log.records[-1])

    def _export(self, name: str, record: JsonRecord) -> None:
        about = {"recipe": json.loads(self.recipe.to_json()), "record": plain(record, names=True)}
        checkpoint.write_tensors(self.folder / f"{name}.safetensors", self.network.state_dict(), about)

    def _run(self, stopped: str | None) -> Run:
        records = self.log.records if self.log is not None else []
        return Run(self.folder, self.recipe, records, stopped, self.complaints)


def _norms(features: Tensor) -> Tensor:
    """Length of each feature, :math:`(b,)`, also where its square overflows: a run that blows up is to be watched."""
    wide = features.to(widened(features.dtype))
    peak = wide.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
    return torch.linalg.vector_norm(wide / peak, dim=-1) * peak.squeeze(-1)


def _without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _claim(folder: Path, recipe: Recipe, processes: Processes) -> None:
    """Make the folder this run's; another run's is left alone, unless it failed before its first checkpoint."""
    path = folder / "recipe.json"
    fresh = not path.is_file()
    if not fresh:
        try:
            existing = Recipe.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(f"cannot tell which run {folder} holds. Its recipe.json is damaged: {error}") from None
        fresh = existing != recipe and not _begun(folder)
        if existing != recipe and not fresh:
            differing = [name for name in vars(recipe) if getattr(existing, name) != getattr(recipe, name)]
            if differing == ["threads"]:
                raise RecipeError(
                    f"{folder} holds this run with threads = {existing.threads}, and with {recipe.threads} it would "
                    "not end in the same bits. Continue it with its own number, or choose another folder."
                )
            raise RecipeError(
                f"{folder} holds another run; they differ in {', '.join(differing)}. Choose another folder."
            )
    if processes.rank == 0:
        if fresh:
            write_atomically(path, (recipe.to_json() + "\n").encode())
        remove_leftovers(folder)


def _begun(folder: Path) -> bool:
    """Whether there is anything to lose: a model that could not be built has left a recipe, and no more."""
    return any(next(folder.glob(made), None) for made in ("checkpoint-*", "*.safetensors", "log.*"))


def _check_images(folder: Path, now: JsonRecord) -> None:
    """Refuse to go on with other images than the run began on: a folder of one's own may have gained or lost some."""
    then = read_data(folder)
    if then is None or not _begun(folder):
        return
    # Typefaces may lie elsewhere by now, and the recipe has their checksums.
    differing = [name for name in now if name != "fonts" and name in then and then[name] != now[name]]
    if differing:
        raise RecipeError(
            f"{folder} holds this run on other images; they differ in {', '.join(differing)}. Put them back as they "
            "were, or choose another folder."
        )


def _compared(path: Path) -> tuple[str, ...]:
    """Write down on what a run begins; where that was done, say what has changed since."""
    now = machine()
    try:
        then = read_sealed(path)
    except FileNotFoundError:
        write_sealed(path, now)
        return ()
    except SealError as error:
        write_sealed(path, now)
        return (f"{error} It is made anew; whether the run began on this machine cannot be told any more.",)
    changed = differences(then, now)
    if not changed:
        return ()
    return (f"this run began on another machine or build ({'; '.join(changed)}): its last bits may differ.",)


def _described(recipe: Recipe, material: Material) -> JsonRecord:
    about: JsonRecord = {
        "data": recipe.data,
        "train_images": len(material.train),
        "test_images": len(material.test),
        "counts": material.train.counts.tolist(),
    }
    if material.kept is not None:
        about["kept"] = material.kept.tolist()
    if recipe.data == "glyphs":
        about["fonts"] = [str(face) for face in font_faces(recipe.fonts or None)]
    return about
