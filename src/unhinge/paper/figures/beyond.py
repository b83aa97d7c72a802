"""Beyond the paper: class imbalance, label noise, momentum, large steps and minibatches, in the same form."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from unhinge.paper.figures.curves import agreement, level, points, rate_check, slope_of, summarize, tabulate
from unhinge.paper.figures.registry import Check, Outcome, Panel, Row, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import Case, accuracy, follow, grid, state_distance
from unhinge.theory import minibatch_moments, slow_down, symmetric_noise

DISTANCE = r"$\|\hat Z-\lim \hat Z\|$"


def _measure(features: Tensor, weight: Tensor, target: Tensor, reference: tuple[Tensor, Tensor]) -> dict[str, float]:
    return {
        "accuracy": accuracy(features, weight, target),
        "distance": state_distance(features, weight, reference),
        "norm": torch.hypot(features.norm(), weight.norm()).item(),
    }


def _limit(case: Case, target: Tensor, start: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The limit of Z/|Z| under gradient flow."""
    state = case.flow(target, *start).direction()
    return state.features, state.weight


# ---- class imbalance ----------------------------------------------------------------------------------------------

IMBALANCE = (
    Panel("accuracy", "training accuracy", "accuracy", yscale="linear"),
    Panel("distance", "distance of Z/|Z| from its limit", DISTANCE, floor=1e-8),
    Panel("smallest", "smallest class mean over largest", "ratio of norms"),
)


@experiment(
    "beyond-imbalance",
    claim="Imbalance ends with only the two largest classes right; weights n^(-1/2) restore balance, 1/n overshoots",
    panels=IMBALANCE,
    errata=(38,),
    note="The class sizes fall exponentially. The small classes keep a share of the norm: they collapse onto one "
    "direction, not to zero (erratum 38). The weights have mean 1 over the examples.",
    quick=3,
    paper=30,
)
def imbalance(scale: Scale, seed: int) -> Outcome:
    """Long-tailed class sizes, unweighted and with two weightings, at a step that is large but stable."""
    classes, largest, ratio = scale.pick((8, 24, 12.0), (20, 120, 20.0))
    counts = torch.tensor([max(1, round(largest * ratio ** (-c / (classes - 1)))) for c in range(classes)])
    target = torch.arange(classes).repeat_interleave(counts)
    generator = torch.Generator().manual_seed(seed)
    start = (
        torch.randn(len(target), scale.dim, generator=generator, dtype=torch.float64),
        torch.randn(classes, scale.dim, generator=generator, dtype=torch.float64),
    )
    weights = {"no weights": None, "n^(-1/2)": counts.double() ** -0.5, "1/n": counts.double() ** -1}
    last = scale.pick(900, 6_000)
    curves = []
    for name, weight in weights.items():
        # the step in units of each problem's own leading growth, so that the three share one axis
        lr = 0.04 / Case(name, class_weight=weight).problem(target, classes).critical_decay.item()
        case = Case(name, class_weight=weight, lr=lr)
        measure = partial(_measure_classes, target=target, counts=counts, reference=_limit(case, target, start))
        curves.append(follow(case, target, start, measure, grid(last, 121), grid(last, 41), with_flow=False))
    plain, cured, over = curves
    share = sum(counts.tolist()[:2]) / len(target)
    rows = tabulate(curves, IMBALANCE)
    rows += level("accuracy", "share of the two largest", share, last)
    for curve in curves:
        rows += slope_of(curve, "distance", curve.path.rate())
    summary = summarize(curves, IMBALANCE)
    checks = [
        agreement(summary),
        Check(
            "without weights the accuracy ends at exactly the share of the two largest classes",
            abs(plain.exact["accuracy"][-1] - share) < 1e-12,
            f"{plain.exact['accuracy'][-1]:.4f} against {share:.4f}, after {max(plain.exact['accuracy']):.4f}",
        ),
        rate_check(plain, "distance", plain.path.rate(), 0.05),
        Check(
            "weights n^(-1/2) keep every class", cured.exact["accuracy"][-1] == 1, f"{cured.exact['accuracy'][-1]:.4f}"
        ),
        Check(
            "weights 1/n lose the large classes",
            over.exact["accuracy"][-1] < share,
            f"{over.exact['accuracy'][-1]:.4f}",
        ),
    ]
    parameters = {"counts": counts.tolist(), "lr": [c.case.lr for c in curves], "steps": last, "gamma": None}
    return Outcome(rows, summary, checks, parameters)


def _measure_classes(
    features: Tensor, weight: Tensor, target: Tensor, counts: Tensor, reference: tuple[Tensor, Tensor]
) -> dict[str, float]:
    means = torch.zeros_like(weight).index_add(0, target, features) / counts[:, None]
    return _measure(features, weight, target, reference) | {"smallest": (means[-1].norm() / means[0].norm()).item()}


# ---- label noise --------------------------------------------------------------------------------------------------

NOISE = (
    Panel("accuracy", "accuracy on the true labels", "accuracy", yscale="linear"),
    Panel("distance", "distance of Z/|Z| from its limit", DISTANCE),
    Panel("slowed", "the same on the slowed clock", DISTANCE, xlabel="step × (1 − ρC/(C−1))"),
)


@experiment(
    "beyond-noise",
    claim="At γ = 1/(C-1) symmetric label noise only slows training down, by the factor 1 - ρC/(C-1)",
    panels=NOISE,
    note="SGD is trained on the probabilities of the labels. This is also the mean over labels that are drawn anew at "
    "every step. In the last panel the lines agree up to the effect of the step size.",
    quick=3,
    paper=32,
)
def noise(scale: Scale, seed: int) -> Outcome:
    """Four noise rates, up to four labels in five wrong."""
    target, start = scale.target, scale.start(seed)
    last = scale.steps(6_000)
    curves, factors = [], []
    for rate in (0.0, 0.2, 0.5, 0.8):
        flips = symmetric_noise(torch.arange(scale.num_classes), scale.num_classes, rate) if rate else None
        case = Case(f"rho={rate:g}", noise=flips, lr=0.2)
        measure = partial(_measure, target=target, reference=_limit(case, target, start))
        curves.append(follow(case, target, start, measure, grid(last, 81), grid(scale.simulated(last, 3_000), 31)))
        factors.append(slow_down(scale.num_classes, rate))
    rows = tabulate(curves, NOISE[:2])
    for curve, factor in zip(curves, factors, strict=True):
        for kind, steps, values in (("exact", curve.steps, curve.exact), ("sgd", curve.marks, curve.sgd)):
            rows += [
                Row("slowed", curve.case.name, kind, step * factor, value)
                for step, value in zip(steps, values["distance"], strict=True)
            ]
    for curve in curves[:2]:
        rows += slope_of(curve, "distance", curve.path.rate())
    summary = summarize(curves, NOISE[:2])
    clean = curves[0].case.flow(target, *start)
    apart = 0.0
    for curve, factor in zip(curves[1:], factors[1:], strict=True):
        moments = torch.tensor(curve.steps, dtype=torch.float64)
        noisy = curve.case.flow(target, *start).distance(moments)
        apart = max(apart, (noisy / clean.distance(factor * moments) - 1).abs().max().item())
    checks = [
        agreement(summary),
        Check(
            "in the flow the noisy path is the clean one on a slowed clock",
            apart < 1e-9,
            f"largest difference {apart:.2g}",
        ),
        rate_check(curves[0], "distance", curves[0].path.rate(), 0.05),
    ]
    return Outcome(rows, summary, checks, {"lr": 0.2, "rho": [0, 0.2, 0.5, 0.8], "slow_down": factors, "steps": last})


# ---- momentum -----------------------------------------------------------------------------------------------------

MOTION = (
    Panel("accuracy", "training accuracy", "accuracy", yscale="linear"),
    Panel("distance", "distance of Z/|Z| from its limit", DISTANCE, floor=1e-9),
    Panel("norm", "norm of Z", r"$\|Z\|$"),
)


@experiment(
    "beyond-momentum",
    claim="Momentum keeps the limit and multiplies the rate by up to 1/(1 - μ); Nesterov's variant adds little",
    panels=MOTION,
    note="The exact path follows the conventions of torch.optim.SGD, whose first step has no momentum yet. The "
    "learning rate is 0.1.",
    quick=2,
    paper=46,
)
def momentum(scale: Scale, seed: int) -> Outcome:
    """Plain SGD, heavy ball at two strengths, Nesterov."""
    target, start = scale.target, scale.start(seed)
    last = scale.steps(5_000)
    cases = [
        Case("plain SGD"),
        Case("momentum 0.5", momentum=0.5),
        Case("momentum 0.9", momentum=0.9),
        Case("Nesterov 0.9", momentum=0.9, nesterov=True),
    ]
    curves = []
    for case in cases:
        state = case.path(target, *start).direction()
        measure = partial(_measure, target=target, reference=(state.features, state.weight))
        curves.append(follow(case, target, start, measure, grid(last, 81), grid(last, 41), with_flow=False))
    rows = tabulate(curves, MOTION)
    for curve in curves[:3]:
        rows += slope_of(curve, "distance", curve.path.rate())
        rows += slope_of(curve, "norm", curve.path.growth())
    summary = summarize(curves, MOTION)
    rates = [curve.path.rate().item() for curve in curves]
    plain, strong = _limit(cases[0], target, start), curves[2].path.direction()
    apart = torch.hypot((plain[0] - strong.features).norm(), (plain[1] - strong.weight).norm()).item()
    checks = [
        agreement(summary),
        *(rate_check(curve, "distance", curve.path.rate(), 0.05) for curve in curves[2:]),
        Check(
            "momentum 0.9 is up to ten times as fast", 6 < rates[2] / rates[0] < 10, f"{rates[2] / rates[0]:.3f} times"
        ),
        Check("and has the limit of plain SGD", apart < 1e-12, f"distance of the two directions {apart:.2g}"),
    ]
    return Outcome(rows, summary, checks, {"lr": 0.1, "rates": rates, "steps": last})


# ---- descent against flow -----------------------------------------------------------------------------------------

STEPS = (
    Panel("distance", "distance of Z/|Z| from the flow's limit", DISTANCE, xlabel="η × step × λ*", floor=1e-6),
    Panel("norm", "norm of Z", r"$\|Z\|$", yscale="linear", xlabel="η × step × λ*"),
    Panel("accuracy", "training accuracy", "accuracy", yscale="linear", xlabel="η × step × λ*"),
)


@experiment(
    "beyond-large-steps",
    claim="Descent has the limit of the flow for every step below η(sλ₁ + λ₂) = 2, but not just beyond",
    panels=STEPS,
    note="The decay is the critical one. The horizontal axis is the sum of all learning rates so far, times λ*. Dots "
    "show gradient flow, the limit of small steps. In this time, larger steps are faster up to 2/3 of the limit 2, and "
    "slower beyond that.",
    quick=1,
    paper=8,
)
def large_steps(scale: Scale, seed: int) -> Outcome:
    """Steps of 5% to 105% of the largest that still converges to the flow's limit."""
    target, start = scale.target, scale.start(seed)
    critical, horizon = scale.critical(), 16.0
    reference = _limit(Case("flow", None, critical, critical), target, start)
    measure = partial(_measure, target=target, reference=reference)
    curves = []
    for share in (0.05, 0.4, 0.8, 1.05):
        lr = share / critical
        case = Case(f"eta lambda*={share:g}", None, critical, critical, lr)
        last = round(horizon / share)
        curves.append(follow(case, target, start, measure, grid(last, 61), grid(last, 41)))
    rows = []
    for curve in curves:
        unit = curve.case.rates[0] * critical
        rows += [
            Row(row.panel, row.series, row.kind, row.step * unit, row.value)
            for row in tabulate([curve], STEPS, flow=curve is curves[0])
        ]
    summary = summarize(curves, STEPS)
    ends = [curve.exact["distance"][-1] for curve in curves]
    gaps = [float(e["largest_deviation_from_flow"]) for e in summary if e["panel"] == "norm"]
    checks = [
        agreement(summary),
        Check(
            "up to 80% of the edge descent ends at the flow's limit",
            max(ends[:3]) < 1e-3,
            ", ".join(f"{e:.2g}" for e in ends[:3]),
        ),
        Check("5% beyond the edge it does not", ends[3] > 0.5, f"distance {ends[3]:.3g}"),
        Check(
            "small steps stay with the flow",
            gaps[0] < gaps[1],
            f"norm off by {gaps[0]:.2g} at 5%, {gaps[1]:.2g} at 40%",
        ),
    ]
    parameters = {"eta_times_critical_decay": [0.05, 0.4, 0.8, 1.05], "decay": critical, "horizon": horizon}
    return Outcome(rows, summary, checks, parameters)


# ---- minibatches --------------------------------------------------------------------------------------------------

BATCHES = (
    Panel("norm_squared", "mean of |Z|²", r"$\mathbb{E}\,\|Z\|^2$"),
    Panel("within", "scatter within classes", r"$\mathbb{E}\,\frac{1}{n}\sum\|h_i-\bar h_{y_i}\|^2$"),
    Panel("loss", "minus the mean loss", r"$-\mathbb{E}$ loss", floor=1e-2),
)


@experiment(
    "beyond-minibatch",
    claim="Small batches do not change the mean path, but the norm grows faster and features of a class stay apart",
    panels=BATCHES,
    note="Lines are exact expectations, and markers are means over independent runs with their standard errors. Every "
    "step draws a new batch in which no example occurs twice.",
    quick=3,
    paper=8,
)
def minibatch(scale: Scale, seed: int) -> Outcome:
    """Three batch sizes against full batches, over many runs in a low dimension."""
    classes, each, dim = scale.pick((6, 5, 4), (20, 10, 8))
    runs, last = scale.pick(256, 192), scale.pick(120, 200)
    target = torch.arange(classes).repeat_interleave(each)
    generator = torch.Generator().manual_seed(seed)
    size = classes * each
    features = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    lr = 4.0 / last / Case("").problem(target, classes).critical_decay.item()
    rows: list[Row] = []
    summary: list[dict[str, str | float]] = []
    checks: list[Check] = []
    marks, steps = grid(last, 13), torch.arange(last + 1)
    worst, excess = 0.0, []
    for batch in (size // 30, size // 10, size):
        name = "full batch" if batch == size else f"batch {batch}"
        exact = minibatch_moments(target, classes, features, weight, batch_size=batch, lr=lr)
        excess.append(exact.excess_growth().item())
        lines = {
            "norm_squared": exact.feature_norm_squared(steps) + exact.weight_norm_squared(steps),
            "within": exact.within_scatter(steps),
            "loss": -exact.loss(steps),
        }
        simulated = _simulate_batches(features, weight, target, batch, lr, marks, runs, generator)
        for key, line in lines.items():
            values = line.tolist()
            rows += points(key, name, "exact", steps.tolist(), values)
            off = chance = 0.0
            for mark, sample in zip(marks, simulated[key], strict=True):
                mean, error = sample.mean().item(), (sample.std() / math.sqrt(runs)).item()
                rows.append(Row(key, name, "sgd", float(mark), mean, error))
                off = max(off, abs(mean - values[mark]) / abs(values[mark]))
                if error > 1e-9 * abs(mean):
                    chance = max(chance, abs(mean - values[mark]) / error)
            worst = max(worst, chance)
            entry: dict[str, str | float] = {"panel": key, "series": name, "steps_simulated": last}
            summary.append(entry | {"largest_deviation": off, "standard_errors": chance})
    checks = [
        Check(
            "means over runs lie within chance of the exact expectations",
            worst < 4.5,
            f"at most {worst:.2f} standard errors",
        ),
        Check(
            "smaller batches grow faster",
            excess[0] > excess[1] > excess[2] - 1e-15 and abs(excess[2]) < 1e-12,
            ", ".join(f"{value:.3g}" for value in excess) + " added per step to the exponent of the mean of |Z|²",
        ),
    ]
    parameters = {"classes": classes, "per_class": each, "dim": dim, "runs": runs, "lr": lr, "steps": last}
    return Outcome(rows, summary, checks, parameters)


def _simulate_batches(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    batch: int,
    lr: float,
    marks: list[int],
    runs: int,
    generator: torch.Generator,
) -> dict[str, list[Tensor]]:
    """Independent runs at once; each step, each run draws its own batch. Values (runs,) at each mark."""
    size, classes = len(target), len(weight)
    gamma = 1 / (classes - 1)
    h = features.expand(runs, -1, -1).clone().requires_grad_()
    w = weight.expand(runs, -1, -1).clone().requires_grad_()
    coefficients = (1 + gamma) * torch.nn.functional.one_hot(target, classes).double() - gamma
    optimizer = torch.optim.SGD([h, w], lr=lr)
    runs_of = torch.arange(runs)[:, None]

    def loss(rows: Tensor, share: Tensor) -> Tensor:
        return -(share * (rows @ w.mT)).sum((1, 2)) / rows.shape[1]

    values: dict[str, list[Tensor]] = {"norm_squared": [], "within": [], "loss": []}
    done = 0
    for mark in marks:
        for _ in range(mark - done):
            drawn = torch.rand(runs, size, generator=generator).topk(batch, dim=1).indices
            optimizer.zero_grad()
            loss(h[runs_of, drawn], coefficients[drawn]).sum().backward()
            optimizer.step()
        done = mark
        with torch.no_grad():
            means = h.unflatten(1, (classes, -1)).mean(2)
            values["norm_squared"].append(h.pow(2).sum((1, 2)) + w.pow(2).sum((1, 2)))
            values["within"].append((h - means[:, target]).pow(2).sum((1, 2)) / size)
            values["loss"].append(-loss(h, coefficients.expand(runs, -1, -1)))
    return values
