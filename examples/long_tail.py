# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fixing a long tail
#
# Ten classes, the largest with 100 training images and the smallest with 2. What does training do to the rare ones?
#
# 1. The exact dynamics of features and prototypes name the classes that win, and the weights that make it a draw.
# 2. Small networks are trained on long-tailed digits: cross-entropy and its usual cures, and the unhinged loss on
#    fixed prototypes (PAL: with a feature radius; FNPAL: on normalized features), with and without these weights.
#
# As a script: `python examples/long_tail.py [--quick] [--out examples/out]`, a minute on one core.

# %%
import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from unhinge import LayerPeeled
from unhinge.nn import ETFHead, FeatureNormPenalty, UnhingedLoss, class_weights

notebook = "get_ipython" in globals()
parser = argparse.ArgumentParser(description="Fixing a long tail: exact dynamics, then networks on long-tailed digits.")
parser.add_argument("--quick", action="store_true", default="UNHINGE_QUICK" in os.environ, help="2 seeds, 1 epoch")
parser.add_argument("--seeds", type=int, default=5, help="splits and starts to average over")
parser.add_argument("--tune", action="store_true", help="print the accuracies that the learning rates were chosen by")
parser.add_argument(
    "--out", type=Path, default=None if notebook else Path("examples/out"), help="folder of the picture"
)
options = parser.parse_args([] if notebook else None)
seeds, epochs = (2, 1) if options.quick else (options.seeds, 40)

# %% [markdown]
# ## What theory says
#
# Each class has a singular value, and its part of the network grows with it: under the plain mean that is about
# `sqrt(n_c)`, so the largest classes grow fastest and in the end drown all others. Exactly two survive: prototypes
# that sum to zero and share one direction can tell only two classes apart. The weights `n_c^(-1/2)` make all
# singular values equal, as if the classes had the same size.

# %%
CLASSES = 10
counts = torch.tensor([round(100 * 50 ** (-c / 9)) for c in range(CLASSES)])
labels = torch.arange(CLASSES).repeat_interleave(counts)
generator = torch.Generator().manual_seed(0)
features = torch.randn(len(labels), 32, generator=generator, dtype=torch.float64)
weight = torch.randn(CLASSES, 32, generator=generator, dtype=torch.float64)

exact = {}
for name, class_weight in (("plain mean", None), ("weights n^(-1/2)", "sqrt")):
    problem = LayerPeeled(labels, CLASSES, class_weight=class_weight)
    path = problem.descent(features, weight, lr=1.0)
    exact[name] = path
    state = path.at(10_000)
    right = (state.features @ state.weight.T).argmax(1) == labels
    learned = [n for c, n in enumerate(counts.tolist()) if right[labels == c].all()]
    spread = problem.singular_values[0] / problem.singular_values[-2]
    print(f"{name}: the largest singular value is {spread:.1f} times the smallest but one;")
    print(f"  after 10,000 steps the classes of {learned} examples are right, accuracy {path.accuracy(10_000):.2f}")

# %% [markdown]
# ## What networks do
#
# Digits of 8 x 8 pixels; which digit is common and which is rare is drawn anew for each seed, as are the images.
# The test set has 60 images of every class. A small multilayer perceptron, SGD with momentum, cosine to zero.


# %%
def long_tailed_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images and labels; class 0 is the most frequent, whichever digit that is."""
    generator = torch.Generator().manual_seed(seed)
    data = load_digits()
    images, digits = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    train, test = [], []
    for digit, count in zip(torch.randperm(CLASSES, generator=generator), counts.tolist(), strict=True):
        own = (digits == digit).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        test.append(own[:60])
        train.append(own[60 : 60 + count])
    images = (images - images[torch.cat(train)].mean(0)) / 5
    return images[torch.cat(train)], labels, images[torch.cat(test)], torch.arange(CLASSES).repeat_interleave(60)


def fit(method: str, lr: float, seed: int) -> Tensor:
    """Trains one network; its test accuracy for each class."""
    x, y, x_test, y_test = long_tailed_digits(seed)
    torch.manual_seed(seed)
    weights = class_weights(counts, 0.5 if "n^(-1/2)" in method else 1.0) if "weights" in method else None
    shift = (counts / counts.sum()).log() if "adjusted" in method else 0.0
    body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))
    # The lines that matter: another head and another loss, and a radius where nothing else bounds the features.
    head: nn.Module = nn.Linear(32, CLASSES)
    loss: nn.Module = nn.CrossEntropyLoss(weight=weights)
    penalty = None
    if "PAL" in method or "simplex" in method:
        head = ETFHead(32, CLASSES, normalize=method.startswith("FN"))
    if "PAL" in method:
        loss = UnhingedLoss(weight=weights)
    if method.startswith("PAL"):
        penalty = FeatureNormPenalty.for_radius(5.0, num_classes=CLASSES)
    if "penalty" in method:
        penalty = FeatureNormPenalty(0.01, reduction="mean")

    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(32):
            h = body(x[batch])
            value = loss(head(h) + shift, y[batch])
            if penalty is not None:
                value = value + penalty(h)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(parameters, 5.0)
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = (head(body(x_test)).argmax(1) == y_test).float()
    return right.view(CLASSES, 60).mean(1)


def over_seeds(method: str, lr: float, chosen: Iterable[int]) -> Tensor:
    """Accuracy in percent for each seed and class."""
    return 100 * torch.stack([fit(method, lr, seed) for seed in chosen])


# Each with the learning rate that was best on the splits of seeds 100, 101 and 102 (--tune), which are not used below.
METHODS = {
    "cross-entropy": 0.1,
    "cross-entropy, weights n^(-1/2)": 0.1,
    "cross-entropy, weights 1/n": 0.01,
    "cross-entropy, adjusted logits": 0.1,
    "cross-entropy, simplex, penalty, weights n^(-1/2)": 0.1,
    "PAL, radius 5": 0.1,
    "PAL, radius 5, weights n^(-1/2)": 0.03,
    "FNPAL": 3.0,
    "FNPAL, weights n^(-1/2)": 3.0,
}
if options.tune:
    for method in METHODS:
        for lr in (0.3, 1.0, 3.0, 10.0) if method.startswith("FN") else (0.01, 0.03, 0.1, 0.3):
            print(f"{method:<50} lr {lr:<5} {over_seeds(method, lr, range(100, 103)).mean():5.1f}", flush=True)
    raise SystemExit

# %%
print(f"test accuracy in percent, mean and standard deviation over {seeds} seeds")
print(f"{'':<50} {'all':>12} {'3 common':>12} {'4 between':>12} {'3 rare':>12}")
measured = {}
for method, lr in METHODS.items():
    measured[method] = found = over_seeds(method, lr, range(seeds))
    groups = (found.mean(1), found[:, :3].mean(1), found[:, 3:7].mean(1), found[:, 7:].mean(1))
    cells = (f"{group.mean():5.1f} ± {group.std():3.1f}" for group in groups)
    print(f"{method:<50} " + " ".join(f"{cell:>12}" for cell in cells), flush=True)

# %% [markdown]
# The weights lift cross-entropy and PAL with a radius by six points each and FNPAL by two, and nearly all of it in
# the rare classes. To be fair: the theory above is about free features and trainable prototypes. In a network on
# fixed prototypes the weights act through the shared layers, and through the radius, which becomes `a_c` times
# larger for a class of weight `a_c`. The row of cross-entropy with the same simplex, a penalty (of strength 0.01,
# not tuned) and the same weights tells how much of the gain is the head and the penalty, and how much the loss. And
# this is one data set and one architecture: try it on yours.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
steps = torch.logspace(0, 4, 121, dtype=torch.float64).round().long().unique()
for (name, path), color in zip(exact.items(), ("#D55E00", "#0072B2"), strict=True):
    left.semilogx(steps, 100 * path.accuracy(steps), color=color, label=name)
share = 100 * counts[:2].sum() / counts.sum()
left.axhline(share, color="gray", linestyle=":", linewidth=1)
left.text(9e3, share - 5, f"the two largest classes: {share:.0f} %", fontsize=8, color="dimgray", ha="right")
left.set(xlabel="step of gradient descent", ylabel="training accuracy (%)", ylim=(0, 103))
left.set_title("Exact: free features and prototypes", fontsize=10)
left.legend(frameon=False, loc="lower right")
shown = {
    "cross-entropy": "#000000",
    "cross-entropy, simplex, penalty, weights n^(-1/2)": "#999999",
    "PAL, radius 5": "#D55E00",
    "PAL, radius 5, weights n^(-1/2)": "#0072B2",
    "FNPAL, weights n^(-1/2)": "#009E73",
}
for method, color in shown.items():
    right.plot(measured[method].mean(0), "o-", color=color, markersize=4, linewidth=1.4, label=method)
right.set_xticks(range(CLASSES), [str(n) for n in counts.tolist()])
right.set(xlabel="training images of the class", ylabel="test accuracy (%)", ylim=(0, 103))
right.set_title("Trained: digits, by class", fontsize=10)
right.legend(frameon=False, fontsize=8, loc="lower left")
if options.out:
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "long_tail.png", dpi=150)
    print(f"picture: {options.out / 'long_tail.png'}")
