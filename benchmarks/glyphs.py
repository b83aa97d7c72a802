r"""Thousands of real classes: how fast and how far each classifier learns characters in typefaces it has not seen.

    python benchmarks/glyphs.py [--fonts FILE ...] [--characters 4E00-9FA5] [--epochs N] [--seeds N] [--methods ...]

The same small network and the same batches for every method; only classifier and loss differ. Each run is a process of
its own with one thread. Its rows (one per evaluation) are appended to the CSV file when it ends, and a run whose rows
are there is not repeated, so the command can be interrupted and called again.

Time is that of the training steps alone, without evaluation; head time is that of classifier, loss and their update.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
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

torch.set_num_threads(1)

BATCH = 256
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
    "unhinged, trained",
    "cross-entropy, fixed",
    "unhinged, fixed",
)
# The rate of plain SGD on the head in units of batch / p: features have a squared norm of p, so in a step of rate 1 the
# logit of an example moves by about its derivative. Embedded task, 4 epochs, one seed: Taylor 59.7 % at 10, 55.8 at 30,
# 35.9 at 100; Z 67.2 at 30, 34.7 at 300. The last three were not searched.
RATES = {"taylor_softmax": 10.0, "z": 30.0, "spherical_softmax": 30.0, "squared": 0.1, "unhinged": 1.0}
FINISH, NEIGHBORS = 0.8, 16  # the share of training after which a shortlist of so many classes decides


@dataclass(frozen=True)
class Row:
    task: str
    classes: int
    method: str
    seed: int
    epochs: int
    step: int
    accuracy: float  # on typefaces never trained on
    seconds: float  # of training so far
    head_seconds: float
    peak_mb: float  # largest resident set of the process


class Classifier:
    """What differs between the methods: a loss that can be differentiated, a step, and the weight to test with."""

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def step(self, share: float) -> None:
        """`share` is the current rate over the first."""

    def at(self, progress: float) -> None:
        """Called before each step with the share of training that is done."""

    def weight(self) -> Tensor:
        raise NotImplementedError


class Dense(Classifier):
    """A trained weight under AdamW; the loss may look at all of it or at a sample."""

    def __init__(
        self, rows: Tensor, loss: Callable[[Tensor, Tensor, Tensor], Tensor], rate: float, sparse: bool
    ) -> None:
        self.rows = rows.requires_grad_()
        self.of = loss
        kind = torch.optim.SparseAdam if sparse else torch.optim.AdamW
        self.optimizer = kind([self.rows], lr=rate)
        self.rate = rate

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        return self.of(features, self.rows, target)

    def step(self, share: float) -> None:
        self.optimizer.param_groups[0]["lr"] = self.rate * share
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weight(self) -> Tensor:
        return self.rows.detach()


class Ours(Classifier):
    def __init__(self, head: ManyClassHead, rate: float, finish: bool = False) -> None:
        self.head, self.rate, self.finish = head, rate, finish
        self.near: Tensor | None = None  # (C, k), once finishing has begun

    def at(self, progress: float) -> None:
        if self.finish and self.near is None and progress >= FINISH:
            self.near = self.head.neighbors(NEIGHBORS)

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


def make(method: str, classes: int, dim: int, seed: int, rate: float | None, options: dict[str, float]) -> Classifier:
    generator = torch.Generator().manual_seed(seed)
    kind, _, number = method.partition("-")
    if method.endswith("fixed"):
        frame = GeneratedPrototypes(classes, dim, seed=seed)
        return Fixed(frame.rows(torch.arange(classes)), unhinged=method.startswith("unhinged"))
    name = {"taylor, finished": "taylor_softmax", "unhinged, trained": "unhinged"}.get(method, method)
    if name in RATES:
        head = ManyClassHead(dim, classes, name, generator=generator, **options)
        return Ours(head, (RATES[name] if rate is None else rate) * BATCH / dim, finish=method.endswith("finished"))
    bound = 1 / math.sqrt(dim)
    rows = torch.empty(classes, dim).uniform_(-bound, bound, generator=generator)
    pick = 1e-3 if rate is None else rate
    if method == "cross-entropy":
        return Dense(rows, lambda h, w, y: F.cross_entropy(h @ w.T, y), pick, sparse=False)
    if method == "linear_cross_entropy":
        lean = nn.LinearCrossEntropyOptions()
        return Dense(rows, lambda h, w, y: F.linear_cross_entropy(h, w, y, options=lean), pick, sparse=False)
    if kind == "sampled":
        return Dense(rows, sampled(int(number), True, generator), pick, sparse=True)
    return Dense(rows, sampled(round(float(number) * classes), False, generator), pick, sparse=True)


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

    def batch(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.std


def load_task(fonts: list[str] | None, characters: str | None, cache: Path) -> Task:
    """The characters, drawn once and kept in `cache`; at most 6,000 test images, drawn once and for all."""
    name = "dejavu" if fonts is None else f"fonts {characters or 'all'}"
    key = json.dumps([[str(face) for face in font_faces(fonts)], characters])
    file = cache / f"glyphs-{abs(hash_of(key)):016x}.npz"
    if not file.exists():
        splits = glyphs(fonts=fonts, characters=characters)
        chosen = torch.randperm(len(splits.test), generator=torch.Generator().manual_seed(0))[:6000]
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


def train(
    task: Task, method: str, seed: int, epochs: float, rate: float | None = None, body_rate: float = 2e-3,
    points: int = 10, options: dict[str, float] | None = None,
) -> list[Row]:  # fmt: skip
    torch.manual_seed(seed)
    body = GlyphBody()
    classifier = make(method, task.classes, body.feature_dim, seed, rate, options or {})
    optimizer = torch.optim.AdamW(body.parameters(), lr=body_rate)
    generator = torch.Generator().manual_seed(seed)
    steps = round(epochs * len(task.train) / BATCH)
    order = torch.empty(0, dtype=torch.int64)
    rows, spent, in_head = [], 0.0, 0.0
    for k in range(steps):
        if len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(task.train), generator=generator)])
        chosen, order = order[:BATCH], order[BATCH:]
        begin = time.perf_counter()
        share = (1 + math.cos(math.pi * k / steps)) / 2
        optimizer.param_groups[0]["lr"] = body_rate * share
        classifier.at(k / steps)
        shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
        images = task.batch(task.train[chosen]).roll(shift, (2, 3))
        features = body(images)
        handed = features.detach().requires_grad_()
        entered = time.perf_counter()
        loss = classifier.loss(handed, task.labels[chosen])
        loss.backward()
        classifier.step(share)
        in_head += time.perf_counter() - entered
        optimizer.zero_grad()
        features.backward(handed.grad)
        optimizer.step()
        spent += time.perf_counter() - begin
        if (k + 1) % max(1, steps // points) == 0 or k + 1 == steps:
            found = accuracy(body, classifier.weight(), task)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append(
                Row(task.name, task.classes, method, seed, round(epochs), k + 1, round(found, 5), round(spent, 2),
                    round(in_head, 3), round(peak))
            )  # fmt: skip
            print(f"  {method} seed {seed}: step {k + 1}/{steps} loss {loss.item():.3f} accuracy {found:.4f} "
                  f"{spent:.0f} s, head {1e3 * in_head / (k + 1):.1f} ms", file=sys.stderr, flush=True)  # fmt: skip
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fonts", nargs="+", help="font files or folders; the faces that come with matplotlib if none")
    parser.add_argument("--characters", help="ranges of code points, such as 4E00-9FA5")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=METHODS, help=f"of {', '.join(METHODS)}")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/glyphs.csv"))
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "unhinge")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    task = load_task(options.fonts, options.characters, options.cache)
    if options.one:
        append(options.out, train(task, options.one[0], int(options.one[1]), options.epochs))
        return
    for seed in range(options.seeds):
        for method in options.methods:
            key = (task.name, str(task.classes), method, str(seed), str(round(options.epochs)))
            there = {
                tuple(row[k] for k in ("task", "classes", "method", "seed", "epochs")) for row in read(options.out)
            }
            if key not in there:
                subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", method, str(seed)], check=True)


if __name__ == "__main__":
    main()
