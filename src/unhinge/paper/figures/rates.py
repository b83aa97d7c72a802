"""The paper's remark on speed, drawn: an exponential rate against the O(1/log t) of cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from unhinge.nn import functional as UF
from unhinge.nn import simplex_etf
from unhinge.paper.figures.curves import agreement, rate_check, slope, summarize, tabulate
from unhinge.paper.figures.registry import Check, Outcome, Panel, Row, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import Case, follow, grid, state_distance

PANELS = (
    Panel("distance", "distance from the limit direction", "distance", xscale="log", floor=1e-8),
    Panel("alignment", "features against prototypes", r"$\|\hat H-\hat W Y\|$", xscale="log", floor=1e-8),
)
INVERSE = Panel("inverse", "a line here is 1/log t", "1 / distance", yscale="linear", xscale="log")
BOTH, CE_ONLY, HINGE_ONLY, CE_BOTH = (
    "unhinged, both",
    "cross-entropy, prototypes",
    "hinge, prototypes",
    "cross-entropy, both",
)


@experiment(
    "beyond-rate",
    claim="The unhinged loss converges exponentially in the steps, prototypes under cross-entropy like 1/log t",
    panels=(*PANELS, INVERSE),
    note="The paper compares its rate, for features and prototypes trained together, with that of linear predictors on "
    "separable features. In the first and the last panel those features are a simplex, so that the largest margin is "
    "known: prototypes along the features. The second panel trains both for cross-entropy too: whether features and "
    "prototypes point the same way needs no known limit.",
    quick=6,
    paper=60,
)
def rate(scale: Scale, seed: int) -> Outcome:
    """Exact and simulated unhinged descent beside simulated cross-entropy and hinge loss."""
    classes, per_class, dim = scale.pick((5, 2, 8), (10, 5, 32))
    target = torch.arange(classes).repeat_interleave(per_class)
    generator = torch.Generator().manual_seed(seed)
    start = (
        torch.randn(len(target), dim, generator=generator, dtype=torch.float64),
        torch.randn(classes, dim, generator=generator, dtype=torch.float64),
    )
    case = Case(BOTH, lr=0.5)
    whole = case.path(target, *start).direction()
    measure = partial(_measure, target=target, reference=(whole.features, whole.weight))
    end = scale.pick(300, 800)
    exact = follow(case, target, start, measure, grid(end, 121, log=True), grid(end, 41, log=True), with_flow=False)

    last = scale.pick(10_000, 100_000)
    marks = grid(last, 61, log=True)
    frame = (
        math.sqrt(classes) * simplex_etf(classes, dim, generator=generator).double()
    )  # fixed features, one of each class
    labels = torch.arange(classes)
    rows = tabulate([exact], PANELS)
    rows += slope("distance", BOTH, exact.path.rate().item(), exact.steps, exact.exact["distance"], floor=1e-8)
    ended = {}
    for name, loss in ((CE_ONLY, F.cross_entropy), (HINGE_ONLY, UF.multiclass_hinge_loss)):
        weights = _descend([start[1].clone()], partial(_on_frame, loss, frame, labels), marks)
        ended[name] = [_apart(w, frame) for (w,) in weights]
        for mark, value in zip(marks, ended[name], strict=True):
            rows += [Row("distance", name, "sgd", mark, value), Row("inverse", name, "sgd", mark, 1 / value)]
    pairs = _descend([part.clone() for part in start], lambda h, w: F.cross_entropy(h @ w.mT, target), marks)
    aligned = [_alignment(h, w, target) for h, w in pairs]
    rows += [Row("alignment", CE_BOTH, "sgd", m, v) for m, v in zip(marks, aligned, strict=True)]
    summary = summarize([exact], PANELS)
    # a/(log t + b): one over the distance grows by the same amount in every decade of steps
    decades = [next(i for i, mark in enumerate(marks) if mark >= last / part) for part in (100, 10, 1)]
    inverse = [1 / ended[CE_ONLY][i] for i in decades]
    first, second = inverse[1] - inverse[0], inverse[2] - inverse[1]
    checks = [
        agreement(summary),
        rate_check(exact, "distance", exact.path.rate().item(), 0.1),
        Check(
            "cross-entropy's distance falls like 1/log t: its inverse gains the same in the last two decades of steps",
            abs(second / first - 1) < 0.15,  # the margin is log t only up to terms in log log t
            f"{first:.4f} and {second:.4f}",
        ),
        Check(
            "the hinge loss stops where all margins are 1, away from the largest margin",
            ended[HINGE_ONLY][-1] == ended[HINGE_ONLY][decades[1]] > 0.01,
            f"at a distance of {ended[HINGE_ONLY][-1]:.3f}",
        ),
        Check(
            "with both trained, cross-entropy aligns features and prototypes more slowly too",
            aligned[-1] > 100 * exact.exact["alignment"][-1],
            f"{aligned[-1]:.3g} after {last:,} steps; unhinged {exact.exact['alignment'][-1]:.3g} after "
            f"{exact.steps[-1]:,}",
        ),
    ]
    parameters = {"classes": classes, "per_class": per_class, "dim": dim, "lr": case.lr, "steps": last}
    return Outcome(rows, summary, checks, parameters)


def _measure(features: Tensor, weight: Tensor, target: Tensor, reference: tuple[Tensor, Tensor]) -> dict[str, float]:
    return {
        "distance": state_distance(features, weight, reference),
        "alignment": _alignment(features, weight, target),
    }


def _alignment(features: Tensor, weight: Tensor, target: Tensor) -> float:
    return _apart(features, weight[target])


def _on_frame(loss: Callable[[Tensor, Tensor], Tensor], frame: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    return loss(frame @ weight.mT, labels)


def _apart(one: Tensor, other: Tensor) -> float:
    """The distance of two directions."""
    return torch.linalg.vector_norm(one / one.norm() - other / other.norm()).item()


def _descend(start: Sequence[Tensor], loss: Callable[..., Tensor], marks: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """What gradient descent at rate 0.5 has reached at each mark."""
    parts = [part.requires_grad_() for part in start]
    optimizer = torch.optim.SGD(parts, lr=0.5)
    reached, done = [], 0
    for mark in marks:
        for _ in range(mark - done):
            optimizer.zero_grad()
            loss(*parts).backward()
            optimizer.step()
        done = mark
        reached.append(tuple(part.detach().clone() for part in parts))
    return reached
