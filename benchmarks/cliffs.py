r"""Sizes at which a question once cost minutes or gigabytes.

    python benchmarks/cliffs.py [--only NAME ...] [--save FILE]

Every row runs in a process of its own with one thread, so that its peak of memory is its own: what it adds to the
process after the imports and after its input was made. Each is timed once, as a user meets it; the plain competitor
beside it (one distance, the same problem without decay, a bare sum over the file) says what is not ours to save.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np
import torch
from torch import Tensor

from unhinge import EarlyCrossEntropy, LayerPeeled, Spherical, __version__, cosine, step, summarize

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


Work = tuple[str, Callable[[], object]]


def secular() -> Iterator[Work]:
    """10,000 classes, each with a weight of its own."""
    classes = 10_000
    weight = 1 + torch.rand(classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(classes)
    yield "LayerPeeled, 10,000 distinct class weights", lambda: LayerPeeled(labels, classes, class_weight=weight)
    problem = LayerPeeled(labels, classes, class_weight=weight)
    start, prototypes = normal(classes, 32), normal(classes, 32, seed=1)
    yield "flow and distance, p = 32", lambda: problem.flow(start, prototypes).distance([10.0, 1e6])


def sphere() -> Iterator[Work]:
    """100,000 examples on the sphere."""
    features, weight = normal(100_000, 16), normal(10, 16, seed=1)
    target = torch.arange(100_000) % 10
    path = Spherical(target, weight).descent(features, lr=1000.0)
    yield "spherical distance at one step", lambda: path.distance(100)
    yield "spherical time_to, descent", lambda: path.time_to(1.0)
    flow = Spherical(target, weight).flow(features, lr=1000.0)
    yield "spherical time_to, flow", lambda: flow.time_to(1.0)


def kernel() -> Iterator[Work]:
    """A kernel of 5,000 examples, with and without feature decay."""
    size, classes = 5000, 10
    inputs = normal(size, 20)
    matrix = torch.exp(-(torch.cdist(inputs, inputs) ** 2) / 40)
    features, weight, target = normal(size, 16, seed=1), normal(classes, 16, seed=2), torch.arange(size) % classes
    free, damped = LayerPeeled(target, classes), LayerPeeled(target, classes, feature_decay=0.1)
    yield "the eigenvectors of the kernel alone", lambda: np.linalg.eigh(matrix.numpy())
    yield "kernel flow, n = 5,000", lambda: free.kernel_flow(features, weight, matrix).distance(10.0)
    yield "the same with feature decay", lambda: damped.kernel_flow(features, weight, matrix).distance(10.0)


def state() -> Iterator[Work]:
    """The state of a million examples."""
    size, dim, classes = 1_000_000, 128, 100
    features, weight = normal(size, dim, dtype=torch.float32), normal(classes, dim, seed=1, dtype=torch.float32)
    target = torch.arange(size) % classes
    problem = LayerPeeled(target, classes, feature_decay=0.1)
    yield "a copy of the features (512 MB)", lambda: features * 2.0
    path = problem.flow(features, weight)
    yield "at() of a million examples", lambda: path.at(3.0)
    yield "flow() of a million examples", lambda: problem.flow(features, weight)


def soft() -> Iterator[Work]:
    """Soft labels of 100,000 examples over 1,000 classes (800 MB)."""
    size, classes = 100_000, 1000
    rows = torch.rand(size, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows += 100 * torch.nn.functional.one_hot(torch.arange(size) % classes, classes)
    target = rows / rows.sum(1, keepdim=True)
    del rows
    yield "one product of the labels with their transpose", lambda: target.mT @ target
    yield "LayerPeeled, soft labels, n = 1e5, C = 1,000", lambda: LayerPeeled(target, classes)


def streamed() -> Iterator[Work]:
    """A tenth of ImageNet's features, from a file in the page cache: n = 128,000, p = 2,048, C = 1,000, float32."""
    size, dim, classes, batch = 128_000, 2048, 1000, 2048
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.npy"
        stored = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(size, dim))
        for first in range(0, size, batch):
            stored[first : first + batch] = normal(batch, dim, seed=first, dtype=torch.float32)[: size - first].numpy()
        stored.flush()
        labels = torch.randint(classes, (size,), generator=torch.Generator().manual_seed(1))
        labels[:classes] = torch.arange(classes)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            whole = np.load(file, mmap_mode="c")
            for first in range(0, size, batch):
                yield torch.from_numpy(whole[first : first + batch]), labels[first : first + batch]

        def by_class() -> None:
            sums = torch.zeros(classes, dim)
            for rows, kinds in batches():
                sums.index_add_(0, kinds, rows)

        yield "reading and summing the file", lambda: sum(rows.sum().item() for rows, _ in batches())
        yield "the same by class, in float32 throughout", by_class
        yield "summarize()", lambda: summarize(batches(), classes)


def momentum() -> Iterator[Work]:
    """One loss along descent with momentum."""
    labels = torch.arange(1000) % 100
    problem = LayerPeeled(labels, 100, weight_decay=1e-3, feature_decay=1e-3)
    features, weight, steps = normal(1000, 64), normal(100, 64, seed=1), torch.arange(20_000)
    plain, heavy = (problem.descent(features, weight, momentum=mu) for mu in (0.0, 0.9))
    yield "loss at 20,000 steps, plain", lambda: plain.loss(steps)
    yield "loss at 20,000 steps, momentum", lambda: heavy.loss(steps)
    counts = (100 * 0.05 ** (torch.arange(39) / 38)).round().long()
    target = torch.repeat_interleave(torch.arange(39), counts)
    tail, start = LayerPeeled(target), (normal(len(target), 64), normal(39, 64, seed=1))
    for name, rate in (("three drops", step(0.1, every=30_000)), ("a cosine", cosine(0.1, total=90_000))):
        path = tail.descent(*start, lr=rate, momentum=0.9)
        what = f"norm at 300 of 90,000 steps, momentum, 39 classes of different size, {name}"
        yield what, partial(path.log_norm, torch.arange(0, 90_000, 300))


def young() -> Iterator[Work]:
    """How long the first phase of cross-entropy can be trusted, from few classes to many; p = 512."""
    for classes, tail in ((10, 1.0), (10, 0.01), (100, 1.0), (100, 0.01), (1000, 1.0), (1000, 0.01)):
        counts = (100 * tail ** (torch.arange(classes) / (classes - 1))).round().long()
        target = torch.repeat_interleave(torch.arange(classes), counts)
        features, weight = normal(len(target), 512) / 20, normal(classes, 512, seed=1) / 20
        problem = EarlyCrossEntropy(target, classes)
        for name, path in (("flow", problem.flow(features, weight)), ("descent", problem.descent(features, weight))):
            what = f"C = {classes}, {'balanced' if tail == 1 else 'long-tailed'}, n = {len(target)}, {name}"
            yield f"error_bound(10), {what}", partial(path.error_bound, 10)
            yield "horizon() after it", path.horizon


TOPICS = {work.__name__: work for work in (secular, sphere, kernel, state, soft, streamed, momentum, young)}


def peak() -> float:
    """The peak of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(topic: str) -> None:
    for what, work in TOPICS[topic]():
        before, start = peak(), time.process_time()
        work()
        spent = time.process_time() - start
        print(json.dumps([what, spent, max(0.0, peak() - before)]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=sorted(TOPICS), default=sorted(TOPICS))
    parser.add_argument("--save", type=Path, help="append the table to this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    lines = ["| what | time | more memory |", "|---|---|---|"]
    print("\n".join(lines))
    for topic in options.only:
        command = [sys.executable, __file__, "--measure", topic]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        for row in map(json.loads, run.stdout.splitlines()):
            lines.append(f"| {row[0]} | {row[1]:.3g} s | {row[2] / 2**20:.0f} MB |")
            print(lines[-1], flush=True)
        if run.returncode:
            raise SystemExit(run.stderr)
    about = f"unhinge {__version__}, torch {torch.__version__}, {platform.machine()}, one thread"
    if options.save:
        with options.save.open("a") as file:
            file.write("\n".join(["", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
