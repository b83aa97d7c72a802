# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Many classes
#
# Cross-entropy computes a logit for every class, so its step grows with their number. Two ways out touch only the
# rows of the batch, whatever the number of classes:
#
# - **fixed prototypes**: the unhinged loss needs the prototype of the right class and the sum of all prototypes,
#   and neither changes;
# - **prototypes that learn**: the Taylor softmax, a second-order softmax, needs the logit of the right class, the
#   sum of all logits and the sum of their squares. `ManyClassHead` keeps what these need and takes exact steps of
#   SGD (after Vincent, de Brébisson and Bouthillier, 2015).
#
# Both cost the same for a thousand classes and for a million. Do they learn? The task here is real: 2,231 characters
# in nine typefaces that come with matplotlib, and three typefaces to test on that the network has never seen.
#
# As a script: `python examples/many_classes.py [--epochs 4] [--quick]`; about a minute and a half on one core.

# %%
import argparse
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.data.glyphs import glyphs
from unhinge.nn import GeneratedPrototypes, ManyClassHead
from unhinge.nn import functional as UF
from unhinge.nn.backbones import GlyphBody

notebook = "get_ipython" in globals()
parser = argparse.ArgumentParser(description="Thousands of classes: which classifier learns, and what a step costs.")
parser.add_argument("--epochs", type=int, default=4, help="passes over the training typefaces")
parser.add_argument(
    "--quick", action="store_true", default="UNHINGE_QUICK" in os.environ, help="94 characters, fewer classes to time"
)
parser.add_argument(
    "--out", type=Path, default=None if notebook else Path("examples/out"), help="folder of the picture"
)
options = parser.parse_args([] if notebook else None)

# %%
BATCH = 64 if options.quick else 256
splits = glyphs(characters="21-7E" if options.quick else None)
train, test, classes = splits.training, splits.test, splits.num_classes
print(f"{classes:,} characters; {len(train):,} images to learn from, {len(test):,} in unseen typefaces")


def prepared(images: Tensor) -> Tensor:
    return (images.float() / 255 - train.mean[0]) / train.std[0]


# %% [markdown]
# ## Three classifiers
#
# Each is a loss of features and targets, a step, and the rows to test with. The network in front is the same.


# %%
class Dense:
    """Cross-entropy over all classes; AdamW moves every row in every step."""

    def __init__(self, dim: int) -> None:
        self.linear = nn.Linear(dim, classes, bias=False)
        self.optimizer = torch.optim.AdamW(self.linear.parameters(), lr=0.03)

    def before(self, progress: float, means: Callable[[], Tensor]) -> None:
        pass

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(features), target)

    def step(self, share: float) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.03 * share
        self.optimizer.step()
        self.optimizer.zero_grad()

    def rows(self) -> Tensor:
        return self.linear.weight.detach()


class Learned:
    """The Taylor softmax with exact SGD. At half time its rows start anew from class means, and the nearest decide."""

    def __init__(self, dim: int) -> None:
        self.head = ManyClassHead(dim, classes, "taylor_softmax")
        self.rate = 10 * BATCH / dim  # the mean over the batch divides by its size; squared features sum to dim
        self.near: Tensor | None = None

    def before(self, progress: float, means: Callable[[], Tensor]) -> None:
        if progress >= 0.5 and self.near is None:
            self.head.restart(means())
            self.near = self.head.neighbors(64)

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        return self.head(features, target, shortlist=None if self.near is None else self.near[target])

    def step(self, share: float) -> None:
        self.head.step(self.rate * share)

    def rows(self) -> Tensor:
        return self.head.dense()


class Fixed:
    """Random unit vectors that never move, and features of length 1."""

    def __init__(self, dim: int) -> None:
        self.prototypes = GeneratedPrototypes(classes, dim, seed=0).rows(torch.arange(classes))
        self.total = self.prototypes.sum(0)

    def before(self, progress: float, means: Callable[[], Tensor]) -> None:
        pass

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        features = F.normalize(features, dim=1)
        return UF.unhinged_loss_from_features(features, self.prototypes, target, weight_sum=self.total)

    def step(self, share: float) -> None:
        pass

    def rows(self) -> Tensor:
        return self.prototypes


# %% [markdown]
# ## Training
#
# The rates are the best of three tried on a training typeface that was held back (`benchmarks/glyphs.py`).


# %%
@torch.no_grad()
def accuracy(body: nn.Module, rows: Tensor) -> float:
    body.eval()
    batches = zip(test.images.split(500), test.labels.split(500), strict=True)
    right = sum(((body(prepared(images)) @ rows.T).argmax(1) == labels).sum() for images, labels in batches)
    body.train()
    return int(right) / len(test)


@torch.no_grad()
def class_means(body: nn.Module) -> Tensor:
    """Of the features of all training images, (C, p): one pass without gradients."""
    body.eval()
    sums = torch.zeros(classes, body.feature_dim)
    for images, labels in zip(train.images.split(500), train.labels.split(500), strict=True):
        sums.index_add_(0, labels, body(prepared(images)))
    body.train()
    return sums / train.counts[:, None]


Curve = list[tuple[float, float]]


def learn(make: Callable[[int], Dense | Learned | Fixed]) -> tuple[Curve, float]:
    """Accuracy on the unseen typefaces over epochs, and the milliseconds a step spends in the classifier."""
    torch.manual_seed(0)
    body = GlyphBody(width=16)
    classifier = make(body.feature_dim)
    optimizer = torch.optim.AdamW(body.parameters(), lr=2e-3)
    curve, spent, step = [(0.0, 1 / classes)], 0.0, 0
    each = math.ceil(len(train) / BATCH)
    for epoch in range(1, options.epochs + 1):
        for chosen in torch.randperm(len(train)).split(BATCH):
            progress = step / (each * options.epochs)
            share = (1 + math.cos(math.pi * progress)) / 2
            optimizer.param_groups[0]["lr"] = 2e-3 * share
            features = body(prepared(train.images[chosen]).roll(torch.randint(-1, 2, (2,)).tolist(), (2, 3)))
            handed = features.detach().requires_grad_()
            begin = time.process_time()
            classifier.before(progress, lambda: class_means(body))
            classifier.loss(handed, train.labels[chosen]).backward()
            classifier.step(share)
            spent += time.process_time() - begin
            optimizer.zero_grad()
            features.backward(handed.grad)
            optimizer.step()
            step += 1
        curve.append((epoch, accuracy(body, classifier.rows())))
    return curve, 1e3 * spent / step


curves: dict[str, Curve] = {}
for name, make in {"cross-entropy": Dense, "Taylor softmax": Learned, "fixed prototypes": Fixed}.items():
    curves[name], milliseconds = learn(make)
    print(f"  {name:<26} {curves[name][-1][1]:6.1%} right in unseen typefaces, head {milliseconds:5.1f} ms a step")

# %% [markdown]
# Fixed random prototypes fail, and not because of the loss: full cross-entropy on the same prototypes gets no more
# (6.2 % against 6.7 %, `benchmarks/results/glyphs_2core_2026-11.md`). Characters look alike, and prototypes drawn at
# random do not know it. Prototypes that learn do well. At a few thousand classes dense cross-entropy is as good and
# cheaper, so use it. The other head is for numbers of classes at which this no longer holds.
#
# ## What a step costs
#
# The loss, its gradient and the update of the rows, for a batch of 256 features of 128 dimensions.


# %%
def time_of(step: Callable[[], None]) -> float:
    """Milliseconds of the processor; the best of five, after one that warms up."""
    times = []
    for _ in range(6):
        begin = time.process_time()
        step()
        times.append(1e3 * (time.process_time() - begin))
    return min(times[1:])


sizes = [10**k for k in range(2, 4 if options.quick else 7)]
features, costs = torch.randn(256, 128), {"Taylor softmax": [], "cross-entropy": []}
for count in sizes:
    target = torch.randint(count, (256,))
    head = ManyClassHead(128, count, "taylor_softmax")

    def ours(head: ManyClassHead = head, target: Tensor = target) -> None:
        head(features.clone().requires_grad_(), target).backward()
        head.step(1.0)

    costs["Taylor softmax"].append(time_of(ours))
    if count > 100_000:  # a gigabyte of logits, and as much for their gradient
        continue
    linear = nn.Linear(128, count, bias=False)
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)

    def dense(
        linear: nn.Linear = linear, optimizer: torch.optim.Optimizer = optimizer, target: Tensor = target
    ) -> None:
        optimizer.zero_grad()
        F.cross_entropy(linear(features.clone().requires_grad_()), target).backward()
        optimizer.step()

    costs["cross-entropy"].append(time_of(dense))
for k, count in enumerate(sizes):
    both = "   ".join(f"{name} {times[k]:8.1f} ms" for name, times in costs.items() if k < len(times))
    print(f"  {count:>9,} classes:  {both}")

# %% [markdown]
# The step of the head stays where it is while that of cross-entropy grows with the classes. At 20,902 Chinese
# characters the head is ahead of cross-entropy at equal time, and level with its best form at equal epochs; the guide
# has the numbers (`docs/guide/choosing.md`).

# %%
COLORS = {"cross-entropy": "#0072B2", "Taylor softmax": "#D55E00", "fixed prototypes": "#999999"}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, curve in curves.items():
    left.plot(*zip(*curve, strict=True), "o-", color=COLORS[name.partition(",")[0]], label=name)
left.set(xlabel="epochs", ylabel=f"right among {classes:,}, unseen typefaces", ylim=(0, 1), xlim=(0, None))
left.xaxis.get_major_locator().set_params(integer=True)
for name, times in costs.items():
    right.loglog(sizes[: len(times)], times, "o-", color=COLORS[name], label=name)
right.set(xlabel="classes", ylabel="a step of the classifier (ms)")
for axis in (left, right):
    axis.legend(frameon=False, fontsize=9)
if options.out:
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "many_classes.png", dpi=150)
    print(f"picture: {options.out / 'many_classes.png'}")
