r"""What ten classes cost and what a million cost: the unhinged loss from features beside cross-entropy on logits.

    python benchmarks/many_classes.py [--quick] [--tables fixed trained learning] [--save FILE]

Same features, same labels, same weight, threads pinned. Time is processor time: the best of several forward and
backward passes, and in the table of heads that learn the mean over passes with ever new batches, so that what a head
does only now and then counts. Every case runs in a process of its own, and its memory is what the passes add to the
peak of that process (its resident set, so a few hundred kilobytes are noise): the weight itself is there before, for
both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

THREADS = 1
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(THREADS)

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge import __version__
from unhinge.nn import ManyClassHead
from unhinge.nn import functional as UF
from unhinge.nn.generated import GeneratedPrototypes

torch.set_num_threads(THREADS)

Row = tuple[str, ...]
BATCH, DIM = 256, 128
CLASSES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
FIXED = ("cross-entropy", "unhinged", "generated")
TRAINED = ("cross-entropy, SGD", "many-class head")
SECOND = ("taylor_softmax", "z", "spherical_softmax", "squared")
LEARNING = ("cross-entropy, SGD", "linear_cross_entropy", "sampled softmax", *SECOND)
LEARNING_CLASSES = (1_000, 10_000, 100_000, 1_000_000)
DENSE_UP_TO = 100_000  # above, a pass of the dense ones takes minutes on a busy core
NEGATIVES = 8_192
HEAD_RATES = {"squared": 0.05}  # in units of batch / p; 10 for the others, what learns characters in glyphs.py


def draw(classes: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(BATCH, DIM, generator=generator)
    target = torch.randint(classes, (BATCH,), generator=generator)
    weight = torch.empty(classes, DIM).uniform_(-0.1, 0.1, generator=generator)
    return features, target, weight


def make(method: str, classes: int) -> Callable[[], object]:
    """One pass of the method, as a function without arguments."""
    features, target, weight = draw(classes if method != "generated" else 2)
    features.requires_grad_()
    if method == "cross-entropy":
        return lambda: F.cross_entropy(features @ weight.T, target).backward()
    if method == "unhinged":
        total = weight.sum(0)
        return lambda: UF.unhinged_loss_from_features(features, weight, target, weight_sum=total).backward()
    if method == "generated":
        frame = GeneratedPrototypes(classes, DIM)
        target = torch.randint(classes, (BATCH,), generator=torch.Generator().manual_seed(0))
        place, total = torch.arange(BATCH), frame.weight_sum
        return lambda: UF.unhinged_loss_from_features(
            features, frame.rows(target), place, gamma=frame.gamma, weight_sum=total
        ).backward()
    if method == "many-class head":
        head = ManyClassHead(DIM, classes, weight_decay=5e-4, weight=weight)
        del weight

        def ours() -> None:
            head(features, target).backward()
            head.step(0.1)

        return ours
    if method in SECOND:
        return learning(ManyClassHead(DIM, classes, method, weight=weight), HEAD_RATES.get(method, 10.0) * BATCH / DIM)
    weight.requires_grad_()
    if method == "sampled softmax":
        sparse = torch.optim.SparseAdam([weight], lr=1e-3)
        generator = torch.Generator().manual_seed(1)

        def sampled() -> None:
            sparse.zero_grad()
            y = torch.randint(classes, (BATCH,), generator=generator)
            drawn = torch.randint(classes, (NEGATIVES,), generator=generator)
            near = F.embedding(torch.cat([y, drawn]), weight, sparse=True)
            true = (features * near[:BATCH]).sum(1, keepdim=True)
            others = features @ near[BATCH:].T + math.log(classes / NEGATIVES)
            logits = torch.cat([true, others.masked_fill(drawn == y[:, None], -math.inf)], 1)
            F.cross_entropy(logits, torch.zeros_like(y)).backward()
            sparse.step()

        return sampled
    optimizer = torch.optim.SGD([weight], lr=0.1, weight_decay=5e-4)

    def theirs() -> None:
        optimizer.zero_grad()
        if method == "linear_cross_entropy":
            F.linear_cross_entropy(features, weight, target, options=nn.LinearCrossEntropyOptions()).backward()
        else:
            F.cross_entropy(features @ weight.T, target).backward()
        optimizer.step()

    return theirs


def learning(head: ManyClassHead, rate: float) -> Callable[[], None]:
    """A step of a head, each time on other features and labels."""
    generator = torch.Generator().manual_seed(1)

    def step() -> None:
        features = torch.randn(BATCH, DIM, generator=generator, requires_grad=True)
        head(features, torch.randint(head.num_classes, (BATCH,), generator=generator)).backward()
        head.step(rate)

    return step


def peak() -> float:
    """Largest resident set so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(method: str, classes: int, seconds: float) -> None:
    """In a process of its own: time and memory as one line of JSON."""
    make(method, 10)()  # what the first call of anything allocates is not the method's
    run = make(method, classes)
    before = peak()
    run()
    run()
    memory = peak() - before
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 2000):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    print(json.dumps({"time": min(times), "mean": sum(times) / len(times), "memory": memory}))


def in_child(method: str, classes: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", method, str(classes), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def duration(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def memory(megabytes: float) -> str:
    return "< 1 MB" if megabytes < 1 else f"{megabytes:,.0f} MB"


def compare(peer: str, ours: tuple[str, ...], sizes: tuple[int, ...], seconds: float) -> list[Row]:
    rows = []
    for classes in sizes:
        found = {method: in_child(method, classes, seconds) for method in (peer, *ours)}
        cells = [f"{classes:,}", duration(found[peer]["time"]), memory(found[peer]["memory"])]
        for method in ours:
            cells += [duration(found[method]["time"]), memory(found[method]["memory"])]
        ratio = found[peer]["time"] / found[ours[0]]["time"]
        rows.append((*cells, f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"))
    return rows


def learning_rows(sizes: tuple[int, ...], seconds: float) -> list[Row]:
    """One row for each head: the mean time of a step by classes, and the quotient of the last and the first."""
    rows = []
    for method in LEARNING:
        dense = method in LEARNING[:2]
        times = {
            classes: in_child(method, classes, seconds)["mean"]
            for classes in sizes
            if not dense or classes <= DENSE_UP_TO
        }
        whole = len(times) == len(sizes)
        growth = f"{times[sizes[-1]] / times[sizes[0]]:.2g}" if whole else ""
        name = f"{method}, {NEGATIVES:,}" if method == "sampled softmax" else method
        rows.append((name, *(duration(times[n]) if n in times else "" for n in sizes), growth))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def table(title: str, header: Row, rows: list[Row]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 10,000 classes, and less time for each")
    parser.add_argument(
        "--tables", nargs="+", choices=("fixed", "trained", "learning"), default=("fixed", "trained", "learning")
    )
    parser.add_argument("--save", type=Path, help="also write the tables to this file")
    parser.add_argument("--measure", nargs=2, metavar=("METHOD", "CLASSES"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each case")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], int(options.measure[1]), options.seconds)
        return
    sizes = CLASSES[:4] if options.quick else CLASSES
    learned = LEARNING_CLASSES[:2] if options.quick else LEARNING_CLASSES
    seconds = 0.2 if options.quick else options.seconds
    parts = [
        "# Many classes: measured",
        "",
        f"Command: `python benchmarks/many_classes.py{' --quick' if options.quick else ''}`. unhinge {__version__}, "
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{THREADS} thread. Batch {BATCH}, p = {DIM}, float32. Memory: peak beyond the weight and the features.",
        "",
    ]
    made = {
        "fixed": lambda: table(
            "Fixed prototypes: forward and backward pass to the features",
            ("C", "cross-entropy", "memory", "unhinged, from features", "memory", "rows on demand", "memory", "ratio"),
            compare(FIXED[0], FIXED[1:], sizes, seconds),
        ),
        "trained": lambda: table(
            "Trained classifier: forward, backward and one step of SGD with weight decay",
            ("C", "cross-entropy, dense SGD", "memory", "ManyClassHead", "memory", "ratio"),
            compare(TRAINED[0], TRAINED[1:], sizes, seconds),
        ),
        "learning": lambda: table(
            "Classifiers that learn look-alikes: forward, backward and one step, by number of classes",
            ("", *(f"{n:,}" for n in learned), "last / first"),
            learning_rows(learned, seconds),
        ),
    }
    for name in options.tables:
        text = made[name]()
        print(text, flush=True)
        parts.append(text)
    if options.save:
        options.save.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
