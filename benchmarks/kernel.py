"""The constant-kernel path against what it replaces: dense exponentials, and really training the network.

    python benchmarks/kernel.py [--threads 1]

Every row answers the same question twice: state or loss along one e-fold of the fastest mode. `error` is the relative
difference of the two answers: for the linear systems it is the rival's or ours, for networks it is what a constant
kernel leaves out at that width.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.linalg
import torch
from scipy.sparse.linalg import LinearOperator, expm_multiply
from torch import Tensor, nn

from unhinge import LayerPeeled
from unhinge.theory.kernel.ntk import empirical_ntk

MOMENTS = 101  # times at which the loss is asked


def clock(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Best time of several, and the last answer."""
    best = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        answer = work()
        best = min(best, time.perf_counter() - begin)
    return best, answer


def target_matrix(target: Tensor, classes: int) -> Tensor:
    """M (C, n) for gamma = 1/(C-1)."""
    gamma = 1 / (classes - 1)
    hot = nn.functional.one_hot(target, classes).double()
    return (((1 + gamma) * hot - gamma) / len(target)).mT.contiguous()


def start(count: int, dim: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return torch.arange(count) % classes, features, weight


def smooth_kernel(count: int) -> Tensor:
    points = torch.randn(count, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.exp(-(torch.cdist(points, points) ** 2) / 10)


def example_row(count: int, dim: int, classes: int) -> dict[str, Any]:
    """An example kernel: state at one time, against Krylov-free `expm_multiply` on the same operator."""
    target, features, weight = start(count, dim, classes)
    kernel, matrix = smooth_kernel(count), target_matrix(target, classes).numpy()
    problem = LayerPeeled(target, classes)
    moment = 1 / problem.kernel_flow(features, weight, kernel, lr=1.0).growth()
    ours, state = clock(lambda: problem.kernel_flow(features, weight, kernel, lr=1.0).at(moment), 5)
    plain = kernel.numpy()

    def product(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([plain @ (matrix.T @ rows[count:]), matrix @ rows[:count]])

    def transposed(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([matrix.T @ rows[count:], matrix @ (plain @ rows[:count])])

    size = count + classes
    system = LinearOperator((size, size), matvec=product, rmatvec=transposed, matmat=product, rmatmat=transposed)
    joined = np.concatenate([features.numpy(), weight.numpy()])
    rival, moved = clock(lambda: expm_multiply(moment.item() * system, joined, traceA=0.0), 3)
    found = np.concatenate([state.features.numpy(), state.weight.numpy()])
    return row(f"example kernel, n={count} p={dim} C={classes}", ours, "expm_multiply", rival, found, moved)


def full_row(count: int, dim: int, classes: int) -> dict[str, Any]:
    """A full kernel: state at one time, against the dense exponential."""
    target, features, weight = start(count, dim, classes)
    factor = torch.randn(count * dim, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    kernel = factor @ factor.mT / 40
    problem = LayerPeeled(target, classes)
    moment = 1 / problem.kernel_flow(features, weight, kernel, lr=1.0).growth()
    ours, state = clock(lambda: problem.kernel_flow(features, weight, kernel, lr=1.0).at(moment), 5)

    def dense() -> np.ndarray:
        pull = np.kron(target_matrix(target, classes).numpy().T, np.eye(dim))
        zeros = np.zeros((len(kernel), len(kernel))), np.zeros((classes * dim, classes * dim))
        system = np.block([[zeros[0], kernel.numpy() @ pull], [pull.T, zeros[1]]])
        return scipy.linalg.expm(moment.item() * system) @ np.concatenate([features.reshape(-1), weight.reshape(-1)])

    rival, moved = clock(dense, 1)
    found = torch.cat([state.features.reshape(-1), state.weight.reshape(-1)]).numpy()
    return row(f"full kernel, n={count} p={dim} C={classes}", ours, "scipy expm", rival, found, moved)


class Wide(nn.Module):
    """Two hidden layers in NTK scaling."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        sizes = (64, width, width, dim)
        self.layers = nn.ParameterList(torch.randn(b, a, generator=generator) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers  # not a slice, which would be copied
        for layer in hidden:
            x = torch.relu(x @ layer.mT * math.sqrt(2 / layer.shape[1]))
        return x @ last.mT / math.sqrt(last.shape[1])


def network_row(width: int, count: int = 100, dim: int = 8, classes: int = 5, steps: int = 1000) -> dict[str, Any]:
    """A network: the loss along one e-fold from its kernel at initialization, against training it."""
    target = torch.arange(count) % classes
    generator = torch.Generator().manual_seed(4)
    centers = torch.randn(classes, 64, generator=generator)
    inputs = (centers[target] + torch.randn(count, 64, generator=generator)) / math.sqrt(2)
    weight = torch.randn(classes, dim, generator=generator) / math.sqrt(dim)
    network = Wide(width, dim)
    problem = LayerPeeled(target, classes)

    def predict() -> tuple[float, np.ndarray]:
        kernel = empirical_ntk(network, inputs, form="operator")
        path = problem.kernel_flow(network(inputs).detach(), weight, kernel, lr=1.0)
        end = 1 / path.growth().item()
        return end, path.loss(torch.linspace(0, end, MOMENTS, dtype=torch.float64)).numpy()

    predict()  # torch.func compiles its rules on first use
    ours, (end, guessed) = clock(predict, 2)
    gamma = 1 / (classes - 1)

    def train() -> np.ndarray:
        head = weight.clone().requires_grad_(True)
        optimizer = torch.optim.SGD([*network.parameters(), head], lr=end / steps)
        losses = []
        for step in range(steps + 1):
            logits = network(inputs) @ head.mT
            true = logits.gather(1, target[:, None])[:, 0]
            loss = (gamma * logits.sum(1) - (1 + gamma) * true).mean()
            if step % (steps // (MOMENTS - 1)) == 0:
                losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return np.array(losses)

    rival, trained = clock(train, 1)
    return row(
        f"loss of an MLP of width {width}, n={count} p={dim}", ours, f"{steps} SGD steps", rival, guessed, trained
    )


def row(case: str, ours: float, rival: str, theirs: float, found: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    return {"case": case, "ours_s": ours, "rival": rival, "rival_s": theirs, "ratio": theirs / ours, "error": error}


def rows() -> list[dict[str, Any]]:
    """All measurements as records."""
    return [
        example_row(500, 32, 10),
        example_row(2000, 64, 10),
        full_row(60, 8, 5),
        full_row(150, 8, 10),
        network_row(64),
        network_row(256),
        network_row(1024),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    print("| case | ours | against | its time | ratio | error |\n|---|---|---|---|---|---|")
    for record in rows():
        print(
            f"| {record['case']} | {record['ours_s']:.3g} s | {record['rival']} | {record['rival_s']:.3g} s "
            f"| {record['ratio']:.3g} | {record['error']:.2g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
