r"""Free features and prototypes with decay: over :math:`\gamma`, learning rates, decays and :math:`s`."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from unhinge.paper.figures.curves import agreement, flow_spread, level, rate_check, slope, slope_of, summarize, tabulate
from unhinge.paper.figures.registry import Check, Outcome, Panel, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import Case, accuracy, follow, grid, state_distance
from unhinge.paper.notation import projections
from unhinge.theory import Path


def _panels(features: str, weight: str, floor: float = 1e-12) -> tuple[Panel, ...]:
    return (
        Panel("accuracy", "training accuracy", "accuracy", yscale="linear"),
        Panel("feature_error", "features: distance from the limit", features, floor=floor, top=10),
        Panel("weight_error", "prototypes: distance from the limit", weight, floor=floor, top=10),
        Panel("feature_norm", "norm of H", r"$\|H\|$", top=3e4),
        Panel("weight_norm", "norm of W", r"$\|W\|$", top=3e4),
    )


FIXED = _panels(r"$\|H-H_1^+\|$", r"$\|W-W_1^+\|$")
DIRECTION = _panels(r"$\|\hat H-\hat{\overline{H}}\|$", r"$\|\hat W-\hat{\overline{W}}\|$", floor=1e-6)
WITH_STATE = (
    *DIRECTION[:3],
    Panel("state_error", "both: distance from the limit", r"$\|\hat Z-\hat{\overline{Z}}\|$", floor=1e-6),
    *DIRECTION[3:],
)
LARGER = Panel("larger", "beyond the paper: s = 4, Z", r"$\|\hat Z-\hat{\overline{Z}}\|$", floor=1e-6)


def _measure(
    features: Tensor, weight: Tensor, target: Tensor, limit: tuple[Tensor, Tensor], normalized: bool
) -> dict[str, float]:
    """Accuracy, distances of H and W from `limit` (of their directions if `normalized`), and norms."""
    measured = (features / features.norm(), weight / weight.norm()) if normalized else (features, weight)
    return {
        "accuracy": accuracy(features, weight, target),
        "feature_error": (measured[0] - limit[0]).norm().item(),
        "weight_error": (measured[1] - limit[1]).norm().item(),
        "feature_norm": features.norm().item(),
        "weight_norm": weight.norm().item(),
    }


def _own_direction(path: Path) -> tuple[Tensor, Tensor]:
    """The limits of H/|H| and of W/|W|."""
    limit = path.direction()
    return limit.features / limit.features.norm(), limit.weight / limit.weight.norm()


@experiment(
    "regularized-gamma",
    label="regularized-gamma",
    claim="At the critical decay Z settles on its aligned part only for 0 < γ < 2/(C-2); beyond that its norm explodes",
    panels=FIXED,
    errata=(19,),
    note="The caption of the paper claims this limit for every γ that is listed. It is wrong twice: beyond 2/(C-2) the "
    "norm grows exponentially, and at γ = 0 the mean over the classes does not decay (erratum 19).",
    quick=3,
    paper=55,
)
def regularized_gamma(scale: Scale, seed: int) -> Outcome:
    r"""Five :math:`\gamma` at :math:`\lambda = (1+\gamma)/(C\sqrt N)` each."""
    target, start = scale.target, scale.start(seed)
    parts = projections(*start, target)
    limit = parts.plus_1.features, parts.plus_1.weight
    last = scale.steps(16_000)
    marked = scale.simulated(last, 6_000)
    curves = []
    for gamma in (0.0, scale.gamma(0.001), scale.gamma(0.01), None, scale.gamma(0.1)):
        decay = scale.critical(gamma)
        case = Case("gamma=1/(C-1)" if gamma is None else f"gamma={gamma:.3g}", gamma, decay, decay)
        measure = partial(_measure, target=target, limit=limit, normalized=False)
        curves.append(follow(case, target, start, measure, grid(last, 121), grid(marked, 31)))
    zero, _, _, best, beyond = curves
    kept = parts.plus_2.features.norm().item()
    rows = tabulate(curves, FIXED)
    rate, growth = best.path.rate(), beyond.path.growth()
    rows += slope_of(best, "feature_error", rate) + slope_of(best, "weight_error", rate)
    for key in ("feature_norm", "weight_norm"):
        seen = sum(value < 1e4 * beyond.exact[key][0] for value in beyond.exact[key])  # the axis ends soon after
        rows += slope(key, beyond.case.name, growth.item(), beyond.steps[:seen], beyond.exact[key][:seen])
    rows += level("feature_error", "the mean that stays at gamma=0", kept, last)
    summary = summarize(curves, FIXED)
    still = zero.path.limit().features - limit[0]
    checks = [
        agreement(summary),
        rate_check(best, "feature_error", rate, 0.1),
        rate_check(beyond, "feature_norm", growth, 0.02),
        Check(
            "beyond 2/(C-2) the norm grows without bound (the caption says it does not)",
            beyond.exact["feature_norm"][-1] > 100 * beyond.exact["feature_norm"][0],
            f"|H| from {beyond.exact['feature_norm'][0]:.4g} to {beyond.exact['feature_norm'][-1]:.3g}",
        ),
        Check(
            "at gamma = 0 the limit is off the aligned part by exactly the mean part of the start",
            abs(still.norm().item() / kept - 1) < 1e-9,
            f"{still.norm().item():.6g} against {kept:.6g}",
        ),
    ]
    return Outcome(
        rows,
        summary,
        checks,
        {"lr": 0.1, "gammas": [c.case.gamma for c in curves], "steps": last, "steps_simulated": marked},
    )


@experiment(
    "regularized-lr",
    label="regularized-lr",
    claim="At the critical decay Z converges exponentially to its aligned part, in proportion to the learning rate",
    panels=FIXED,
    quick=2,
    paper=46,
)
def regularized_lr(scale: Scale, seed: int) -> Outcome:
    r"""Five learning rates at :math:`\gamma = 1/(C-1)` and the critical decay."""
    target, start = scale.target, scale.start(seed)
    parts = projections(*start, target)
    limit = parts.plus_1.features, parts.plus_1.weight
    decay, last = scale.critical(), scale.steps(5_000)
    measure = partial(_measure, target=target, limit=limit, normalized=False)
    curves = [
        follow(Case(f"eta={lr:g}", None, decay, decay, lr), target, start, measure, grid(last, 81), grid(last, 41))
        for lr in (0.001, 0.01, 0.1, 0.2, 0.5)
    ]
    rows = tabulate(curves, FIXED)
    for curve in curves[2:]:
        for key in ("feature_error", "weight_error"):
            rows += slope_of(curve, key, curve.path.rate())
    summary = summarize(curves, FIXED)
    ends = [curve.exact["feature_error"][-1] for curve in curves]
    checks = [
        agreement(summary),
        *(rate_check(curve, "feature_error", curve.path.rate(), 0.1) for curve in curves[2:]),
        Check("larger rates converge faster", ends == sorted(ends, reverse=True), ", ".join(f"{e:.3g}" for e in ends)),
    ]
    return Outcome(rows, summary, checks, {"lr": [c.case.lr for c in curves], "decay": decay, "steps": last})


@experiment(
    "regularized-decay",
    label="regularized-lambda",
    claim="The decay decides whether the norms grow, stay or vanish, but not how fast the direction converges",
    panels=DIRECTION,
    errata=(21,),
    note="The caption in the paper describes the panels of another figure (erratum 21). The panels here are those that "
    "the axes of the printed figure name.",
    quick=3,
    paper=51,
)
def regularized_decay(scale: Scale, seed: int) -> Outcome:
    r"""Five decays at :math:`\gamma = 1/(C-1)`, :math:`s = 1`."""
    target, start = scale.target, scale.start(seed)
    critical, last = scale.critical(), scale.steps(20_000)
    marked = scale.simulated(last, 6_000)
    decays = [scale.decay(1e-5), scale.decay(1e-4), scale.decay(1e-3), critical, scale.decay(5e-3)]
    curves = []
    for decay in decays:
        case = Case("lambda=lambda*" if decay == critical else f"lambda={decay:.2g}", None, decay, decay)
        limit = _own_direction(case.path(target, *start))
        measure = partial(_measure, target=target, limit=limit, normalized=True)
        curves.append(follow(case, target, start, measure, grid(last, 81), grid(marked, 31)))
    rows = tabulate(curves, DIRECTION)
    for curve in (curves[0], curves[2], curves[4]):
        for key in ("feature_norm", "weight_norm"):
            rows += slope_of(curve, key, curve.path.growth())
    at = curves[3]
    for key in ("feature_error", "weight_error"):
        rows += slope_of(at, key, at.path.rate())
    summary = summarize(curves, DIRECTION)
    spread = flow_spread(curves, "feature_error")
    norms = [curve.exact["feature_norm"][-1] for curve in curves]
    checks = [
        agreement(summary),
        rate_check(curves[0], "weight_norm", curves[0].path.growth(), 0.05),
        rate_check(curves[4], "weight_norm", curves[4].path.growth(), 0.05),
        rate_check(at, "feature_error", at.path.rate(), 0.1),
        Check("in the flow, the direction is the same at every decay", spread < 1e-9, f"{spread:.2g}"),
        Check(
            "norms are ordered by the decay", norms == sorted(norms, reverse=True), f"{norms[0]:.3g} to {norms[-1]:.3g}"
        ),
    ]
    parameters = {"lr": 0.1, "decays": decays, "critical_decay": critical, "steps": last, "steps_simulated": marked}
    return Outcome(rows, summary, checks, parameters)


@experiment(
    "regularized-scale",
    label="regularized-scale",
    claim="The rate of Z rises with s = η₁/η₂ up to s = 1 and stays there; with more decay it falls beyond",
    panels=(*WITH_STATE, LARGER),
    errata=(20,),
    note="The first six panels have the paper's five curves, the last one is not in the paper. The paper's caption "
    "says that a larger s is always faster, but it shows only s ≤ 1. Beyond that the prototypes do not get faster: at "
    "the critical decay Z is as fast at s = 4 as at s = 1. At three times that decay it is slower, while the decay "
    "makes no difference at s = 1 (erratum 20).",
    quick=3,
    paper=68,
)
def regularized_scale(scale: Scale, seed: int) -> Outcome:
    r"""The paper's five :math:`s` at the critical decay, and :math:`s = 4` there and at three times as much."""
    target, start = scale.target, scale.start(seed)
    critical, last = scale.critical(), scale.steps(5_000)
    settings = [(s, 1.0) for s in (0.01, 0.05, 0.1, 0.5, 1.0, 4.0)] + [(4.0, 3.0)]
    curves = []
    for s, factor in settings:
        name = f"s={s:g}" + ("" if factor == 1 else f", lambda={factor:g} lambda*")
        case = Case(name, None, factor * critical, factor * critical, (0.5 * s, 0.5))
        path = case.path(target, *start)
        whole = path.direction()
        measure = partial(
            _measure_state, target=target, limit=_own_direction(path), whole=(whole.features, whole.weight)
        )
        curves.append(follow(case, target, start, measure, grid(last, 81), grid(last, 31)))
    # s = 4 is ours and has a panel of its own, with s = 1 beside it: among the paper's five it would hide them.
    printed, larger, slow = curves[:5], curves[4:], curves[6]
    rows = tabulate(printed, WITH_STATE) + tabulate(larger, (LARGER,))
    for curve in printed[3:]:
        rows += slope_of(curve, "state_error", curve.path.rate())
    rows += slope_of(slow, "larger", slow.path.rate())
    summary = summarize(printed, WITH_STATE) + summarize(larger, (LARGER,))
    rates = [-curve.case.flow(target, *start).rate().item() / (0.5 * critical) for curve in curves]
    listed = ", ".join(f"{rate:.3g}" for rate in rates)
    checks = [
        agreement(summary),
        *(rate_check(curves[k], "state_error", curves[k].path.rate(), 0.1) for k in (3, 4, 6)),
        Check(
            "up to s = 1 larger s is faster (flow rates over the critical decay)",
            rates[:5] == sorted(rates[:5]),
            listed,
        ),
        Check(
            "at the critical decay s = 4 is as fast as s = 1", abs(rates[5] / rates[4] - 1) < 1e-6, f"{rates[5]:.6f}"
        ),
        Check(
            "at three times the critical decay s = 4 is slower than s = 1", rates[6] < 0.8 * rates[4], f"{rates[6]:.4f}"
        ),
    ]
    parameters = {"lr_prototypes": 0.5, "s": [s for s, _ in settings], "critical_decay": critical, "steps": last}
    return Outcome(rows, summary, checks, parameters)


def _measure_state(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    limit: tuple[Tensor, Tensor],
    whole: tuple[Tensor, Tensor],
) -> dict[str, float]:
    values = _measure(features, weight, target, limit, normalized=True)
    distance = state_distance(features, weight, whole)
    return values | {"state_error": distance, "larger": distance}  # one number, shown in two panels
