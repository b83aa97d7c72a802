"""Normalized features and fixed prototypes: angles and norms, plain against rescaled steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unhinge.theory import SphericalPath
from unhinge.web.address import State
from unhinge.web.cache import STARTS_KEPT, SizedCache
from unhinge.web.clock import RATES, length_shown, rates, runs_out, times
from unhinge.web.controls import choice, count, number
from unhinge.web.moving import FRAMES, PER_CLASS, basis_line, moving_panel, shown_classes
from unhinge.web.panels import Answer, Number, Panel, Slot, Tone
from unhinge.web.script import Look, Script, call, panel_of
from unhinge.web.setting import check_simplex, check_size, labels_line
from unhinge.web.shared_controls import AXES, SEED, decay_control, gamma_control, horizon_control
from unhinge.web.views import View
from unhinge.web.words import duration, exponent_text, plain

__all__ = ["SPHERE"]

SMALL = 100_000  # numbers: states of all examples are made faster than a few examples walk
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
        "Between each feature and the direction it is pulled to: mean and, dotted, slowest.",
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


DRAWN: SizedCache[str, Script] = SizedCache(STARTS_KEPT, lambda script: script.nbytes)


@dataclass(frozen=True)
class _TwoPaths:
    """A script that leaves the start and the two paths `plain` and `rescaled`."""

    script: Script
    lr: str
    optimizer: str

    @property
    def plain(self) -> SphericalPath:
        path: SphericalPath = self.script["plain"]
        return path

    @property
    def rescaled(self) -> SphericalPath:
        path: SphericalPath = self.script["rescaled"]
        return path

    @property
    def discrete(self) -> bool:
        return self.plain.motion.discrete


def _start(state: State) -> Script:
    classes, per_class, dim = state.count("classes"), state.count("per_class"), state.count("dim")
    check_size((per_class,) * classes, dim)
    check_simplex(state.word("prototypes"), classes, dim)
    size = classes * per_class
    weight = f"unhinge.simplex_etf({classes}, {dim}, g, dtype=torch.float64)"
    if state.word("prototypes") == "random":
        weight = f"unit(z[{size}:])"
    lines = (
        "import torch, unhinge",
        "unit = lambda rows: rows / rows.norm(dim=-1, keepdim=True)",
        labels_line((per_class,) * classes),
        f"g = torch.Generator().manual_seed({state.count('seed')})",
        f"z = torch.randn({size + classes}, {dim}, generator=g, dtype=torch.float64)",
        f"size = torch.randn({size}, 1, generator=g, dtype=torch.float64)",
        f"size = {state.number('norm')!r} * torch.exp({state.number('spread')!r} * size)",
        f"weight = {weight}",
        f"features = size * unit(z[:{size}])",
    )
    return DRAWN.get("\n".join(lines), lambda: Script(*lines))


def _solve(state: State) -> _TwoPaths:
    gamma, decay = state.maybe("gamma"), state.number("feature_decay") or None
    lr, kind = rates(state), state.word("optimizer")
    problem = call("unhinge.Spherical", "labels", "weight", gamma=gamma, feature_decay=decay)
    script = _start(state).then(
        f"problem = {problem}",
        f"plain = problem.{kind}(features, lr={lr})",
        f"rescaled = problem.{kind}(features, lr={lr}, rescaled=True)",
    )
    return _TwoPaths(script, lr, kind)


def _length(state: State, reached: float) -> int:
    if runs_out(state) or state.word("schedule") == "warmup":
        return length_shown(state, 1.2 * state.count("length"), most=LONGEST_BY_STEPS, otherwise=1000)
    return length_shown(state, 1.25 * reached if reached > 0 else math.inf, most=LONGEST, otherwise=1000)


def _shown(state: State) -> tuple[_TwoPaths, dict[str, float], dict[str, float], int]:
    """The paths, the rate of each, when it is as near to its limit as asked for, and the steps shown."""
    changing = state.word("schedule") != "constant" or state.number("feature_decay") > 0
    changing = changing and state.word("optimizer") == "descent"
    if changing and max(state.maybe("horizon") or 0, state.count("length")) > LONGEST_BY_STEPS:
        raise ValueError(
            f"a changing rate, or decay, is followed step by step, and this page follows {LONGEST_BY_STEPS:,} steps. "
            "Shorten the schedule and the steps shown, or choose flow."
        )
    both = _solve(state)
    pair = (("plain", both.plain), ("rescaled", both.rescaled))
    lr = state.number("lr")
    bursts = both.discrete and state.number("feature_decay") > 0  # then there is no exponent and no end to look for
    exponent = {name: math.nan if bursts else path.rate(lr).item() for name, path in pair}
    reached = {name: math.nan if bursts else path.time_to(state.number("reach")).item() for name, path in pair}
    return both, exponent, reached, _length(state, max(reached.values()))


def picture(state: State) -> Panel:
    """Features and prototypes in time."""
    both, _, _, length = _shown(state)
    return _moving_panel(state, both, length)


def curves(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    both, exponent, reached, length = _shown(state)
    script = both.script.then(f"x = {times(length, both.discrete)}")
    steps = "steps" if both.discrete else "time (steps of gradient flow)"
    panels = {
        "angle": panel_of(
            script.then(
                "a = {n: p.angles(x).rad2deg() for n, p in (('plain', plain), ('rescaled', rescaled))}",
                "curves = {f'{n}, mean': (x, y.mean(-1)) for n, y in a.items()} | "
                "{f'{n}, slowest': (x, y.amax(-1)) for n, y in a.items()}",
            ),
            steps,
            "angle (degrees; dotted: slowest)",
            {"plain, slowest": Look("dotted", 0, listed=False), "rescaled, slowest": Look("dotted", 1, listed=False)},
        ),
        "norm": panel_of(
            script.then(
                "curves = {n: (x, p.feature_norm(x) / len(labels)**0.5) "
                "for n, p in (('plain', plain), ('rescaled', rescaled))}"
            ),
            steps,
            "root mean square norm",
        ),
        "distance": _distance_panel(state, script, steps, exponent),
        "loss": panel_of(
            script.then("curves = {'plain': (x, plain.loss(x)), 'rescaled': (x, rescaled.loss(x))}"), steps, "loss"
        ),
        "unequal": _unequal_panel(script),
    }
    headline, tone, sentences = _words(state, both, reached)
    gamma = 1 / (state.count("classes") - 1) if state.maybe("gamma") is None else state.number("gamma")
    numbers = _numbers(state, both, exponent, reached)
    return Answer(headline, tone, sentences, numbers, panels, {"gamma": gamma, "horizon": float(length)})


def _numbers(state: State, both: _TwoPaths, exponent: dict[str, float], reached: dict[str, float]) -> list[Number]:
    asked, discrete = plain(state.number("reach")), both.discrete
    slowest = "The distance, by the slowest feature."
    numbers = [
        Number(
            f"plain, to {asked}", duration(reached["plain"], discrete), "Until the distance to the limit is that small."
        ),
        Number(f"rescaled, to {asked}", duration(reached["rescaled"], discrete), "The same with gradients times |h|."),
        Number("plain, in the end", exponent_text(exponent["plain"], discrete), slowest),
        Number("rescaled, in the end", exponent_text(exponent["rescaled"], discrete), slowest),
    ]
    if discrete:
        numbers += [
            Number(
                "first step α, plain",
                plain(both.plain.hypotheses().first_alpha),
                "The largest η|v|/|h|²; up to 1 every angle falls monotonically.",
            ),
            Number("first step α, rescaled", plain(both.rescaled.hypotheses().first_alpha), "The largest η|v|/|h|."),
        ]
    return numbers


def _distance_panel(state: State, script: Script, steps: str, exponent: dict[str, float]) -> Panel:
    drawn, lines = script.then("curves = {'plain': (x, plain.distance(x)), 'rescaled': (x, rescaled.distance(x))}"), []
    for name, rate in exponent.items():
        above = (drawn["curves"][name][1] > 1e-13).nonzero().flatten().tolist()
        if state.word("schedule") != "constant" or not math.isfinite(rate) or not rate < 0 or len(above) < 8:
            continue
        last, part = above[-1], f"{2 * above[-1] // 3}:{above[-1] + 1}"
        lines.append(
            f"curves['{name}, slope'] = (x[{part}], 1.3 * curves['{name}'][1][{last}] * "
            f"torch.exp({name}.rate() * (x[{part}].double() - x[{last}])))"
        )
    looks = {"plain, slope": Look("dashed", 0, listed=False), "rescaled, slope": Look("dashed", 1, listed=False)}
    levels = [("asked for", state.number("reach"))]
    return panel_of(drawn.then(*lines), steps, "distance (no unit)", looks, ylog=True, levels=levels)


def _unequal_panel(script: Script) -> Panel:
    place = len(script["x"]) // 8
    early = script["x"][place].item()
    drawn = script.then(
        f"size = features.norm(dim=1)\ncurves = {{'plain': (size, plain.angles(x)[{place}].rad2deg()), "
        f"'rescaled': (size, rescaled.angles(x)[{place}].rad2deg())}}"
    )
    looks = {"plain": Look("marks", 0), "rescaled": Look("marks", 1)}
    return panel_of(drawn, "initial norm |h|", f"angle after {early:,.0f} steps (degrees)", looks, xlog=True)


def _moving_panel(state: State, both: _TwoPaths, length: int) -> Panel:
    dim, size = state.count("dim"), state.count("classes") * state.count("per_class")
    axes = min(int(state.word("axes")), dim)
    classes = shown_classes(state.count("classes"), axes)
    per_class, decay = state.count("per_class"), state.number("feature_decay")
    drawn = [c * per_class + i for c in classes for i in range(min(per_class, PER_CLASS))]
    # Bursts magnify rounding, so that the very same examples must be asked about.
    if both.discrete and size * dim <= SMALL:
        rows = "plain.at(x).features[:, few]"
    elif both.discrete and decay:
        rows = "torch.stack([plain.at(t).features[few] for t in x])"
    else:
        part = len(drawn) / size
        problem = call(
            "unhinge.Spherical",
            "labels[few]",
            "weight",
            gamma=state.maybe("gamma"),
            feature_decay=decay / part if decay else None,
        )
        rows = f"{problem}.{both.optimizer}(features[few], lr={part!r} * {both.lr}).at(x).features"
    script = both.script.then(
        f"x = {times(length, True, FRAMES)}{'' if both.discrete else '.double()'}",
        f"few = {drawn}",
        basis_line("weight", classes, axes),
        "# each example moves by itself, with a pull divided by the number of all: a few can be solved alone",
        f"h = unit({rows}) @ basis",
        f"w = (unit(weight) @ basis).expand(len(x), len(weight), {axes})",
        "curves = {f'class {k}': (x, h[:, labels[few] == k]) for k in c} | "
        "{f'prototype {k}': (x, w[:, [k]]) for k in c}",
    )
    return moving_panel(script, classes, "steps" if both.discrete else "time", reach=1.08)


def _words(state: State, both: _TwoPaths, reached: dict[str, float]) -> tuple[str, Tone, list[str]]:
    discrete = both.discrete
    slow, quick = reached["plain"], reached["rescaled"]
    known = both.plain.hypotheses(), both.rescaled.hypotheses()
    tone: Tone = "good"
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
    sentences.append("A rescaled step turns a feature in proportion to 1/|h|, a plain step to 1/|h|².")
    return headline, tone, sentences


SPHERE = View(
    "sphere",
    "Sphere",
    "Unit features and fixed prototypes: angles and norms, plain against rescaled steps.",
    "loss = mean of (-z_y + γ Σ z_j over j ≠ y) + λ/2 |H|², z = W h/|h|;  W is fixed, H moves at the rate η",
    CONTROLS,
    SLOTS,
    curves,
    picture,
)
