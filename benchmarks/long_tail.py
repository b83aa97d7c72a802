"""What could close the gap to logit-adjusted cross-entropy under a long tail: candidates side by side, by seed.

    python benchmarks/long_tail.py [--seeds 10] [--epochs 40] [--lr 0.2] [--imbalance exp:20]

scikit-learn's digits with a long tail, the convolutional network of the `quick` scale, one thread. Test classes are
about equally frequent. Each candidate is trained once a seed and read with five strengths of its adjusted decision.
The last column has the strength that cross-validation on the training images chose (3 folds, mean of the class
accuracies), together with the power of the class weights where a row says so. Differences are to cross-entropy trained
with adjusted logits, paired by seed, with p-values corrected by Holm.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor
from torch.nn import functional as F

import unhinge
from unhinge.data import ImageSet, batches
from unhinge.nn import class_weights
from unhinge.nn import functional as UF
from unhinge.paper.studies.paired import Paired, holm, paired
from unhinge.training import Recipe
from unhinge.training.loop import learning_rate, material_of
from unhinge.training.measure import outputs
from unhinge.training.network import network_of

CLASSES, RADIUS, FOLDS = 10, 10.0, 3
TAUS = (0.0, 0.25, 0.5, 0.75, 1.0)

Objective = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # logits, features, target, counts
Reading = Callable[[Tensor, Tensor], Tensor]  # logits, counts -> scores, which are divided by the prior


@dataclass(frozen=True)
class Candidate:
    """What is lowered, how the logits become probabilities, and the strength of the decision that theory leaves."""

    label: str
    objective: Objective
    reading: Reading
    named: float
    simplex: bool = True


# ---- what is lowered ------------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, _: Tensor, target: Tensor, counts: Tensor, *, adjusted: bool = False) -> Tensor:
    """Plain, or with the logarithm of the class frequencies added to the logits (Menon et al., 2021)."""
    shifted = logits + (counts / counts.sum()).log().float() if adjusted else logits
    return F.cross_entropy(shifted, target)


def unhinged(
    logits: Tensor,
    features: Tensor,
    target: Tensor,
    counts: Tensor,
    *,
    power: float = 0.0,
    whole: bool = False,
    radius: float = RADIUS,
) -> Tensor:
    """With a radius; class weights on the loss alone, or on the whole squared error."""
    weight = class_weights(counts, power).float()[target]
    losses = UF.unhinged_loss(logits, target, reduction="none")
    strength = UF.penalty_strength(radius, CLASSES)
    penalty = UF.feature_norm_penalty(features, strength, "mean", weight if whole else None)
    return (weight * losses).sum() / weight.sum() + penalty


def with_prior(logits: Tensor, features: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """The class frequencies in the loss instead of a uniform prior, in the units of the loss at 1/(C-1)."""
    losses = UF.unhinged_loss(logits, target, prior=(counts / counts.sum()).float())
    strength = UF.penalty_strength(RADIUS, CLASSES)
    return CLASSES / (CLASSES - 1) * losses + UF.feature_norm_penalty(features, strength, "mean")


def taylor(logits: Tensor, _: Tensor, target: Tensor, counts: Tensor, *, adjusted: bool = False) -> Tensor:
    """The second-order loss on the simplex, plain or with each class's share times its frequency."""
    if not adjusted:
        return UF.taylor_softmax_loss(logits, target)
    shares = taylor_reading(logits, counts) * (counts / counts.sum()).float()
    return F.nll_loss((shares / shares.sum(1, keepdim=True)).log(), target)


# ---- how it is read -------------------------------------------------------------------------------------------------


def softmax_reading(logits: Tensor, _: Tensor) -> Tensor:
    return logits.softmax(1)


def posterior_reading(logits: Tensor, counts: Tensor, power: float = 0.0, radius: float = RADIUS) -> Tensor:
    return UF.posterior(logits, radius, class_weights(counts, power).to(logits) if power else None)


def prior_reading(logits: Tensor, counts: Tensor) -> Tensor:
    """The best features are those of the uniform prior less r W'q: their logits are put back."""
    shares = (counts / counts.sum()).to(logits)
    return UF.posterior(logits + RADIUS * (CLASSES * shares - 1) / (CLASSES - 1), RADIUS)


def taylor_reading(logits: Tensor, _: Tensor) -> Tensor:
    return 1 + logits + logits.square() / 2


CANDIDATES = (
    Candidate("cross-entropy", cross_entropy, softmax_reading, 1.0, simplex=False),
    Candidate(
        "cross-entropy, trained with adjusted logits",
        partial(cross_entropy, adjusted=True),
        softmax_reading,
        0.0,
        simplex=False,
    ),
    Candidate("simplex, radius 10", unhinged, posterior_reading, 1.0),
    Candidate(
        "the same, 1/√n weights on the loss: a radius for each class",
        partial(unhinged, power=0.5),
        partial(posterior_reading, power=0.5),
        1.0,
    ),
    Candidate(
        "the same, 1/√n weights on loss and penalty", partial(unhinged, power=0.5, whole=True), posterior_reading, 0.5
    ),
    Candidate(
        "the same, 1/n weights on loss and penalty", partial(unhinged, power=1.0, whole=True), posterior_reading, 0.0
    ),
    *(
        Candidate(
            f"the same with radius {radius:g}, 1/√n weights on both",
            partial(unhinged, power=0.5, whole=True, radius=radius),
            partial(posterior_reading, radius=radius),
            0.5,
        )
        for radius in (3.0, 30.0)
    ),
    Candidate("simplex, radius 10, class frequencies as prior", with_prior, prior_reading, 1.0),
    Candidate("simplex, Taylor softmax", taylor, taylor_reading, 1.0),
    Candidate(
        "simplex, Taylor softmax trained with adjusted shares", partial(taylor, adjusted=True), taylor_reading, 0.0
    ),
)
REFERENCE = 1  # cross-entropy trained with adjusted logits
CHOSEN_TOGETHER = (2, 4, 5)  # powers 0, 1/2 and 1 of the weights, on loss and penalty

# ---- one run --------------------------------------------------------------------------------------------------------


def logits_of(candidate: Candidate, recipe: Recipe, train: ImageSet, test: ImageSet) -> Tensor:
    """Train as the training command does (SGD, cosine), and return the logits of `test`, shape (n, C), float64."""
    network = network_of(recipe, train)
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay)
    counts = train.counts.double()
    for epoch in range(recipe.epochs):
        network.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, epoch)
        for images, target in batches(train, recipe.batch, seed=recipe.seed, epoch=epoch):
            logits, features = network(images, return_features=True)
            optimizer.zero_grad()
            candidate.objective(logits, features, target, counts).backward()
            optimizer.step()
    return outputs(network, test).logits.double()


def accuracies(candidate: Candidate, logits: Tensor, labels: Tensor, counts: Tensor) -> list[float]:
    """Mean of the accuracies of the classes that have images, at each strength of `TAUS`."""
    scores = candidate.reading(logits, counts)
    seen = torch.bincount(labels, minlength=CLASSES)
    found = []
    for tau in TAUS:
        right = labels[UF.balanced_decision(scores, counts, tau) == labels]
        found.append((torch.bincount(right, minlength=CLASSES)[seen > 0] / seen[seen > 0]).mean().item())
    return found


def validated(candidate: Candidate, recipe: Recipe, train: ImageSet) -> list[float]:
    """The same by cross-validation on the training images: every image is judged by a network that has not seen it."""
    logits = torch.empty(len(train), CLASSES, dtype=torch.float64)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=recipe.seed)
    for kept, left in folds.split(train.labels, train.labels):
        logits[left] = logits_of(
            candidate, recipe, train.subset(torch.from_numpy(kept)), train.subset(torch.from_numpy(left))
        )
    return accuracies(candidate, logits, train.labels, train.counts.double())


@dataclass(frozen=True)
class Seed:
    """One seed: accuracies by candidate and strength, on test images and by cross-validation."""

    test: list[list[float]]
    chosen: list[list[float]]

    def validated(self, *candidates: int) -> float:
        """Test accuracy at the place that cross-validation prefers among these candidates and all strengths."""
        places = [(i, k) for i in candidates for k in range(len(TAUS))]
        best = max(places, key=lambda place: self.chosen[place[0]][place[1]])
        return self.test[best[0]][best[1]]


def run(seed: int, epochs: int, lr: float, imbalance: str) -> Seed:
    test, chosen = [], []
    for candidate in CANDIDATES:
        recipe = Recipe(
            data="digits", imbalance=imbalance, model="convnet", width=16, batch=64, lr=lr, epochs=epochs, seed=seed,
            loss="unhinged" if candidate.simplex else "ce", head="pal" if candidate.simplex else "linear",
        )  # fmt: skip
        material = material_of(recipe)
        counts = material.train.counts.double()
        logits = logits_of(candidate, recipe, material.train, material.test)
        test.append(accuracies(candidate, logits, material.test.labels, counts))
        chosen.append(validated(candidate, recipe, material.train))
    return Seed(test, chosen)


# ---- the table ------------------------------------------------------------------------------------------------------


def against(reference: list[float], values: list[float]) -> Paired:
    """Differences in points, tested in pairs."""
    return paired([100 * (a - b) for a, b in zip(values, reference, strict=True)])


def table(seeds: list[Seed]) -> str:
    place = {tau: k for k, tau in enumerate(TAUS)}
    reference = [seed.test[REFERENCE][place[0.0]] for seed in seeds]
    rows, tests = [], []
    for i, candidate in enumerate(CANDIDATES):
        means = [100 * statistics.mean(seed.test[i][k] for seed in seeds) for k in range(len(TAUS))]
        named = [seed.test[i][place[candidate.named]] for seed in seeds]
        chosen = [seed.validated(i) for seed in seeds]
        cells = [f"**{m:.1f}**" if tau == candidate.named else f"{m:.1f}" for tau, m in zip(TAUS, means, strict=True)]
        rows.append([candidate.label, *cells, f"{100 * statistics.mean(chosen):.1f}"])
        tests += [against(reference, named) if i != REFERENCE else None, against(reference, chosen)]
    together = [seed.validated(*CHOSEN_TOGETHER) for seed in seeds]
    rows.append(["simplex, radius 10: weights and strength chosen together", *("" for _ in TAUS),
                 f"{100 * statistics.mean(together):.1f}"])  # fmt: skip
    tests += [None, against(reference, together)]
    # without an interval the runs are the same: nothing to tell apart
    corrected = iter(holm([1.0 if test.p_value is None else test.p_value for test in tests if test is not None]))
    texts = [
        "" if t is None else f"{t.mean:+.1f} ± {(t.high or t.mean) - t.mean:.1f} (p = {next(corrected):.2g})"
        for t in tests
    ]
    head = [
        "",
        *(f"τ = {tau:g}" for tau in TAUS),
        "chosen",
        "named, against adjusted CE",
        "chosen, against adjusted CE",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([*row, *texts[2 * k : 2 * k + 2]]) + " |" for k, row in enumerate(rows)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--imbalance", default="exp:20")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"unhinge {unhinge.__version__}, torch {torch.__version__}, {platform.machine()}, one thread")
    where = f"digits, {options.imbalance}, {options.epochs} epochs, rate {options.lr:g}, {options.seeds} seeds"
    print(f"{where}; accuracy in percent\n")
    seeds = []
    for seed in range(options.seeds):
        seeds.append(run(seed, options.epochs, options.lr, options.imbalance))
        if len(seeds) in (3, options.seeds):
            print(table(seeds), flush=True)


if __name__ == "__main__":
    main()
