"""Cross-entropy while it is young: its exact first phase, the real loss beside it, and how long the two agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unhinge.theory import EarlyCrossEntropy, EarlyPath
from unhinge.web.address import State
from unhinge.web.clock import length_shown, stride_for, times
from unhinge.web.controls import number
from unhinge.web.panels import Answer, Curve, Number, Panel, Slot, Tone
from unhinge.web.script import Look, Script, call, panel_of
from unhinge.web.setting import Setting, accuracy_cost, long_tail, setting
from unhinge.web.shared_controls import DECAYS, SEED, horizon_control
from unhinge.web.views import View
from unhinge.web.words import plain, share

__all__ = ["YOUNG"]

LARGEST = {"logits": 60_000, "numbers": 150_000}
# The growth of the fastest mode in a step: some fifty steps from a small start to the end of its first phase. Half of
# it would double what the marks cost; both paths are descents by the same steps, so nothing is lost by longer ones.
STEP = 0.1
ACCURACY_BUDGET = 4e6  # nanoseconds
BUDGET = 3e8  # multiplications of the simulation, a step counting for at least OVERHEAD
OVERHEAD = 4e5
MARKS = 30
EXACT, AFTER, REAL = "exact", "linear loss alone", "real cross-entropy"

CONTROLS = (
    number(
        "scale",
        "start scale",
        "Features and prototypes start as normal numbers times this. The smaller, the longer cross-entropy is linear.",
        0.01,
        1e-6,
        10.0,
        log=True,
        slide=(1e-4, 1.0),
    ),
    *long_tail(40),
    number(
        "smoothing",
        "label smoothing",
        "The share of each label that is spread over all classes.",
        0.0,
        0.0,
        0.99,
        slide=(0.0, 0.9),
    ),
    number(
        "temperature", "temperature T", "The logits are divided by it.", 1.0, 1e-3, 1e3, log=True, slide=(0.1, 10.0)
    ),
    number(
        "power",
        "weights n^(-a)",
        "Each class counts as the number of its examples to the power -a. With a = 1/2 the class differences grow "
        "alike while the loss is linear.",
        0.0,
        0.0,
        2.0,
        slide=(0.0, 1.0),
    ),
    number(
        "adjustment",
        "adjustment τ",
        "Logit adjustment: τ times the logarithm of the class frequencies is added to the logits during training. 1 is "
        "balanced softmax.",
        0.0,
        -4.0,
        4.0,
        slide=(0.0, 2.0),
    ),
    *DECAYS,
    number(
        "lr",
        "rate η",
        "Learning rate of features and prototypes. Empty: the fastest mode grows by 10 % in a step.",
        None,
        1e-6,
        1e4,
        log=True,
        slide=(1e-2, 100.0),
    ),
    number(
        "tolerance",
        "tolerance",
        "The relative error up to which the linear path is trusted: it sets the horizon.",
        0.1,
        1e-6,
        10.0,
        log=True,
        slide=(1e-3, 1.0),
    ),
    SEED,
    horizon_control("steps shown", "Empty: twice the proved horizon.", longest=100_000),
)

SLOTS = (
    Slot(
        "accuracy",
        "training accuracy",
        "Line: the exact path, dotted after the horizon. Marks: gradient descent on real cross-entropy, computed now, "
        "step by step.",
    ),
    Slot(
        "error",
        "proved bound and true error",
        "Line: the proved bound of the relative distance of the two states. Marks: the true distance.",
    ),
    Slot(
        "classes",
        "accuracy of three classes",
        "The largest, the middle and the smallest class. Lines: exact. Marks: real cross-entropy.",
    ),
    Slot(
        "order", "when half of a class is right", "The first step at which half of the examples of a class are right."
    ),
    Slot(
        "loss",
        "loss",
        "Line: cross-entropy to first order in the logits, dotted after the horizon. Marks: the real loss.",
    ),
    Slot(
        "distance",
        "distance to the linear limit",
        "Of Z/|Z| from the direction in which the linear path leaves. After the horizon cross-entropy goes its own "
        "way.",
    ),
)


@dataclass(frozen=True)
class _Solved:
    setting: Setting
    script: Script
    lr: float
    horizon: float

    @property
    def path(self) -> EarlyPath:
        path: EarlyPath = self.script["path"]
        return path


def _check_size(given: Setting) -> None:
    """That a certificate and some hundred steps of training take about a second."""
    logits, numbers = given.num_samples * given.num_classes, (given.num_samples + given.num_classes) * given.dim
    if logits > LARGEST["logits"] or numbers > LARGEST["numbers"]:
        raise ValueError(
            f"{given.num_samples:,} examples, {given.num_classes:,} classes and p = {given.dim:,} are {logits:,} "
            f"logits and {numbers:,} numbers; this view trains them on the spot and takes {LARGEST['logits']:,} and "
            f"{LARGEST['numbers']:,}. Lower C, N or p here, or use the library."
        )


def _solve(state: State) -> _Solved:
    given = setting(State(state.view, (*state.items, ("start", "random"))))
    _check_size(given)
    scale, power, strength = state.number("scale"), state.number("power"), state.number("adjustment")
    lines = [f"features, weight = {scale!r} * features, {scale!r} * weight"]
    options = []
    if power:
        lines.append(f"weights = unhinge.class_weights(labels.bincount(), power={power!r}).double()")
        options.append("class_weight=weights")
    if strength:
        lines.append(f"offsets = {strength!r} * (labels.bincount().double() / len(labels)).log()")
        options.append("logit_adjustment=offsets")
    problem = call(
        "unhinge.EarlyCrossEntropy",
        f"labels, {given.num_classes}",
        *options,
        label_smoothing=state.number("smoothing") or None,
        temperature=None if state.number("temperature") == 1 else state.number("temperature"),
        feature_decay=state.number("feature_decay") or None,
        weight_decay=state.number("weight_decay") or None,
    )
    script = given.script.then(*lines, f"problem = {problem}")
    lr = state.maybe("lr")
    if lr is None:
        made: EarlyCrossEntropy = script["problem"]
        lr = float(f"{_natural_rate(made):.3g}")
    script = script.then(f"path = problem.descent(features, weight, lr={lr!r})")
    return _Solved(given, script, lr, float(script["path"].horizon(state.number("tolerance"))))


def _natural_rate(problem: EarlyCrossEntropy) -> float:
    """At which the fastest mode grows by :data:`STEP`, and no decay overshoots."""
    fastest = problem.scale.item() * problem.problem.critical_decay.item()
    decay = max(part.item() for part in problem.decays)
    return min(max(min(STEP / max(fastest, 1e-300), 0.5 / max(decay, 1e-300)), 1e-6), 1e4)


def _simulation(state: State, solved: _Solved, length: int) -> Script:
    """Real cross-entropy by descent: leaves `marks`, the `runs` (features, weight, loss) at them, and all hits."""
    given = solved.setting
    cost = max(6.0 * given.num_samples * given.num_classes * given.dim, OVERHEAD)
    steps = max(20, min(length, int(BUDGET / cost)))
    every = max(1, round(steps / MARKS))
    classes, smoothing, temperature = given.num_classes, state.number("smoothing"), state.number("temperature")
    heated, shifted = temperature != 1, state.number("adjustment") != 0
    logits = "Z" + (f" / {temperature!r}" if heated else "") + (" + offsets" if shifted else "")
    target = f"torch.nn.functional.one_hot(labels, {classes}).double()"
    if smoothing:
        target = f"({1 - smoothing!r} * {target} + {smoothing / classes!r})"
    target += " * weights / weights[labels].sum()" if state.number("power") else " / len(labels)"
    steps_of = ", ".join(
        call("torch.addmm", *parts, beta=1 - solved.lr * decay if decay else None, alpha=-solved.lr / temperature)
        for parts, decay in (
            (("H", "G", "W"), state.number("feature_decay")),
            (("W", "G.mT", "H"), state.number("weight_decay")),
        )
    )
    # by hand, not by autograd and torch.optim: a fraction of the time, and no import of torch's compiler
    return solved.script.then(
        f"T = {target}  # cross-entropy: -(T * log_softmax).sum(); G is its gradient",
        "H, W, total, marks, runs, hits = features, weight, T.sum(1, keepdim=True), [], [], []",
        f"for k in range({steps + 1}):\n"
        "    Z = H @ W.mT\n"
        "    hits.append(Z.argmax(1) == labels)\n"
        f"    if k % {every} == 0:\n"
        "        marks.append(k)\n"
        f"        runs.append((H, W, -(T * torch.log_softmax({logits}, 1)).sum().item()))\n"
        f"    G = total * torch.softmax({logits}, 1) - T\n"
        f"    H, W = {steps_of}",
    )


def curves(state: State) -> Answer:
    """All curves, numbers and sentences of the view."""
    solved = _solve(state)
    length = length_shown(state, 2 * solved.horizon, most=100_000, otherwise=2000)
    real = _simulation(state, solved, length)
    end = min(solved.horizon, length)
    script = real.then(
        f"x = {times(length, discrete=True)}",
        f"early, late = x <= {end:.0f}, x >= {end:.0f}",
    )
    stride = stride_for(accuracy_cost(solved.setting), ACCURACY_BUDGET, len(script["x"]) - 1)
    rarer = script if stride == 1 else script.then(f"x, early, late = (each[::{stride}] for each in (x, early, late))")
    counted = rarer.then("right = path.correct(x).double()")
    panels = {
        "accuracy": _panel(
            solved,
            counted.then(
                _curves("right.mean(1)", "torch.tensor([hits[k].double().mean() for k in marks])"),
            ),
            "accuracy (share)",
            yrange=(-0.03, 1.08),
        ),
        "error": _error_panel(state, solved, script),
        "classes": _classes_panel(solved, counted),
        "order": _order_panel(solved, script),
        "loss": _panel(
            solved,
            script.then(_curves("path.loss(x)", "torch.tensor([r[2] for r in runs])")),
            "cross-entropy (nats)",
            yrange=(-0.02 * solved.path.base, 1.15 * solved.path.base),
        ),
        "distance": _distance_panel(solved, script),
    }
    headline, tone, sentences = _words(state, solved, panels)
    return Answer(
        headline,
        tone,
        sentences,
        _numbers(solved, panels),
        panels,
        {"lr": solved.lr, "horizon": float(length)},
    )


def _curves(question: str, real: str) -> str:
    """Python for the exact answer, the same after the horizon, where it is about the linear loss only, and the real."""
    exact = ", ".join(f"'{name}': (x[{when}], y[{when}])" for name, when in ((EXACT, "early"), (AFTER, "late")))
    return f"y, seen = {question}, {real}\ncurves = {{{exact}, '{REAL}': (marks, seen)}}"


def _panel(solved: _Solved, script: Script, ylabel: str, looks: dict[str, Look] | None = None, **more: object) -> Panel:
    horizon = solved.horizon
    last = script["x"][-1].item()
    moments = [("horizon", horizon)] if 0 < horizon <= last else []
    looks = looks or {EXACT: Look("line", 0), AFTER: Look("dotted", 0, listed=False), REAL: Look("marks", 1)}
    return panel_of(script, "step", ylabel, looks, moments=moments, **more)


def _error_panel(state: State, solved: _Solved, script: Script) -> Panel:
    drawn = script.then(
        "s = path.at(torch.tensor(marks[1:]))",
        "true = [(e * h - H).norm().hypot((e * w - W).norm()) "
        "for e, h, w, (H, W, _) in zip(s.log_scale.exp(), s.features, s.weight, runs[1:])]",
        "true, bound = torch.stack(true) / path.log_norm(torch.tensor(marks[1:])).exp(), path.error_bound(x[1:])",
        f"curves = {{'proved bound': (x[1:], bound), '{REAL}': (marks[1:], torch.where(true > 0, true, torch.nan))}}",
    )
    return _panel(
        solved,
        drawn,
        "relative error (no unit)",
        {"proved bound": Look("line", 0), REAL: Look("marks", 1)},
        ylog=True,
        levels=[("tolerance", state.number("tolerance"))],
    )


def _classes_panel(solved: _Solved, script: Script) -> Panel:
    few = solved.setting.few
    drawn = script.then(
        f"few = {few}",
        "curves = {few[c]: (x, right[:, labels == c].mean(1)) for c in few}",
        "curves |= {f'{few[c]}, real': (marks, torch.stack([hits[k] for k in marks])[:, labels == c].double().mean(1)) "
        "for c in few}",
    )
    looks = {name: Look("line", 2 + i) for i, name in enumerate(few.values())}
    looks |= {f"{name}, real": Look("marks", 2 + i, listed=False) for i, name in enumerate(few.values())}
    return _panel(solved, drawn, "accuracy (share)", looks, yrange=(-0.03, 1.08))


def _order_panel(solved: _Solved, script: Script) -> Panel:
    order = solved.setting.by_size
    drawn = script.then(
        "half = torch.stack([h.mean(1) >= 0.5 for h in "
        "torch.stack(hits).double().split(labels.bincount().tolist(), 1)], 1)",
        "real = torch.where(half.any(0), half.double().argmax(0).double(), torch.inf)",
        f"c, order = torch.arange(1.0, {len(order) + 1}), {order}",
        f"curves = {{'{EXACT}': (c, path.learned(0.5)[order]), '{REAL}': (c, real[order])}}",
    )
    looks = {EXACT: Look("line", 0), REAL: Look("marks", 1)}
    counts = solved.setting.counts
    for name, look in list(looks.items()):
        words = [
            f"{name}: class {k}, {counts[k]} examples, " + (f"step {when:,.0f}" if math.isfinite(when) else "never")
            for k, when in zip(order, drawn["curves"][name][1].tolist(), strict=True)
        ]
        looks[name] = look._replace(hover=words)
    levels = [("horizon", solved.horizon)] if 0 < solved.horizon <= script["x"][-1].item() else []
    return panel_of(drawn, "class (by size, largest first)", "step", looks, levels=levels)


def _distance_panel(solved: _Solved, script: Script) -> Panel:
    drawn = script.then(
        "s = path.direction()",
        "runs = [(H, W, H.norm().hypot(W.norm())) for H, W, loss in runs]",
        _curves(
            "path.distance(x)",
            "torch.stack([(H / r - s.features).norm().hypot((W / r - s.weight).norm()) for H, W, r in runs])",
        ),
    )
    return _panel(solved, drawn, "distance (no unit)", yrange=(-0.05, 2.05))


def _last(curve: Curve, moment: float) -> tuple[float, float]:
    """The last value of a curve up to a moment, and where it is; 0 at 0 if there is none, as at the common start."""
    known = [(y, x) for x, y in zip(curve.x, curve.y, strict=True) if x <= moment and y is not None]
    return known[-1] if known else (0.0, 0.0)


def _numbers(solved: _Solved, panels: dict[str, Panel]) -> list[Number]:
    horizon, path = solved.horizon, solved.path
    known_until = panels["accuracy"].curves[0]  # of the curves this one ends at the horizon
    moment, accuracy = known_until.x[-1], known_until.y[-1]
    assert accuracy is not None
    true, mark = _last(panels["error"].curves[1], moment)
    known = [y for y in panels["order"].curves[0].y if y is not None]
    before = sum(y <= horizon for y in known)
    return [
        Number("horizon", _steps(horizon), "The last step at which the proved bound is within the tolerance."),
        Number("accuracy there", share(accuracy), "Training accuracy of the exact path, exactly."),
        Number(
            f"true error, step {mark:,.0f}",
            plain(true),
            "Relative distance of the two states at the last mark before it.",
        ),
        Number(
            "classes learned",
            f"{before} of {solved.setting.num_classes}",
            "Classes of which half is right before the horizon.",
        ),
        Number(
            "growth per step",
            plain(solved.lr * path.scale.item() * solved.script["problem"].problem.critical_decay.item()),
            "Of the fastest mode without decay, relative.",
        ),
        Number("rate η", plain(solved.lr), "Learning rate of features and prototypes."),
    ]


def _steps(horizon: float) -> str:
    return "always" if math.isinf(horizon) else f"{horizon:,.0f} steps"


def _words(state: State, solved: _Solved, panels: dict[str, Panel]) -> tuple[str, Tone, list[str]]:
    horizon, tolerance = solved.horizon, plain(state.number("tolerance"))
    when = panels["order"].curves[0].y
    known = [y for y in when if y is not None]
    all_known = len(known) == len(when)
    accuracy = solved.path.accuracy(int(min(horizon, 1e9))).item()
    tone: Tone = "good"
    if horizon < 1:
        headline, tone = (
            f"Nothing is proved at a tolerance of {tolerance}: the start is too large for cross-entropy to be linear, "
            "or the steps are.",
            "bad",
        )
    elif math.isinf(horizon):
        headline = f"Cross-entropy stays within {tolerance} of the exact path at all times: its logits stay small."
    elif all_known and max(known) <= horizon:
        headline = (
            f"Half of every class is right within the proved horizon of {_steps(horizon)}: until then cross-entropy is "
            f"within {tolerance} of the exact path, whose accuracy rises to {share(accuracy)}."
        )
    else:
        late = len(when) - sum(y <= horizon for y in known)
        headline, tone = (
            f"For {_steps(horizon)} cross-entropy is within {tolerance} of the exact path; {late} of {len(when)} "
            "classes are learned later than that, or never.",
            "warn",
        )
    sentences = []
    if 1 <= horizon < math.inf:
        sentences.append(
            "After the line the exact path is that of the linear loss alone, and cross-entropy slows down."
        )
    if state.number("scale") > 0.1 and horizon < 100:
        sentences.append("A smaller start gives a longer horizon.")
    return headline, tone, sentences


YOUNG = View(
    "young",
    "Cross-entropy",
    "What cross-entropy does first, exactly, and for how long.",
    "loss = mean of n^(-a) (-log softmax(z/T + τ log π)_y) + λ₁/2 |H|² + λ₂/2 |W|², z = W h, from a small start",
    CONTROLS,
    SLOTS,
    curves,
)
