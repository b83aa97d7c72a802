"""Noise and imbalance: what collapses, when, and what the weights n_c^(-1/2) change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unhinge.theory import LayerPeeled, LinearPath, slow_down, symmetric_noise, tolerated_noise
from unhinge.web.accuracy import accuracy as accuracy_along
from unhinge.web.accuracy import moment_cost
from unhinge.web.address import State
from unhinge.web.clock import SAMPLES, nice_length, stride_for, times
from unhinge.web.controls import Control, choice, number
from unhinge.web.modes import exponents
from unhinge.web.panels import Answer, Curve, Number, Panel, Slot, as_list
from unhinge.web.setting import CLASSES, Setting, setting
from unhinge.web.shared_controls import DECAYS, REACH, SEED, gamma_control, horizon_control
from unhinge.web.views import View
from unhinge.web.words import duration, exponent_text, plain, share, threshold

__all__ = ["NOISE"]

ACCURACY_BUDGET = 2e8  # multiplications, for each of the two
NORMS_BUDGET = 2e6
VERY_LATE = 1e15
FADED = 0.1  # of the largest prototype: then a class counts as collapsed


def _changed(control: Control, default: Any) -> Control:
    from dataclasses import replace

    return replace(control, default=default)


_BY_KEY = {control.key: control for control in CLASSES}
CONTROLS = (
    _BY_KEY["classes"],
    _changed(_BY_KEY["profile"], "tail"),
    _changed(_BY_KEY["per_class"], 100),
    _changed(_BY_KEY["ratio"], 20.0),
    _BY_KEY["counts"],
    _BY_KEY["dim"],
    number(
        "noise",
        "label noise ρ",
        "Share of wrong labels, each other class alike, redrawn at every step.",
        0.0,
        0.0,
        1.0,
        slide=(0.0, 0.95),
    ),
    gamma_control("Weight of the other logits in the loss. Empty: 1/(C-1)."),
    *DECAYS,
    number("lr", "rate η", "Learning rate of features and prototypes.", 0.1, 1e-6, 1e4, log=True, slide=(1e-3, 10.0)),
    choice(
        "start",
        "start",
        "Independent normal features and prototypes, or prototypes on a simplex ETF.",
        (("random", "random"), ("etf", "ETF")),
    ),
    SEED,
    horizon_control("time shown", "Empty: until the balanced problem has converged, and collapse shows."),
    REACH,
)

SLOTS = (
    Slot("accuracy", "accuracy", "Share of examples given the class they most probably have. Dotted: chance, 1/C."),
    Slot(
        "sizes",
        "prototype norms, relative",
        "Norm of a prototype over the largest one at that time: the largest, the middle and the smallest class. "
        "Dashed: with weights.",
    ),
    Slot(
        "limit",
        "what is left of each class",
        "Prototype norms in the limit of Z/|Z|, relative to the largest. A class at 0 has collapsed.",
    ),
    Slot(
        "spectrum",
        "modes and their growth",
        "Growth exponent of each mode of the labels. With the weights, all class differences grow alike.",
    ),
    Slot("distance", "distance to the limit", "Each to its own limit."),
    Slot(
        "noise",
        "what noise slows down",
        "Symmetric noise multiplies the leading singular value of balanced classes; below the second one, the "
        "limit changes.",
    ),
)


@dataclass(frozen=True)
class _Case:
    name: str
    problem: LayerPeeled
    path: LinearPath
    color: int


def _solve(state: State) -> tuple[Setting, tuple[_Case, _Case], str]:
    given = setting(state)
    classes, rho, gamma = given.num_classes, state.number("noise"), state.maybe("gamma")
    if rho >= (classes - 1) / classes:
        raise ValueError(
            f"at a noise of (C-1)/C = {plain((classes - 1) / classes)} labels say nothing, and beyond they lie; got "
            f"ρ = {plain(rho)}. Lower ρ."
        )
    target: Tensor = symmetric_noise(given.labels, classes, rho) if rho else given.labels
    l1, l2 = state.number("feature_decay"), state.number("weight_decay")
    arguments = f"{classes}" + (f", gamma={gamma!r}" if gamma is not None else "")
    arguments += (f", feature_decay={l1!r}" if l1 else "") + (f", weight_decay={l2!r}" if l2 else "")
    cases = []
    for name, weights, color in (("plain", None, 0), ("with weights", "sqrt", 1)):
        problem = LayerPeeled(target, classes, gamma, l1, l2, weights)
        cases.append(_Case(name, problem, problem.flow(given.features, given.weight, lr=state.number("lr")), color))
    soft = f"unhinge.symmetric_noise(labels, {classes}, {rho!r})" if rho else "labels"
    code = "\n".join(
        (
            "import torch, unhinge" + (", unhinge.nn" if state.word("start") == "etf" else ""),
            *given.code,
            f"problems = {{n: unhinge.LayerPeeled({soft}, {arguments}, class_weight=w) "
            "for n, w in (('plain', None), ('with weights', 'sqrt'))}; "
            f"paths = {{n: p.flow(features, weight, lr={state.number('lr')!r}) for n, p in problems.items()}}",
        )
    )
    return given, (cases[0], cases[1]), code


def _length(state: State, reached: float) -> int:
    asked = state.maybe("horizon")
    if asked is not None:
        length = int(asked)
        return length if length < SAMPLES else SAMPLES * (length // SAMPLES)
    return min(nice_length(2 * reached), 10**9) if math.isfinite(reached) and reached > 0 else 2000


def answer(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    given, cases, code = _solve(state)
    reached = {case.name: case.path.time_to(state.number("reach")).item() for case in cases}
    length = _length(state, reached["with weights"])
    x, x_code = times(length, False)
    at = x.tolist()
    xlabel = "time (steps of gradient flow)"
    code_x = f"{code}\nx = {x_code}; curves = "
    size, classes, dim = len(given.labels), given.num_classes, given.features.shape[1]
    stride = stride_for(max(moment_cost(case.path) for case in cases), ACCURACY_BUDGET)
    late = torch.tensor([VERY_LATE], dtype=torch.float64)
    accuracy = {case.name: accuracy_along(case.path, torch.cat([x[::stride], late])) for case in cases}
    ends = {case.name: accuracy[case.name][-1].item() for case in cases}
    finals = {case.name: _relative(case.path.direction().weight.norm(dim=-1)) for case in cases}
    apart = stride_for((size + classes) * dim, NORMS_BUDGET)
    norms = {case.name: _relative(case.path.at(x[::apart]).weight.norm(dim=-1)) for case in cases}
    order = sorted(range(classes), key=lambda c: -given.counts[c])
    shown = list(dict.fromkeys((order[0], order[classes // 2], order[-1])))
    names = dict(
        zip(shown, ("largest", "middle", "smallest") if len(shown) == 3 else ("largest", "smallest"), strict=True)
    )
    sigma_code = (
        f"lambda s: unhinge.web.modes.exponents(s, ({state.number('lr')!r}, {state.number('lr')!r}), "
        f"({state.number('feature_decay')!r}, {state.number('weight_decay')!r}))"
    )
    panels = {
        "accuracy": Panel(
            xlabel,
            "accuracy (share)",
            [Curve(c.name, at[::stride], as_list(accuracy[c.name][:-1]), color=c.color) for c in cases],
            code_x + f"{{n: (x[::{stride}], p.accuracy(x[::{stride}])) for n, p in paths.items()}}",
            yrange=(-0.03, 1.05),
            levels=[("chance", 1 / classes)],
        ),
        "sizes": Panel(
            xlabel,
            "norm / largest norm",
            [
                Curve(
                    f"{names[k]}, {c.name}",
                    at[::apart],
                    as_list(norms[c.name][:, k]),
                    "dashed" if c.color else "line",
                    2 + i,
                    listed=not c.color,
                )
                for c in cases
                for i, k in enumerate(shown)
            ],
            f"{code}\nx = {x_code}[::{apart}]; norm = {{n: p.at(x).weight.norm(dim=-1) for n, p in paths.items()}}\n"
            f"curves = {{f'{{k}}, {{n}}': (x, norm[n][:, c] / norm[n].amax(-1)) "
            f"for c, k in {names!r}.items() for n in paths}}",
            yrange=(-0.03, 1.08),
        ),
        "limit": Panel(
            "class (by size, largest first)",
            "norm / largest norm",
            [
                Curve(
                    c.name,
                    [float(i) for i in range(1, classes + 1)],
                    as_list(finals[c.name][order]),
                    "marks",
                    c.color,
                    [f"class {k}, {given.counts[k]} examples: {plain(finals[c.name][k].item())}" for k in order],
                )
                for c in cases
            ],
            f"{code}\nx = torch.arange(1.0, {classes + 1}); norm = "
            f"{{n: p.direction().weight.norm(dim=-1)[{order}] for n, p in paths.items()}}\n"
            "curves = {n: (x, v / v.max()) for n, v in norm.items()}",
            yrange=(-0.05, 1.08),
        ),
        "spectrum": _spectrum(state, cases, code, sigma_code),
        "distance": Panel(
            xlabel,
            "distance (no unit)",
            [Curve(c.name, at, as_list(_positive(c.path.distance(x))), color=c.color) for c in cases],
            code_x + "{n: (x, torch.where(p.distance(x) > 0, p.distance(x), torch.nan)) for n, p in paths.items()}",
            ylog=True,
            levels=[("asked for", state.number("reach"))],
        ),
        "noise": _noise(state, cases[0].problem),
    }
    faded = _faded(at[::apart], norms["plain"][:, order[-1]])
    headline, tone, sentences = _words(state, given, cases, ends, finals["plain"], faded)
    numbers = [
        Number("final accuracy, plain", share(ends["plain"]), "Accuracy at infinite time."),
        Number("with weights", share(ends["with weights"]), "Accuracy at infinite time with weights n_c^(-1/2)."),
        Number("smallest class fades", faded, "When its prototype is a tenth of the largest one, without weights."),
        Number(
            "slow-down",
            plain(slow_down(classes, state.number("noise"))),
            "Factor of the leading singular value: 1 - ρC/(C-1).",
        ),
        Number(
            "tolerated ρ",
            plain(tolerated_noise(classes, state.maybe("gamma"))),
            "Below it, balanced classes keep their clean limit.",
        ),
        Number(
            "critical decay", plain(cases[0].problem.critical_decay.item()), "Norms grow while √(λ₁λ₂) is below this."
        ),
        Number("distance, weights", exponent_text(cases[1].path.rate().item(), False), "To its limit, with weights."),
        Number(
            f"to {plain(state.number('reach'))}, weights",
            duration(reached["with weights"], False),
            "When that distance is reached.",
        ),
    ]
    return Answer(
        headline,
        tone,
        sentences,
        numbers,
        panels,
        {"gamma": cases[0].problem.gamma.item(), "horizon": float(length)},
    )


def _relative(norms: Tensor) -> Tensor:
    largest = norms.amax(-1, keepdim=True)
    return norms / torch.where(largest > 0, largest, 1.0)


def _positive(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, torch.nan)


def _spectrum(state: State, cases: tuple[_Case, _Case], code: str, sigma_code: str) -> Panel:
    lr = state.number("lr")
    decays = state.number("feature_decay"), state.number("weight_decay")
    curves = []
    for case in cases:
        sigma = case.problem.singular_values
        values = exponents(sigma, (lr, lr), decays)
        at = [float(k) for k in range(1, len(sigma) + 1)]
        words = [
            f"{case.name}: σ = {plain(s)}, exponent {plain(v)}"
            for s, v in zip(sigma.tolist(), values.tolist(), strict=True)
        ]
        curves.append(Curve(case.name, at, as_list(values), "marks", case.color, words))
    code = code.replace("import torch, unhinge", "import torch, unhinge, unhinge.web.modes", 1)
    return Panel(
        "mode (by singular value)",
        "growth exponent (per unit of time)",
        curves,
        f"{code}\ncurves = "
        f"{{n: (torch.arange(1.0, len(p.singular_values) + 1), ({sigma_code})(p.singular_values)) "
        "for n, p in problems.items()}",
        levels=[("neither grows nor decays", 0.0)],
    )


def _noise(state: State, problem: LayerPeeled) -> Panel:
    classes, gamma = problem.num_classes, problem.gamma.item()
    rho = torch.linspace(0, 1, 101, dtype=torch.float64)
    factor = torch.tensor([slow_down(classes, r) for r in rho.tolist()], dtype=torch.float64)
    second = abs(1 + gamma - gamma * classes) / (1 + gamma)
    now = state.number("noise")
    return Panel(
        "noise ρ (share of wrong labels)",
        "singular value / clean leading one",
        [
            Curve("class differences", rho.tolist(), as_list(factor)),
            Curve("common vector", [0.0, 1.0], [second, second], color=1),
            Curve("here", [now], [slow_down(classes, now)], "marks", 2, [f"ρ = {plain(now)}"]),
        ],
        f"import torch, unhinge.theory\nx = torch.linspace(0, 1, 101, dtype=torch.float64); C, g = {classes}, "
        f"{gamma!r}\n"
        "curves = {'class differences': (x, torch.tensor([unhinge.theory.slow_down(C, r) "
        "for r in x.tolist()], dtype=torch.float64)), "
        "'common vector': (torch.tensor([0.0, 1.0]), torch.tensor([abs(1 + g - g * C) / (1 + g)] * 2, "
        "dtype=torch.float64)), "
        f"'here': (torch.tensor([{now!r}], dtype=torch.float64), torch.tensor([unhinge.theory.slow_down(C, "
        f"{now!r})], dtype=torch.float64))}}",
        yrange=(-0.25, 1.1),
        levels=[("", 0.0)],
    )


def _faded(at: list[float], sizes: Tensor) -> str:
    below = sizes < FADED
    if not bool(below[-1]):
        return "not while shown"
    first = int((~below).nonzero().flatten()[-1]) + 1 if bool((~below).any()) else 0
    return f"about {plain(at[first], 3)}"


def _words(
    state: State, given: Setting, cases: tuple[_Case, _Case], ends: dict[str, float], left: Tensor, faded: str
) -> tuple[str, Any, list[str]]:
    classes, rho, gamma = given.num_classes, state.number("noise"), cases[0].problem.gamma.item()
    limit, tolerated = threshold(classes), tolerated_noise(classes, state.maybe("gamma"))
    even = len(set(given.counts)) == 1
    gone = int((left < 1e-6).sum())
    tone: Any = "good"
    if gamma > limit:
        headline, tone = f"γ is above 2/(C-2) = {plain(limit)}: every class ends on one vector, weights or not.", "bad"
    elif even and rho > tolerated * (1 + 1e-9):
        headline, tone = (
            (
                f"The noise is above what is tolerated, ρ = {plain(tolerated)}: the common vector leads and "
                f"accuracy ends at "
                f"{share(ends['plain'])}."
            ),
            "bad",
        )
    elif even:
        headline = "Equal sizes: nothing collapses, and the weights change nothing."
    elif gone:
        headline, tone = (
            (
                f"{gone} of {classes} classes collapse: the largest ones lead and the rest vanishes beside them. "
                f"With weights "
                f"accuracy ends at {share(ends['with weights'])} instead of {share(ends['plain'])}."
            ),
            "warn",
        )
    else:
        headline, tone = (
            (
                f"The largest class leads and all end on its line: accuracy ends at {share(ends['plain'])}, with "
                f"weights at "
                f"{share(ends['with weights'])}."
            ),
            "warn",
        )
    sentences = []
    if not even:
        sentences.append(f"The smallest class fades to a tenth of the largest: {faded}.")
    if rho:
        factor = slow_down(classes, rho)
        sentences.append(
            f"Noise slows the class differences down to {share(factor)} of their speed"
            + ("." if rho < tolerated else ", below that of the common vector.")
        )
    if not even and rho:
        sentences.append("With noise, the weights restore balance only in part.")
    elif not even:
        sentences.append(
            "Weights n_c^(-1/2) give every class difference the same exponent: the balanced dynamics again."
        )
    return headline, tone, sentences


NOISE = View(
    "noise",
    "Noise & imbalance",
    "What collapses, when, and what weighting the classes changes.",
    CONTROLS,
    SLOTS,
    answer,
)
