"""What a claim looks like: curves over time or over a parameter, printed form, ours and the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp

from unhinge.paper.claims import anchored, captions, lemma1, regularized, spherical, unconstrained
from unhinge.paper.claims.oracles import apart, dense_flow, expand, relative
from unhinge.paper.claims.problems import draw, gaussian

__all__ = ["PICTURES", "Line", "Picture"]

Role = Literal["reference", "printed", "ours"]


@dataclass(frozen=True)
class Line:
    role: Role
    label: str
    x: Sequence[float]
    y: Sequence[float]
    marks: bool = False  # points, for what was simulated


@dataclass(frozen=True)
class Picture:
    """Axes and lines; the caption says on which problem."""

    caption: str
    across: str
    up: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _nan_below(floor: float, values: Sequence[float]) -> list[float]:
    """Values below the floor are left out of the line."""
    return [x if x > floor else math.nan for x in values]


def lemma_value(seed: int) -> Picture:
    classes, gammas = 5, [x / 20 for x in range(1, 41)]
    few = gammas[3::9]
    minima = []
    for gamma in few:
        states = lemma1.brute_force(_generator(seed), classes, 4, gamma, 1.0, 1.0)
        minima.append(lemma1.losses(states[0], states[1], gamma).min().item())
    return Picture(
        "five classes, four dimensions, unit norms",
        "γ",
        "least mean loss",
        (
            Line(
                "printed", "printed, −(1 + γ)", gammas, [lemma1.printed_minimum(classes, x, 1.0, 1.0) for x in gammas]
            ),
            Line("ours", "right", gammas, [lemma1.minimum(classes, x, 1.0, 1.0) for x in gammas]),
            Line("reference", "projected gradient descent", few, minima, marks=True),
        ),
    )


def bias_under_decay(seed: int) -> Picture:
    decay, start, drive = 0.6, 0.5, 0.8
    times = [x / 20 for x in range(1, 39)]
    solved = solve_ivp(
        lambda t, b: regularized.rate_shape(t) * (drive - decay * b), (0, 1.9), [start], "DOP853", times, rtol=1e-10
    )

    def value(time: float, formula: Callable[[float, float], float]) -> float:
        return math.exp(-decay * regularized.clock_of(time)) * (start + drive * formula(decay, time))

    return Picture(
        "λ₂ = 0.6, a cosine rate, b₀ = 0.5",
        "time",
        "bias",
        (
            Line("printed", "printed, ψ with ζ₂", times, [value(t, regularized.printed_drive) for t in times]),
            Line("ours", "right, ψ with η₂", times, [value(t, regularized.right_drive) for t in times]),
            Line("reference", "ODE solver", times[::4], solved.y[0][::4].tolist(), marks=True),
        ),
    )


def flow_under_decay(seed: int) -> Picture:
    problem = draw(_generator(seed)).with_decay(0.15, 0.05)
    clocks = np.linspace(0.2, 12, 50).tolist()
    exact = [dense_flow(problem, 2 * x, x) for x in clocks]

    def errors(formula: Callable[..., torch.Tensor]) -> list[float]:
        return [max(relative(formula(problem, 2 * x, x), z), 1e-17) for x, z in zip(clocks, exact, strict=True)]

    return Picture(
        "a random start, λ₁ = 0.15, λ₂ = 0.05, s = 2",
        "ζ₂",
        "relative error of the state",
        (
            Line("printed", "printed b(t)", clocks, errors(regularized.printed_flow)),
            Line("ours", "right", clocks, errors(unconstrained.engine_flow)),
        ),
        log_y=True,
    )


def rate_without_decay(seed: int) -> Picture:
    problem, s = draw(_generator(seed), 0.2, 5), 2.0
    modes = expand(problem, s)
    fall = -unconstrained.exponent(5, problem.per_class, 0.2, s)
    clocks = np.linspace(0.5, 25, 40) / fall
    seen = [modes.log_distance(x) for x in clocks]
    law = [seen[-1] + fall * (clocks[-1] - x) for x in clocks]
    return Picture(
        "five classes, γ = 0.2, s = 2",
        "ζ₂",
        "log of the distance of the directions",
        (
            Line("ours", "the exponent of the corollary", clocks.tolist(), law),
            Line("reference", "dense eigenvectors", clocks[::3].tolist(), seen[::3], marks=True),
        ),
    )


def rate_under_decay(seed: int) -> Picture:
    draft, s = draw(_generator(seed), 0.2, 5), 2.0
    problem = draft.with_decay(draft.leading, draft.leading)
    modes = expand(problem, s)
    right, printed = regularized.right_rate(problem, s), regularized.printed_rate(problem, s)
    clocks = np.linspace(0.5, 15, 40) / right
    seen = [modes.log_distance(x) for x in clocks]
    return Picture(
        "five classes, γ = 0.2, critical decay, s = 2",
        "ζ₂",
        "log of the distance of the directions",
        (
            Line("printed", "printed exponent: true, loose", clocks.tolist(), [seen[0] - printed * x for x in clocks]),
            Line("ours", "right exponent", clocks.tolist(), [seen[-1] + right * (clocks[-1] - x) for x in clocks]),
            Line("reference", "dense eigenvectors", clocks[::3].tolist(), seen[::3], marks=True),
        ),
    )


def anchored_without_decay(seed: int) -> Picture:
    problem = draw(_generator(seed), num_classes=3, per_class=2, gamma=0.5)
    goal, clocks = anchored.pull(problem), [10.0 * 2**k for k in range(10)]
    seen = [apart(anchored.integrate(problem, x), goal) for x in clocks]
    return Picture(
        "three classes, fixed prototypes, λ = 0",
        "ζ",
        "distance of the directions",
        (
            Line(
                "printed",
                "an exponential",
                clocks,
                _nan_below(1e-6, [seen[0] * math.exp(1 - x / 10) for x in clocks]),
            ),
            Line("ours", "1/ζ", clocks, [seen[-1] * clocks[-1] / x for x in clocks]),
            Line("reference", "ODE solver", clocks, seen, marks=True),
        ),
        log_x=True,
        log_y=True,
    )


def spherical_rate(seed: int) -> Picture:
    h, w = spherical.pair(_generator(seed))
    rate = 0.3 / w.norm().item()
    path = list(islice(spherical.plain_path(h, w, lambda _: rate), 400))
    steps = [k for k, (theta, _) in enumerate(path) if theta > 1e-10]
    angles = [path[k][0] for k in steps]
    alpha = rate * w.norm().item() / path[-1][1]
    last = len(steps) - 1

    def law(exponent: float, anchor: int) -> list[float]:
        return _nan_below(1e-12, [angles[anchor] * math.exp(exponent * (k - anchor)) for k in steps])

    return Picture(
        f"one feature, α₀ = 0.3, α∞ = {alpha:.3f}",
        "step",
        "angle to the prototype",
        (
            Line("printed", "printed: twice log|1 − α|", steps, law(spherical.doubled(alpha), last // 4)),
            Line("ours", "right: log|1 − α|", steps, law(spherical.single(alpha), last)),
            Line("reference", "gradient descent", steps[::5], angles[::5], marks=True),
        ),
        log_y=True,
    )


def growth_at_critical_decay(seed: int) -> Picture:
    steps = list(range(0, 4000, 50))
    norms = captions.descent_norms(_generator(seed), 0.1, 4000)
    tail = [norms[-1] * math.exp(captions.growth_at_critical(0.1) * (k - 3999)) for k in steps]
    return Picture(
        "100 classes of 10 examples, γ = 0.1, λ = (1 + γ)/(C√N)",
        "step",
        "|H|",
        (
            Line("printed", "printed: no growth", steps, [norms[0]] * len(steps)),
            Line("ours", "right: the growth in the end", steps, tail),
            Line("reference", "gradient descent", steps, [norms[k] for k in steps], marks=True),
        ),
        log_y=True,
    )


def speed_by_ratio(seed: int) -> Picture:
    draft = draw(_generator(seed), 1 / 4, 5)
    problem = draft.with_decay(3 * draft.leading, 3 * draft.leading)
    ratios = np.geomspace(0.05, 20, 60).tolist()
    gaps = [regularized.spectrum_of(problem, s)[1] / draft.leading for s in ratios[::4]]
    return Picture(
        "five classes, γ = 1/(C−1), λ = 3σ₁; the paper shows s ≤ 1",
        "s, the ratio of the rates",
        "exponent ω/σ₁",
        (
            Line("ours", "right", ratios, [regularized.right_rate(problem, s) / draft.leading for s in ratios]),
            Line("reference", "dense eigenvalues", ratios[::4], gaps, marks=True),
        ),
        log_x=True,
    )


def accuracy_by_dimension(seed: int) -> Picture:
    generator, dims = _generator(seed), [2, 3, 4, 5, 7, 10, 15, 20, 50, 100, 200]
    seen = []
    for p in dims:
        draws = [(gaussian(generator, 10, p), gaussian(generator, 10, p)) for _ in range(20)]
        seen.append(sum(unconstrained.correct_by_gram(h, w) for h, w in draws) / len(draws))
    return Picture(
        "ten classes, one example each, mean of 20 random starts",
        "feature dimension p",
        "accuracy of the limit",
        (
            Line("printed", "printed: alignment is accuracy", dims, [1.0] * len(dims)),
            Line("ours", "right: G_y·G_y above every G_j·G_y", dims, seen),
        ),
        log_x=True,
    )


PICTURES: dict[str, Callable[[int], Picture]] = {
    "lemma-1-value": lemma_value,
    "corollary-1-rate": rate_without_decay,
    "corollary-1-accuracy": accuracy_by_dimension,
    "theorem-2-flow": flow_under_decay,
    "theorem-2-bias": bias_under_decay,
    "corollary-2-rate": rate_under_decay,
    "theorem-3-zero-decay": anchored_without_decay,
    "theorem-4-rate": spherical_rate,
    "figure-regularized-gamma-growth": growth_at_critical_decay,
    "figure-regularized-scale-beyond": speed_by_ratio,
}
