"""Facts around the loss: when it means a correct answer, what it bounds, how it is adjusted (errata 33 to 36)."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from unhinge.paper.claims.oracles import mean_loss, relative
from unhinge.paper.claims.problems import between, gaussian, simplex, whole
from unhinge.paper.claims.registry import Formula, SharperCheck, Undefined, claim

ROUNDING = "float64 rounding"


def threshold(num_classes: int, gamma: float) -> float:
    return -(1 + gamma) * math.sqrt((num_classes - 2) / (2 * (num_classes - 1)))


def least_wrong_loss(generator: torch.Generator, num_classes: int, gamma: float) -> float:
    """The least loss of a unit feature that is not classified correctly, by constrained minimization."""
    weight = simplex(num_classes).numpy()

    def loss(h: np.ndarray) -> float:
        logits = weight @ h
        return float(-logits[0] + gamma * logits[1:].sum())

    constraints = [
        {"type": "eq", "fun": lambda h: h @ h - 1},
        {"type": "ineq", "fun": lambda h: (weight[1] - weight[0]) @ h},
    ]
    starts = gaussian(generator, 5, num_classes).numpy()
    minima = [minimize(loss, x / np.linalg.norm(x), constraints=constraints, options={"ftol": 1e-14}) for x in starts]
    return min(float(minimum.fun) for minimum in minima)


def _is_the_threshold(generator: torch.Generator, formula: Formula) -> float:
    classes, gamma = whole(generator, 3, 8), between(generator, 0.1, 1.0)
    return abs(formula(classes, gamma) - least_wrong_loss(generator, classes, gamma))


claim(
    "appendix-threshold",
    title="The loss below which a unit feature with simplex-ETF prototypes must be classified correctly",
    where="clarification-of-unhinged-loss",
    says="−(1+γ)√((C−2)/(2(C−1)))",
    right="−(1+γ)√((C−2)/(2(C−1))), and no larger value will do",
    ours=threshold,
    oracle="constrained minimization of the loss over misclassified features",
    tolerance=1e-6,
    because="the minimizer stops when a step gains 1e-14, about the square root of that from the minimum at worst",
)(_is_the_threshold)

claim(
    "appendix-threshold-again",
    title="The loss below which a unit feature must be classified correctly, mentioned a second time",
    where="clarification-of-unhinged-loss",
    says="+(1+γ)√((C−2)/(2(C−1)))",
    right="−(1+γ)√((C−2)/(2(C−1)))",
    printed=lambda classes, gamma: -threshold(classes, gamma),
    ours=threshold,
    oracle="constrained minimization of the loss over misclassified features",
    tolerance=1e-6,
    because="the minimizer stops when a step gains 1e-14, about the square root of that from the minimum at worst",
    errata=(33,),
    severity="A",
)(_is_the_threshold)


@claim(
    "appendix-lower-bound",
    title="The least loss of a unit feature with simplex-ETF prototypes",
    where="clarification-of-unhinged-loss",
    says="−(1+γ)",
    ours=lambda gamma: -(1 + gamma),
    oracle="gradient descent on the sphere",
    tolerance=1e-9,
    because="400 steps of descent",
)
def lower_bound(generator: torch.Generator, formula: Formula) -> float:
    classes, gamma = whole(generator, 3, 8), between(generator, 0.1, 1.0)
    weight = simplex(classes)
    h = gaussian(generator, classes)
    h = h / h.norm()
    label = torch.tensor([0])
    for _ in range(400):
        x = h.requires_grad_()
        (gradient,) = torch.autograd.grad(mean_loss((x @ weight.T)[None], label, gamma), x)
        h = (h - gradient).detach()
        h = h / h.norm()
    return abs(formula(gamma) - mean_loss((h @ weight.T)[None], label, gamma).item())


def binary_cross_entropies(logits: Tensor, label: int, gamma: float) -> float:
    soft = torch.nn.functional.softplus
    others = torch.cat([logits[:label], logits[label + 1 :]])
    return (soft(-logits[label]) + gamma * soft(others).sum()).item()


@claim(
    "appendix-binary-bound",
    title="The loss is at most the sum of binary cross-entropies, the others weighted by γ",
    where="clarification-of-unhinged-loss",
    says="log(1 + e^(−z_y)) + γ Σ log(1 + e^(z_j))",
    ours=binary_cross_entropies,
    oracle="300 random logits of all sizes; for large ones with the right signs the two must agree",
    tolerance=1e-9,
    because=ROUNDING,
    problems=300,
)
def binary_bound(generator: torch.Generator, formula: Formula) -> float:
    classes, gamma = whole(generator, 2, 8), between(generator, 0.0, 2.0)
    label = whole(generator, 0, classes - 1)
    logits = gaussian(generator, classes) * 10 ** between(generator, -1, 1.5)
    tight = whole(generator, 0, 1) == 1
    if tight:  # softplus(x) = x to rounding
        logits = torch.where(torch.arange(classes) == label, -1.0, 1.0) * (40 + logits.abs())
    loss = mean_loss(logits[None], torch.tensor([label]), gamma).item()
    excess = loss - formula(logits, label, gamma)
    return abs(excess) if tight else max(excess, 0.0)


def printed_cross_entropy(weight: Tensor, bias: Tensor, h: Tensor, label: int, gamma: float) -> float:
    """(w_y + b_y) h, the bias added to each entry of the prototype: the only reading with a value."""
    classes, logits = len(weight), weight @ h + bias
    own = ((weight[label] + bias[label]) @ h).item()
    entropy = torch.nn.functional.cross_entropy(logits, torch.tensor(label)).item()
    return (gamma * (classes - 1) - 1) * own + gamma * (classes - 1) * entropy


def right_cross_entropy(weight: Tensor, bias: Tensor, h: Tensor, label: int, gamma: float) -> float:
    """With the logit itself, and sharpened by log(C - 1)."""
    classes, logits = len(weight), weight @ h + bias
    own = logits[label].item()
    entropy = torch.nn.functional.cross_entropy(logits, torch.tensor(label)).item()
    return (gamma * (classes - 1) - 1) * own + gamma * (classes - 1) * (entropy - math.log(classes - 1))


def _bias_that_lowers(classes: int, label: int, weight: Tensor, h: Tensor) -> Tensor:
    """The bias that puts the own logit 40 below the others, which are equal."""
    return torch.where(torch.arange(classes) == label, -40.0, 0.0).double() - weight @ h


def _attained(generator: torch.Generator, formula: Formula) -> float:
    classes, gamma, label = whole(generator, 2, 8), between(generator, 0.1, 2.0), 0
    weight, h = gaussian(generator, classes, 3), gaussian(generator, 3)
    bias = _bias_that_lowers(classes, label, weight, h)
    loss = mean_loss((weight @ h + bias)[None], torch.tensor([label]), gamma).item()
    return abs(loss - formula(weight, bias, h, label, gamma))


@claim(
    "appendix-cross-entropy-bound",
    title="The loss is at most a multiple of the own logit plus γ(C−1) times the cross-entropy",
    where="clarification-of-unhinged-loss",
    says="with (w_y + b_y)h for the own logit, a vector plus a number; read entry by entry the bound fails",
    right="with w_y·h + b_y it is true but loose: γ(C−1)log(C−1) less is still enough, and attained",
    printed=printed_cross_entropy,
    ours=right_cross_entropy,
    oracle="300 random logits, one in two with equal other logits far above the own",
    tolerance=1e-9,
    because=ROUNDING,
    errata=(34,),
    severity="C",
    problems=300,
    sharper=SharperCheck(_attained, 1e-9, "e⁻⁴⁰, and the rounding of logits of size 40"),
)
def cross_entropy_bound(generator: torch.Generator, formula: Formula) -> float:
    classes, gamma = whole(generator, 2, 8), between(generator, 0.1, 2.0)
    label = whole(generator, 0, classes - 1)
    weight, bias, h = gaussian(generator, classes, 3), gaussian(generator, classes), gaussian(generator, 3)
    if whole(generator, 0, 1) == 1:
        bias = _bias_that_lowers(classes, label, weight, h)
    loss = mean_loss((weight @ h + bias)[None], torch.tensor([label]), gamma).item()
    return max(loss - formula(weight, bias, h, label, gamma), 0.0)


# ---- the adjusted margin ----------------------------------------------------------------------------------------


def printed_shift(w: Tensor, unit: Tensor, epsilon: float) -> Tensor:
    cosine = (w @ unit / w.norm()).item()
    if 1 - cosine**2 <= 0:
        raise Undefined("division by 0 at cosine −1")
    ratio = cosine * math.sqrt(1 - (1 - epsilon) ** 2) / ((1 - epsilon) * math.sqrt(1 - cosine**2))
    return -(1 + ratio) * (w + unit * (unit @ w))


def right_shift(w: Tensor, unit: Tensor, epsilon: float) -> Tensor:
    cosine = (w @ unit / w.norm()).clamp(-1, 1).item()
    side = w - unit * (unit @ w)
    if side.norm() <= 1e-12 * w.norm():  # any direction perpendicular to the feature
        side = torch.eye(len(w), dtype=w.dtype)[int(unit.abs().argmin())]
        side = side - unit * (unit @ side)
    tangent = math.sqrt(1 - (1 - epsilon) ** 2) / (1 - epsilon)
    return w.norm() * (abs(cosine) * tangent - math.sqrt(1 - cosine**2)) * side / side.norm()


@claim(
    "appendix-adjusted-margin",
    title="The shift δ that brings the cosine of w_y + δ and the feature to −1 + ε",
    where="potential-insights",
    says="a multiple of w_y + ĥĥᵀw_y",
    right="a multiple of w_y − ĥĥᵀw_y, and at cosine −1 of any vector perpendicular to ĥ",
    printed=printed_shift,
    ours=right_shift,
    oracle="the cosine after the shift, and that the shift leaves w_y·ĥ alone; one start in four exactly opposite",
    tolerance=1e-7,
    because="√(1 − cos²) keeps half the digits near −1",
    errata=(35,),
    severity="A",
    problems=12,
)
def adjusted_margin(generator: torch.Generator, formula: Formula) -> float:
    epsilon = between(generator, 0.02, 0.3)
    w = between(generator, 0.5, 2.0) * torch.nn.functional.normalize(gaussian(generator, 4), dim=0)
    side = gaussian(generator, 4)
    side = torch.nn.functional.normalize(side - w * (side @ w) / w.norm() ** 2, dim=0)
    lowest = math.acos(-1 + epsilon)
    theta = math.pi if whole(generator, 0, 3) == 0 else between(generator, lowest, math.pi)
    unit = -w / w.norm() if theta == math.pi else math.cos(theta) * w / w.norm() + math.sin(theta) * side
    shift = formula(w, unit, epsilon)
    moved = w + shift
    return max(abs((moved @ unit / moved.norm()).item() + 1 - epsilon), abs((shift @ unit).item()))


# ---- calibration ------------------------------------------------------------------------------------------------


def binned(confidence: Tensor, correct: Tensor, bins: int) -> float:
    """Equal widths, each bin open on the left, empty bins skipped."""
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    zeros = torch.zeros(bins, dtype=torch.float64)
    hits = zeros.index_add(0, index, correct.double())
    trust = zeros.index_add(0, index, confidence)
    return ((hits - trust).abs().sum() / len(confidence)).item()


@claim(
    "appendix-calibration-error",
    title="The expected calibration error",
    where="appendix-experiments",
    says="Σ |S_b|/N · |accuracy − confidence| over interval bins of equal size",
    right="the same, the size of an interval being its width in confidence",
    ours=binned,
    remark='True as printed; "equal size" is to be read as equal width, not as equal numbers of predictions.',
    oracle="the definition, one bin and one prediction at a time",
    tolerance=1e-12,
    because=ROUNDING,
)
def calibration_error(generator: torch.Generator, formula: Formula) -> float:
    n, bins = 200, whole(generator, 5, 20)
    confidence = torch.rand(n, generator=generator, dtype=torch.float64) ** 0.5
    confidence[0] = 1.0  # the edge that is easily lost
    correct = torch.rand(n, generator=generator, dtype=torch.float64) < confidence**2
    total = 0.0
    for b in range(bins):
        inside = [i for i in range(n) if b / bins < confidence[i].item() <= (b + 1) / bins]
        if inside:
            accuracy = sum(correct[i].item() for i in inside) / len(inside)
            trust = sum(confidence[i].item() for i in inside) / len(inside)
            total += len(inside) / n * abs(accuracy - trust)
    return abs(formula(confidence, correct, bins) - total)


# ---- making a simplex ETF ---------------------------------------------------------------------------------------


@claim(
    "appendix-etf-objective",
    title="The objective whose minimum over unit prototypes and features is a simplex ETF",
    where="the-unhinged-loss-with-pal",
    says="the sum of log softmax",
    right="minus the sum of log softmax",
    printed=lambda log_softmax: log_softmax,
    ours=lambda log_softmax: -log_softmax,
    oracle="gradient descent on the sphere, then the Gram matrix",
    tolerance=1e-6,
    because="600 steps of descent",
    errata=(36,),
    severity="B",
    problems=2,
)
def etf_objective(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 3, 5)
    m, h = (gaussian(generator, classes, classes).requires_grad_() for _ in range(2))
    optimizer = torch.optim.SGD([m, h], lr=0.5)
    for _ in range(600):
        optimizer.zero_grad()
        a, b = (torch.nn.functional.normalize(x, dim=1) for x in (m, h))
        formula(torch.log_softmax(2 * b @ a.T, dim=1).diagonal().sum()).backward()
        optimizer.step()
    unit = torch.nn.functional.normalize(m.detach(), dim=1)
    return relative(unit @ unit.T, simplex(classes) @ simplex(classes).T)


def rotated_simplex(basis: Tensor) -> Tensor:
    r"""Rows of :math:`\sqrt{C/(C-1)}\,(I - 11^\top/C)\,U^\top`, U with orthonormal columns."""
    classes = basis.shape[1]
    centered = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return math.sqrt(classes / (classes - 1)) * centered @ basis.T


@claim(
    "appendix-etf-closed-form",
    title="A simplex ETF by rotating √(C/(C−1))(I − 11ᵀ/C)",
    where="the-unhinged-loss-with-pal",
    says="unit prototypes with all cosines −1/(C−1)",
    ours=rotated_simplex,
    oracle="norms and cosines, pair by pair",
    tolerance=1e-12,
    because=ROUNDING,
)
def etf_closed_form(generator: torch.Generator, formula: Formula) -> float:
    classes = whole(generator, 2, 7)
    basis = torch.linalg.qr(gaussian(generator, classes + 2, classes)).Q
    frame, worst = formula(basis), 0.0
    for i in range(classes):
        for j in range(classes):
            wanted = 1.0 if i == j else -1 / (classes - 1)
            worst = max(worst, abs((frame[i] @ frame[j]).item() - wanted))
    return worst
