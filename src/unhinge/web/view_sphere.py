"""Normalized features and fixed prototypes: angles and norms, plain against rescaled steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unhinge.nn.frames import simplex_etf
from unhinge.theory import Spherical, SphericalPath
from unhinge.web.address import State
from unhinge.web.clock import RATES, SAMPLES, nice_length, rates, runs_out, times
from unhinge.web.controls import choice, count, number
from unhinge.web.moving import FRAMES, PER_CLASS, picture_basis, shown_classes, shown_examples
from unhinge.web.panels import Answer, Curve, Moving, Number, Panel, Slot, as_list
from unhinge.web.setting import check_size
from unhinge.web.shared_controls import AXES, SEED, decay_control, gamma_control, horizon_control
from unhinge.web.views import View
from unhinge.web.words import duration, exponent_text, plain

__all__ = ["SPHERE"]

LONGEST = 10**7
LONGEST_BY_STEPS = 20_000  # of a schedule or with decay, which are followed step by step

CONTROLS = (
    count("classes", "classes C", "The number of classes.", 10, 2, 500, log=True, slide=(2, 100)),
    count("per_class", "examples N", "Examples per class.", 5, 1, 2000, log=True, slide=(1, 100)),
    count("dim", "dimension p", "Entries of a feature and of a prototype.", 32, 2, 4096, log=True, slide=(2, 1024)),
    choice(
        "prototypes",
        "prototypes",
        "Fixed during training: a simplex ETF, or random unit vectors.",
        (("etf", "ETF"), ("random", "random")),
    ),
    gamma_control("Weight of the other logits. Empty: 1/(C-1)."),
    number(
        "norm",
        "initial norm",
        "The typical norm of a feature at the start.",
        3.0,
        1e-3,
        1e4,
        log=True,
        slide=(0.1, 100.0),
    ),
    number(
        "spread",
        "spread of norms",
        "Standard deviation of the logarithm of the initial norms; 0: all alike.",
        0.5,
        0.0,
        3.0,
        slide=(0.0, 2.0),
    ),
    number("lr", "rate η", "Learning rate of the features.", 50.0, 1e-6, 1e8, log=True, slide=(0.1, 10_000.0)),
    decay_control("feature_decay", "feature decay λ", "Of the term λ/2 |H|²; it is not rescaled.", (1e-6, 0.1)),
    *RATES[1:],
    choice("optimizer", "training", "Gradient steps, or gradient flow.", (("descent", "descent"), ("flow", "flow"))),
    SEED,
    horizon_control("steps shown", "Empty: chosen from the speed of the slower of the two.", LONGEST),
    number(
        "reach",
        "distance asked",
        "How long until |Ĥ - V̂| is this small?",
        1e-2,
        1e-14,
        100.0,
        log=True,
        slide=(1e-9, 1.0),
    ),
    AXES,
)

SLOTS = (
    Slot(
        "angle",
        "angle to the target",
        "Between each feature and the direction it is pulled to: mean and slowest, in degrees.",
    ),
    Slot(
        "norm",
        "feature norms",
        "Mean norm of a feature. Flow keeps norms; steps make them grow, plain ones of small norm most.",
    ),
    Slot(
        "distance",
        "distance to the limit",
        "|Ĥ - V̂|, unit features against unit targets. Dashed: the predicted slopes.",
    ),
    Slot("loss", "loss", "Mean unhinged loss of the logits W h/|h|."),
    Slot(
        "unequal",
        "angle left, by initial norm",
        "Plain steps turn a feature by η|v|/|h|², rescaled ones by η|v|/|h|: long features lag.",
    ),
    Slot(
        "moving",
        "unit features in time",
        "Plain steps, projected on the span of a few prototypes. Stars: prototypes. Dots: features.",
    ),
)


@dataclass(frozen=True)
class _Both:
    plain: SphericalPath
    rescaled: SphericalPath
    labels: Tensor
    features: Tensor
    weight: Tensor
    code: str


@lru_cache(maxsize=16)
def _drawn(classes: int, per_class: int, dim: int, prototypes: str, norm: float, spread: float, seed: int) -> Any:
    check_size((per_class,) * classes, dim)
    if prototypes == "etf" and classes > dim + 1:
        raise ValueError(f"a simplex ETF of {classes} classes needs p of at least {classes - 1}, got {dim}. Raise p.")
    size = classes * per_class
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(size + classes, dim, generator=g, dtype=torch.float64)
    sizes = norm * torch.exp(spread * torch.randn(size, 1, generator=g, dtype=torch.float64))
    if prototypes == "etf":
        weight = simplex_etf(classes, dim, g, dtype=torch.float64)
    else:
        weight = z[size:] / z[size:].norm(dim=1, keepdim=True)
    features = sizes * z[:size] / z[:size].norm(dim=1, keepdim=True)
    frames = ", unhinge.nn" if prototypes == "etf" else ""
    made = (
        f"unhinge.nn.simplex_etf({classes}, {dim}, g, dtype=torch.float64)"
        if prototypes == "etf"
        else f"z[{size}:] / z[{size}:].norm(dim=1, keepdim=True)"
    )
    code = (
        f"import torch, unhinge{frames}\n"
        f"g = torch.Generator().manual_seed({seed}); z = torch.randn({size + classes}, {dim}, generator=g, "
        f"dtype=torch.float64)\n"
        f"size = {norm!r} * torch.exp({spread!r} * torch.randn({size}, 1, generator=g, dtype=torch.float64)); "
        f"weight = {made}; features = size * z[:{size}] / z[:{size}].norm(dim=1, keepdim=True)"
    )
    return torch.arange(classes).repeat_interleave(per_class), features, weight, code


def _solve(state: State) -> _Both:
    labels, features, weight, code = _drawn(
        state.count("classes"),
        state.count("per_class"),
        state.count("dim"),
        state.word("prototypes"),
        state.number("norm"),
        state.number("spread"),
        state.count("seed"),
    )
    gamma = state.maybe("gamma")
    decay = state.number("feature_decay")
    problem = Spherical(labels, weight, gamma, decay)
    lr, lr_code = rates(state)
    kind = state.word("optimizer")
    solve = problem.flow if kind == "flow" else problem.descent
    extra = "" if gamma is None else f", gamma={gamma!r}"
    extra += f", feature_decay={decay!r}" if decay else ""
    line = (
        f"solve = unhinge.Spherical(torch.arange({state.count('classes')}).repeat_interleave("
        f"{state.count('per_class')}), "
        f"weight{extra}).{kind}; plain, rescaled = (solve(features, lr={lr_code}, rescaled=r) for r in (False, True))"
    )
    return _Both(
        solve(features, lr=lr), solve(features, lr=lr, rescaled=True), labels, features, weight, f"{code}\n{line}"
    )


def _length(state: State, rate: float, reached: float) -> int:
    given = state.maybe("horizon")
    if given is not None:
        length = int(given)
        return length if length < SAMPLES else SAMPLES * (length // SAMPLES)
    if runs_out(state) or state.word("schedule") == "warmup":
        return min(nice_length(1.2 * state.count("length")), LONGEST_BY_STEPS)
    if not math.isfinite(reached) or reached <= 0:
        return 1000
    return min(nice_length(1.25 * reached), LONGEST)


def answer(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    changing = state.word("schedule") != "constant" or state.number("feature_decay") > 0
    changing = changing and state.word("optimizer") == "descent"
    if changing and max(state.maybe("horizon") or 0, state.count("length")) > LONGEST_BY_STEPS:
        raise ValueError(
            f"a changing rate, or decay, is followed step by step, and this page follows "
            f"{LONGEST_BY_STEPS:,} steps. Shorten the "
            f"schedule and the steps shown, or choose flow."
        )
    both = _solve(state)
    pair = (("plain", both.plain, 0), ("rescaled", both.rescaled, 1))
    discrete = both.plain.motion.discrete
    lr = state.number("lr")
    bursts = discrete and state.number("feature_decay") > 0  # then there is no exponent and no end to look for
    exponent = {name: math.nan if bursts else path.rate(lr).item() for name, path, _ in pair}
    reached = {name: math.nan if bursts else path.time_to(state.number("reach")).item() for name, path, _ in pair}
    slower = max(reached.values())
    length = _length(state, max(exponent.values()), slower)
    x, x_code = times(length, discrete)
    at = x.tolist()
    xlabel = "steps" if discrete else "time (steps of gradient flow)"
    code = f"{both.code}\nx = {x_code}; curves = "
    turn = 180 / math.pi
    angles, norms, distances = [], [], []
    final: dict[str, Tensor] = {}
    early = len(at) // 8
    for name, path, color in pair:
        now = turn * path.angles(x)
        angles.append(Curve(f"{name}, mean", at, as_list(now.mean(-1)), color=color))
        angles.append(Curve(f"{name}, slowest", at, as_list(now.amax(-1)), "dotted", color))
        norms.append(Curve(name, at, as_list(path.feature_norm(x) / len(both.labels) ** 0.5), color=color))
        distances.append(Curve(name, at, as_list(path.distance(x)), color=color))
        final[name] = now[early]
    start = both.features.norm(dim=1)
    panels = {
        "angle": Panel(
            xlabel,
            "angle (degrees)",
            angles,
            code + "{f'{n}, {k}': (x, getattr(p.angles(x).rad2deg(), f)(-1)) "
            "for n, p in (('plain', plain), ('rescaled', rescaled)) "
            "for k, f in (('mean', 'mean'), ('slowest', 'amax'))}",
        ),
        "norm": Panel(
            xlabel,
            "root mean square norm",
            norms,
            code + f"{{'plain': (x, plain.feature_norm(x) / {len(both.labels)}**0.5), "
            f"'rescaled': (x, rescaled.feature_norm(x) / {len(both.labels)}**0.5)}}",
        ),
        "distance": _distance(state, xlabel, at, x, pair, distances, exponent, code),
        "loss": Panel(
            xlabel,
            "loss",
            [Curve(name, at, as_list(path.loss(x)), color=color) for name, path, color in pair],
            code + "{'plain': (x, plain.loss(x)), 'rescaled': (x, rescaled.loss(x))}",
        ),
        "unequal": Panel(
            "initial norm |h|",
            f"angle after {at[early]:,.0f} steps (degrees)",
            [Curve(name, start.tolist(), as_list(final[name]), "marks", color) for name, _, color in pair],
            f"{both.code}\nx = features.norm(dim=1); curves = {{'plain': (x, plain.angles({at[early]!r}).rad2deg()), "
            f"'rescaled': (x, rescaled.angles({at[early]!r}).rad2deg())}}",
            xlog=True,
        ),
        "moving": _moving(state, both, length),
    }
    headline, tone, sentences = _words(state, both, exponent, reached, discrete)
    asked = plain(state.number("reach"))
    numbers = [
        Number(
            f"plain, to {asked}", duration(reached["plain"], discrete), "Until the distance to the limit is that small."
        ),
        Number(f"rescaled, to {asked}", duration(reached["rescaled"], discrete), "The same with gradients times |h|."),
        Number(
            "plain, in the end", exponent_text(exponent["plain"], discrete), "The distance, by the slowest feature."
        ),
        Number(
            "rescaled, in the end",
            exponent_text(exponent["rescaled"], discrete),
            "The distance, by the slowest feature.",
        ),
        Number(
            "first step α, plain",
            plain(both.plain.hypotheses().first_alpha),
            "The largest η|v|/|h|²; up to 1 every angle falls monotonically.",
        ),
        Number("first step α, rescaled", plain(both.rescaled.hypotheses().first_alpha), "The largest η|v|/|h|."),
    ]
    if not discrete:
        numbers = numbers[:-2]
    gamma = 1 / (state.count("classes") - 1) if state.maybe("gamma") is None else state.number("gamma")
    return Answer(headline, tone, sentences, numbers, panels, {"gamma": gamma, "horizon": float(length)})


def _distance(
    state: State,
    xlabel: str,
    at: list[float],
    x: Tensor,
    pair: Any,
    curves: list[Curve],
    exponent: dict[str, float],
    code: str,
) -> Panel:
    parts = "'plain': (x, plain.distance(x)), 'rescaled': (x, rescaled.distance(x))"
    shown = list(curves)
    for (name, _, color), curve in zip(pair, curves, strict=True):
        rate = exponent[name]
        above = [i for i, y in enumerate(curve.y) if y is not None and y > 1e-13]
        if state.word("schedule") != "constant" or not math.isfinite(rate) or not rate < 0 or len(above) < 8:
            continue
        last, first = above[-1], 2 * above[-1] // 3
        value = curve.y[last]
        assert value is not None
        slope = 1.3 * value * torch.exp(rate * (x[first : last + 1].double() - at[last]))
        shown.append(Curve(f"{name}, slope", at[first : last + 1], as_list(slope), "dashed", color, listed=False))
        parts += (
            f", '{name}, slope': (x[{first}:{last + 1}], 1.3 * {name}.distance(x[{last}]) * "
            f"torch.exp({name}.rate() * (x[{first}:{last + 1}].double() - x[{last}])))"
        )
    return Panel(
        xlabel,
        "distance (no unit)",
        shown,
        f"{code}{{{parts}}}",
        ylog=True,
        levels=[("asked for", state.number("reach"))],
    )


def _moving(state: State, both: _Both, length: int) -> Panel:
    axes = min(int(state.word("axes")), both.weight.shape[1])
    step = max(1, length // FRAMES)
    discrete = both.plain.motion.discrete
    moments = torch.arange(0, length + 1, step)
    moments = moments if discrete else moments.double()
    classes = shown_classes(len(both.weight), axes)
    basis = picture_basis(both.weight, both.weight, classes, axes)
    groups: list[tuple[str, int, str]] = []
    picked: list[Tensor] = []
    chosen = shown_examples(both.labels, classes)
    every = [i for examples in chosen for i in examples]
    units = _units(state, both, every, moments) @ basis
    done = 0
    for place, (c, examples) in enumerate(zip(classes, chosen, strict=True)):
        groups.append((f"class {c}", place, "dot"))
        picked.append(units[:, done : done + len(examples)])
        groups.append((f"prototype {c}", place, "star"))
        picked.append((both.weight[[c]] / both.weight[[c]].norm() @ basis).expand(len(moments), 1, axes))
        done += len(examples)
    steps = [rows.mT.round(decimals=4).tolist() for rows in picked]  # group, frame, axis, point
    frames = [[group[i] for group in steps] for i in range(len(moments))]
    unit = "steps" if discrete else "time"
    code = both.code.replace("import torch, unhinge", "import torch, unhinge, unhinge.web.moving", 1)
    code += (
        f"\nx = torch.arange(0, {length + 1}, {step}){'' if discrete else '.double()'}; "
        f"basis = unhinge.web.moving.picture_basis(weight, weight, {classes}, {axes})\n"
        f"h = plain.at(x).features; h = (h / h.norm(dim=-1, keepdim=True)) @ basis; per = {state.count('per_class')}\n"
        f"curves = {{f'class {{c}}': (x, h[:, c * per:(c + 1) * per][:, :{PER_CLASS}]) for c in {classes}}}"
    )
    return Panel(
        "", "", [], code, moving=Moving(moments.tolist(), unit, groups, frames, 1.08, min(len(frames) // 8, 2))
    )


def _units(state: State, both: _Both, examples: list[int], moments: Tensor) -> Tensor:
    """Unit features of a few examples at all moments. Each moves by itself, but its pull is divided by the number of
    all examples: for a problem of the few, the rate makes up for it, and the decay for the rate."""
    if state.number("feature_decay") > 0 and both.plain.motion.discrete:  # bursts magnify rounding: no detours
        rows = both.plain.at(moments).features[:, examples]
        return rows / rows.norm(dim=-1, keepdim=True)
    lr, _ = rates(state)
    share = len(examples) / len(both.labels)
    few = Spherical(both.labels[examples], both.weight, state.maybe("gamma"), state.number("feature_decay") / share)
    solve = few.flow if state.word("optimizer") == "flow" else few.descent
    rows = solve(both.features[examples], lr=lr * share).at(moments).features
    return rows / rows.norm(dim=-1, keepdim=True)


def _words(
    state: State, both: _Both, exponent: dict[str, float], reached: dict[str, float], discrete: bool
) -> tuple[str, Any, list[str]]:
    slow, quick = reached["plain"], reached["rescaled"]
    known = both.plain.hypotheses(), both.rescaled.hypotheses()
    tone: Any = "good"
    if math.isnan(slow):
        headline, tone = "Decay shrinks the features until steps overshoot: the angles burst, again and again.", "warn"
    elif known[0].opposite:
        headline, tone = "Some features start exactly opposite to their target and stay there.", "bad"
    elif not all(k.converges for k in known):
        headline, tone = "The rate runs out, so the angles stop short of zero.", "warn"
    elif math.isfinite(slow) and math.isfinite(quick) and quick > 0:
        factor = slow / quick
        word = f"{plain(factor, 2)} times as long as" if factor >= 1.05 else "no longer than"
        if factor < 0.95:
            word = f"only {plain(factor, 2)} of the time of"
        headline = f"Every feature turns to its target; plain steps take {word} rescaled ones."
    else:
        headline = "Every feature turns to its target."
    sentences = []
    decays = state.number("feature_decay") > 0
    if discrete and not known[0].monotone and known[0].converges:
        sentences.append(
            f"The first plain step is large (α = {plain(known[0].first_alpha)} > 1): some angles jump before they fall."
        )
        tone = "warn"
    if decays:
        sentences.append("Decay shrinks the norms, so that every turn is larger than the one before.")
    elif discrete:
        sentences.append(
            "Steps are tangent to the sphere, so norms only grow, and growing norms slow plain steps down."
        )
    else:
        sentences.append("Flow keeps every norm: nothing but the angles move.")
    sentences.append("Rescaled steps turn long features faster: by η|v| over |h|, not over |h| squared.")
    return headline, tone, sentences


SPHERE = View(
    "sphere",
    "Sphere",
    "Unit features and fixed prototypes: angles and norms, plain against rescaled steps.",
    CONTROLS,
    SLOTS,
    answer,
)
