"""Noise and imbalance: what collapses, when, and what weights of the classes change."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unhinge.theory import LayerPeeled, LinearPath, slow_down, tolerated_noise
from unhinge.web.address import State
from unhinge.web.clock import length_shown, stride_for, times
from unhinge.web.controls import choice, number
from unhinge.web.panels import Answer, Curve, Number, Panel, Slot, Tone
from unhinge.web.script import Look, Script, call, panel_of
from unhinge.web.setting import Setting, accuracy_cost, long_tail, setting
from unhinge.web.shared_controls import DECAYS, REACH, SEED, gamma_control, horizon_control
from unhinge.web.views import View
from unhinge.web.words import duration, exponent_text, plain, share, threshold

__all__ = ["NOISE"]

ACCURACY_BUDGET = 2e6  # nanoseconds, for each of the two
NORMS_BUDGET = 2e6
VERY_LATE = 1e15
NAMES = ("plain", "with weights")
FADED = 0.1  # of the largest prototype: then a class counts as collapsed


CONTROLS = (
    *long_tail(100),
    number(
        "noise",
        "label noise",
        "Share of wrong labels, each other class alike, redrawn at every step.",
        0.0,
        0.0,
        1.0,
        slide=(0.0, 0.95),
    ),
    gamma_control("Weight of the other logits in the loss. Empty: 1/(C-1)."),
    number(
        "power",
        "weights n^(-a)",
        "Each class counts as the number of its examples to the power -a: 0 not at all, 1/2 restores the balanced "
        "dynamics, 1 makes up for the size.",
        0.5,
        0.0,
        2.0,
        slide=(0.0, 1.0),
    ),
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
class _Solved:
    setting: Setting
    script: Script

    def problem(self, name: str) -> LayerPeeled:
        problem: LayerPeeled = self.script["problems"][name]
        return problem

    def path(self, name: str) -> LinearPath:
        path: LinearPath = self.script["paths"][name]
        return path


def _solve(state: State) -> _Solved:
    given = setting(state)
    classes, rho = given.num_classes, state.number("noise")
    if rho >= (classes - 1) / classes:
        raise ValueError(
            f"at a noise of (C-1)/C = {plain((classes - 1) / classes)} labels say nothing, and beyond they lie; got "
            f"{plain(rho)}. Lower the noise."
        )
    problem = call(
        "unhinge.LayerPeeled",
        f"unhinge.symmetric_noise(labels, {classes}, {rho!r})" if rho else "labels",
        f"{classes}, class_weight=w",
        gamma=state.maybe("gamma"),
        feature_decay=state.number("feature_decay") or None,
        weight_decay=state.number("weight_decay") or None,
    )
    power = state.number("power")
    weights = "'sqrt'" if power == 0.5 else f"unhinge.class_weights(labels.bincount(), power={power!r}).double()"
    return _Solved(
        given,
        given.script.then(
            f"problems = {{n: {problem} for n, w in (('plain', None), ('with weights', {weights}))}}",
            f"paths = {{n: p.flow(features, weight, lr={state.number('lr')!r}) for n, p in problems.items()}}",
        ),
    )


def curves(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    solved = _solve(state)
    given = solved.setting
    reached = solved.path("with weights").time_to(state.number("reach")).item()
    length = length_shown(state, 2 * reached if reached > 0 else math.inf, most=10**9, otherwise=2000)
    script = solved.script.then(f"x = {times(length, discrete=False)}")
    x = script["x"]
    time = "time (steps of gradient flow)"
    late = x.new_tensor(VERY_LATE)
    ends = {name: solved.path(name).accuracy(late).item() for name in NAMES}
    stride = stride_for(accuracy_cost(given), ACCURACY_BUDGET)
    panels = {
        "accuracy": panel_of(
            script.then(f"x = x[::{stride}]", "curves = {n: (x, p.accuracy(x)) for n, p in paths.items()}"),
            time,
            "accuracy (share)",
            yrange=(-0.03, 1.05),
            levels=[("chance", 1 / given.num_classes)],
        ),
        "sizes": _sizes_panel(script, given, time),
        "limit": _limit_panel(solved),
        "spectrum": _spectrum_panel(state, solved),
        "distance": panel_of(
            script.then(
                "d = {n: p.distance(x) for n, p in paths.items()}",
                "curves = {n: (x, torch.where(y > 0, y, torch.nan)) for n, y in d.items()}",
            ),
            time,
            "distance (no unit)",
            ylog=True,
            levels=[("asked for", state.number("reach"))],
        ),
        "noise": _noise_panel(state, solved.problem("plain")),
    }
    faded = _faded(next(curve for curve in panels["sizes"].curves if curve.name == "smallest, plain"))
    gone = sum(size is not None and size < 1e-6 for size in panels["limit"].curves[0].y)
    headline, tone, sentences = _words(state, solved, ends, gone, faded)
    return Answer(
        headline,
        tone,
        sentences,
        _numbers(state, solved, ends, faded, reached),
        panels,
        {"gamma": solved.problem("plain").gamma.item(), "horizon": float(length)},
    )


def _numbers(state: State, solved: _Solved, ends: dict[str, float], faded: str, reached: float) -> list[Number]:
    classes, power = solved.setting.num_classes, plain(state.number("power"))
    return [
        Number("final accuracy, plain", share(ends["plain"]), "Accuracy at infinite time."),
        Number("with weights", share(ends["with weights"]), f"Accuracy at infinite time with weights n_c^(-{power})."),
        Number("smallest class fades", faded, "When its prototype is a tenth of the largest one, without weights."),
        Number(
            "slow-down",
            plain(slow_down(classes, state.number("noise"))),
            "Factor of the leading singular value: 1 - noise · C/(C-1).",
        ),
        Number(
            "tolerated noise",
            plain(tolerated_noise(classes, state.maybe("gamma"))),
            "Below it, balanced classes keep their clean limit.",
        ),
        Number(
            "critical decay",
            plain(solved.problem("plain").critical_decay.item()),
            "Norms grow while √(λ₁λ₂) is below this.",
        ),
        Number(
            "distance, weights",
            exponent_text(solved.path("with weights").rate().item(), False),
            "To its limit, with weights.",
        ),
        Number(
            f"to {plain(state.number('reach'))}, weights", duration(reached, False), "When that distance is reached."
        ),
    ]


def _sizes_panel(script: Script, given: Setting, time: str) -> Panel:
    """Norms of the prototypes of the largest, the middle and the smallest class, over the largest norm."""
    names = given.few.values()
    apart = stride_for((given.num_samples + given.num_classes) * given.dim, NORMS_BUDGET)
    drawn = script.then(
        f"x = x[::{apart}]",
        "norm = {n: p.at(x).weight.norm(dim=-1) for n, p in paths.items()}",
        f"few = {given.few}",
        "curves = {f'{few[c]}, {n}': (x, y[:, c] / y.amax(-1)) for n, y in norm.items() for c in few}",
    )
    looks = {f"{k}, plain": Look("line", 2 + i) for i, k in enumerate(names)}
    looks |= {f"{k}, with weights": Look("dashed", 2 + i, listed=False) for i, k in enumerate(names)}
    return panel_of(drawn, time, "norm / largest (dashed: weighted)", looks, yrange=(-0.03, 1.08))


def _limit_panel(solved: _Solved) -> Panel:
    order = solved.setting.by_size
    script = solved.script.then(
        f"x = torch.arange(1.0, {len(order) + 1})",
        f"norm = {{n: p.direction().weight.norm(dim=-1)[{order}] for n, p in paths.items()}}",
        "curves = {n: (x, y / y.max()) for n, y in norm.items()}",
    )
    counts = solved.setting.counts
    looks = {}
    for color, name in enumerate(NAMES):
        words = [
            f"class {k}, {counts[k]} examples: {plain(y)}"
            for k, y in zip(order, script["curves"][name][1].tolist(), strict=True)
        ]
        looks[name] = Look("marks", color, hover=words)
    return panel_of(script, "class (by size, largest first)", "norm / largest norm", looks, yrange=(-0.05, 1.08))


def _spectrum_panel(state: State, solved: _Solved) -> Panel:
    script = solved.script.then(
        f"m = {{n: p.modes(lr={state.number('lr')!r}) for n, p in problems.items()}}",
        "growth = {n: v.growth.repeat_interleave(v.multiplicity) for n, v in m.items()}",
        "curves = {n: (torch.arange(1.0, len(y) + 1), y) for n, y in growth.items()}",
    )
    looks = {}
    for color, name in enumerate(NAMES):
        modes = script["m"][name]
        sigma = modes.sigma.repeat_interleave(modes.multiplicity)
        pairs = zip(sigma.tolist(), script["growth"][name].tolist(), strict=True)
        looks[name] = Look("marks", color, hover=[f"{name}: σ = {plain(s)}, exponent {plain(v)}" for s, v in pairs])
    return panel_of(
        script,
        "mode (by singular value)",
        "growth exponent (per unit of time)",
        looks,
        levels=[("neither grows nor decays", 0.0)],
    )


def _noise_panel(state: State, problem: LayerPeeled) -> Panel:
    now = state.number("noise")
    script = Script(
        "import torch, unhinge",
        f"C, g = {problem.num_classes}, {problem.gamma.item()!r}",
        "x = torch.linspace(0, 1, 101, dtype=torch.float64)",
        "slow = lambda r: torch.tensor([unhinge.theory.slow_down(C, v) for v in r.tolist()], dtype=torch.float64)",
        f"ends, now = torch.tensor([0.0, 1.0]), torch.tensor([{now!r}], dtype=torch.float64)",
        "common = torch.full((2,), abs(1 + g - g * C) / (1 + g))",
        "curves = {'class differences': (x, slow(x)), 'common vector': (ends, common), 'here': (now, slow(now))}",
    )
    return panel_of(
        script,
        "noise (share of wrong labels)",
        "singular value / clean leading one",
        {"here": Look("marks", 2, hover=[f"noise {plain(now)}"])},
        yrange=(-0.25, 1.1),
        levels=[("", 0.0)],
    )


def _faded(sizes: Curve) -> str:
    """When the last of these sizes above :data:`FADED` is behind."""
    below = [size is not None and size < FADED for size in sizes.y]
    if not below[-1]:
        return "not while shown"
    first = len(below) - below[::-1].index(False) if False in below else 0
    return f"about {plain(sizes.x[first], 3)} time units"


def _words(state: State, solved: _Solved, ends: dict[str, float], gone: int, faded: str) -> tuple[str, Tone, list[str]]:
    given = solved.setting
    classes, rho, gamma = given.num_classes, state.number("noise"), solved.problem("plain").gamma.item()
    limit, tolerated = threshold(classes), tolerated_noise(classes, state.maybe("gamma"))
    even = len(set(given.counts)) == 1
    tone: Tone = "good"
    if gamma > limit:
        headline, tone = f"γ is above 2/(C-2) = {plain(limit)}: every class ends on one vector, weights or not.", "bad"
    elif even and rho > tolerated * (1 + 1e-9):
        tone = "bad"
        headline = (
            f"The noise is above what is tolerated, {plain(tolerated)}: the common vector leads and accuracy ends at "
            f"{share(ends['plain'])}."
        )
    elif even:
        headline = "Equal sizes: nothing collapses, and the weights change nothing."
    elif gone:
        tone = "warn"
        headline = (
            f"{gone} of {classes} classes collapse: the largest ones lead and the rest vanishes beside them. With "
            f"weights accuracy ends at {share(ends['with weights'])} instead of {share(ends['plain'])}."
        )
    else:
        tone = "warn"
        headline = (
            f"All classes end on one line, with the largest class alone on its side: accuracy ends at "
            f"{share(ends['plain'])}, with weights at {share(ends['with weights'])}."
        )
    sentences = []
    if not even:
        sentences.append(f"Time until the smallest class has faded to a tenth of the largest: {faded}.")
    if rho:
        factor = slow_down(classes, rho)
        sentences.append(
            f"Noise slows the class differences down to {share(factor)} of their speed"
            + ("." if rho < tolerated else ", below that of the common vector.")
        )
    if not even and rho:
        sentences.append("With noise, the weights restore balance only in part.")
    elif not even and state.number("power") == 0.5:
        sentences.append("With weights n_c^(-1/2) the classes move as balanced ones do.")
    return headline, tone, sentences


NOISE = View(
    "noise",
    "Noise & imbalance",
    "What collapses, when, and what weighting the classes changes.",
    "loss = mean of n^(-a) (-z_y + γ Σ z_j over j ≠ y) + λ₁/2 |H|² + λ₂/2 |W|², z = W h;  some labels are wrong",
    CONTROLS,
    SLOTS,
    curves,
)
