r"""How fast the training loop is, beside a loop that does nothing but train, and beside the usual data loader.

    python benchmarks/training.py [--quick] [--threads N] [--save FILE]

A width-16 ResNet-18 on synthetic color images of 32 by 32 pixels, batches of 128, cross-entropy, SGD with momentum.

- bare: forward, backward and step on one fixed batch, and nothing else;
- unhinge: the training epochs of `fit`, with order, augmentation, normalization, the running measures and the check for
  a finite loss, as its own log of times tells them;
- DataLoader: torch's, on the same bytes, with random crop, mirror and normalization of single images, and the same
  steps.

The contestants take turns in short rounds, so that what else the machine does falls on all of them alike. The loader's
processes may work ahead while others have their turn, by one batch each, which favors it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

THREADS = int(sys.argv[sys.argv.index("--threads") + 1]) if "--threads" in sys.argv else 1
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(THREADS)

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unhinge import __version__
from unhinge.data import ImageSet, batches
from unhinge.training import Material, Recipe, fit
from unhinge.training.network import network_of

torch.set_num_threads(THREADS)

Row = tuple[str, ...]
BATCH = 128


def synthetic(number: int) -> ImageSet:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (number, 3, 32, 32), generator=draw).to(torch.uint8)
    labels = torch.randint(10, (number,), generator=draw)
    return ImageSet(images, labels, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)


class Learner:
    """A network and its optimizer; one step on one batch."""

    def __init__(self, recipe: Recipe, images: ImageSet) -> None:
        self.network = network_of(recipe, images).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )

    def step(self, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(self.network(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class OneByOne(Dataset[tuple[Tensor, int]]):
    """Images as a conventional data set gives them: one at a time, transformed one at a time."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images
        self.mean, self.std = torch.tensor(images.mean)[:, None, None], torch.tensor(images.std)[:, None, None]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        padded = F.pad(self.images.images[index], (4, 4, 4, 4))
        top, left = torch.randint(9, (2,)).tolist()
        x = padded[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            x = x.flip(2)
        return (x.float() / 255 - self.mean) / self.std, int(self.images.labels[index])


def endless(images: ImageSet, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    ahead = {"prefetch_factor": 1, "persistent_workers": True} if workers else {}
    loader = DataLoader(OneByOne(images), BATCH, shuffle=True, num_workers=workers, **ahead)
    while True:
        yield from loader


def bare(recipe: Recipe, images: ImageSet) -> Callable[[int], None]:
    learner = Learner(recipe, images)
    x, y = next(batches(images, BATCH, seed=0, memory_format=torch.channels_last))

    def run(steps: int) -> None:
        for _ in range(steps):
            learner.step(x, y)

    return run


def conventional(recipe: Recipe, images: ImageSet, workers: int) -> Callable[[int], None]:
    learner, feed = Learner(recipe, images), endless(images, workers)

    def run(steps: int) -> None:
        for _ in range(steps):
            x, y = next(feed)
            learner.step(x.contiguous(memory_format=torch.channels_last), y)

    return run


def rounds(steps: int, number: int) -> tuple[dict[str, list[float]], float]:
    """Images per second of each contestant in each round, and the load of the machine meanwhile."""
    images = synthetic(steps * BATCH)
    recipe = Recipe(data="synthetic", model="resnet18", width=16, batch=BATCH, epochs=number + 1, lr=0.01)
    peers = {
        "bare": bare(recipe, images),
        "DataLoader, in the same process": conventional(recipe, images, 0),
        "DataLoader, 2 processes": conventional(recipe, images, 2),
    }
    found: dict[str, list[float]] = {"bare": [], "unhinge": []} | {name: [] for name in peers}
    loads = []

    def turn(done: int, total: int, record: object) -> None:
        if record is None:
            return
        loads.append(os.getloadavg()[0])
        order = list(peers)
        shift = len(loads) % len(order)
        for name in order[shift:] + order[:shift]:
            start = time.perf_counter()
            peers[name](steps)
            found[name].append(steps * BATCH / (time.perf_counter() - start))

    with tempfile.TemporaryDirectory() as folder:
        material = Material(images, images.subset(torch.arange(10)), None)
        fit(recipe, folder, material=material, progress=turn)
        lines = (Path(folder) / "times.jsonl").read_text().splitlines()
        found["unhinge"] = [json.loads(line)["images_per_second"] for line in lines]
    # The first round warms up.
    return {name: speeds[1:] for name, speeds in found.items()}, statistics.mean(loads)


def rows_of(found: dict[str, list[float]]) -> list[Row]:
    middle = statistics.median(found["bare"])
    best = max(found["bare"])
    return [
        (
            name,
            f"{statistics.median(speeds):.1f}",
            f"{max(speeds):.1f}",
            f"{statistics.median(speeds) / middle:.3f}",
            f"{max(speeds) / best:.3f}",
            f"{statistics.median(a / b for a, b in zip(speeds, found['bare'], strict=True)):.3f}",
        )
        for name, speeds in found.items()
    ]


def table(title: str, header: Row, rows: list[Row]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--save", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    steps, number = 2, 4 if options.quick else 36
    found, load = rounds(steps, number)
    command = f"python benchmarks/training.py{' --quick' if options.quick else ''} --threads {THREADS}"
    parts = [
        "# Training throughput: measured",
        "",
        f"Command: `{command}`. unhinge {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores, {THREADS} thread{'s' if THREADS > 1 else ''}. "
        f"Load of the machine meanwhile: {load:.1f}, about {max(THREADS, 1)} of it ours. "
        f"{number} rounds of {steps} batches of {BATCH} images each, in turns.",
        "",
        table(
            "ResNet-18 of width 16, 32 by 32 pixels: images per second",
            ("loop", "median", "best", "median / bare", "best / bare", "median of ratios, round by round"),
            rows_of(found),
        ),
    ]
    print("\n".join(parts), flush=True)
    if options.save:
        options.save.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
