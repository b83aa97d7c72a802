r"""The exact path beside real training, in a table and a picture.

    python examples/first_steps.py [--out examples/out]

Left: the distance to the limit for three values of gamma, as a line, with the iterates of torch.optim.SGD as dots; the
dashed slope is the predicted rate. Right: what a long tail does to the training accuracy in the long run, and the
class weights that prevent it. Takes a few seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from unhinge import LayerPeeled

CLASSES, PER_CLASS, DIM, LR = 10, 10, 64, 1.0
# A palette that stays apart in print and for colour-blind readers (Okabe & Ito)
COLORS = ("#0072B2", "#D55E00", "#009E73")


def by_sgd(features: Tensor, weight: Tensor, labels: Tensor, gamma: float, steps: int, every: int) -> list[Tensor]:
    """Plain training of the free features and prototypes; the stacked state every few steps."""
    h, w = features.clone().requires_grad_(), weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([h, w], lr=LR)
    states = []
    for k in range(steps + 1):
        if k % every == 0:
            states.append(torch.cat([h, w]).detach().clone())
        optimizer.zero_grad()
        logits = h @ w.T
        true = logits.gather(1, labels[:, None]).squeeze(1)
        (gamma * logits.sum(1) - (1 + gamma) * true).mean().backward()
        optimizer.step()
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("examples/out"), help="folder for the picture")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    features = torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64)

    steps, every = 500, 25
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    print(
        f"{'gamma':>8} {'rate per step':>14} {'steps to 1e-3':>14} {'exact':>10} {'SGD':>10} {'largest deviation':>18}"
    )
    for gamma, name, color in zip((0.03, 1 / 9, 0.18), ("0.03", "1/9", "0.18"), COLORS, strict=True):
        path = LayerPeeled(labels, CLASSES, gamma).descent(features, weight, lr=LR)
        start = time.perf_counter()
        exact = path.distance(torch.arange(steps + 1))
        solved = time.perf_counter() - start
        start = time.perf_counter()
        states = by_sgd(features, weight, labels, gamma, steps, every)
        trained = time.perf_counter() - start
        limit = path.direction()
        goal = torch.cat([limit.features, limit.weight])
        dots = torch.stack([(state / state.norm() - goal).norm() for state in states])
        deviation = (dots - exact[::every]).abs().max().item()
        rate = path.rate().item()
        print(
            f"{name:>8} {rate:>14.6f} {path.time_to(1e-3).item():>14.0f} "
            f"{solved * 1e3:>7.2f} ms {trained * 1e3:>7.0f} ms {deviation:>18.1e}"
        )
        left.semilogy(exact, color=color, label=rf"$\gamma$ = {name}")
        left.semilogy(torch.arange(0, steps + 1, every), dots, "o", color=color, markersize=4, fillstyle="none")
        tail = torch.arange(steps // 2, steps + 1)
        left.semilogy(
            tail, 1.6 * exact[steps // 2] * torch.exp(rate * (tail - steps // 2)), "--", color=color, linewidth=1
        )
    left.set(xlabel="step of gradient descent", ylabel="distance of Z/|Z| to its limit")
    left.set_title("Exact (lines), SGD (dots), predicted rate (dashed)", fontsize=10)
    left.legend(frameon=False)

    counts = torch.tensor([max(1, round(100 * 0.01 ** (c / (CLASSES - 1)))) for c in range(CLASSES)])
    tail_labels = torch.repeat_interleave(torch.arange(CLASSES), counts)
    tail_features = torch.randn(len(tail_labels), DIM, generator=generator, dtype=torch.float64)
    moments = torch.logspace(0, 4, 121, dtype=torch.float64).round().long().unique()
    for class_weight, name, color in ((None, "plain mean", COLORS[1]), ("sqrt", r"weights $n_c^{-1/2}$", COLORS[0])):
        problem = LayerPeeled(tail_labels, CLASSES, class_weight=class_weight)
        path = problem.descent(tail_features, weight, lr=LR)
        right.semilogx(moments, path.accuracy(moments), color=color, label=name)
    floor = (counts[0] + counts[1]).item() / counts.sum().item()
    right.axhline(floor, color="gray", linestyle=":", linewidth=1)
    right.text(230, floor + 0.015, f"share of the two largest classes: {floor:.2f}", fontsize=8, color="dimgray")
    right.set(xlabel="step of gradient descent", ylabel="training accuracy", ylim=(0, 1.03))
    right.set_title("A long tail (100 : 1) collapses; the right weights do not", fontsize=10)
    right.legend(frameon=False, loc="lower right")
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / "first_steps.png"
    figure.savefig(target, dpi=150)
    print(f"\npicture: {target}")


if __name__ == "__main__":
    main()
