"""Prototypes fixed, features free: over the feature decay."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

from torch import Tensor

from unhinge.paper.figures.curves import agreement, level, points, rate_check, slope_of, summarize, tabulate
from unhinge.paper.figures.registry import Check, Outcome, Panel, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import Case, accuracy, anchored_loss, follow, grid, pull_of

PANELS = (
    Panel("loss", "minus the mean loss", "−loss", floor=1e-3),
    Panel("accuracy", "training accuracy", "accuracy", yscale="linear"),
    Panel("error", "distance of H/|H| from its limit", r"$\|\hat H-\widehat{WM}\|$", floor=1e-9),
    Panel("feature_norm", "norm of H", r"$\|H\|$"),
    Panel("long_run", "λ = 0 in the long run", r"$\|\hat H-\widehat{WM}\|$", xscale="log"),
)


@experiment(
    "anchored-decay",
    label="pal-toy",
    claim="With fixed prototypes the direction converges as exp(-λζ), but without decay only as 1/ζ",
    panels=PANELS,
    errata=(22,),
    note="The paper says that every case converges exponentially. At λ = 0 this is not so: there the error only halves "
    "when the number of steps doubles (erratum 22, last panel).",
    quick=3,
    paper=55,
)
def anchored_decay(scale: Scale, seed: int) -> Outcome:
    """Six feature decays, prototypes as they were drawn."""
    target, start = scale.target, scale.start(seed)
    pull = pull_of(start[1], target, gamma=1 / (scale.num_classes - 1))
    shown = scale.steps(15_000)
    marked = scale.simulated(shown, 6_000)
    measure = partial(_measure, target=target, pull=pull)
    curves = []
    for printed in (0.0, 0.001, 0.005, 0.01, 0.05, 0.1):
        decay = scale.decay(printed)
        case = Case(f"lambda={decay:.2g}", None, feature_decay=decay, anchored=True)
        curves.append(follow(case, target, start, measure, grid(shown, 121), grid(marked, 31)))
    rows = tabulate(curves, PANELS[:4])
    for curve in curves[1:4]:
        rows += slope_of(curve, "error", curve.path.rate())
    for curve in curves[2:]:
        end = pull.norm().item() / curve.case.feature_decay
        rows += level("feature_norm", f"limit at {curve.case.name}", end, shown)
    free = curves[0]
    far = grid(1000 * shown, 61, log=True)
    distances = [free.path.distance(step).item() for step in far]
    rows += points("long_run", free.case.name, "exact", far, distances)
    rows += points("long_run", free.case.name, "sgd", free.marks[1:], free.sgd["error"][1:])
    tail = [1.4 * distances[-1] * far[-1] / s for s in far[-15:]]
    rows += points("long_run", free.case.name, "slope", far[-15:], tail)
    summary = summarize(curves, PANELS[:4])
    halving = free.path.distance(far[-1]).item() / free.path.distance(far[-1] // 2).item()
    ends = [curve.exact["error"][-1] for curve in curves]
    checks = [
        agreement(summary),
        *(rate_check(curve, "error", curve.path.rate(), 0.1) for curve in curves[4:]),
        Check(
            "at lambda = 0 the error halves when the steps double", abs(halving - 0.5) < 0.01, f"ratio {halving:.4f}"
        ),
        Check(
            "a larger decay is faster",
            all(a >= b or b < 1e-12 for a, b in pairwise(ends)),
            ", ".join(f"{e:.2g}" for e in ends),
        ),
        Check(
            "with decay the norm ends at |WM| / lambda",
            math.isclose(
                curves[-1].exact["feature_norm"][-1], pull.norm().item() / curves[-1].case.feature_decay, rel_tol=1e-6
            ),
            f"{curves[-1].exact['feature_norm'][-1]:.6g}",
        ),
    ]
    decays = [curve.case.feature_decay for curve in curves]
    return Outcome(rows, summary, checks, {"lr": 0.1, "decays": decays, "steps": shown, "steps_simulated": marked})


def _measure(features: Tensor, weight: Tensor, target: Tensor, pull: Tensor) -> dict[str, float]:
    return {
        "loss": -anchored_loss(features, pull).item(),
        "accuracy": accuracy(features, weight, target),
        "error": (features / features.norm() - pull / pull.norm()).norm().item(),
        "feature_norm": features.norm().item(),
    }
