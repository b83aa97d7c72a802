# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A million classes
#
# Cross-entropy forms a logit for every class, so a step costs in proportion to their number. The unhinged loss
# needs the prototype of the right class and the sum of all prototypes, and `ManyClassHead` keeps that sum: loss,
# gradient and the optimizer's step touch as many rows as the batch has examples, and yet equal those of a dense
# classifier under SGD.
#
# Every class is a point; an example is a noisy view of it. Half of the directions carry nothing but strong noise,
# and a rotation mixes them all, so that in the input space a view is rarely nearest to its own class. A small
# network learns to look past the noise, together with one prototype per class, from nothing.
#
# As a script: `python examples/million_classes.py [--classes 1000000] [--quick]`; with the default of 100,000
# classes about a minute on two cores.

# %%
import argparse
import math
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.nn import ManyClassHead, nearest_prototype

notebook = "get_ipython" in globals()
parser = argparse.ArgumentParser(description="Many classes at the cost of few: learning and looking up.")
parser.add_argument("--classes", type=int, default=100_000, help="number of classes; 1000000 takes 1.7 GB and minutes")
parser.add_argument("--visits", type=int, default=8, help="training views of each class; the fewer classes, the more")
parser.add_argument("--quick", action="store_true", default="UNHINGE_QUICK" in os.environ, help="2,000 classes")
parser.add_argument(
    "--out", type=Path, default=None if notebook else Path("examples/out"), help="folder of the picture"
)
options = parser.parse_args([] if notebook else None)
classes, visits = (2000, 40) if options.quick else (options.classes, options.visits)

# %% [markdown]
# ## Views, a network, and how often a view finds its class

# %%
SIGNAL, NOISE, DIM, BATCH = 48, 48, 48, 1024
generator = torch.Generator().manual_seed(0)
means = torch.randn(classes, SIGNAL, generator=generator)
mixing = torch.linalg.qr(torch.randn(SIGNAL + NOISE, SIGNAL + NOISE, generator=generator))[0]


def views(target: Tensor, generator: torch.Generator) -> Tensor:
    """A new view of each of these classes; no view is ever stored."""
    seen = means[target] + 0.35 * torch.randn(len(target), SIGNAL, generator=generator)
    clutter = 2.5 * torch.randn(len(target), NOISE, generator=generator)
    return torch.cat([seen, clutter], 1) @ mixing


class Network(nn.Module):
    """Two layers; features of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SIGNAL + NOISE, 192), nn.ReLU(), nn.Linear(192, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.layers(x), dim=1)


@torch.no_grad()
def retrieval(embed: nn.Module, prototypes: Tensor, count: int = 2000) -> float:
    """Share of new views whose best prototype, among those of all classes, is their own. By exact search."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(classes, (count,), generator=generator)
    found = nearest_prototype(embed(views(target, generator)), prototypes).classes[:, 0]
    return (found == target).float().mean().item()


# %% [markdown]
# ## Baselines
#
# As many views of each class as training sees: their mean in the input space (nearest class mean), and linear
# discriminant analysis, which estimates the covariance of the views around their class mean and undoes it. Here
# that is the right model, since the noise is Gaussian and the same for every class: no method can do much better
# than this one.


# %%
class Discriminant(nn.Module):
    """Whitens with the covariance within classes; a last coordinate of 1 meets the offsets of the prototypes."""

    def __init__(self, covariance: Tensor) -> None:
        super().__init__()
        values, vectors = torch.linalg.eigh(covariance.double())
        self.whiten = (vectors / values.sqrt()).float()

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x @ self.whiten, (0, 1), value=1.0)


@torch.no_grad()
def baselines() -> dict[str, float]:
    generator = torch.Generator().manual_seed(2)
    total, scatter = torch.zeros(classes, SIGNAL + NOISE), torch.zeros(SIGNAL + NOISE, SIGNAL + NOISE)
    for block in torch.arange(classes).split(4096):
        seen = torch.stack([views(block, generator) for _ in range(visits)])
        total[block] = seen.mean(0)
        apart = (seen - seen.mean(0)).flatten(0, 1)
        scatter += apart.T @ apart
    discriminant = Discriminant(scatter / (classes * (visits - 1)))
    centers = total @ discriminant.whiten
    offsets = -centers.square().sum(1, keepdim=True) / 2
    return {
        "nearest class mean": retrieval(nn.Identity(), F.normalize(total, dim=1)),
        "linear discriminant analysis": retrieval(discriminant, torch.cat([centers, offsets], 1)),
    }


start = time.perf_counter()
shares = baselines()
print(f"baselines, {time.perf_counter() - start:.0f} s: a new view finds its own of {classes:,} classes")
for name, share in shares.items():
    print(f"  {name:<40} {share:6.1%}")

# %% [markdown]
# ## Training
#
# Prototypes start from zero: a class begins to count when it is first seen. The mean over the batch divides by its
# size, so a rate of twice the batch moves each row by twice a feature.

# %%
torch.manual_seed(0)
network = Network()
head = ManyClassHead(DIM, classes, weight=torch.zeros(classes, DIM))
steps = max(4, classes * visits // BATCH)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (1 + math.cos(math.pi * k / steps)) / 2)
generator = torch.Generator().manual_seed(1)
curve, spent, in_head = [], 0.0, 0.0
for k in range(1, steps + 1):
    begin = time.perf_counter()
    target = torch.randint(classes, (BATCH,), generator=generator)
    features = network(views(target, generator))
    entered = time.perf_counter()
    loss = head(features, target)
    in_head += time.perf_counter() - entered
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    entered = time.perf_counter()
    head.step(2.0 * BATCH)
    in_head += time.perf_counter() - entered
    spent += time.perf_counter() - begin
    if k % (steps // 4) == 0:
        curve.append((k, retrieval(network, F.normalize(head.dense(), dim=1), 500)))
        print(f"  step {k:>6,} of {steps:,}: retrieval {curve[-1][1]:6.1%}", flush=True)
shares["network and classifier, trained together"] = retrieval(network, F.normalize(head.dense(), dim=1))
print(f"  {'network and classifier, trained together':<40} {shares['network and classifier, trained together']:6.1%}")
print(f"{1e3 * spent / steps:.1f} ms per step of {BATCH:,}, {1e3 * in_head / steps:.1f} ms of it in loss and head")

# %% [markdown]
# The network comes to where the discriminant is, without being told what the noise looks like; on data as simple as
# these the discriminant is the better choice. What counts is the last line: the classifier's share of a step does
# not grow with the number of classes (`python benchmarks/many_classes.py` measures it alone, beside cross-entropy).

# %%
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
axis.plot(*zip(*curve, strict=True), "o-", color="#0072B2", label="network and classifier")
for (name, share), color in zip(list(shares.items())[:2], ("#999999", "#D55E00"), strict=True):
    axis.axhline(share, color=color, linestyle="--", linewidth=1.2, label=name)
axis.set(xlabel=f"steps of {BATCH:,} views", ylabel=f"right among {classes:,}", ylim=(0, 1.03), xlim=(0, None))
axis.legend(frameon=False, loc="center right", fontsize=9)
if options.out:
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "million_classes.png", dpi=150)
    print(f"picture: {options.out / 'million_classes.png'}")
