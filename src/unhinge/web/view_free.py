"""Free and regularized dynamics: features and prototypes, any class sizes, decays, schedules, flow or descent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unhinge.theory import LayerPeeled, LinearPath
from unhinge.web.accuracy import accuracy as accuracy_along
from unhinge.web.accuracy import moment_cost
from unhinge.web.address import State
from unhinge.web.clock import RATES, SAMPLES, nice_length, rates, runs_out, stride_for, times
from unhinge.web.controls import choice, number
from unhinge.web.modes import exponents, exponents_code
from unhinge.web.moving import FRAMES, moving_picture, picture_basis, picture_code, shown_classes
from unhinge.web.panels import Answer, Curve, Number, Panel, Slot, as_list
from unhinge.web.setting import CLASSES, STARTS, Setting, setting
from unhinge.web.shared_controls import AXES, DECAYS, REACH, gamma_control, horizon_control
from unhinge.web.views import View
from unhinge.web.words import duration, exponent_text, plain, share, threshold

__all__ = ["FREE", "Solved", "solve_free"]

ACCURACY_BUDGET = 4e7  # multiplications
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
        "root mean "
        "square norm. Stars: prototypes. Dots: features.",
    ),
)


@dataclass(frozen=True)
class Solved:
    """A problem, its path, and the lines of Python that make both."""

    setting: Setting
    problem: LayerPeeled
    path: LinearPath
    code: str
    make: str  # the call that makes a path of other features and prototypes, for pictures


def solve_free(state: State) -> Solved:
    """The path that the controls ask for."""
    given = setting(state)
    gamma, l1, l2 = state.maybe("gamma"), state.number("feature_decay"), state.number("weight_decay")
    problem = LayerPeeled(given.labels, given.num_classes, gamma, l1, l2)
    lr, lr_code = rates(state, state.number("s"))
    options = ""
    if state.word("optimizer") == "descent":
        momentum, nesterov = state.number("momentum"), state.word("nesterov") == "yes" and state.number("momentum") > 0
        path = problem.descent(given.features, given.weight, lr=lr, momentum=momentum, nesterov=nesterov)
        if momentum:
            options = f", momentum={momentum!r}" + (", nesterov=True" if nesterov else "")
    else:
        path = problem.flow(given.features, given.weight, lr=lr)
    arguments = f"labels, {given.num_classes}" + (f", gamma={gamma!r}" if gamma is not None else "")
    arguments += (f", feature_decay={l1!r}" if l1 else "") + (f", weight_decay={l2!r}" if l2 else "")
    call = f"{state.word('optimizer')}(FEATURES, WEIGHT, lr={lr_code}{options})"
    first = f"problem = unhinge.LayerPeeled({arguments}); path = problem.{call}"
    code = "\n".join(
        (
            "import torch, unhinge" + (", unhinge.nn" if state.word("start") == "etf" else ""),
            *given.code,
            first.replace("FEATURES", "features").replace("WEIGHT", "weight"),
        )
    )
    return Solved(given, problem, path, code, "problem." + call)


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
        length = int(given)
        return length if length < SAMPLES else SAMPLES * (length // SAMPLES)
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


def answer(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    _check_steps(state, state.maybe("horizon"))
    solved = solve_free(state)
    path, given = solved.path, solved.setting
    rate = path.rate(_peak(state)).item()
    reached = math.nan if _stepwise(state) else path.time_to(state.number("reach")).item()
    length = _length(state, reached, rate)
    x, x_code = times(length, path.discrete)
    xlabel = "steps" if path.discrete else "time (steps of gradient flow)"
    at = x.tolist()
    code = f"{solved.code}\nx = {x_code}; curves = "
    loss, distance = path.loss(x), path.distance(x)
    features, weight = path.feature_norm(x), path.weight_norm(x)
    classes = given.num_classes
    stride = stride_for(moment_cost(path), ACCURACY_BUDGET, len(at) - 1)
    end = length if runs_out(state) or _stepwise(state) else VERY_LATE
    accuracy = accuracy_along(path, torch.cat([x[::stride], torch.tensor([end]).to(x)]))
    panels = {
        "loss": _loss_panel(xlabel, at, loss, code),
        "accuracy": Panel(
            xlabel,
            "accuracy (share)",
            [Curve("accuracy", at[::stride], as_list(accuracy[:-1]))],
            code + f"{{'accuracy': (x[::{stride}], path.accuracy(x[::{stride}]))}}",
            yrange=(-0.03, 1.05),
            levels=[("chance", 1 / classes)],
        ),
        "norms": Panel(
            xlabel,
            "Frobenius norm",
            [Curve("features |H|", at, as_list(features)), Curve("prototypes |W|", at, as_list(weight), color=1)],
            code + "{'features |H|': (x, path.feature_norm(x)), 'prototypes |W|': (x, path.weight_norm(x))}",
            ylog=True,
        ),
        "distance": _distance_panel(state, xlabel, at, distance, rate, code),
        "spectrum": _spectrum_panel(state, solved),
    }
    final = path.direction()
    panels["moving"] = _moving_panel(state, solved, final.weight, length)
    headline, tone, sentences, numbers = _words(
        state, solved, final.weight, rate, accuracy[-1].item(), _reached(reached, state, x, distance), distance
    )
    return Answer(
        headline,
        tone,
        sentences,
        numbers,
        panels,
        {"gamma": solved.problem.gamma.item(), "horizon": float(length)},
    )


def _peak(state: State) -> float:
    return state.number("lr")


def _loss_panel(xlabel: str, at: list[float], loss: Tensor, code: str) -> Panel:
    finite = loss[torch.isfinite(loss)]
    late = finite[len(finite) // 2 :]
    if len(late) and bool((late < 0).all()) and finite.min() < 300 * late.max():
        return Panel(
            xlabel,
            "-loss",
            [Curve("-loss", at, as_list(torch.where(loss < 0, -loss, torch.nan)))],
            code + "{'-loss': (x, torch.where(path.loss(x) < 0, -path.loss(x), torch.nan))}",
            title="minus the loss",
            ylog=True,
        )
    return Panel(xlabel, "loss", [Curve("loss", at, as_list(loss))], code + "{'loss': (x, path.loss(x))}")


def _distance_panel(state: State, xlabel: str, at: list[float], distance: Tensor, rate: float, code: str) -> Panel:
    curves = [Curve("distance", at, as_list(torch.where(distance > 0, distance, torch.nan)))]
    parts = "{'distance': (x, torch.where(path.distance(x) > 0, path.distance(x), torch.nan))"
    above = (distance > 1e-13).nonzero().flatten().tolist()
    if above and above[-1] > 4 and state.word("schedule") == "constant" and math.isfinite(rate):
        last, first = above[-1], above[-1] // 3
        slope = 1.4 * distance[last] * torch.exp(rate * (torch.tensor(at, dtype=torch.float64) - at[last]))
        shown = slice(first, last + 1)
        curves.append(Curve("predicted slope", at[shown], as_list(slope[shown]), "dashed", 1))
        parts += (
            f", 'predicted slope': (x[{first}:{last + 1}], (1.4 * path.distance(x[{last}]) * "
            f"torch.exp(path.rate() * (x - x[{last}])))[{first}:{last + 1}])"
        )
    return Panel(
        xlabel,
        "distance (no unit)",
        curves,
        code + parts + "}",
        ylog=True,
        levels=[("asked for", state.number("reach"))],
    )


def _spectrum_panel(state: State, solved: Solved) -> Panel:
    problem = solved.problem
    sigma = problem.singular_values
    lr, momentum = state.number("lr"), state.number("momentum")
    pair = (lr * state.number("s"), lr)
    decays = (problem.feature_decay.item(), problem.weight_decay.item())
    descent = state.word("optimizer") == "descent"
    nesterov = state.word("nesterov") == "yes"
    values = exponents(sigma, pair, decays, state.word("optimizer"), momentum, nesterov)
    at = [float(k) for k in range(1, len(sigma) + 1)]
    lead = values >= values.max() - 1e-9 * values.abs().max()
    names = [f"σ = {plain(s)}, exponent {plain(v)}" for s, v in zip(sigma.tolist(), values.tolist(), strict=True)]
    curves = []
    for name, mask, color in (("leading", lead, 0), ("others", ~lead, 1)):
        picked = mask.nonzero().flatten().tolist()
        if picked:
            curves.append(
                Curve(name, [at[i] for i in picked], as_list(values[mask]), "marks", color, [names[i] for i in picked])
            )
    code = exponents_code(pair, decays, state.word("optimizer"), momentum, nesterov)
    unit = "per step" if descent else "per unit of time"
    return Panel(
        "mode (by singular value)",
        f"growth exponent ({unit})",
        curves,
        f"{_with_module(solved.code, 'unhinge.web.modes')}\nsigma = problem.singular_values; x = "
        f"torch.arange(1.0, len(sigma) + 1); "
        f"y = {code}; lead = y >= y.max() - 1e-9 * y.abs().max()\n"
        "curves = {'leading': (x[lead], y[lead]), 'others': (x[~lead], y[~lead])}",
        levels=[("neither grows nor decays", 0.0)],
    )


def _with_module(code: str, name: str) -> str:
    return code.replace("import torch, unhinge", f"import torch, unhinge, {name}", 1)


def _moving_panel(state: State, solved: Solved, final: Tensor, length: int) -> Panel:
    given, path = solved.setting, solved.path
    axes = min(int(state.word("axes")), given.weight.shape[1])
    step = max(1, length // FRAMES)
    if path.discrete:
        moments, moments_code = torch.arange(0, length + 1, step), f"torch.arange(0, {length + 1}, {step})"
    else:
        moments = torch.linspace(0, length, FRAMES + 1, dtype=torch.float64)
        moments_code = f"torch.linspace(0, {length}, {FRAMES + 1}, dtype=torch.float64)"
    classes = shown_classes(given.num_classes, axes)
    basis = picture_basis(final, given.weight, classes, axes)
    lr, _ = rates(state, state.number("s"))

    def again(features: Tensor, weight: Tensor) -> Any:
        if not path.discrete:
            return solved.problem.flow(features, weight, lr=lr)
        momentum = state.number("momentum")
        nesterov = state.word("nesterov") == "yes" and momentum > 0
        return solved.problem.descent(features, weight, lr=lr, momentum=momentum, nesterov=nesterov)

    norms = path.feature_norm(moments), path.weight_norm(moments)
    unit = "steps" if path.discrete else "time"
    moving = moving_picture(again, norms, moments, given.features, given.weight, given.labels, basis, unit)
    solve = solved.make.replace("FEATURES", "features @ basis").replace("WEIGHT", "weight @ basis")
    code = (
        f"{_with_module(solved.code, 'unhinge.web.moving')}\nx = {moments_code}\n{picture_code(classes, axes, solve)}"
    )
    return Panel("", "", [], code, moving=moving)


def _words(
    state: State, solved: Solved, final: Tensor, rate: float, late: float, reached: str, distance: Tensor
) -> tuple[str, Any, list[str], list[Number]]:
    problem, path, given = solved.problem, solved.path, solved.setting
    classes, gamma = given.num_classes, problem.gamma.item()
    limit = threshold(classes)
    growth = path.growth(_peak(state)).item()
    critical = problem.critical_decay.item()
    product = math.sqrt(problem.feature_decay.item() * problem.weight_decay.item())
    tone: Any = "good"
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
        headline = f"The sizes differ, so the largest class leads and in the limit {lost} beside it."
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
    CONTROLS,
    SLOTS,
    answer,
)
