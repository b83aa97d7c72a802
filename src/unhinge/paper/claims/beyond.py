"""Beyond the paper: our own statements, tested as the paper's claims are, and counted apart from them.

There is no printed form: a statement of ours holds, or `unhinge verify` fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn import functional as UF
from unhinge.nn import simplex_etf
from unhinge.paper.claims.problems import gaussian, whole
from unhinge.paper.claims.registry import Check, Claim, Formula
from unhinge.theory import EarlyCrossEntropy, EarlyPath, LayerPeeled

__all__ = ["own_statements"]

_OWN: list[Claim] = []
STEPS = (1, 10, 40)


def _own(
    id: str,
    *,
    title: str,
    says: str,
    ours: Formula,
    oracle: str,
    tolerance: float,
    because: str,
    page: str = "docs/theory/early.md",
) -> Callable[[Check], Claim]:
    def register(check: Check) -> Claim:
        made = Claim(id, title, page, says, says, oracle, check, ours, ours, tolerance, because)
        _OWN.append(made)
        return made

    return register


def own_statements() -> tuple[Claim, ...]:
    """All of them.

    Example:
        >>> [statement.id for statement in own_statements()][:2]
        ['beyond-gradient-at-zero', 'beyond-prior-path']
    """
    return tuple(_OWN)


def _labels(generator: torch.Generator, classes: int) -> Tensor:
    counts = torch.randint(1, 7, (classes,), generator=generator)
    labels = torch.arange(classes).repeat_interleave(counts)
    return labels[torch.randperm(len(labels), generator=generator)]


def _loss(logits: Tensor, labels: Tensor, offsets: Tensor, temperature: float, smoothing: float) -> Tensor:
    return F.cross_entropy(logits / temperature + offsets, labels, label_smoothing=smoothing)


def _linear_gradient(labels: Tensor, offsets: Tensor, temperature: float, smoothing: float) -> Tensor:
    r""":math:`(q - (1-\varepsilon)e_y - \varepsilon\mathbf 1/C) / (nT)` with :math:`q = \mathrm{softmax}(\tau)`."""
    classes = len(offsets)
    aim = (1 - smoothing) * F.one_hot(labels, classes).double() + smoothing / classes
    return (offsets.softmax(0) - aim) / (temperature * len(labels))


@_own(
    "beyond-gradient-at-zero",
    title="At zero logits the gradient of cross-entropy is that of a linear loss",
    says="With offsets, temperature and label smoothing it is (softmax(offsets) - target) / temperature, exactly.",
    ours=_linear_gradient,
    oracle="autograd on F.cross_entropy",
    tolerance=1e-15,
    because="a few roundings of numbers below 1",
)
def _(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 2, 9)
    labels, offsets = _labels(generator, classes), gaussian(generator, classes)
    temperature = 0.5 + 3 * torch.rand((), generator=generator).item()
    smoothing = 0.4 * torch.rand((), generator=generator).item()
    zero = torch.zeros(len(labels), classes, dtype=torch.float64, requires_grad=True)
    (real,) = torch.autograd.grad(_loss(zero, labels, offsets, temperature, smoothing), zero)
    return (formula(labels, offsets, temperature, smoothing) - real).abs().max().item()


def _prior_path(labels: Tensor, prior: Tensor, features: Tensor, weight: Tensor, lr: float, steps: int) -> Tensor:
    state = LayerPeeled(labels, len(prior), prior=prior).descent(features, weight, lr=lr).at(steps)
    return torch.cat([state.features, state.weight])


@_own(
    "beyond-prior-path",
    title="Losses with any prior have the exact path of the master formula",
    says="Descent on -z_y + prior . z, from any start, is the exact path with the spectrum of that prior.",
    ours=_prior_path,
    oracle="the steps themselves, by autograd on the loss",
    tolerance=1e-12,
    because="forty steps of rounding in the reference",
)
def _(generator: torch.Generator, formula: Formula) -> float:
    classes, dim = whole(generator, 2, 6), whole(generator, 1, 8)
    labels = _labels(generator, classes)
    prior = torch.rand(classes, generator=generator, dtype=torch.float64)
    prior = prior / prior.sum()
    start = gaussian(generator, len(labels) + classes, dim)
    features, weight = start.split([len(labels), classes])
    h, w = features, weight
    for _ in range(STEPS[-1]):
        h, w = h.detach().requires_grad_(), w.detach().requires_grad_()
        logits = h @ w.mT
        loss = (logits @ prior - logits.gather(1, labels[:, None])[:, 0]).mean()
        dh, dw = torch.autograd.grad(loss, (h, w))
        h, w = h - 0.2 * dh, w - 0.2 * dw
    real = torch.cat([h, w]).detach()
    return ((formula(labels, prior, features, weight, 0.2, STEPS[-1]) - real).norm() / real.norm()).item()


def _bounds(path: EarlyPath, steps: tuple[int, ...]) -> Tensor:
    return path.error_bound(torch.tensor(steps))


@_own(
    "beyond-bound",
    title="Real cross-entropy is never farther from its linear path than error_bound says",
    says="The relative distance of the two states is at most the bound, at every step, whatever the problem.",
    ours=_bounds,
    oracle="real cross-entropy, descended by autograd from the same start",
    tolerance=0.0,
    because="it is a bound: what exceeds it counts, by how much relative to the bound",
)
def _(generator: torch.Generator, formula: Formula) -> float:
    classes, dim = whole(generator, 2, 5), whole(generator, 2, 8)
    labels = _labels(generator, classes)
    scale = 10 ** (-2.5 + 2 * torch.rand((), generator=generator).item())
    offsets = gaussian(generator, classes) * whole(generator, 0, 1)
    smoothing = 0.2 * whole(generator, 0, 1)
    start = scale * gaussian(generator, len(labels) + classes, dim)
    features, weight = start.split([len(labels), classes])
    problem = EarlyCrossEntropy(labels, classes, label_smoothing=smoothing, logit_adjustment=offsets)
    path = problem.descent(features, weight, lr=0.1)
    bounds = formula(path, STEPS).tolist()
    h, w, excess = features, weight, 0.0
    for step in range(1, STEPS[-1] + 1):
        h, w = h.detach().requires_grad_(), w.detach().requires_grad_()
        dh, dw = torch.autograd.grad(_loss(h @ w.mT, labels, offsets, 1.0, smoothing), (h, w))
        h, w = h - 0.1 * dh, w - 0.1 * dw
        if step in STEPS:
            state = path.at(step)
            exact = torch.cat([state.features, state.weight])
            error = ((exact - torch.cat([h, w])).norm() / exact.norm()).item()
            bound = bounds[STEPS.index(step)]
            excess = max(excess, 0.0 if bound == math.inf else error / bound - 1)
    return excess


@_own(
    "beyond-posterior",
    title="On a fixed simplex with a radius, logits are affine in the posterior",
    says="The minimizer of the expected loss has logits z with P = 1/C + (C-1)/C z / radius.",
    ours=UF.posterior,
    oracle="one Newton step on the expected loss, which is quadratic, by autograd",
    tolerance=1e-12,
    because="one linear solve of a well-conditioned matrix",
    page="docs/theory/parts.md",
)
def _(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 2, 7)
    dim, radius = classes + whole(generator, 0, 4), 0.5 + 10 * torch.rand((), generator=generator).item()
    frame = simplex_etf(classes, dim, generator, dtype=torch.float64)
    true = torch.rand(classes, generator=generator, dtype=torch.float64)
    true = true / true.sum()
    strength = UF.penalty_strength(radius, classes)

    def expected(h: Tensor) -> Tensor:
        logits = (frame @ h).expand(classes, classes)
        losses = UF.unhinged_loss(logits, torch.arange(classes), reduction="none")
        return (true * losses).sum() + strength * h.square().sum()

    zero = torch.zeros(dim, dtype=torch.float64)
    gradient = torch.autograd.functional.jacobian(expected, zero)
    best = torch.linalg.solve(torch.autograd.functional.hessian(expected, zero), -gradient)
    return (formula((frame @ best)[None], radius)[0] - true).abs().max().item()


def _kernel_sums(kernel: Tensor, labels: Tensor, classes: int, gamma: float, clock: float) -> Tensor:
    r"""Logits of a fixed simplex: the kernel summed over each class, less its mean over the classes."""
    sums = kernel @ F.one_hot(labels, classes).double()
    centered = sums - sums.mean(1, keepdim=True)
    return clock * (1 + gamma) / len(labels) * classes / (classes - 1) * centered


@_own(
    "beyond-kernel-sums",
    title="On a fixed simplex, a constant kernel and no decay make a classifier of kernel sums",
    says="At every step the logit of a class is the sum of the kernel over its examples, up to what all classes share.",
    ours=_kernel_sums,
    oracle="gradient descent on the parameters of linear features, by autograd",
    tolerance=1e-12,
    because="forty steps of rounding in the reference",
    page="docs/theory/kernel.md",
)
def _(generator: torch.Generator, formula: Formula) -> float:
    classes, width = whole(generator, 2, 6), whole(generator, 1, 9)
    labels, gamma = _labels(generator, classes), torch.rand((), generator=generator).item()
    frame = simplex_etf(classes, classes + whole(generator, 0, 3), generator, dtype=torch.float64)
    inputs = gaussian(generator, len(labels), width)  # features = inputs @ parameters: a constant kernel
    parameters = torch.zeros(width, frame.shape[1], dtype=torch.float64)
    for _ in range(STEPS[-1]):
        parameters = parameters.detach().requires_grad_()
        loss = UF.unhinged_loss(inputs @ parameters @ frame.mT, labels, gamma)
        parameters = parameters - 0.2 * torch.autograd.grad(loss, parameters)[0]
    real = (inputs @ parameters @ frame.mT).detach()
    mine = formula(inputs @ inputs.mT, labels, classes, gamma, 0.2 * STEPS[-1])
    return ((mine - real).norm() / real.norm()).item()
