# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exact dynamics in ten lines
#
# Under the unhinged loss, the training of last-layer features and prototypes is a linear system. `unhinge` solves
# it, so you can ask for any step of `torch.optim.SGD` without taking the ones before. This example has the ten lines,
# the same by real training, and what they show about gamma and about a long tail.
#
# As a script: `python examples/exact_dynamics.py [--quick] [--out examples/out]`, a few seconds.

# %%
import argparse
import os
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from unhinge import LayerPeeled
from unhinge.nn import UnhingedLoss

notebook = "get_ipython" in globals()
parser = argparse.ArgumentParser(description="The exact path of SGD in ten lines, beside real training.")
parser.add_argument("--quick", action="store_true", default="UNHINGE_QUICK" in os.environ, help="100 steps, not 500")
parser.add_argument(
    "--out", type=Path, default=None if notebook else Path("examples/out"), help="folder of the picture"
)
options = parser.parse_args([] if notebook else None)

# %% [markdown]
# ## The ten lines
#
# `import torch`, `from unhinge import LayerPeeled`, and these eight. Ten classes of ten examples with 64 features,
# drawn at random. SGD with momentum moves features and prototypes.

# %%
torch.manual_seed(0)
labels = torch.arange(10).repeat_interleave(10)
features, weight = torch.randn(100, 64).double(), torch.randn(10, 64).double()
path = LayerPeeled(labels, num_classes=10).descent(features, weight, lr=1.0, momentum=0.5)
print("training accuracy after 0, 10 and 100 steps:", path.accuracy(torch.tensor([0, 10, 100])).tolist())
print(f"the distance to the limit falls by exp({path.rate():.4f}) with every step")
print(f"it is 1e-6 after {path.time_to(1e-6):.0f} steps")
print(f"after 10^12 steps the norm is exp({path.log_norm(10**12):.6g})")

# %% [markdown]
# ## The same by training
#
# We compare with the optimizer itself: features and prototypes as parameters, the loss as a module, one step after
# another. The distance to the predicted limit is measured every few steps and compared with the predicted distance.


# %%
def by_sgd(gamma: float, steps: int, every: int) -> Tensor:
    """Features above prototypes, every few steps of real training."""
    h, w = features.clone().requires_grad_(), weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([h, w], lr=1.0)
    loss = UnhingedLoss(gamma)
    states = []
    for k in range(steps + 1):
        if k % every == 0:
            states.append(torch.cat([h, w]).detach().clone())
        optimizer.zero_grad()
        loss(h @ w.T, labels).backward()
        optimizer.step()
    return torch.stack(states)


warnings.filterwarnings("ignore", "the unhinged loss is below")  # without decay it runs away, as the path says it will
steps, every = (100, 25) if options.quick else (500, 25)
curves = []
print(f"{'gamma':>6} {'rate per step':>14} {'steps to 1e-3':>14} {'exact':>9} {'SGD':>8} {'largest deviation':>18}")
for gamma, name in ((0.03, "0.03"), (1 / 9, "1/9"), (0.18, "0.18")):
    start = time.perf_counter()
    path = LayerPeeled(labels, 10, gamma).descent(features, weight, lr=1.0)
    exact = path.distance(torch.arange(steps + 1))
    solved = time.perf_counter() - start
    start = time.perf_counter()
    states = by_sgd(gamma, steps, every)
    trained = time.perf_counter() - start
    limit = path.direction()
    goal = torch.cat([limit.features, limit.weight])
    dots = (states / states.flatten(1).norm(dim=1)[:, None, None] - goal).flatten(1).norm(dim=1)
    deviation = (dots - exact[::every]).abs().max()
    print(
        f"{name:>6} {path.rate():>14.6f} {path.time_to(1e-3):>14.0f} "
        f"{1e3 * solved:>6.1f} ms {1e3 * trained:>5.0f} ms {deviation:>18.1e}"
    )
    curves.append((name, exact, dots, path.rate()))

# %% [markdown]
# The default, gamma = 1/(C-1), is the fastest. Exact and trained differ by rounding.
#
# ## A long tail
#
# Classes of 100, 60, ..., 1 examples. At first all classes are learned; then the largest outgrow the others, until
# only the two largest are right. Weights `n_c^(-1/2)` prevent it. `examples/long_tail.py` goes on from here, with
# networks.

# %%
counts = torch.tensor([max(1, round(100 * 0.01 ** (c / 9))) for c in range(10)])
tail_labels = torch.arange(10).repeat_interleave(counts)
tail_features = torch.randn(len(tail_labels), 64).double()
moments = torch.logspace(0, 4, 121, dtype=torch.float64).round().long().unique()
tails = {}
for class_weight, name in ((None, "no class weights"), ("sqrt", "weights n^(-1/2)")):
    path = LayerPeeled(tail_labels, 10, class_weight=class_weight).descent(tail_features, weight, lr=1.0)
    tails[name] = path.accuracy(moments)
    print(f"{name}: accuracy {path.accuracy(10_000):.2f} after 10,000 steps")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for (name, exact, dots, rate), color in zip(curves, ("#0072B2", "#D55E00", "#009E73"), strict=True):
    left.semilogy(exact, color=color, label=rf"$\gamma$ = {name}")
    left.semilogy(torch.arange(0, steps + 1, every), dots, "o", color=color, markersize=4, fillstyle="none")
    late = torch.arange(steps // 2, steps + 1)
    left.semilogy(late, 1.6 * exact[late[0]] * torch.exp(rate * (late - late[0])), "--", color=color, linewidth=1)
left.set(xlabel="step of gradient descent", ylabel="distance of Z/|Z| to its limit")
left.set_title("Computed (lines), SGD (circles), predicted rate (dashes)", fontsize=10)
left.legend(frameon=False)
for (name, accuracy), color in zip(tails.items(), ("#D55E00", "#0072B2"), strict=True):
    right.semilogx(moments, accuracy, color=color, label=name)
floor = counts[:2].sum() / counts.sum()
right.axhline(floor, color="gray", linestyle=":", linewidth=1)
right.text(9e3, floor - 0.05, f"share of the two largest: {floor:.2f}", fontsize=8, color="dimgray", ha="right")
right.set(xlabel="step of gradient descent", ylabel="training accuracy", ylim=(0, 1.03))
right.set_title("Long tail, 100 : 1: plain training keeps two of ten classes", fontsize=10)
right.legend(frameon=False, loc="lower right")
if options.out:
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "exact_dynamics.png", dpi=150)
    print(f"picture: {options.out / 'exact_dynamics.png'}")
