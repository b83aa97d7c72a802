"""Beyond the paper: how fast features of a class fall together under three losses, and why only one of them is fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unhinge.paper.figures.registry import Check, Outcome, Panel, Row, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import grid
from unhinge.theory import LayerPeeled

START = 0.1  # times a normal start: cross-entropy from a larger one hardly moves in any time one can write down
MOVED = 0.005  # share of the state's norm that one step of the simulation moves it by
LAST = 1e15  # time of the last point of cross-entropy, in units of 1/sigma_1
# The hinge stops on its own, and the simulation then has no gradient left to follow. Where it does not, something is
# wrong: from these starts some hundred steps are enough.
MOST_STEPS = 20_000

SPEED = (
    Panel("share", "within-class share of |H|²", "share", xscale="log", xlabel="time × σ₁", floor=1e-14),
    Panel("inverse", "one over that share", "1 / share", "linear", "log", xlabel="time × σ₁"),
    Panel("norm", "|Z|², over its start", "ratio", xscale="log", xlabel="time × σ₁", top=1e4),
)

Gradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Point:
    """What is measured of a state."""

    time: float  # in units of 1/sigma_1
    share: float
    norm: float


@experiment(
    "beyond-speed-of-losses",
    claim="Under the unhinged loss the features of a class fall together exponentially, under cross-entropy as "
    "1/log t, under the hinge loss never",
    panels=SPEED,
    note="The classes are balanced and the features free, there is no decay, and all losses have the same small start. "
    "Cross-entropy and the hinge loss of Crammer and Singer are gradient flows, simulated by steps that move the state "
    "by half a percent each, so that very long times can be reached. The pull of cross-entropy fades with its loss. So "
    "|Z|² grows as log t, and the scatter of the start hardly changes but becomes small in comparison. The hinge loss "
    "does not pull any more once all margins are met. The unhinged loss never stops pulling: the features of a class "
    "meet, and the norms overflow.",
    quick=3,
    paper=40,
    words={"sgd": "marker: simulated", "slope": "dashes: 1/log t"},
)
def speed(scale: Scale, seed: int) -> Outcome:
    """The exact path of the unhinged loss with SGD's iterates on it, beside two simulated losses."""
    target = scale.target
    features, weight = (START * part for part in scale.start(seed))
    problem = LayerPeeled(target, scale.num_classes)
    sigma = problem.critical_decay.item()
    rows: list[Row] = []

    lr, last = 0.05 / sigma, 400  # twenty e-foldings: the share falls to 1e-14 or so
    path = problem.descent(features, weight, lr=lr)
    marks = grid(last, 41)[1:]
    states = [path.at(step) for step in marks]
    exact = [_point(step * lr * sigma, s.features, s.weight, target) for step, s in zip(marks, states, strict=True)]
    simulated = _sgd(features, weight, target, lr, marks, sigma)
    rows += _rows("unhinged", "exact", exact, features, weight)
    rows += _rows("unhinged", "sgd", simulated, features, weight)
    off = max(abs(a.share / b.share - 1) for a, b in zip(simulated, exact, strict=True) if b.share > 1e-10)
    summary: list[dict[str, str | float]] = [
        {"panel": "share", "series": "unhinged", "steps_simulated": last, "largest_deviation": off}
    ]

    entropy = _flow(_cross_entropy(target), features, weight, target, sigma, LAST)
    # Near its end the hinge pulls at a few examples only. Steps that grow with that would jump to and fro between them.
    hinge = _flow(_hinge(target), features, weight, target, sigma, LAST, longest=MOVED)
    end = hinge[-1]
    hinge += [replace(end, time=point.time) for point in entropy if point.time > end.time]  # it stays where it is
    rows += _rows("cross-entropy", "sgd", entropy, features, weight)
    rows += _rows("hinge", "sgd", hinge, features, weight)
    # 1/share is a straight line over log t where the share falls as 1/log t; the slopes of both halves tell.
    late = [point for point in entropy if point.time >= 1e5]
    thirds = late[0], late[len(late) // 2], late[-1]
    early, final = (_inverse_slope(*pair) for pair in ((thirds[0], thirds[1]), (thirds[1], thirds[2])))
    line = [(p.time, 1 / late[-1].share + final * math.log(p.time / late[-1].time)) for p in late]
    rows += [Row("inverse", "cross-entropy", "slope", time, value) for time, value in line]
    rows += [Row("share", "cross-entropy", "slope", time, 1 / value) for time, value in line]

    pulled = _cross_entropy(target)(torch.zeros_like(features), weight)[0]
    linear = problem.anchored(torch.zeros_like(features), weight, lr=1.0).at(1.0).features
    ratio = (-pulled / linear).mean().item()
    checks = [
        Check(
            "unhinged: simulated SGD lies on the exact path",
            off < 1e-6,
            f"off by {off:.2g} at most, while the share is above 1e-10",
        ),
        Check(
            "unhinged: the share falls as exp(-2 σ₁ t)",
            abs(_slope(exact) + 2) < 0.1,
            f"exponent {_slope(exact):.3f} σ₁ over the last half of the steps",
        ),
        Check(
            "cross-entropy: the share falls as 1/log t",
            abs(final / early - 1) < 0.05,
            f"1/share grows by {early:.4f} and {final:.4f} with each unit of log t in the first and second half of "
            f"the times from 1e5 to {LAST:.0e}",
        ),
        Check(
            "hinge: once every margin is met nothing moves, and the share stays above zero",
            end.share > 0.01 and end.time < 1e4,
            f"share {end.share:.3f} from time {end.time:.3g} on, where its gradient is zero",
        ),
        Check(
            "at zero logits cross-entropy pulls as the unhinged loss does, times (C-1)/C",
            abs(ratio * scale.num_classes / (scale.num_classes - 1) - 1) < 1e-9,
            f"ratio {ratio:.6f}",
        ),
    ]
    parameters = {"start": START, "lr": lr, "steps": last, "moved": MOVED, "last_time": LAST}
    return Outcome(rows, summary, checks, parameters)


def _rows(name: str, kind: str, points: Sequence[Point], features: Tensor, weight: Tensor) -> list[Row]:
    begin = (features.square().sum() + weight.square().sum()).item()
    rows = [Row("share", name, kind, p.time, p.share) for p in points]
    if kind == "sgd" and name != "unhinged":  # whose share is 1e14 times smaller at the end
        rows += [Row("inverse", name, kind, p.time, 1 / p.share) for p in points]
    rows += [Row("norm", name, kind, p.time, p.norm / begin) for p in points]
    return rows


def _point(time: float, features: Tensor, weight: Tensor, target: Tensor) -> Point:
    scatter = features - _class_means(features, target)[target]
    norm = (features.square().sum() + weight.square().sum()).item()
    return Point(time, (scatter.square().sum() / features.square().sum()).item(), norm)


def _class_means(features: Tensor, target: Tensor) -> Tensor:
    sums = features.new_zeros(int(target.max()) + 1, features.shape[1]).index_add(0, target, features)
    return sums / torch.bincount(target)[:, None]


def _slope(points: Sequence[Point]) -> float:
    """Of log share over time, between the middle point and the last."""
    a, b = points[len(points) // 2], points[-1]
    return (math.log(b.share) - math.log(a.share)) / (b.time - a.time)


def _inverse_slope(a: Point, b: Point) -> float:
    """Of 1/share over log time."""
    return (1 / b.share - 1 / a.share) / math.log(b.time / a.time)


def _sgd(
    features: Tensor, weight: Tensor, target: Tensor, lr: float, marks: Sequence[int], sigma: float
) -> list[Point]:
    """torch.optim.SGD on the unhinged loss, written out."""
    classes = len(weight)
    moving = [features.clone().requires_grad_(), weight.clone().requires_grad_()]
    optimizer = torch.optim.SGD(moving, lr=lr)
    points = []
    for step in range(1, marks[-1] + 1):
        logits = moving[0] @ moving[1].mT
        own = logits.gather(1, target[:, None])[:, 0]
        optimizer.zero_grad()
        ((logits.sum(1) - own) / (classes - 1) - own).mean().backward()
        optimizer.step()
        if step in marks:
            points.append(_point(step * lr * sigma, moving[0].detach(), moving[1].detach(), target))
    return points


def _flow(
    gradient: Gradient,
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    sigma: float,
    last: float,
    longest: float = math.inf,
) -> list[Point]:
    """Gradient flow by short steps of descent, a point whenever time has doubled; times are in units of 1/sigma."""
    h, w, time, due = features, weight, 0.0, 0.05
    points: list[Point] = []
    for _ in range(MOST_STEPS):
        by_h, by_w = gradient(h, w)
        steepness = torch.hypot(by_h.norm(), by_w.norm()).item()
        if steepness == 0 or sigma * time >= last:
            return [*points, _point(sigma * time, h, w, target)]
        step = min(MOVED * torch.hypot(h.norm(), w.norm()).item() / steepness, longest / sigma)
        h, w, time = h - step * by_h, w - step * by_w, time + step
        if sigma * time >= due:
            points.append(_point(sigma * time, h, w, target))
            due = 2 * sigma * time
    raise AssertionError(f"the flow did not come to an end within {MOST_STEPS:,} steps")


def _pull(shares: Tensor, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of a mean loss whose derivatives by the logits are `shares`, (n, C)."""
    shares = shares / len(shares)
    return shares @ weight, shares.mT @ features


def _cross_entropy(target: Tensor) -> Gradient:
    rows = torch.arange(len(target))

    def gradient(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        shares = (features @ weight.mT).softmax(1)
        # 1 - p_y as a sum of the others: as a difference it would be zero from 1e-16 on, and time would stop
        shares[rows, target] = 0
        shares[rows, target] = -shares.sum(1)
        return _pull(shares, features, weight)

    return gradient


def _hinge(target: Tensor) -> Gradient:
    rows = torch.arange(len(target))

    def gradient(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits = features @ weight.mT
        own = logits[rows, target].clone()
        logits[rows, target] = -math.inf
        best, rival = logits.max(1)
        missed = (own - best < 1).to(features.dtype)
        shares = torch.zeros_like(logits)
        shares[rows, rival] = missed
        shares[rows, target] = -missed
        return _pull(shares, features, weight)

    return gradient
