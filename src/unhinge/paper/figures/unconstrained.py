r"""Free features and prototypes, no decay: over :math:`\gamma`, and the companion over the decay."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from unhinge.paper.figures.curves import agreement, flow_spread, level, rate_check, slope_of, summarize, tabulate
from unhinge.paper.figures.registry import Check, Outcome, Panel, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import Case, accuracy, follow, free_loss, grid, state_distance, unit
from unhinge.paper.notation import projections

GAMMA_PANELS = (
    Panel("loss", "minus the mean loss", "−loss", floor=1e-2, zoom=0.1),
    Panel("accuracy", "training accuracy", "accuracy", yscale="linear"),
    Panel("distance", "distance of Z/|Z| from the aligned limit", r"$\|\hat Z-\hat{\overline{Z}}\|$"),
    Panel("norm", "norm of Z", r"$\|Z\|$", zoom=0.1),
)


@experiment(
    "unconstrained-gamma",
    label="unconstrained-illustration",
    claim="Without decay the direction converges exponentially, fastest at γ = 1/(C-1); past 2/(C-2) the limit changes",
    panels=GAMMA_PANELS,
    errata=(9,),
    note="At γ = 0 the limit keeps the mean over the classes, so its distance from the plotted limit tends to a "
    "constant. In an aligned limit some classes can still be wrong: the accuracy depends on the start (erratum 9).",
    quick=5,
    paper=247,
    columns=2,
)
def unconstrained_gamma(scale: Scale, seed: int) -> Outcome:
    r"""Figure 1: five :math:`\gamma`, one of them beyond :math:`2/(C-2)`."""
    target, start = scale.target, scale.start(seed)
    aligned = projections(*start, target).plus_1
    reference = unit(aligned.features, aligned.weight)
    last = scale.steps(20_000)
    curves = []
    for gamma in (0.0, scale.gamma(0.001), scale.gamma(0.005), None, scale.gamma(0.05)):
        case = Case("gamma=1/(C-1)" if gamma is None else f"gamma={gamma:.3g}", gamma)
        measure = partial(_measure, target=target, gamma=gamma, reference=reference)
        curves.append(follow(case, target, start, measure, grid(last, 81), grid(last, 41)))
    zero, _, _, best, beyond = curves
    rows = tabulate(curves, GAMMA_PANELS)
    rows += slope_of(best, "distance", best.path.rate())
    rows += slope_of(beyond, "norm", beyond.path.growth())
    rows += level("distance", "sqrt 2", math.sqrt(2), last)
    summary = summarize(curves, GAMMA_PANELS)
    ends = [curve.exact["distance"][-1] for curve in curves]
    checks = [
        agreement(summary),
        rate_check(best, "distance", best.path.rate(), 0.02),
        rate_check(beyond, "norm", beyond.path.growth(), 0.02),
        Check("1/(C-1) is the fastest gamma", min(ends) == ends[3], f"distance {ends[3]:.3g} at the last step"),
        Check(
            "beyond 2/(C-2) the state ends orthogonal to the aligned limit",
            abs(ends[4] - math.sqrt(2)) < 0.02,
            f"{ends[4]:.4f} against sqrt 2 = 1.4142",
        ),
        Check(
            "and its accuracy falls to about 1/C",
            beyond.exact["accuracy"][-1] < 3 / scale.num_classes,
            f"{beyond.exact['accuracy'][-1]:.3g}",
        ),
        Check(
            "at gamma = 0 the direction does not reach the plotted limit",
            ends[0] > 0.01 and zero.path.distance(last * 50).item() < 1e-6,
            f"stays at {zero.exact['distance'][-1]:.3g}; its own limit keeps the mean",
        ),
    ]
    parameters = {"lr": 0.1, "gammas": [curve.case.gamma for curve in curves], "steps": last}
    return Outcome(rows, summary, checks, parameters)


def _measure(
    features: Tensor, weight: Tensor, target: Tensor, gamma: float | None, reference: tuple[Tensor, Tensor]
) -> dict[str, float]:
    value = 1 / (len(weight) - 1) if gamma is None else gamma
    return {
        "loss": -free_loss(features, weight, target, value).item(),
        "accuracy": accuracy(features, weight, target),
        "distance": state_distance(features, weight, reference),
        "norm": torch.hypot(features.norm(), weight.norm()).item(),
    }


DECAY_PANELS = (
    Panel("weight_norm", "norm of W", r"$\|W\|$"),
    Panel("weight_error", "W against its aligned part P", r"$\|W-P\|$"),
    Panel("norm_ratio", "norm of H over norm of W", r"$\|H\|/\|W\|$"),
    Panel("alignment", "features against prototypes", r"$\|\hat H-\hat W Y\|$"),
)


@experiment(
    "unconstrained-decay",
    label="fig:unconstrained-behaviors",
    claim="Below the critical decay W grows, at it W converges to P, above it W vanishes; the alignment is the same",
    panels=DECAY_PANELS,
    note="The paper's panel (c) is log |H| - log |W|, the logarithm of ours. The last panel is not in the paper: for "
    "it, W is repeated for each example, and H and W are divided by their norms.",
    quick=3,
    paper=45,
    columns=2,
)
def unconstrained_decay(scale: Scale, seed: int) -> Outcome:
    """Figure in the appendix: the same decay on features and prototypes, around the critical one."""
    target, start = scale.target, scale.start(seed)
    aligned = projections(*start, target).plus_1.weight
    critical, last = scale.critical(), scale.steps(20_000)
    marked = scale.simulated(last, 8_000)
    cases = [
        Case(f"lambda={name}", None, factor * critical, factor * critical)
        for name, factor in (("0", 0.0), ("0.5 lambda*", 0.5), ("lambda*", 1.0), ("2 lambda*", 2.0))
    ]
    measure = partial(_measure_decay, target=target, aligned=aligned)
    curves = [follow(case, target, start, measure, grid(last, 81), grid(marked, 33)) for case in cases]
    rows = tabulate(curves, DECAY_PANELS)
    for curve in (curves[0], curves[1], curves[3]):
        rows += slope_of(curve, "weight_norm", curve.path.growth())
    at = curves[2]
    rows += slope_of(at, "weight_error", at.path.rate())
    summary = summarize(curves, DECAY_PANELS)
    spread = max(flow_spread(curves, key) for key in ("norm_ratio", "alignment"))
    checks = [
        agreement(summary),
        rate_check(curves[0], "weight_norm", curves[0].path.growth(), 0.05),
        rate_check(curves[3], "weight_norm", curves[3].path.growth(), 0.05),
        rate_check(at, "weight_error", at.path.rate(), 0.05),
        Check(
            "in the flow, alignment and ratio of norms are the same at every decay",
            spread < 1e-9,
            f"largest relative difference {spread:.2g}",
        ),
    ]
    return Outcome(
        rows, summary, checks, {"lr": 0.1, "critical_decay": critical, "steps": last, "steps_simulated": marked}
    )


def _measure_decay(features: Tensor, weight: Tensor, target: Tensor, aligned: Tensor) -> dict[str, float]:
    along = weight[target]
    return {
        "weight_norm": weight.norm().item(),
        "weight_error": (weight - aligned).norm().item(),
        "norm_ratio": (features.norm() / weight.norm()).item(),
        "alignment": (features / features.norm() - along / along.norm()).norm().item(),
    }
