r"""How fast and how exact the exact paths are, beside what one would use instead.

    python benchmarks/dynamics.py [--quick] [--tables peers growth spectra streamed] [--save FILE]

One run, threads pinned, peers measured beside us at the paper's size (p = 512, C = 100, N = 10): loss, norms and
distance to the limit at 2,001 times up to 20,000 steps of size 0.1. The slow peers are measured on a part of the work
that is proportional to the whole (the SGD loop on some steps), and the table says so. Errors are those of the
normalised state at the end, in eps of its largest entry, against the two-mode closed form in 50-digit arithmetic.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

THREADS = 1
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(THREADS)

import mpmath
import numpy as np
import scipy
import torch
from scipy.integrate import solve_ivp
from scipy.sparse.linalg import LinearOperator, expm_multiply
from torch import Tensor
from torchdiffeq import odeint

from unhinge import LayerPeeled, __version__, summarize

torch.set_num_threads(THREADS)

Row = tuple[str, ...]
TABLES = ("peers", "growth", "spectra", "streamed")


def best_of(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


class Case:
    """A balanced problem with a random start."""

    def __init__(self, dim: int = 512, classes: int = 100, per_class: int = 10, lr: float = 0.1) -> None:
        generator = torch.Generator().manual_seed(0)
        self.classes, self.per_class, self.lr = classes, per_class, lr
        self.gamma = 1 / (classes - 1)
        self.labels = torch.arange(classes).repeat_interleave(per_class)
        self.features = torch.randn(classes * per_class, dim, generator=generator, dtype=torch.float64)
        self.weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
        self.target = np.zeros((classes, classes * per_class))
        self.target[self.labels.numpy(), np.arange(len(self.labels))] = 1 + self.gamma
        self.target = (self.target - self.gamma) / len(self.labels)

    def solve(self, steps: int, times: int, kind: str) -> tuple[Tensor, ...]:
        problem = LayerPeeled(self.labels, self.classes)
        path = getattr(problem, kind)(self.features, self.weight, lr=self.lr)
        moments = torch.linspace(0, steps, times, dtype=torch.float64).round()
        return path.loss(moments), path.feature_norm(moments), path.weight_norm(moments), path.distance(moments)

    def state(self, steps: int, kind: str) -> np.ndarray:
        problem = LayerPeeled(self.labels, self.classes)
        state = getattr(problem, kind)(self.features, self.weight, lr=self.lr).at(steps).normalized()
        return torch.cat([state.features, state.weight]).numpy()

    def stacked(self) -> np.ndarray:
        return torch.cat([self.features, self.weight]).numpy()

    def derivative(self, state: np.ndarray) -> np.ndarray:
        size = len(self.labels)
        return self.lr * np.concatenate([self.target.T @ state[size:], self.target @ state[:size]])

    def exact(self, steps: int, kind: str) -> np.ndarray:
        """The normalised state by the two-mode closed form, every operation in 50 digits."""
        mpmath.mp.dps = 50
        one = mpmath.mpf(1)
        sigma = one / (self.classes - 1) / mpmath.sqrt(self.per_class)  # (1 + gamma) / (C sqrt N) at gamma = 1/(C-1)
        lr = mpmath.mpf(self.lr)
        if kind == "flow":
            grow, fall = mpmath.exp(sigma * lr * steps), mpmath.exp(-sigma * lr * steps)
        else:
            grow, fall = (1 + lr * sigma) ** steps, (1 - lr * sigma) ** steps
        cosh, sinh = (grow + fall) / 2, (grow - fall) / 2
        to = np.vectorize(mpmath.mpf, otypes=[object])
        features, weight = to(self.features.numpy()), to(self.weight.numpy())
        root = mpmath.sqrt(self.per_class)
        sums = features.reshape(self.classes, self.per_class, -1).sum(1) / root
        x, y = sums - sums.mean(0), weight - weight.mean(0)
        new_x, new_y = cosh * x + sinh * y, sinh * x + cosh * y
        features = features + np.repeat((new_x - x) / root, self.per_class, axis=0)
        weight = weight + (new_y - y)
        whole = np.concatenate([features, weight])
        return (whole / mpmath.sqrt((whole**2).sum())).astype(float)


def error_in_eps(state: np.ndarray, exact: np.ndarray) -> str:
    state = state / np.linalg.norm(state)
    return f"{np.abs(state - exact).max() / np.abs(exact).max() / np.finfo(float).eps:.3g}"


def sgd(case: Case, steps: int) -> np.ndarray:
    features, weight = case.features.clone().requires_grad_(), case.weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([features, weight], lr=case.lr)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = features @ weight.T
        true = logits.gather(1, case.labels[:, None]).squeeze(1)
        (case.gamma * logits.sum(1) - (1 + case.gamma) * true).mean().backward()
        optimizer.step()
    return torch.cat([features, weight]).detach().numpy()


def by_expm(case: Case, end: float, times: int) -> np.ndarray:
    size = len(case.labels) + case.classes
    generator = LinearOperator((size, size), matvec=case.derivative, matmat=case.derivative, rmatvec=case.derivative)
    return expm_multiply(generator, case.stacked(), start=0, stop=end, num=times, traceA=0.0)[-1]


def by_dop853(case: Case, end: float, times: int) -> np.ndarray:
    shape = case.stacked().shape
    solution = solve_ivp(
        lambda _, z: case.derivative(z.reshape(shape)).ravel(), (0, end), case.stacked().ravel(), "DOP853",
        t_eval=np.linspace(0, end, times), rtol=1e-10, atol=1e-12,
    )  # fmt: skip
    return solution.y[:, -1].reshape(shape)


def by_torchdiffeq(case: Case, end: float, times: int) -> np.ndarray:
    target, size = torch.from_numpy(case.target), len(case.labels)

    def derivative(_: Tensor, z: Tensor) -> Tensor:
        return case.lr * torch.cat([target.T @ z[size:], target @ z[:size]])

    moments = torch.linspace(0, end, times, dtype=torch.float64)
    with torch.no_grad():
        return odeint(derivative, torch.from_numpy(case.stacked()), moments, rtol=1e-10, atol=1e-12)[-1].numpy()


def peers(quick: bool) -> list[Row]:
    case, steps, times = Case(), 20_000, 2001
    part = 50 if quick else 1000
    ours = {kind: best_of(lambda kind=kind: case.solve(steps, times, kind), 10) for kind in ("descent", "flow")}
    exact = {kind: case.exact(steps, kind) for kind in ours}
    rows = [
        (f"unhinge {kind}", f"{seconds * 1e3:.2f} ms", "1", error_in_eps(case.state(steps, kind), exact[kind]))
        for kind, seconds in ours.items()
    ]
    start = time.perf_counter()
    sgd(case, part)
    seconds = (time.perf_counter() - start) * steps / part
    error = "not run to the end" if quick else error_in_eps(sgd(case, steps), exact["descent"])
    rows.append(
        (
            f"torch.optim.SGD, 20,000 steps (timed on {part})",
            f"{seconds:.4g} s",
            f"{seconds / ours['descent']:,.0f}",
            error,
        )
    )
    # States are asked at 101 times only: 2,001 states of this size do not fit in memory. That favours the peers.
    for name, solver in (
        ("scipy expm_multiply, 101 times", by_expm),
        ("scipy DOP853, rtol 1e-10, 101 times", by_dop853),
        ("torchdiffeq dopri5, rtol 1e-10, 101 times", by_torchdiffeq),
    ):
        start = time.perf_counter()
        state = solver(case, float(steps), 101)
        seconds = time.perf_counter() - start
        rows.append((name, f"{seconds:.4g} s", f"{seconds / ours['flow']:,.0f}", error_in_eps(state, exact["flow"])))
    return rows


def growth() -> list[Row]:
    rows = []
    for dim, classes, per_class in ((512, 100, 10), (2048, 100, 10), (512, 1000, 10), (512, 100, 100)):
        case = Case(dim, classes, per_class)
        path = LayerPeeled(case.labels, classes).descent(case.features, case.weight, lr=0.1)
        moments = torch.arange(0, 20_001, 10)

        def ask(path=path, moments=moments) -> None:
            path.__dict__.pop("_recent", None)  # each question from scratch
            path.loss(moments), path.feature_norm(moments), path.weight_norm(moments), path.distance(moments)

        def solve(case=case, classes=classes) -> None:
            LayerPeeled(case.labels, classes).descent(case.features, case.weight, lr=0.1)

        rows.append(
            (
                f"{dim}",
                f"{classes}",
                f"{per_class}",
                f"{best_of(solve, 5) * 1e3:.2f} ms",
                f"{best_of(ask, 5) * 1e3:.2f} ms",
            )
        )
    return rows


def spectra() -> list[Row]:
    rows = []
    for classes in (100, 1000):
        counts = torch.tensor([max(1, round(500 * 0.01 ** (c / (classes - 1)))) for c in range(classes)])
        labels = torch.repeat_interleave(torch.arange(classes), counts)
        seconds = best_of(lambda labels=labels, classes=classes: LayerPeeled(labels, classes), 3)
        matrix = torch.diag(counts.double().sqrt()) - counts.double().sqrt() / classes
        dense = best_of(lambda matrix=matrix: torch.linalg.svd(matrix), 3)
        rows.append((f"{classes}", f"{len(counts.unique())}", f"{seconds * 1e3:.1f} ms", f"{dense * 1e3:.1f} ms"))
    return rows


def streamed(quick: bool) -> list[Row]:
    """A tenth of ImageNet-sized features in a file: our pass beside bare passes over the same file."""
    count, dim, classes, batch = (16_384 if quick else 131_072), 2048, 1000, 4096
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(0, classes, count))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.f32"
        with file.open("wb") as stream:
            for _ in range(0, count, batch):
                stream.write(generator.standard_normal((batch, dim), dtype=np.float32).tobytes())
        # copy-on-write, so that torch may wrap it; nothing is written
        mapped = np.memmap(file, np.float32, "c", shape=(count, dim))

        def from_map() -> Iterator[tuple[Tensor, Tensor]]:
            for start in range(0, count, batch):
                yield torch.from_numpy(mapped[start : start + batch]), labels[start : start + batch]

        def from_file() -> Iterator[tuple[Tensor, Tensor]]:
            with file.open("rb", buffering=0) as stream:
                for start in range(0, count, batch):
                    rows = np.fromfile(stream, np.float32, batch * dim).reshape(batch, dim)
                    yield torch.from_numpy(rows), labels[start : start + batch]

        rows = []
        for name, batches, ahead in (
            ("read from the file", from_file, 0),
            ("read from the file, prefetch=1", from_file, 1),
            ("memory-mapped, already in the page cache", from_map, 0),
        ):
            bare = best_of(lambda batches=batches: [part.sum().item() for part, _ in batches()], 3)
            ours = best_of(lambda batches=batches, ahead=ahead: summarize(batches(), classes, prefetch=ahead), 3)
            size = f"{count * dim * 4 / 1e9:.2f} GB"
            rows.append((name, size, f"{bare:.3f} s", f"{ours:.3f} s", f"{ours / bare:.2f}"))
        return rows


def table(title: str, header: Row, rows: list[Row]) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller part of the slow peers")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="only these")
    parser.add_argument("--save", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    parts = [
        "# Exact dynamics: measured",
        "",
        f"Command: `python benchmarks/dynamics.py{' --quick' if options.quick else ''}`. unhinge {__version__}, "
        f"torch {torch.__version__}, numpy {np.__version__}, scipy {scipy.__version__}, "
        f"Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores, {THREADS} thread.",
        "",
    ]
    sections = {
        "peers": (
            "The paper's size: loss, norms and distance at 2,001 times of 20,000 steps (p=512, C=100, N=10)",
            ("method", "time", "times slower than unhinge", "error of the final direction, in eps"),
            lambda: peers(options.quick),
        ),
        "growth": (
            "How the cost grows: descent, 2,001 times",
            ("p", "C", "N", "solve (one pass over the features)", "ask loss, norms, distance"),
            growth,
        ),
        "spectra": (
            "Long-tailed labels (imbalance 100): the modes, beside one dense SVD",
            ("C", "distinct counts", "LayerPeeled(labels, C)", "torch.linalg.svd of C x C"),
            spectra,
        ),
        "streamed": (
            "Streamed features (p=2048, C=1000, float32): summarize beside a bare pass that sums the same batches",
            ("batches", "size", "bare pass", "summarize", "ratio"),
            lambda: streamed(options.quick),
        ),
    }
    for title, header, rows in (sections[name] for name in options.tables):
        text = table(title, header, rows())
        print(text, flush=True)
        parts.append(text)
    if options.save:
        options.save.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
