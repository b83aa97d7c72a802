"""Does a network train as its tangent kernel at initialization says? Predicted and really trained, side by side.

An MLP and a ConvNet learn scikit-learn's digits by full-batch gradient descent on the unhinged loss, together with a
linear head. `LayerPeeled.kernel_flow` predicts features, prototypes and loss from the kernel at initialization alone.
The wider the network, the less its kernel moves and the longer the prediction holds.

    python examples/kernel_prediction.py --out results [--quick]

Ten minutes on one core, most of it the training of the widest networks; one minute with --quick.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from unhinge import LayerPeeled
from unhinge.theory.ntk import NTKOperator, empirical_ntk

CLASSES, DIM = 10, 16
GAMMA = 1 / (CLASSES - 1)
GROWTHS = 2.0  # e-folds of the fastest mode that are trained: the horizon, the same for every width
CHECKPOINTS = 12

Record = dict[str, Any]


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


def digits(count: int) -> tuple[Tensor, Tensor]:
    """The first `count` / 10 images of each digit, centered, pixels of mean square 1."""
    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32), torch.tensor(data.target)
    chosen = torch.cat([(labels == digit).nonzero().flatten()[: count // CLASSES] for digit in range(CLASSES)])
    images = images[chosen, None] - images.mean(0)
    return images / images.pow(2).mean().sqrt(), labels[chosen]


def unhinged(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Mean of -z_y + gamma * (sum of the other logits)."""
    logits = features @ weight.mT
    true = logits.gather(1, target[:, None])[:, 0]
    return (GAMMA * logits.sum(1) - (1 + GAMMA) * true).mean()


def train(
    network: nn.Module, weight: Tensor, images: Tensor, target: Tensor, lr: float, marks: list[int]
) -> list[tuple[Tensor, Tensor, float, dict[str, Tensor]]]:
    """Plain gradient descent; features, prototypes, loss and network parameters after each step count in `marks`."""
    head = weight.clone().requires_grad_(True)
    parameters = [*network.parameters(), head]
    seen = []
    for step in range(marks[-1] + 1):
        features = network(images)
        loss = unhinged(features, head, target)
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


def plot(records: list[Record], path: Path) -> None:
    """A row for each network: error of the features, drift of the kernel, loss of the narrowest and the widest."""
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
    figure.savefig(path, dpi=150)
    plt.close(figure)


def holds_to(records: list[Record], limit: float) -> float:
    """The last checkpoint up to which the error of the features stays below `limit`."""
    good = itertools.takewhile(lambda record: record["feature_error"] <= limit, records)
    return max(record["growths"] for record in good)


def summary(records: list[Record]) -> list[Record]:
    """One row for each network and width: errors at one e-fold and at the end."""
    rows = []
    for _, group in itertools.groupby(records, lambda record: (record["network"], record["width"])):
        mine = list(group)
        middle, end = min(mine, key=lambda record: abs(record["growths"] - 1)), mine[-1]
        row = {key: end[key] for key in ("network", "width")}
        for name, record in (("@1", middle), ("@end", end)):
            for key in ("feature_error", "weight_error", "loss_error", "kernel_drift"):
                row[key + name] = record[key]
        rows.append(
            row | {"holds_to_10%": holds_to(mine, 0.1), "predict_s": end["predict_s"], "train_s": end["train_s"]}
        )
    return rows


def table(rows: list[Record]) -> str:
    """Records as Markdown."""

    def cell(value: float | str) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(cell(row[key]) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def exponent(rows: list[Record], kind: str) -> float:
    """Slope of log error over log width, by least squares."""
    points = [(math.log(row["width"]), math.log(row["feature_error@1"])) for row in rows if row["network"] == kind]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def report(rows: list[Record], noise: list[Record], count: int, steps: int, seed: int) -> str:
    kinds = dict.fromkeys(row["network"] for row in rows)
    slopes = ", ".join(f"width^({exponent(rows, kind):.2f}) for the {kind}" for kind in kinds)
    return f"""# A network and its kernel at initialization

Digits ({count} images, {CLASSES} classes), {DIM} features, linear head without bias, unhinged loss with gamma = 1/9,
plain full-batch gradient descent of {steps} steps over {GROWTHS:g} e-folds of the fastest mode. Errors are relative:
features to the distance they moved, prototypes and loss to their own size; `@1` after one e-fold, `@end` after
{GROWTHS:g}; `holds_to_10%` is the last of {CHECKPOINTS} checkpoints up to which the features are within a tenth of
their movement. `kernel_drift` is the change of the kernel relative to its size (Frobenius norm, 8 random probes).

{table(rows)}

The error after one e-fold falls as {slopes}; it grows with time, and no width holds for ever: the kernel of a network
grows with its features, so the trained network runs ahead of the exponential that a constant kernel gives.

One fixed labelling of 500 digits, 40% of it wrong: free features agree with the labels they were given, features that
share a smooth kernel with the true ones. Late, the fastest mode of the kernel drowns the others, and with them the
classes that only these tell apart.

{table(noise)}

`python examples/kernel_prediction.py {" ".join(sys.argv[1:])}`; seed {seed}; Python {platform.python_version()}, torch
{torch.__version__}, {torch.get_num_threads()} threads.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("kernel_prediction"), help="folder for tables and the figure")
    parser.add_argument("--quick", action="store_true", help="narrow networks and few steps")
    parser.add_argument("--count", type=int, default=100, help="training images, a multiple of 10")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    widths = {"mlp": (16, 64, 256, 1024), "convnet": (8, 32, 128, 256)}
    steps = 1000
    if options.quick:
        widths, steps = {"mlp": (16, 64, 256), "convnet": (8, 32)}, 300
    records = []
    for kind, sizes in widths.items():
        for width in sizes:
            found = compare(kind, width, options.count, steps, options.seed)
            records += found
            seconds = f"predicted in {found[0]['predict_s']:.1f} s, trained in {found[0]['train_s']:.1f} s"
            print(f"{kind} of width {width}: {seconds}", flush=True)
    rows, noise = summary(records), noisy_labels(500, 0.4, options.seed)
    with (options.out / "kernel_prediction.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    plot(records, options.out / "kernel_prediction.png")
    text = report(rows, noise, options.count, steps, options.seed)
    (options.out / "kernel_prediction.md").write_text(text)
    print(f"\n{text}\nWritten to {options.out}/: kernel_prediction.md, .csv and .png")


if __name__ == "__main__":
    main()
