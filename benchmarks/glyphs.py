r"""Thousands of real classes: how fast and how far each classifier learns characters in typefaces it has not seen.

    python benchmarks/glyphs.py [--fonts FILE ...] [--characters 4E00-9FA5] [--epochs N] [--seeds N] [--methods ...]

The same small network and the same batches for every method; only classifier and loss differ. Each run is a process of
its own with one thread. Its rows (one per evaluation) are appended to the CSV file when it ends, and a run whose rows
are there is not repeated, so the command can be interrupted and called again. `--report figure.png` prints the tables.

**Rates.** Every method has three trials, each a third of the one before, on seed 0: without the last of the training
typefaces, and judged on it. Where the best lies at the edge of what was tried, the next rate beyond it is tried too, at
most twice. The typefaces of the test have no part in it. The trials are rows of the file as well, with split
"validation", and the best one decides the rate of all other runs.

Time is processor time of the training steps alone, without evaluation, so that a busy machine does not count; head time
is that of classifier, loss and their update.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.data.glyphs import font_faces, glyphs
from unhinge.nn import GeneratedPrototypes, ManyClassHead
from unhinge.nn import functional as UF
from unhinge.nn.backbones import GlyphBody
from unhinge.results.look import BLUE, FAINT, GREEN, INK, ORANGE, head_line, new_figure, save, styled

torch.set_num_threads(1)

BATCH = 256
WIDTH = 16  # of the network: p = 128 features
BODY_RATE = 2e-3  # of AdamW on the network, where the head has a rate of its own
SCALE = 20.0  # of cosines before the softmax on fixed prototypes
METHODS = (
    "cross-entropy",
    "linear_cross_entropy",
    "sampled-2048",
    "sampled-8192",
    "partial-0.1",
    "taylor_softmax",
    "z",
    "spherical_softmax",
    "squared",
    "taylor, finished",
    "taylor, finished-64",
    "taylor, means-64",
    "taylor, restarts-32",
    "z, means-64",
    "cross-entropy, means",
    "cross-entropy, restarts",
    "unhinged, trained",
    "cross-entropy, fixed",
    "unhinged, fixed",
)
ADAMW = (3e-3, 1e-2, 3e-2)
BODY = (1e-3, 3e-3, 1e-2)  # of the network on fixed prototypes, whose head has no rate
# Plain SGD on the head in units of batch / p: features have a squared norm of p, so in a step of rate 1 the logit of an
# example moves by about its derivative. Squares and the unhinged loss have no denominator that tames a larger one.
SGD = {
    "taylor_softmax": (10.0, 30.0, 100.0),
    "z": (10.0, 30.0, 100.0),
    "spherical_softmax": (10.0, 30.0, 100.0),
    "squared": (0.01, 0.03, 0.1),
    "unhinged": (0.3, 1.0, 3.0),
}
TESTED = 4000  # test images


@dataclass(frozen=True)
class Finish:
    """A shortlist of `near` classes from the first of these shares of training on, made anew at each of them.

    With a `strength` the rows start anew from class means then, with true logits of that many log C. Until then the
    head has `loss`, with a rate of its own; from then on `rate`, in the same units, where that is not the same.
    """

    shares: tuple[float, ...]
    near: int
    strength: float | None = None
    loss: str = "taylor_softmax"
    rate: float | None = None


# The second one was chosen on DejaVu, without the last training typeface and judged on it: 64.0 % against 57.0 % for
# the first, 59.4 % for (0.5, 16), 52.8 % for (0.2, 64), and 63.8 % if the list is made anew every 40 steps. The two
# restarts were chosen there too: see "Why it starts slowly, and what helps" in the results. The Z-loss takes over the
# finish of the Taylor softmax and its rate, untried.
FINISH = {
    "taylor, finished": Finish((0.8,), 16),
    "taylor, finished-64": Finish((0.5,), 64),
    "taylor, means-64": Finish((0.5,), 64, 2.0),
    "taylor, restarts-32": Finish((0.25, 0.6), 32, 4.0),
    "z, means-64": Finish((0.5,), 64, 2.0, "z", 10.0),
}
# Cross-entropy whose rows start anew from class means too: what these do for our head can be told from the head itself.
CE_RESTARTS = {"cross-entropy, means": (0.5,), "cross-entropy, restarts": (0.25, 0.6)}


@dataclass(frozen=True)
class Row:
    task: str
    classes: int
    method: str
    split: str  # "validation": a trial of the rate, on a typeface of the training set; or "test"
    rate: float  # of the head; on fixed prototypes of the network
    seed: int
    epochs: float
    step: int
    accuracy: float  # on typefaces never trained on; 0 if the run diverged
    seconds: float  # of training so far
    head_seconds: float
    peak_mb: float  # largest resident set of the process beyond that before the first step


class Classifier:
    """What differs between the methods: a loss that can be differentiated, a step, and the weight to test with."""

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def step(self, share: float) -> None:
        """`share` is the current rate over the first."""

    def at(self, progress: float, means: Callable[[], Tensor]) -> None:
        """Called before each step with the share of training that is done, and what computes the class means."""

    def weight(self) -> Tensor:
        raise NotImplementedError


class Dense(Classifier):
    """A trained weight under AdamW; the loss may look at all of it or at a sample."""

    def __init__(
        self,
        rows: Tensor,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        rate: float,
        sparse: bool,
        restarts: tuple[float, ...] = (),
    ) -> None:
        self.rows = rows.requires_grad_()
        self.restarts = list(restarts)
        self.of = loss
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SparseAdam([self.rows], lr=rate)
            if sparse
            else torch.optim.AdamW([self.rows], lr=rate, fused=True)  # five times as fast as without
        )
        self.rate = rate

    def at(self, progress: float, means: Callable[[], Tensor]) -> None:
        if self.restarts and progress >= self.restarts[0]:
            self.restarts.pop(0)
            head = ManyClassHead(self.rows.shape[1], len(self.rows), weight=self.rows)
            head.restart(means())
            self.rows.data.copy_(head.dense())
            self.optimizer.state.clear()

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        return self.of(features, self.rows, target)

    def step(self, share: float) -> None:
        self.optimizer.param_groups[0]["lr"] = self.rate * share
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weight(self) -> Tensor:
        return self.rows.detach()


class Ours(Classifier):
    def __init__(self, head: ManyClassHead, rate: float, finish: Finish | None) -> None:
        self.head, self.rate, self.finish = head, rate, finish
        self.coming = list(finish.shares) if finish else []
        self.near: Tensor | None = None  # (C, k), once finishing has begun

    def at(self, progress: float, means: Callable[[], Tensor]) -> None:
        if self.finish and self.coming and progress >= self.coming[0]:
            self.coming.pop(0)
            if self.finish.strength is not None:
                self.head.restart(means(), self.finish.strength)
            if self.finish.rate is not None:
                self.rate = self.finish.rate * BATCH / self.head.in_features
            self.near = self.head.neighbors(self.finish.near)

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        shortlist = None if self.near is None else self.near[target]
        loss: Tensor = self.head(features, target, shortlist=shortlist)
        return loss

    def step(self, share: float) -> None:
        self.head.step(self.rate * share)

    def weight(self) -> Tensor:
        return self.head.dense()


class Fixed(Classifier):
    def __init__(self, rows: Tensor, unhinged: bool) -> None:
        self.rows, self.total, self.unhinged = rows, rows.sum(0), unhinged

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        features = F.normalize(features, dim=1)
        if self.unhinged:
            return UF.unhinged_loss_from_features(features, self.rows, target, weight_sum=self.total)
        return F.cross_entropy(SCALE * features @ self.rows.T, target)

    def weight(self) -> Tensor:
        return self.rows


def sampled(count: int, corrected: bool, generator: torch.Generator) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Softmax over the true class and `count` drawn ones; corrected for how seldom a class is drawn, or not."""

    def loss(features: Tensor, rows: Tensor, target: Tensor) -> Tensor:
        classes = len(rows)
        if corrected:  # with replacement, weighed by 1 / (count / C): the expected sum is that of all classes
            drawn = torch.randint(classes, (count,), generator=generator)
        else:  # Partial FC: the classes of the batch, filled up with others
            first = torch.unique(target)
            others = torch.randperm(classes, generator=generator)[:count]
            drawn = torch.cat([first, others[~torch.isin(others, first)]])
        near = F.embedding(torch.cat([target, drawn]), rows, sparse=True)
        true = (features * near[: len(target)]).sum(1, keepdim=True)
        logits = features @ near[len(target) :].T
        if corrected:
            logits = logits + math.log(classes / count)
        logits = logits.masked_fill(drawn == target[:, None], -math.inf)
        return F.cross_entropy(torch.cat([true, logits], 1), torch.zeros_like(target))

    return loss


def bare(method: str) -> str:
    """The loss of a head of ours, or the method itself."""
    if method in FINISH:
        return FINISH[method].loss
    return {"unhinged, trained": "unhinged"}.get(method, method)


def same_function(method: str) -> str:
    """What was tried for one holds for the other: torch's lean cross-entropy is the same loss, a finish comes later."""
    later = {name: finish.loss for name, finish in FINISH.items() if name != "taylor, finished"}
    dense = dict.fromkeys(("linear_cross_entropy", *CE_RESTARTS), "cross-entropy")
    return {**dense, **later}.get(method, method)


def rates(method: str) -> tuple[float, ...]:
    """What is tried."""
    return BODY if method.endswith("fixed") else SGD.get(bare(method), ADAMW)


def beyond(tried: list[float], best: float) -> list[float]:
    """The next rates to try: one further if the best lies at an edge, at most two beyond the first three."""
    edges = {min(tried): -1, max(tried): 1}
    return [beside(best, edges[best])] if best in edges and len(tried) < 5 else []


def beside(rate: float, steps: int) -> float:
    """A rate so many places further in 0.1, 0.3, 1, 3, 10, 30 and so on."""
    place = round(2 * math.log10(rate)) + steps
    return float(f"{(1, 3)[place % 2]}e{place // 2}")


def make(method: str, classes: int, dim: int, seed: int, rate: float) -> Classifier:
    generator = torch.Generator().manual_seed(seed)
    kind, _, number = method.partition("-")
    if method.endswith("fixed"):
        frame = GeneratedPrototypes(classes, dim, seed=seed)
        return Fixed(frame.rows(torch.arange(classes)), unhinged=method.startswith("unhinged"))
    if bare(method) in SGD:
        head = ManyClassHead(dim, classes, bare(method), generator=generator)
        return Ours(head, rate * BATCH / dim, FINISH.get(method))
    bound = 1 / math.sqrt(dim)
    rows = torch.empty(classes, dim).uniform_(-bound, bound, generator=generator)
    if method == "cross-entropy" or method in CE_RESTARTS:
        shares = CE_RESTARTS.get(method, ())
        return Dense(rows, lambda h, w, y: F.cross_entropy(h @ w.T, y), rate, sparse=False, restarts=shares)
    if method == "linear_cross_entropy":
        lean = nn.LinearCrossEntropyOptions()
        return Dense(rows, lambda h, w, y: F.linear_cross_entropy(h, w, y, options=lean), rate, sparse=False)
    if kind == "sampled":
        return Dense(rows, sampled(int(number), True, generator), rate, sparse=True)
    return Dense(rows, sampled(round(float(number) * classes), False, generator), rate, sparse=True)


@dataclass(frozen=True)
class Task:
    name: str
    train: Tensor  # (n, 1, 24, 24) uint8
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    mean: float
    std: float
    classes: int

    def without_last_face(self) -> Task:
        """To choose a rate: the last training typeface is what is tested on."""
        kept = len(self.train) - self.classes
        chosen = torch.randperm(self.classes, generator=torch.Generator().manual_seed(0))[:TESTED] + kept
        test = {"test": self.train[chosen], "test_labels": self.labels[chosen]}
        return replace(self, train=self.train[:kept], labels=self.labels[:kept], **test)

    def batch(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.std


def load_task(fonts: list[str] | None, characters: str | None, cache: Path, name: str) -> Task:
    """The characters, drawn once and kept in `cache`; at most TESTED test images, drawn once and for all."""
    key = json.dumps([[str(face) for face in font_faces(fonts)], characters, TESTED])
    file = cache / f"glyphs-{abs(hash_of(key)):016x}.npz"
    if not file.exists():
        splits = glyphs(fonts=fonts, characters=characters)
        chosen = torch.randperm(len(splits.test), generator=torch.Generator().manual_seed(0))[:TESTED]
        cache.mkdir(parents=True, exist_ok=True)
        whole = splits.training
        np.savez(
            file.with_suffix(".part.npz"),
            train=whole.images.numpy(),
            labels=whole.labels.numpy(),
            test=splits.test.images[chosen].numpy(),
            test_labels=splits.test.labels[chosen].numpy(),
            scale=np.array([whole.mean[0], whole.std[0], splits.num_classes]),
        )
        file.with_suffix(".part.npz").rename(file)
    with np.load(file) as stored:
        parts = {key: torch.from_numpy(stored[key]) for key in ("train", "labels", "test", "test_labels")}
        mean, std, classes = stored["scale"].tolist()
    return Task(name, mean=mean, std=std, classes=int(classes), **parts)


def hash_of(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@torch.no_grad()
def accuracy(body: nn.Module, weight: Tensor, task: Task) -> float:
    body.eval()
    right = 0
    for images, labels in zip(task.test.split(500), task.test_labels.split(500), strict=True):
        right += int(((body(task.batch(images)) @ weight.T).argmax(1) == labels).sum())
    body.train()
    return right / len(task.test)


@torch.no_grad()
def class_means(body: nn.Module, task: Task) -> Tensor:
    """Of the features of all training images: one pass without gradients, shape (C, p)."""
    body.eval()
    sums = torch.zeros(task.classes, body.feature_dim)
    for images, labels in zip(task.train.split(500), task.labels.split(500), strict=True):
        sums.index_add_(0, labels, body(task.batch(images)))
    body.train()
    return sums / task.labels.bincount(minlength=task.classes)[:, None]


def train(task: Task, method: str, seed: int, epochs: float, rate: float, split: str, points: int) -> list[Row]:
    torch.manual_seed(seed)
    fixed = method.endswith("fixed")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = GlyphBody(width=WIDTH).to(memory_format=torch.channels_last)
    body_rate = rate if fixed else BODY_RATE
    classifier = make(method, task.classes, body.feature_dim, seed, rate)
    optimizer = torch.optim.AdamW(body.parameters(), lr=body_rate, fused=True)
    generator = torch.Generator().manual_seed(seed)
    steps = round(epochs * len(task.train) / BATCH)
    order = torch.empty(0, dtype=torch.int64)
    rows: list[Row] = []
    spent, in_head = 0.0, 0.0

    def record(step: int, found: float) -> None:
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        rows.append(
            Row(task.name, task.classes, method, split, rate, seed, epochs, step, round(found, 5), round(spent, 2),
                round(in_head, 3), round(peak))
        )  # fmt: skip
        print(f"  {method} seed {seed} {split} rate {rate:g}: step {step}/{steps} accuracy {found:.4f} "
              f"{spent:.0f} s, head {1e3 * in_head / step:.1f} ms", file=sys.stderr, flush=True)  # fmt: skip

    for k in range(steps):
        if len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(task.train), generator=generator)])
        chosen, order = order[:BATCH], order[BATCH:]
        begin = time.process_time()
        share = (1 + math.cos(math.pi * k / steps)) / 2
        optimizer.param_groups[0]["lr"] = body_rate * share
        shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
        images = task.batch(task.train[chosen]).roll(shift, (2, 3))
        features = body(images)
        handed = features.detach().requires_grad_()
        entered = time.process_time()
        classifier.at(k / steps, lambda: class_means(body, task))
        loss = classifier.loss(handed, task.labels[chosen])
        loss.backward()
        try:
            classifier.step(share)
        except ValueError:  # not finite
            record(k + 1, 0.0)
            return rows
        in_head += time.process_time() - entered
        optimizer.zero_grad()
        features.backward(handed.grad)
        optimizer.step()
        spent += time.process_time() - begin
        if (k + 1) % -(-steps // points) == 0 or k + 1 == steps:
            record(k + 1, accuracy(body, classifier.weight(), task))
    return rows


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def chosen_rate(rows: list[dict[str, str]], name: str, method: str) -> float:
    """That of the best trial."""
    last = {row["rate"]: float(row["accuracy"]) for row in rows
            if (row["task"], row["method"], row["split"]) == (name, method, "validation")}  # fmt: skip
    return float(max(last, key=lambda rate: last[rate]))


@dataclass(frozen=True)
class Curve:
    """One run: its evaluations in order."""

    task: str
    classes: int
    method: str
    epochs: float
    rate: float
    seconds: list[float]
    accuracy: list[float]
    head_ms: float
    peak_mb: float

    def at(self, seconds: float) -> float:
        """Accuracy after so much processor time, on the line between the evaluations before and after."""
        return float(np.interp(seconds, [0.0, *self.seconds], [0.0, *self.accuracy]))


def curves(rows: list[dict[str, str]]) -> list[Curve]:
    """The runs that were tested, as they stand in the file."""
    runs: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        if row["split"] == "test":
            runs.setdefault((row["task"], row["epochs"], row["method"], row["seed"]), []).append(row)
    return [
        Curve(
            task=run[0]["task"],
            classes=int(run[0]["classes"]),
            method=run[0]["method"],
            epochs=float(run[0]["epochs"]),
            rate=float(run[0]["rate"]),
            seconds=[float(row["seconds"]) for row in run],
            accuracy=[float(row["accuracy"]) for row in run],
            head_ms=1e3 * float(run[-1]["head_seconds"]) / int(run[-1]["step"]),
            peak_mb=float(run[-1]["peak_mb"]),
        )
        for run in runs.values()
    ]


def tables(runs: list[Curve]) -> str:
    """One table for each task, the best accuracy first."""
    parts = []
    for task in dict.fromkeys(curve.task for curve in runs):
        own = [curve for curve in runs if curve.task == task]
        groups: dict[tuple[str, float], list[Curve]] = {}
        for curve in own:
            groups.setdefault((curve.method, curve.epochs), []).append(curve)
        # The mean time that the fastest method took for the most epochs. A shorter run counts with what it ended at.
        longest = max(curve.epochs for curve in own)
        whole = [seeds for (_, epochs), seeds in groups.items() if epochs == longest]
        clock = min(float(np.mean([run.seconds[-1] for run in seeds])) for seeds in whole)
        lines = []
        for (method, epochs), seeds in groups.items():
            ends = np.array([100 * run.accuracy[-1] for run in seeds])
            spread = f" ± {ends.std(ddof=1):.1f}" if len(ends) > 1 else ""
            mean = {
                name: float(np.mean([getattr(run, name) for run in seeds])) for name in ("rate", "head_ms", "peak_mb")
            }
            early = float(np.mean([100 * run.at(clock) for run in seeds]))
            spent = float(np.mean([run.seconds[-1] for run in seeds]))
            lines.append(
                (
                    ends.mean(),
                    f"| {method} | {epochs:g} | {len(seeds)} | {mean['rate']:g} | {ends.mean():.1f}{spread} "
                    f"| {early:.1f} | {spent:.0f} s | {mean['head_ms']:.1f} ms | {mean['peak_mb']:.0f} MB |",
                )
            )
        heads = (
            f"| method | epochs | seeds | rate | accuracy, % | after {clock:.0f} s, % | time | head, step | memory |"
        )
        body = [line for _, line in sorted(lines, reverse=True)]
        parts.append("\n".join([f"### {task}: {own[0].classes:,} classes", "", heads, "|" + "---|" * 9, *body, ""]))
    return "\n".join(parts)


# What is drawn, and what it is called there: the methods one would choose between. The tables have all.
DRAWN = {
    "cross-entropy": ("cross-entropy", INK, "-"),
    "cross-entropy, means": ("cross-entropy, class means", INK, ":"),
    "sampled-8192": ("sampled softmax, 8,192", FAINT, "--"),
    "sampled-2048": ("sampled softmax, 2,048", FAINT, ":"),
    "partial-0.1": ("a tenth of the classes", FAINT, "-."),
    "z": ("Z-loss", BLUE, "-"),
    "taylor_softmax": ("Taylor softmax", ORANGE, "--"),
    "taylor, finished-64": ("Taylor softmax, shortlist", ORANGE, ":"),
    "taylor, means-64": ("Taylor softmax, class means", ORANGE, "-"),
    "unhinged, fixed": ("fixed prototypes", GREEN, "-"),
}


def draw(runs: list[Curve], folder: Path, name: str) -> None:
    """Accuracy over processor time, a panel for each task: the mean over seeds of the longest runs of each method.

    The title has the epochs of cross-entropy; a method that has run for longer says so itself.
    """
    tasks = list(dict.fromkeys(curve.task for curve in runs))
    with styled():
        rows = -(-len(tasks) // 2)
        figure = new_figure(10.4, 3.6 * rows)
        axes = figure.subplots(rows, 2, squeeze=False).flatten()
        for axis in axes[len(tasks) :]:
            axis.remove()
        for axis, task in zip(axes, tasks, strict=False):
            usual = max(curve.epochs for curve in runs if (curve.task, curve.method) == (task, "cross-entropy"))
            for method, (called, color, dashes) in DRAWN.items():
                here = [curve for curve in runs if (curve.task, curve.method) == (task, method)]
                longest = max((curve.epochs for curve in here), default=0.0)
                if longest < usual:
                    continue
                own = [curve for curve in here if curve.epochs == longest]
                seconds = np.mean([[0.0, *curve.seconds] for curve in own], axis=0)
                shares = 100 * np.array([[0.0, *curve.accuracy] for curve in own])
                label = f"{called}{f', {longest:g} epochs' if longest > usual else ''} ({len(own)})"
                axis.plot(seconds, shares.mean(0), color=color, linestyle=dashes, marker="o", ms=3, label=label)
                axis.fill_between(seconds, shares.min(0), shares.max(0), color=color, alpha=0.15, lw=0)
            axis.set(xlabel="processor seconds of training", xlim=(0, None), ylim=(0, None))
            axis.set_ylabel("right in unseen typefaces (%)")
            classes = next(curve.classes for curve in runs if curve.task == task)
            axis.set_title(f"{task}: {classes:,} classes, {usual:g} epochs", loc="left")
            axis.legend(title="method (seeds)", title_fontsize=8, fontsize=8, loc="lower right")
        head_line(figure, "Learning thousands of characters: accuracy over time")
        save(figure, folder, name)
    (folder / f"{name}.pdf").unlink()  # the table's page shows the PNG


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--fonts",
        nargs="+",
        help="font files or folders, A.ttf+B.ttf for one typeface in two files; the faces of matplotlib if none",
    )
    parser.add_argument("--characters", help="ranges of code points, such as 4E00-9FA5")
    parser.add_argument("--name", default="DejaVu", help="what the task is called in the file")
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--trial-epochs", type=float, default=0.75, help="of the runs that choose the rate")
    parser.add_argument("--rates-of", metavar="NAME", help="no trials: the rates chosen for the task of that name")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=METHODS, help=f"of {', '.join(METHODS)}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/glyphs.csv"))
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "unhinge")
    parser.add_argument("--report", type=Path, metavar="PNG", help="only print the tables of the file, and draw it")
    options = parser.parse_args()
    if options.report is not None:
        runs = curves(read(options.out))
        print(tables(runs))
        draw(runs, options.report.parent, options.report.stem)
        return
    task = load_task(options.fonts, options.characters, options.cache, options.name)

    def run(method: str, seed: int, rate: float, split: str, epochs: float) -> None:
        wanted = (task.name, method, split, str(rate), str(seed), str(epochs))
        columns = ("task", "method", "split", "rate", "seed", "epochs")
        if any(tuple(row[column] for column in columns) == wanted for row in read(options.out)):
            return
        which, points = (task.without_last_face(), 1) if split == "validation" else (task, 4)
        # Forked: the images are there already, and the peak of memory is that of this run alone.
        child = multiprocessing.get_context("fork").Process(
            target=lambda: append(options.out, train(which, method, seed, epochs, rate, split, points))
        )
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(f"{method}, seed {seed}, ended with code {child.exitcode}.")

    if options.rates_of is None:
        for method in {same_function(method): None for method in options.methods}:
            tried: list[float] = []
            further = list(rates(method))
            while further:
                for rate in further:
                    run(method, 0, rate, "validation", options.trial_epochs)
                tried += further
                further = beyond(tried, chosen_rate(read(options.out), task.name, method))
    for seed in range(options.seeds):
        for method in options.methods:
            rate = chosen_rate(read(options.out), options.rates_of or task.name, same_function(method))
            run(method, seed, rate, "test", options.epochs)


if __name__ == "__main__":
    main()
