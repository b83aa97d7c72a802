# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Predicting a network by its kernel
#
# Features of a real network are not free: they move through its parameters. As long as the network's tangent kernel
# stays where it was at initialization, the dynamics are still linear and `LayerPeeled.kernel_flow` solves them:
# features, prototypes and loss at any time, from the kernel alone. Here an MLP and a ConvNet learn digits by
# full-batch gradient descent on the unhinged loss, and the prediction made before the first step is laid beside
# what training did. The wider the network, the less its kernel moves and the longer the prediction holds.
#
# As a script: `python examples/kernel_prediction.py [--full] [--quick] [--out examples/out]`, about a minute on one
# core; `--full` trains wider networks for ten minutes.

# %%
import argparse
import itertools
import math
import os
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from unhinge import LayerPeeled, empirical_ntk
from unhinge.nn import UnhingedLoss
from unhinge.theory.kernel.ntk import NTKOperator

notebook = "get_ipython" in globals()
parser = argparse.ArgumentParser(
    description="What a network will do, from its kernel at initialization; then the truth."
)
parser.add_argument("--quick", action="store_true", default="UNHINGE_QUICK" in os.environ, help="tiny networks")
parser.add_argument("--full", action="store_true", help="wider networks and more steps: ten minutes")
parser.add_argument(
    "--out", type=Path, default=None if notebook else Path("examples/out"), help="folder of the picture"
)
options = parser.parse_args([] if notebook else None)

WIDTHS, STEPS, COUNT = {"mlp": (16, 64, 256), "convnet": (8, 32)}, 300, 100
if options.full:
    WIDTHS, STEPS = {"mlp": (16, 64, 256, 1024), "convnet": (8, 32, 128, 256)}, 1000
if options.quick:
    WIDTHS, STEPS, COUNT = {"mlp": (8, 16), "convnet": (4,)}, 24, 20
CLASSES, DIM = 10, 16
GROWTHS = 2.0  # e-folds of the fastest mode that are trained: the horizon, the same for every width
CHECKPOINTS = 12

Record = dict[str, Any]

# %% [markdown]
# ## Networks in the scaling in which kernels settle
#
# Weights start as standard normals and act divided by the root of their fan-in.


# %%
class Scaled(nn.Module):
    r"""A layer whose weights start as standard normals and act divided by the root of their fan-in: NTK scaling."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer
        self.scale = gain / math.sqrt(layer.weight[0].numel())
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


def mlp(width: int, generator: torch.Generator) -> nn.Module:
    """64 pixels, two hidden layers, DIM features."""
    gain = math.sqrt(2)
    return nn.Sequential(
        nn.Flatten(),
        Scaled(nn.Linear(64, width, bias=False), gain, generator),
        nn.ReLU(),
        Scaled(nn.Linear(width, width, bias=False), gain, generator),
        nn.ReLU(),
        Scaled(nn.Linear(width, DIM, bias=False), 1.0, generator),
    )


def convnet(width: int, generator: torch.Generator) -> nn.Module:
    """Two 3 x 3 convolutions, each halved by average pooling, DIM features."""
    gain = math.sqrt(2)
    return nn.Sequential(
        Scaled(nn.Conv2d(1, width, 3, padding=1, bias=False), gain, generator),
        nn.ReLU(),
        nn.AvgPool2d(2),
        Scaled(nn.Conv2d(width, width, 3, padding=1, bias=False), gain, generator),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        Scaled(nn.Linear(4 * width, DIM, bias=False), 1.0, generator),
    )


# %% [markdown]
# ## Predict first, then train
#
# `path` is the whole prediction: it is made from the network's features and kernel before any training.


# %%
def digits(count: int) -> tuple[Tensor, Tensor]:
    """The first `count` / 10 images of each digit, centered, pixels of mean square 1."""
    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32), torch.tensor(data.target)
    chosen = torch.cat([(labels == digit).nonzero().flatten()[: count // CLASSES] for digit in range(CLASSES)])
    images = images[chosen, None] - images.mean(0)
    return images / images.pow(2).mean().sqrt(), labels[chosen]


def train(
    network: nn.Module, weight: Tensor, images: Tensor, target: Tensor, lr: float, marks: list[int]
) -> list[tuple[Tensor, Tensor, float, dict[str, Tensor]]]:
    """Plain gradient descent; features, prototypes, loss and network parameters after each step count in `marks`."""
    loss_of = UnhingedLoss()
    head = weight.clone().requires_grad_(True)
    parameters = [*network.parameters(), head]
    seen = []
    for step in range(marks[-1] + 1):
        features = network(images)
        loss = loss_of(features @ head.T, target)
        if step in marks:
            frozen = {name: value.detach().clone() for name, value in network.state_dict().items()}
            seen.append((features.detach(), head.detach().clone(), loss.item(), frozen))
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
    return seen


def drift(start: NTKOperator, now: NTKOperator, probes: int, generator: torch.Generator) -> float:
    """Relative change of the kernel in the Frobenius norm, estimated from the same random vectors on both."""
    change = size = 0.0
    for _ in range(probes):
        rows = torch.randn(len(start.inputs), DIM, generator=generator)
        before = start(rows)
        change += (now(rows) - before).pow(2).sum().item()
        size += before.pow(2).sum().item()
    return math.sqrt(change / size)


def compare(kind: str, width: int, count: int, steps: int, seed: int) -> list[Record]:
    """One network, trained and predicted: a record for each checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    images, target = digits(count)
    network = {"mlp": mlp, "convnet": convnet}[kind](width, generator)
    weight = torch.randn(CLASSES, DIM, generator=generator) / math.sqrt(DIM)
    features = network(images).detach()
    begin = time.perf_counter()
    kernel = empirical_ntk(network, images, form="operator")
    path = LayerPeeled(target, CLASSES).kernel_flow(features, weight, kernel, lr=1.0)
    horizon = GROWTHS / path.growth().item()
    marks = [round(steps * k / CHECKPOINTS) for k in range(CHECKPOINTS + 1)]
    times = torch.tensor(marks, dtype=torch.float64) * horizon / steps
    states, losses = path.at(times), path.loss(times).tolist()
    predicting = time.perf_counter() - begin
    begin = time.perf_counter()
    trained = train(network, weight, images, target, horizon / steps, marks)
    training = time.perf_counter() - begin
    records = []
    for k, (real, head, loss, parameters) in enumerate(trained):
        network.load_state_dict(parameters)
        moved = empirical_ntk(network, images, form="operator")
        assert isinstance(kernel, NTKOperator)
        assert isinstance(moved, NTKOperator)
        records.append(
            {
                "network": kind,
                "width": width,
                "growths": GROWTHS * k / CHECKPOINTS,
                "feature_error": relative(states.features[k] - real, real - features) if k else 0.0,
                "weight_error": relative(states.weight[k] - head, head),
                "loss_error": abs(losses[k] - loss) / max(abs(loss), 1e-12),
                "kernel_drift": drift(kernel, moved, 8, generator),
                "loss_trained": loss,
                "loss_predicted": losses[k],
                "predict_s": predicting,
                "train_s": training,
            }
        )
    return records


def relative(difference: Tensor, size: Tensor) -> float:
    return (difference.norm() / size.norm()).item()


# %%
records = []
for kind, widths in WIDTHS.items():
    for width in widths:
        found = compare(kind, width, COUNT, STEPS, seed=0)
        records += found
        seconds = f"predicted in {found[0]['predict_s']:.1f} s, trained in {found[0]['train_s']:.1f} s"
        print(f"{kind} of width {width}: {seconds}", flush=True)

# %% [markdown]
# ## How good it was
#
# Errors are relative: features to the distance they moved, loss to its size; after one e-fold of the fastest mode
# (`@1`) and at the end. `holds to 10 %` is the last checkpoint up to which the features are within a tenth of their
# movement. No width holds for ever: the kernel grows with the features, and the network runs ahead of the
# exponential.


# %%
def holds_to(records: list[Record], limit: float) -> float:
    """The last checkpoint up to which the error of the features stays below `limit`."""
    good = itertools.takewhile(lambda record: record["feature_error"] <= limit, records)
    return max(record["growths"] for record in good)


header = f"{'features@1':>11} {'loss@1':>7} {'features@2':>11} {'loss@2':>7} {'kernel moved':>13} holds to 10 %"
print(f"{'':>7} {'width':>6} {header}")
for (kind, width), group in itertools.groupby(records, lambda record: (record["network"], record["width"])):
    mine = list(group)
    one, end = min(mine, key=lambda record: abs(record["growths"] - 1)), mine[-1]
    print(
        f"{kind:>7} {width:>6} {one['feature_error']:>11.3f} {one['loss_error']:>7.3f} {end['feature_error']:>11.3f} "
        f"{end['loss_error']:>7.3f} {end['kernel_drift']:>13.3g} {holds_to(mine, 0.1):>9.2f} e-folds"
    )

# %%
networks = {"mlp": "MLP", "convnet": "ConvNet"}
figure, axes = plt.subplots(2, 3, figsize=(10, 5.4), sharex=True, layout="constrained")
for row, (kind, label) in zip(axes, networks.items(), strict=True):
    widths = sorted({record["width"] for record in records if record["network"] == kind})
    colors = plt.get_cmap("viridis_r")(torch.linspace(0.2, 0.95, len(widths)).numpy())
    for width, color in zip(widths, colors, strict=True):
        mine = [record for record in records if (record["network"], record["width"]) == (kind, width)]
        at, *curves = (
            [record[key] for record in mine]
            for key in ("growths", "feature_error", "kernel_drift", "loss_predicted", "loss_trained")
        )
        for axis, values in zip(row, curves[:2], strict=False):
            axis.semilogy(at[1:], values[1:], "o-", color=color, ms=3, lw=1.4, label=width)
        if width in (widths[0], widths[-1]):
            row[2].plot(at, curves[2], color=color, lw=1.4)
            row[2].plot(at, curves[3], "o", color=color, ms=4, mfc="none", label=f"width {width}")
            lowest = 1.2 * curves[3][-1]  # of the widest: the narrowest runs away
    row[0].set(ylabel=f"{label}\nerror / distance moved", ylim=(5e-3, 2))
    row[1].set(ylabel=r"$\|K_t - K_0\| \,/\, \|K_0\|$", ylim=(5e-3, 20))
    row[2].set(ylabel="loss", ylim=(lowest, -0.05 * lowest))
    row[0].legend(title="width", fontsize=8, title_fontsize=8, ncols=2, frameon=False, loc="lower right")
    row[2].legend(fontsize=8, frameon=False, loc="lower left")
titles = "Error of the predicted features", "Drift of the kernel", "Predicted (lines), trained (dots)"
for axis, title in zip(axes[0], titles, strict=True):
    axis.set_title(title, fontsize=11)
for axis in axes[1]:
    axis.set_xlabel("time, in e-folds of the fastest mode")
if options.out:
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "kernel_prediction.png", dpi=150)
    print(f"picture: {options.out / 'kernel_prediction.png'}")

# %% [markdown]
# ## Wrong labels
#
# 40 % of the labels of 500 digits are wrong. Free features learn the labels they are given. Features that share a
# smooth kernel agree with the true ones instead, for a while: late, the fastest mode drowns the others, and with
# them the classes that only these tell apart.


# %%
def noisy_labels(count: int, share: float, seed: int, dim: int = 64) -> list[Record]:
    """One fixed noisy labelling: free features learn it by heart, features that share a smooth kernel do not."""
    generator = torch.Generator().manual_seed(seed)
    images, clean = digits(count)
    flat = images.flatten(1).double()
    noisy = clean.clone()
    flipped = torch.randperm(count, generator=generator)[: round(share * count)]
    noisy[flipped] = (clean[flipped] + torch.randint(1, CLASSES, (len(flipped),), generator=generator)) % CLASSES
    features = 0.01 * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, dim, generator=generator, dtype=torch.float64) / math.sqrt(dim)
    problem = LayerPeeled(noisy, CLASSES, class_weight="sqrt")
    squares = torch.cdist(flat, flat) ** 2
    kernel = torch.exp(-squares / (0.3 * squares.median()))
    paths = {
        "free": problem.flow(features, weight, lr=1.0),
        "RBF kernel": problem.kernel_flow(features, weight, kernel, lr=1.0),
    }
    records = []
    for name, path in paths.items():
        for growths in (1.0, 4.0):
            moment = growths / path.growth().item()
            state = path.at(moment)
            guess = (state.features @ (state.weight - state.weight.mean(0)).mT).argmax(1)
            records.append(
                {
                    "features": name,
                    "e-folds": growths,
                    "agree_with_noisy": path.accuracy(moment).item(),
                    "agree_with_clean": (guess == clean).double().mean().item(),
                }
            )
    return records


for record in noisy_labels(100 if options.quick else 500, 0.4, seed=0):
    print(
        f"{record['features']:>10}, {record['e-folds']:.0f} e-folds: agree with the given labels "
        f"{record['agree_with_noisy']:.0%}, with the true ones {record['agree_with_clean']:.0%}"
    )
