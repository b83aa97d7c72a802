r"""Learning to tell 100,000 classes apart, in about a minute on a laptop.

    python examples/many_classes.py [--classes 100000] [--visits 8]

Every class is a point (its mean); an example is a noisy view of it. Half of the directions in which views differ carry
nothing but strong noise, and all of them are mixed by a rotation, so that in the input space a view is rarely nearest
to its own class. A small network learns to look past the noise, and with it a classifier with one row per class, from
nothing: forward pass, backward pass and optimizer step never touch more rows than the batch has examples.

Retrieval: how often a new view finds its own class as the nearest of all, by exact search. The other rows of the table
use as many training views of each class, averaged, as prototypes: in the input space, and in the untrained network.

Results (examples/results/many_classes.md): of 100,000 classes, with 8 views of each, a new view finds its own in 8.9 %
of the cases in the input space, 0.2 % before training, 98.3 % after.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.nn.many import ManyClassHead
from unhinge.nn.search import nearest_prototype

SIGNAL, NOISE, DIM, BATCH = 48, 48, 48, 1024
BLUR, CLUTTER = 0.35, 2.5  # noise in the directions that matter, and in those that do not
HEAD_LR, NETWORK_LR = 2.0 * BATCH, 1e-3  # the mean over the batch divides: each visit moves its row by twice a feature


class Views:
    """Class means, and as many noisy views of them as one likes; nothing but the means is stored."""

    def __init__(self, classes: int, generator: torch.Generator) -> None:
        self.means = torch.randn(classes, SIGNAL, generator=generator)
        self.mixing = torch.linalg.qr(torch.randn(SIGNAL + NOISE, SIGNAL + NOISE, generator=generator))[0]

    def __call__(self, target: Tensor, generator: torch.Generator) -> Tensor:
        seen = self.means[target] + BLUR * torch.randn(len(target), SIGNAL, generator=generator)
        clutter = CLUTTER * torch.randn(len(target), NOISE, generator=generator)
        return torch.cat([seen, clutter], 1) @ self.mixing


class Network(nn.Module):
    """Two layers; features of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(SIGNAL + NOISE, 192), nn.ReLU(), nn.Linear(192, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.layers(x), dim=1)


class InputSpace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


@torch.no_grad()
def mean_views(views: Views, embed: nn.Module, visits: int) -> Tensor:
    """The direction of the mean embedding of each class."""
    generator = torch.Generator().manual_seed(2)
    blocks = torch.arange(len(views.means)).split(8192)
    sums = sum(torch.cat([embed(views(block, generator)) for block in blocks]) for _ in range(visits))
    return F.normalize(torch.as_tensor(sums), dim=1)


@torch.no_grad()
def retrieval(views: Views, embed: nn.Module, prototypes: Tensor, count: int) -> float:
    """Share of new views whose nearest prototype, among all classes, is their own."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(len(prototypes), (count,), generator=generator)
    found = nearest_prototype(embed(views(target, generator)), prototypes).classes[:, 0]
    return (found == target).float().mean().item()


def train(views: Views, network: nn.Module, head: ManyClassHead, steps: int) -> float:
    """Returns the milliseconds of a step, search excluded."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(network.parameters(), lr=NETWORK_LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (1 + math.cos(math.pi * k / steps)) / 2)
    spent = 0.0
    for k in range(1, steps + 1):
        start = time.perf_counter()
        target = torch.randint(head.num_classes, (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = head(network(views(target, generator)), target)
        loss.backward()
        optimizer.step()
        schedule.step()
        head.step(HEAD_LR)
        spent += time.perf_counter() - start
        if k % max(1, steps // 4) == 0:
            share = retrieval(views, network, F.normalize(head.dense(), dim=1), 500)
            print(f"  step {k:>6,} of {steps:,}  loss {loss.item():>8.3f}  retrieval {share:6.1%}", flush=True)
    return spent / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--classes", type=int, default=100_000, help="number of classes")
    parser.add_argument(
        "--visits",
        type=int,
        default=8,
        help="training views of each class, on average; few classes need more of them, since the network needs steps",
    )
    parser.add_argument("--queries", type=int, default=2000, help="new views to look up")
    options = parser.parse_args()
    torch.manual_seed(0)
    views = Views(options.classes, torch.Generator().manual_seed(0))
    network = Network()
    shares = {}
    for name, embed in (("input space, mean of the views", InputSpace()), ("network before training", network)):
        prototypes = mean_views(views, embed, options.visits)
        shares[name] = retrieval(views, embed, prototypes, options.queries)
    print(f"training on {options.classes:,} classes, {options.visits} views of each")
    # From zero: a class begins to count when it is first seen, and no dense start has to be forgotten.
    head = ManyClassHead(DIM, options.classes, weight=torch.zeros(options.classes, DIM))
    step = train(views, network, head, max(1, options.classes * options.visits // BATCH))
    prototypes = F.normalize(head.dense(), dim=1)
    shares["network and classifier, trained together"] = retrieval(views, network, prototypes, options.queries)
    print(f"\n{'prototypes':<42} {f'retrieval among {options.classes:,}':>30}")
    for name, share in shares.items():
        print(f"{name:<42} {share:>30.1%}")
    print(f"\n{step:.1f} ms per step of {BATCH} examples")


if __name__ == "__main__":
    main()
