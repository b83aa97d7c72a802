"""Free and regularized dynamics: features and prototypes, any class sizes, decays, schedules, flow or descent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory import LayerPeeled, LinearPath
from unhinge.web.address import State
from unhinge.web.clock import RATES, nice_length, rates, runs_out, shown_length, stride_for, times
from unhinge.web.controls import choice, number
from unhinge.web.moving import FRAMES, PER_CLASS, basis_line, moving_panel, shown_classes
from unhinge.web.panels import Answer, Number, Panel, Slot, Tone
from unhinge.web.script import Look, Script, call, panel_of
from unhinge.web.setting import CLASSES, STARTS, Setting, accuracy_cost, setting
from unhinge.web.shared_controls import AXES, DECAYS, REACH, gamma_control, horizon_control
from unhinge.web.views import View
from unhinge.web.words import duration, exponent_text, plain, share, threshold

__all__ = ["FREE", "Solved", "solve_free"]

ACCURACY_BUDGET = 4e6  # nanoseconds
MOST_STEPS_BY_MOMENTUM = 5000  # with a schedule, momentum is stepped one by one
MOST_STEPS_BY_SCHEDULE = 100_000
VERY_LATE = 1e15  # the accuracy there is that of the limit

CONTROLS = (
    *CLASSES,
    gamma_control("Weight of the other logits in the loss -z_y + γ Σ z_j. Empty: 1/(C-1)."),
    *DECAYS,
    number(
        "s",
        "ratio s = η₁/η₂",
        "Learning rate of the features over that of the prototypes.",
        1.0,
        1e-4,
        1e4,
        log=True,
        slide=(0.01, 100.0),
    ),
    *RATES,
    choice(
        "optimizer",
        "training",
        "Gradient flow, or the iterates of SGD on all examples.",
        (("flow", "flow"), ("descent", "descent")),
    ),
    number(
        "momentum",
        "momentum",
        "As in torch.optim.SGD.",
        0.0,
        0.0,
        0.999,
        slide=(0.0, 0.99),
        when=("optimizer", ("descent",)),
    ),
    choice(
        "nesterov",
        "kind of momentum",
        "Heavy ball, or Nesterov's.",
        (("no", "heavy ball"), ("yes", "Nesterov")),
        when=("optimizer", ("descent",)),
    ),
    *STARTS,
    horizon_control("steps shown", "Empty: until the distance to the limit is a tenth of the one asked for."),
    REACH,
    AXES,
)

SLOTS = (
    Slot("loss", "loss", "Mean unhinged loss -z_y + γ Σ z_j over the examples, without the decay terms."),
    Slot("accuracy", "accuracy", "Share of examples whose largest logit is that of their label. Dotted: chance, 1/C."),
    Slot("norms", "norms", "Frobenius norms of all features and of all prototypes, on a logarithmic axis."),
    Slot(
        "distance",
        "distance to the limit",
        "| Z/|Z| - its limit |, where Z holds features and prototypes. Dashed: the slope predicted by the theory.",
    ),
    Slot(
        "spectrum",
        "modes and their growth",
        "Each singular value of the target matrix is a mode with its own exponent; the largest one decides the limit.",
    ),
    Slot(
        "moving",
        "features and prototypes in time",
        "Three classes (four in 3-D), projected on the plane of their final prototypes; each set divided by its "
        "root mean square norm. Stars: prototypes. Dots: features.",
    ),
)


@dataclass(frozen=True)
class Solved:
    """What the controls ask for: a script that leaves `problem` and `path` beside the start."""

    setting: Setting
    script: Script
    solve: str  # the call that gives a path, with FEATURES and WEIGHT for its start

    @property
    def problem(self) -> LayerPeeled:
        """The problem."""
        problem: LayerPeeled = self.script["problem"]
        return problem

    @property
    def path(self) -> LinearPath:
        """Its path."""
        path: LinearPath = self.script["path"]
        return path


def solve_free(state: State) -> Solved:
    """The path that the controls ask for."""
    given = setting(state)
    problem = call(
        "unhinge.LayerPeeled",
        "labels",
        str(given.num_classes),
        gamma=state.maybe("gamma"),
        feature_decay=state.number("feature_decay") or None,
        weight_decay=state.number("weight_decay") or None,
    )
    solve = f"problem.{state.word('optimizer')}(FEATURES, WEIGHT, lr={rates(state, state.number('s'))}"
    solve += "".join(f", {name}={value!r}" for name, value in _momentum(state).items()) + ")"
    path = solve.replace("FEATURES", "features").replace("WEIGHT", "weight")
    return Solved(given, given.script.then(f"problem = {problem}", f"path = {path}"), solve)


def _momentum(state: State) -> dict[str, object]:
    """The options of descent that were chosen."""
    if state.word("optimizer") != "descent" or not state.number("momentum"):
        return {}
    chosen: dict[str, object] = {"momentum": state.number("momentum")}
    return chosen | ({"nesterov": True} if state.word("nesterov") == "yes" else {})


def _check_steps(state: State, horizon: float | None) -> None:
    if state.word("optimizer") == "flow" or state.word("schedule") == "constant":
        return
    most = MOST_STEPS_BY_MOMENTUM if state.number("momentum") else MOST_STEPS_BY_SCHEDULE
    steps = max(horizon or 0, state.count("length"))
    if steps > most:
        what = "momentum with a changing rate" if state.number("momentum") else "descent with a changing rate"
        raise ValueError(
            f"{what} is followed step by step, and this page follows {most:,} of them, not {steps:,.0f}. Shorten the "
            f"schedule and the steps shown, choose flow, or use the library."
        )


def _length(state: State, late: float, rate: float) -> int:
    """The steps shown: those asked for, or until a tenth of the distance asked for, which is reached at `late`."""
    given = state.maybe("horizon")
    if given is not None:
        return shown_length(given)
    if runs_out(state):
        return nice_length(state.count("length"))
    if _stepwise(state):
        return nice_length(min(2 * state.count("length"), MOST_STEPS_BY_MOMENTUM))
    if not math.isfinite(late) or late == 0 or not rate < 0:
        return 1000
    length = nice_length(late + math.log(10) / -rate)  # a tenth of the distance later
    return min(length, MOST_STEPS_BY_SCHEDULE) if state.word("schedule") != "constant" else min(length, 10**9)


def _stepwise(state: State) -> bool:
    stepped = state.word("optimizer") == "descent" and state.number("momentum") > 0
    return stepped and state.word("schedule") != "constant"


def _shown(state: State) -> tuple[Solved, float, float, int]:
    """The path, its rate, when it is as near to its limit as asked for, and the steps shown."""
    _check_steps(state, state.maybe("horizon"))
    solved = solve_free(state)
    rate = solved.path.rate(state.number("lr")).item()
    reached = math.nan if _stepwise(state) else solved.path.time_to(state.number("reach")).item()
    return solved, rate, reached, _length(state, reached, rate)


def picture(state: State) -> Panel:
    """Features and prototypes in time."""
    solved, _, _, length = _shown(state)
    return _moving_panel(state, solved, length)


def curves(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    solved, rate, reached, length = _shown(state)
    path, given = solved.path, solved.setting
    script = solved.script.then(f"x = {times(length, path.discrete)}")
    x = script["x"]
    steps = "steps" if path.discrete else "time (steps of gradient flow)"
    stride = stride_for(accuracy_cost(given), ACCURACY_BUDGET, len(x) - 1)
    end = length if runs_out(state) or _stepwise(state) else VERY_LATE
    late = path.accuracy(torch.tensor(end).to(x)).item()
    measured = script.then("d = path.distance(x)")
    distance: Tensor = measured["d"]
    panels = {
        "loss": _loss_panel(script, steps),
        "accuracy": panel_of(
            script.then(f"curves = {{'accuracy': (x[::{stride}], path.accuracy(x[::{stride}]))}}"),
            steps,
            "accuracy (share)",
            yrange=(-0.03, 1.05),
            levels=[("chance", 1 / given.num_classes)],
        ),
        "norms": panel_of(
            script.then(
                "curves = {'features |H|': (x, path.feature_norm(x)), 'prototypes |W|': (x, path.weight_norm(x))}"
            ),
            steps,
            "Frobenius norm",
            ylog=True,
        ),
        "distance": _distance_panel(state, measured, steps, rate),
        "spectrum": _spectrum_panel(state, solved),
    }
    headline, tone, sentences, numbers = _words(
        state, solved, path.direction().weight, rate, late, _reached(reached, state, x, distance), distance
    )
    chosen = {
        "gamma": solved.problem.gamma.item(),
        "horizon": float(length),
        "critical": solved.problem.critical_decay.item(),  # the sliders of decays are finer around it
    }
    return Answer(headline, tone, sentences, numbers, panels, chosen)


def _loss_panel(script: Script, steps: str) -> Panel:
    """The loss, or where it falls exponentially minus the loss on a logarithmic axis, which then is a line."""
    asked = script.then("y = path.loss(x)")
    finite = asked["y"][torch.isfinite(asked["y"])]
    late = finite[len(finite) // 2 :]
    if len(late) and bool((late < 0).all()) and finite.min() < 300 * late.max():
        drawn = asked.then("curves = {'-loss': (x, torch.where(y < 0, -y, torch.nan))}")
        return panel_of(drawn, steps, "-loss", title="minus the loss", ylog=True)
    return panel_of(asked.then("curves = {'loss': (x, y)}"), steps, "loss")


def _distance_panel(state: State, script: Script, steps: str, rate: float) -> Panel:
    lines = ["curves = {'distance': (x, torch.where(d > 0, d, torch.nan))}"]
    above = (script["d"] > 1e-13).nonzero().flatten().tolist()
    if above and above[-1] > 4 and state.word("schedule") == "constant" and math.isfinite(rate):
        last, part = above[-1], f"{above[-1] // 3}:{above[-1] + 1}"
        lines.append(
            f"y = 1.4 * d[{last}] * torch.exp(path.rate() * (x[{part}] - x[{last}]))\n"
            f"curves['predicted slope'] = (x[{part}], y)"
        )
    return panel_of(
        script.then(*lines),
        steps,
        "distance (no unit)",
        {"predicted slope": Look("dashed", 1)},
        ylog=True,
        levels=[("asked for", state.number("reach"))],
    )


def _spectrum_panel(state: State, solved: Solved) -> Panel:
    lr = state.number("lr")
    discrete = solved.path.discrete
    modes = call(
        "problem.modes",
        lr=lr if state.number("s") == 1 else (lr * state.number("s"), lr),
        **_momentum(state),
        discrete=True if discrete and not _momentum(state) else None,
    )
    script = solved.script.then(
        f"m = {modes}",
        "y = m.growth.repeat_interleave(m.multiplicity)",
        "x = torch.arange(1.0, len(y) + 1)",
        "lead = y >= y.max() - 1e-9 * y.abs().max()",
        "curves = {'leading': (x[lead], y[lead]), 'others': (x[~lead], y[~lead])}",
    )
    sigma = script["m"].sigma.repeat_interleave(script["m"].multiplicity).tolist()
    names = [f"σ = {plain(s)}, exponent {plain(v)}" for s, v in zip(sigma, script["y"].tolist(), strict=True)]
    lead = script["lead"].tolist()
    hover = {side: [n for n, leads in zip(names, lead, strict=True) if leads is side] for side in (True, False)}
    return panel_of(
        script,
        "mode (by singular value)",
        f"growth exponent ({'per step' if discrete else 'per unit of time'})",
        {"leading": Look("marks", 0, hover=hover[True]), "others": Look("marks", 1, hover=hover[False])},
        levels=[("neither grows nor decays", 0.0)],
    )


def _moving_panel(state: State, solved: Solved, length: int) -> Panel:
    given, path = solved.setting, solved.path
    axes = min(int(state.word("axes")), given.dim)
    classes = shown_classes(given.num_classes, axes)
    again = solved.solve.replace("FEATURES", "features @ basis").replace("WEIGHT", "weight @ basis")
    script = solved.script.then(
        f"x = {times(length, path.discrete, FRAMES)}",
        basis_line("path.direction().weight", classes, axes),
        f"z = {again}.at(x)",
        "h = z.features * (len(labels)**0.5 / path.feature_norm(x))[:, None, None]",
        "w = z.weight * (len(weight)**0.5 / path.weight_norm(x))[:, None, None]",
        f"curves = {{f'class {{k}}': (x, h[:, labels == k][:, :{PER_CLASS}]) for k in c}} | "
        "{f'prototype {k}': (x, w[:, [k]]) for k in c}",
    )
    return moving_panel(script, classes, "steps" if path.discrete else "time")


def _words(
    state: State, solved: Solved, final: Tensor, rate: float, late: float, reached: str, distance: Tensor
) -> tuple[str, Tone, list[str], list[Number]]:
    problem, path, given = solved.problem, solved.path, solved.setting
    classes, gamma = given.num_classes, problem.gamma.item()
    limit = threshold(classes)
    growth = path.growth(state.number("lr")).item()
    critical = problem.critical_decay.item()
    product = math.sqrt(problem.feature_decay.item() * problem.weight_decay.item())
    tone: Tone = "good"
    norms = final.norm(dim=1)
    alive = int((norms > 1e-6 * norms.max()).sum())
    if gamma > limit and problem.balanced:
        headline = (
            f"γ is above 2/(C-2) = {plain(limit)}: every class ends on one vector, accuracy falls to 1/C = "
            f"{share(1 / classes)}."
        )
        tone = "bad"
    elif gamma == limit and problem.balanced:
        headline, tone = f"γ is exactly 2/(C-2) = {plain(limit)}: the common vector and the classes grow alike.", "warn"
    elif gamma == 0 and problem.balanced:
        headline, tone = "γ = 0: nothing pushes classes apart; their common vector grows as fast as they do.", "warn"
    elif problem.balanced:
        headline = f"Each class ends on a vector of its own: features on their prototypes, accuracy {share(late)}."
        if late < 0.999:
            tone = "warn"
            headline += " Some vectors are too close to be told apart: raise p." if not runs_out(state) else ""
    elif alive < classes:
        lost = "1 class vanishes" if classes - alive == 1 else f"{classes - alive} of {classes} classes vanish"
        leads = "largest class leads" if alive <= 1 else f"{alive} largest classes lead"
        headline = f"The sizes differ, so the {leads}, and in the limit {lost} beside {'it' if alive <= 1 else 'them'}."
        tone = "bad" if late < 0.999 else "warn"
    else:
        headline, tone = "The sizes differ: all classes end on one line, led by the largest.", "bad"
    sentences = [_growth_sentence(product, critical, growth, path.discrete)]
    if problem.balanced and gamma < limit and gamma > 0 and classes <= 400:
        sentences.append(_angles(final, classes))
    if runs_out(state):
        sentences.append(f"The rate runs out: training stops at distance {plain(distance[-1].item())} from the limit.")
    biggest = state.number("lr") * max(problem.weight_decay.item(), state.number("s") * problem.feature_decay.item())
    if path.discrete and biggest >= 2:
        sentences.append(f"The step is too large for the decay (η λ = {plain(biggest)} ≥ 2): what should shrink grows.")
        tone = "bad"
    numbers = [
        Number(
            "critical decay", plain(critical), "Norms grow while √(λ₁λ₂) is below this, the largest singular value."
        ),
        Number(
            "fastest γ",
            _best(problem, state.number("s")),
            "The γ at which the direction converges fastest, at these decays.",
        ),
        Number("2/(C-2)", plain(limit), "Above this γ, balanced classes all end on one vector."),
        Number("|Z|", exponent_text(growth, path.discrete), f"Exponent {plain(growth, 4)} at the rate η."),
        Number(
            "distance",
            exponent_text(rate, path.discrete),
            f"Exponent {plain(rate, 4)} at the rate η, exact for this start.",
        ),
        Number(f"to {plain(state.number('reach'))}", reached, "When the distance to the limit is that small."),
        Number("accuracy in the end", share(late), "At infinite time, or where the schedule stops."),
    ]
    return headline, tone, sentences, numbers


def _best(problem: LayerPeeled, ratio: float) -> str:
    if not problem.balanced:
        return "none: weigh the classes"
    return plain(problem.best_gamma(ratio), 4)


def _growth_sentence(product: float, critical: float, growth: float, discrete: bool) -> str:
    if product == 0:
        return f"No decay stops the growth: |Z| {exponent_text(growth, discrete)}, and the loss falls without bound."
    if math.isclose(product, critical, rel_tol=1e-6):
        return f"√(λ₁λ₂) is the critical decay {plain(critical)}: the norms settle at a finite value."
    if product < critical:
        return (
            f"√(λ₁λ₂) = {plain(product)} is below the critical {plain(critical)}: |Z| "
            f"{exponent_text(growth, discrete)}."
        )
    return (
        f"√(λ₁λ₂) = {plain(product)} is above the critical {plain(critical)}: everything decays to zero, |Z| "
        f"{exponent_text(growth, discrete)}, while the direction still converges."
    )


def _angles(final: Tensor, classes: int) -> str:
    units = final / final.norm(dim=1, keepdim=True).clamp(min=1e-300)
    cosines = (units @ units.mT)[~torch.eye(classes, dtype=torch.bool)].clamp(-1, 1)
    low, high = math.degrees(math.acos(cosines.max())), math.degrees(math.acos(cosines.min()))
    simplex = math.degrees(math.acos(-1 / (classes - 1)))
    return f"Final prototypes are {low:.1f}° to {high:.1f}° apart, as the start decides (simplex ETF: {simplex:.1f}°)."


def _reached(late: float, state: State, x: Tensor, distance: Tensor) -> str:
    """When the distance asked for is reached; read off the curve where asking exactly would take long."""
    if not math.isnan(late):
        return duration(late, state.word("optimizer") == "descent")
    below = (distance <= state.number("reach")).nonzero().flatten().tolist()
    return f"about {duration(x[below[0]].item(), True)}" if below else "not while shown"


FREE = View(
    "free",
    "Free & regularized",
    "Features and prototypes both trained, with or without decay.",
    "loss = mean of (-z_y + γ Σ z_j over j ≠ y) + λ₁/2 |H|² + λ₂/2 |W|², z = W h;  rates η₁ = s η of H and η of W",
    CONTROLS,
    SLOTS,
    curves,
    picture,
)
