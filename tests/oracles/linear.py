r"""Slow answers, written from the definition; they share no algebra with the package.

A *case* is anything with the fields of :class:`strategies.Case`. The mpmath oracles take its floats as the exact
binary numbers they are, except a gamma that rounds from :math:`1/(C-1)` or :math:`2/(C-2)`, which means the fraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath as mp
import numpy as np
import scipy.integrate
import scipy.linalg
import torch
from torch import Tensor

EPS = 2.0**-52
DIGITS = 100

__all__ = [
    "EPS",
    "DenseDescent",
    "DenseFlow",
    "Exact",
    "ThinFlow",
    "accuracy",
    "assert_exact",
    "collapse",
    "dense_target_matrix",
    "differentiable_flow",
    "expm_flow",
    "generator",
    "joint_norm",
    "objective",
    "ode_flow",
    "run_sgd",
    "singular_values",
    "target_matrix",
    "torch_loss",
    "worst",
]


# ---- comparing ------------------------------------------------------------------------------------------------------


def worst(actual: Tensor, expected: Tensor | np.ndarray, scale: float | None = None) -> float:
    """Largest error in eps of the largest expected entry (or of `scale`)."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    size = expected.abs().max().item() if scale is None else scale
    error = (actual.detach().double().cpu() - expected).abs().max().item()
    return error / (EPS * size) if size > 0 and math.isfinite(size) else (0.0 if error == 0 else float("inf"))


def assert_exact(actual: Tensor, expected: Tensor | np.ndarray, eps: float, scale: float | None = None) -> None:
    """Within `eps` machine epsilons of the largest expected entry (or of `scale`); shapes must agree."""
    assert tuple(actual.shape) == tuple(torch.as_tensor(expected).shape)
    measured = worst(actual, expected, scale)
    assert measured <= eps, f"off by {measured:.3g} eps, the budget is {eps:.3g} eps"


def joint_norm(features: Tensor, weight: Tensor) -> Tensor:
    """Frobenius norm of Z = (H, W) over the last two axes."""
    return (features.double().pow(2).sum((-2, -1)) + weight.double().pow(2).sum((-2, -1))).sqrt()


# ---- the problem, from the definition -------------------------------------------------------------------------------


def exact_gamma(gamma: Any, num_classes: int) -> Fraction:
    if gamma is None or float(gamma) == 1 / (num_classes - 1):
        return Fraction(1, num_classes - 1)
    if num_classes > 2 and float(gamma) == 2 / (num_classes - 2):
        return Fraction(2, num_classes - 2)
    return Fraction(float(gamma))


def _mpf(value: Any) -> mp.mpf:
    if isinstance(value, Fraction):
        return mp.mpf(value.numerator) / value.denominator
    return mp.mpf(float(value))


def _example_weights(case: Any) -> list[list[mp.mpf]]:
    """Row i: weight of each class in the loss of example i, a_c q_ic / total weight."""
    num_classes = case.num_classes
    if case.target.is_floating_point():
        labels = [[_mpf(q) for q in row] for row in case.target.tolist()]
    else:
        labels = [[mp.mpf(int(c == y)) for c in range(num_classes)] for y in case.target.tolist()]
    mass = [mp.fsum(row[c] for row in labels) for c in range(num_classes)]
    if case.class_weight is None:
        a = [mp.mpf(1)] * num_classes
    elif isinstance(case.class_weight, str):
        a = [1 / mp.sqrt(m) for m in mass]
    else:
        a = [_mpf(x) for x in case.class_weight.tolist()]
    total = mp.fsum(a[c] * mass[c] for c in range(num_classes))
    return [[a[c] * row[c] / total for c in range(num_classes)] for row in labels]


def target_matrix(case: Any) -> mp.matrix:
    """M (C, n) with mean loss -<M, logits>: entry (j, i) is minus the slope of example i's loss in its logit j."""
    gamma = _mpf(exact_gamma(case.gamma, case.num_classes))
    prior = exact_prior(case)
    rows = _example_weights(case)
    matrix = mp.matrix(case.num_classes, len(rows))
    for i, row in enumerate(rows):
        for c, share in enumerate(row):  # loss of class c: -z_c + gamma * sum of the others, or -z_c + prior . z
            for j in range(case.num_classes):
                if prior is None:
                    matrix[j, i] += share * (1 if j == c else -gamma)
                else:
                    matrix[j, i] += share * (int(j == c) - prior[j])
    return matrix


def exact_prior(case: Any) -> list[mp.mpf] | None:
    """The prior divided by its exact sum; "counts" are the class frequencies."""
    given = getattr(case, "prior", None)
    if given is None:
        return None
    if isinstance(given, str):
        labels = case.target.tolist()
        if case.target.is_floating_point():
            values = [mp.fsum(_mpf(row[c]) for row in labels) for c in range(case.num_classes)]
        else:
            values = [mp.mpf(labels.count(c)) for c in range(case.num_classes)]
    else:
        values = [_mpf(x) for x in given.tolist()]
    return [x / mp.fsum(values) for x in values]


def dense_target_matrix(case: Any) -> np.ndarray:
    with mp.workdps(DIGITS):
        return np.array(target_matrix(case).tolist(), dtype=float)


def singular_values(case: Any) -> list[float]:
    """All min(C, n) singular values of M, descending."""
    with mp.workdps(DIGITS):
        matrix = target_matrix(case)
        values = sorted(mp.svd_r(matrix if matrix.rows <= matrix.cols else matrix.T, compute_uv=False), reverse=True)
        return [float(v) if v > mp.mpf(10) ** -50 else 0.0 for v in values]


def generator(case: Any) -> np.ndarray:
    """The matrix of Z' = G Z with Z = (H; W) stacked, rates included."""
    m = dense_target_matrix(case)
    classes, n = m.shape
    one, two = case.lr
    top = np.hstack([-one * case.feature_decay * np.eye(n), one * m.T])
    bottom = np.hstack([two * m, -two * case.weight_decay * np.eye(classes)])
    return np.vstack([top, bottom])


# ---- mpmath ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """The exact state at one time, rounded once at the end."""

    features: np.ndarray  # H / |Z|
    weight: np.ndarray  # W / |Z|
    log_norm: mp.mpf
    bias: np.ndarray | None
    bias_scale: float  # size of the terms that make up the bias
    loss_scaled: mp.mpf  # loss of H/|Z|, W/|Z|, without the bias

    def unscaled(self) -> tuple[np.ndarray, np.ndarray]:
        size = float(mp.exp(self.log_norm))
        return self.features * size, self.weight * size


def _matrix(tensor: Tensor) -> mp.matrix:
    return mp.matrix([[_mpf(x) for x in row] for row in tensor.tolist()])


def _rounded(case: Any, m: mp.matrix, features: mp.matrix, weight: mp.matrix, time: Any) -> Exact:
    square = mp.fsum(x * x for x in features) + mp.fsum(x * x for x in weight)
    norm = mp.sqrt(square)
    bias, scale = None, 0.0
    if case.bias is not None:
        rate, decay = _mpf(case.lr[1]), _mpf(case.weight_decay)
        clock = rate * mp.mpf(time)
        kept = mp.exp(-decay * clock)
        pushed = clock if decay == 0 else (1 - kept) / decay
        kappa = [mp.fsum(m[c, i] for i in range(m.cols)) for c in range(m.rows)]
        terms = [(kept * _mpf(b), k * pushed) for b, k in zip(case.bias.tolist(), kappa, strict=True)]
        bias = np.array([float(a + b) for a, b in terms])
        scale = max(1e-80, *(abs(float(x)) for pair in terms for x in pair))
    if norm == 0:
        zero = np.zeros((features.rows, features.cols)), np.zeros((weight.rows, weight.cols))
        return Exact(*zero, mp.mpf("-inf"), bias, scale, mp.mpf(0))
    features, weight = features / norm, weight / norm
    logits = weight * features.T
    loss = -mp.fsum(m[c, i] * logits[c, i] for c in range(m.rows) for i in range(m.cols))
    return Exact(
        np.array(features.tolist(), dtype=float),
        np.array(weight.tolist(), dtype=float),
        mp.log(norm),
        bias,
        scale,
        loss,
    )


class DenseFlow:
    """Gradient flow by the eigenvectors of the full (n + C) x (n + C) generator, symmetrised; both rates positive."""

    def __init__(self, case: Any) -> None:
        self.case = case
        with mp.workdps(DIGITS):
            self.m = m = target_matrix(case)
            one, two = (_mpf(rate) for rate in case.lr)
            n, classes = m.cols, m.rows
            full = mp.matrix(n + classes)
            for i in range(n):
                full[i, i] = -one * _mpf(case.feature_decay)
            for c in range(classes):
                full[n + c, n + c] = -two * _mpf(case.weight_decay)
                for i in range(n):
                    full[i, n + c] = full[n + c, i] = mp.sqrt(one * two) * m[c, i]
            self.values, self.vectors = mp.eigsy(full)
            self.roots = [mp.sqrt(one)] * n + [mp.sqrt(two)] * classes
            state = mp.matrix(case.features.tolist() + case.weight.tolist())
            for i in range(state.rows):
                for j in range(state.cols):
                    state[i, j] = state[i, j] / self.roots[i]
            self.coordinates = self.vectors.T * state

    def at(self, time: Any) -> Exact:
        with mp.workdps(DIGITS):
            moved = self.coordinates.copy()
            for k in range(moved.rows):
                factor = mp.exp(self.values[k] * mp.mpf(time))
                for j in range(moved.cols):
                    moved[k, j] = moved[k, j] * factor
            state = self.vectors * moved
            for i in range(state.rows):
                for j in range(state.cols):
                    state[i, j] = state[i, j] * self.roots[i]
            n = self.m.cols
            return _rounded(self.case, self.m, state[:n, :], state[n:, :], time)


class ThinFlow:
    r"""The same for larger n, through the C x C matrix :math:`M M^\top`, of which the full exponential is a function.
    Checked against :class:`DenseFlow`; one of the two rates may be 0."""

    def __init__(self, case: Any) -> None:
        self.case = case
        with mp.workdps(DIGITS):
            self.m = m = target_matrix(case)
            self.values, self.vectors = mp.eigsy(m * m.T)
            self.features, self.weight = _matrix(case.features), _matrix(case.weight)
            self.seen = self.vectors.T * (m * self.features)  # u^T M H
            self.coordinates = self.vectors.T * self.weight  # u^T W
            self.reads = m.T * self.vectors  # M^T u

    def at(self, time: Any) -> Exact:
        case = self.case
        with mp.workdps(DIGITS):
            one, two = (_mpf(rate) * mp.mpf(time) for rate in case.lr)
            a, b = one * _mpf(case.feature_decay), two * _mpf(case.weight_decay)
            half, mean = (a - b) / 2, (a + b) / 2

            def functions(tau: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
                delta = mp.sqrt(half * half + one * two * tau)
                ratio = mp.sinh(delta) / delta if delta > mp.mpf(10) ** -60 else mp.mpf(1)
                return mp.exp(-mean) * mp.cosh(delta), mp.exp(-mean) * ratio

            cosh, sinhc = functions(mp.mpf(0))
            still = cosh - half * sinhc
            features = still * self.features
            coefficients = mp.matrix(self.weight.rows, self.weight.cols)
            added = mp.matrix(self.weight.rows, self.weight.cols)
            for k in range(len(self.values)):
                tau = max(self.values[k], mp.mpf(0))
                cosh, sinhc = functions(tau)
                null = tau < mp.mpf(10) ** -80
                for j in range(self.weight.cols):
                    y, z = self.coordinates[k, j], self.seen[k, j]
                    coefficients[k, j] = (cosh + half * sinhc) * y + two * sinhc * z
                    added[k, j] = one * sinhc * y
                    if not null:
                        added[k, j] += (cosh - half * sinhc - still) / tau * z
            return _rounded(case, self.m, features + self.reads * added, self.vectors * coefficients, time)


class DenseDescent:
    """SGD at constant rates as a power of its full step matrix, by repeated squaring in exact digits."""

    def __init__(
        self,
        case: Any,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        decoupled: bool = False,
    ) -> None:
        self.case, self.momentum = case, momentum
        with mp.workdps(DIGITS):
            self.m = m = target_matrix(case)
            n, size = m.cols, m.cols + m.rows
            rates = [_mpf(case.lr[0])] * n + [_mpf(case.lr[1])] * m.rows
            decays = [_mpf(case.feature_decay)] * n + [_mpf(case.weight_decay)] * m.rows
            mu, tau = _mpf(momentum), _mpf(dampening)
            gradient, shrink = mp.matrix(size), mp.eye(size)
            for i in range(size):
                if decoupled:
                    shrink[i, i] = 1 - rates[i] * decays[i]
                else:
                    gradient[i, i] = decays[i]
            for i in range(n):
                for c in range(m.rows):
                    gradient[i, n + c] = gradient[n + c, i] = -m[c, i]
            rate = mp.diag(rates)
            # b <- mu b + (1 - tau) g, but b <- g in the first step; d = b, or g + mu b; z <- shrink z - rate d
            if momentum == 0:
                self.first = self.step = shrink - rate * gradient
            else:
                share = 1 - tau
                eye = mp.eye(size)
                fresh, kept, carry = (1 + mu, 1 + mu * share, mu * mu) if nesterov else (mp.mpf(1), share, mu)
                self.first = self._stack(shrink - rate * gradient * fresh, None, gradient, None)
                self.step = self._stack(shrink - rate * gradient * kept, -rate * carry, share * gradient, mu * eye)
            self.start = _matrix(torch.cat([case.features, case.weight]))

    @staticmethod
    def _stack(a: mp.matrix, b: mp.matrix | None, c: mp.matrix, d: mp.matrix | None) -> mp.matrix:
        size = a.rows
        full = mp.matrix(2 * size, size if b is None else 2 * size)
        for i in range(size):
            for j in range(size):
                full[i, j], full[size + i, j] = a[i, j], c[i, j]
                if b is not None and d is not None:
                    full[i, size + j], full[size + i, size + j] = b[i, j], d[i, j]
        return full

    def at(self, steps: int) -> Exact:
        with mp.workdps(DIGITS):
            state = self.start
            if steps:
                state = self.first * state
                power, left = self.step, steps - 1
                while left:
                    if left & 1:
                        state = power * state
                    power, left = power * power, left >> 1
            n, classes = self.m.cols, self.m.rows
            without_bias = replace(self.case, bias=None)
            return _rounded(without_bias, self.m, state[:n, :], state[n : n + classes, :], steps)


# ---- double precision -----------------------------------------------------------------------------------------------


def expm_flow(case: Any, time: float) -> tuple[np.ndarray, np.ndarray]:
    state = np.vstack([case.features.double().numpy(), case.weight.double().numpy()])
    moved = scipy.linalg.expm(time * generator(case)) @ state
    n = len(case.target)
    return moved[:n], moved[n:]


def ode_flow(
    case: Any,
    rates: tuple[Callable[[float], float], Callable[[float], float]],
    time: float,
    breaks: Sequence[float] = (),
    frozen: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """DOP853 on (H, W, b) under the two rates; `breaks` are the times where they jump; `frozen` holds W."""
    m = dense_target_matrix(case)
    classes, n = m.shape
    dim = case.features.shape[1]
    bias = np.zeros(classes) if case.bias is None else case.bias.double().numpy()
    state = np.concatenate([case.features.double().numpy().ravel(), case.weight.double().numpy().ravel(), bias])
    kappa = m.sum(1)

    def slope(t: float, flat: np.ndarray) -> np.ndarray:
        h, w, b = np.split(flat, [n * dim, (n + classes) * dim])
        h, w = h.reshape(n, dim), w.reshape(classes, dim)
        one, two = (float(rate(float(t))) for rate in rates)
        dh = one * (m.T @ w - case.feature_decay * h)
        dw = 0 * w if frozen else two * (m @ h - case.weight_decay * w)
        db = two * (kappa - case.weight_decay * b)
        return np.concatenate([dh.ravel(), dw.ravel(), db])

    edges = [0.0, *[b for b in breaks if 0 < b < time], time]
    for left, right in pairwise(edges):
        inside = (right - left) * 1e-13

        def clipped(
            t: float, flat: np.ndarray, left: float = left, right: float = right, inside: float = inside
        ) -> Any:
            return slope(min(max(t, left + inside), right - inside), flat)

        solved = scipy.integrate.solve_ivp(clipped, (left, right), state, method="DOP853", rtol=1e-12, atol=1e-14)
        state = solved.y[:, -1]
    h, w, b = np.split(state, [n * dim, (n + classes) * dim])
    return h.reshape(n, dim), w.reshape(classes, dim), b


def torch_loss(case: Any, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The (weighted) mean unhinged loss of the logits."""
    logits = features @ weight.mT if bias is None else features @ weight.mT + bias
    classes = case.num_classes
    gamma = 1 / (classes - 1) if case.gamma is None else case.gamma
    if case.target.is_floating_point():
        probabilities = case.target.to(logits)
    else:
        probabilities = torch.nn.functional.one_hot(case.target.long(), classes).to(logits)
    mass = probabilities.sum(0)
    if case.class_weight is None:
        a = torch.ones_like(mass)
    elif isinstance(case.class_weight, str):
        a = mass**-0.5
    else:
        a = case.class_weight.to(logits)
    eye = torch.eye(classes).to(logits)
    loss_if = logits @ (gamma * (1 - eye) - eye)  # (n, C): -z_c + gamma * the other logits, for each class c
    prior = exact_prior(case)
    if prior is not None:
        loss_if = (logits @ torch.tensor([float(q) for q in prior], dtype=torch.float64).to(logits))[:, None] - logits
    total = (a * probabilities * loss_if).sum()
    return total / (a * mass).sum()


Loss = Callable[[Any, Tensor, Tensor, Tensor | None], Tensor]  # of a case, features, prototypes and biases


def objective(case: Any, features: Tensor, weight: Tensor, bias: Tensor | None, loss: Loss = torch_loss) -> Tensor:
    """Loss plus the decay terms."""
    value = loss(case, features, weight, bias)
    value = value + case.feature_decay / 2 * features.pow(2).sum() + case.weight_decay / 2 * weight.pow(2).sum()
    return value if bias is None else value + case.weight_decay / 2 * bias.pow(2).sum()


def run_sgd(
    case: Any,
    rates: tuple[Callable[[int], float], Callable[[int], float]],
    steps: Sequence[int],
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    decoupled: bool = False,
    frozen: bool = False,
    loss: Loss = torch_loss,
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """torch.optim.SGD on the loss itself; the states after the given steps. `frozen` holds the prototypes."""
    features = torch.nn.Parameter(case.features.clone())
    weight = torch.nn.Parameter(case.weight.clone())
    bias = None if case.bias is None else torch.nn.Parameter(case.bias.clone())
    head = [] if frozen else [weight]
    head = head if bias is None else [*head, bias]
    decays = (0.0, 0.0) if decoupled else (case.feature_decay, case.weight_decay)
    groups: list[dict[str, Any]] = [{"params": [features], "weight_decay": decays[0]}]
    if head:
        groups.append({"params": head, "weight_decay": decays[1]})
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=momentum, dampening=dampening, nesterov=nesterov)
    states = {}
    for step in range(max(steps) + 1):
        if step in steps:
            states[step] = tuple(None if x is None else x.detach().clone() for x in (features, weight, bias))
        optimizer.zero_grad()
        loss(case, features, weight, bias).backward()
        for group, rate, decay in zip(
            optimizer.param_groups, rates, (case.feature_decay, case.weight_decay), strict=False
        ):
            group["lr"] = float(rate(step))
            if decoupled:
                with torch.no_grad():
                    for parameter in group["params"]:
                        parameter.mul_(1 - group["lr"] * decay)
        optimizer.step()
    return [states[step] for step in steps]


def accuracy(case: Any, features: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> float:
    """Share of examples whose largest logit is their label's; prototypes centred, which moves no argmax."""
    centred = weight - weight.mean(0)
    logits = features @ centred.T + (0 if bias is None else bias)
    labels = case.target.argmax(1) if case.target.is_floating_point() else case.target
    return float((logits.argmax(1) == labels.numpy()).mean())


def collapse(features: np.ndarray, weight: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Papyan, Han & Donoho's measures, one example and one pair of classes at a time."""
    classes = len(weight)
    means = np.stack([features[labels == c].mean(0) for c in range(classes)])
    centred = means - means.mean(0)
    within = np.zeros((features.shape[1],) * 2)
    for h, y in zip(features, labels, strict=True):
        within += np.outer(h - means[y], h - means[y]) / len(features)
    between = sum(np.outer(m, m) for m in centred) / classes
    result = {
        "nc1_ratio": np.trace(within) / np.trace(between),
        "nc1": np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / classes,
    }
    for name, rows in (("features", centred), ("weight", weight)):
        norms = np.linalg.norm(rows, axis=1)
        result[f"nc2_norm_{name}"] = norms.std() / norms.mean()
        cosines = [rows[a] @ rows[b] / (norms[a] * norms[b]) for a in range(classes) for b in range(classes) if a != b]
        result[f"nc2_angle_{name}"] = float(np.mean(np.abs(np.array(cosines) + 1 / (classes - 1))))
        gram = rows @ rows.T
        frame = np.eye(classes) - 1 / classes
        result[f"nc2_etf_{name}"] = np.linalg.norm(gram / np.linalg.norm(gram) - frame / np.linalg.norm(frame))
    result["nc3"] = np.linalg.norm(weight / np.linalg.norm(weight) - centred / np.linalg.norm(centred))
    cosines = [w @ m / (np.linalg.norm(w) * np.linalg.norm(m)) for w, m in zip(weight, centred, strict=True)]
    result["alignment"] = float(np.mean(cosines))
    return result


def differentiable_flow(
    case: Any,
    gamma: Tensor,
    decays: tuple[Tensor, Tensor],
    rates: tuple[Tensor, Tensor],
    state: tuple[Tensor, Tensor, Tensor | None],
    time: float,
    shift: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The flow through torch's matrix exponential of the dense generator, differentiable in everything.

    The state comes divided by exp(shift * time), so that late directions neither overflow nor drown in rounding.
    """
    features, weight, bias = state
    classes = case.num_classes
    shares = torch.tensor(_float_weights(case), dtype=torch.float64)  # (n, C)
    eye = torch.eye(classes, dtype=torch.float64)
    m = ((1 + gamma) * eye - gamma) @ shares.mT
    n = len(shares)
    zero = torch.zeros((), dtype=torch.float64)
    top = torch.cat([-rates[0] * decays[0] * torch.eye(n).double(), rates[0] * m.mT], 1)
    bottom = torch.cat([rates[1] * m, -rates[1] * decays[1] * eye], 1)
    full = torch.cat([top, bottom])
    full = full - shift * torch.eye(len(full), dtype=torch.float64)
    moved = torch.linalg.matrix_exp(time * full) @ torch.cat([features, weight])
    if bias is not None:
        # (b, 1)' = ((-decay b + kappa) rate, 0)
        column = (rates[1] * m.sum(1))[:, None]
        affine = torch.cat([-rates[1] * decays[1] * eye, column], 1)
        affine = torch.cat([affine, zero.expand(1, classes + 1)])
        bias = (torch.linalg.matrix_exp(time * affine) @ torch.cat([bias, torch.ones(1).double()]))[:classes]
    return moved[:n], moved[n:], bias


def _float_weights(case: Any) -> list[list[float]]:
    with mp.workdps(DIGITS):
        return [[float(x) for x in row] for row in _example_weights(case)]
