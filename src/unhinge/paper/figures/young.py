"""Beyond the paper: real cross-entropy beside its exact first phase, the bound of their distance, and what follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.paper.figures.curves import points
from unhinge.paper.figures.registry import Check, Outcome, Panel, Row, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import grid, state_distance
from unhinge.theory import EarlyCrossEntropy, EarlyPath

START = 0.01  # times a normal start: the smaller, the longer cross-entropy stays linear
TOLERANCE = 0.1

YOUNG = (
    Panel("accuracy", "training accuracy", "accuracy", yscale="linear", xscale="log"),
    Panel("error", "true error and proved bound", "relative error", xscale="log", floor=1e-7),
    Panel("order", "when half of a class is right", "step", xlabel="class, largest first"),
    Panel("direction", "distance from the linear limit", "distance"),
)


@dataclass
class Variant:
    """One loss: its exact first phase, and the states of the real one at the marks."""

    name: str
    path: EarlyPath
    target: Tensor
    states: list[tuple[Tensor, Tensor]]
    learned: list[float]  # first simulated step at which half of each class is right

    @cached_property
    def horizon(self) -> int:
        return int(self.path.horizon(TOLERANCE))

    def errors(self, marks: Sequence[int]) -> list[float]:
        errors = []
        for mark, (features, weight) in zip(marks, self.states, strict=True):
            state = self.path.at(mark)
            log = 0.0 if state.log_scale is None else state.log_scale.item()
            scale = math.exp(min(log, 300.0))
            apart = torch.hypot((scale * state.features - features).norm(), (scale * state.weight - weight).norm())
            errors.append((apart / torch.hypot(state.features.norm(), state.weight.norm()) / scale).item())
        return errors

    def accuracies(self) -> list[float]:
        return [((h @ w.mT).argmax(1) == self.target).double().mean().item() for h, w in self.states]


@experiment(
    "beyond-young-cross-entropy",
    claim="From a small start the first phase of cross-entropy is exact, order of learning included, up to a proved "
    "horizon",
    panels=YOUNG,
    note="Lines are the exact path of the linear loss, and markers are real cross-entropy, trained by autograd and "
    "torch.optim.SGD. In (b) the lines are the proved bounds and the markers are the true errors. Balanced classes are "
    "all right before the horizon. Beyond it the two losses separate (d). With balanced classes, or with weights "
    "1/√n, cross-entropy stays 0.1 to 0.3 away from the limit of the linear loss. Under a long tail it moves "
    "further away, because the small classes collapse under the linear loss and not under cross-entropy.",
    quick=12,
    paper=120,
    columns=2,
    words={"sgd": "marker: cross-entropy", "level": "dash-dot: horizon", "off": "before the horizon off by"},
)
def young(scale: Scale, seed: int) -> Outcome:
    """A long tail under three cross-entropies, and balanced classes, from a start of a hundredth."""
    classes, largest, ratio, dim = scale.pick((8, 40, 20.0, 32), (20, 100, 50.0, 128))
    counts = torch.tensor([max(1, round(largest * ratio ** (-c / (classes - 1)))) for c in range(classes)])
    target = torch.arange(classes).repeat_interleave(counts)
    frequencies = (counts.double() / counts.sum()).log()
    sqrt = counts.double() ** -0.5
    last = scale.pick(1_000, 4_000)
    marks = _marks(last, 25)
    level = torch.arange(classes).repeat_interleave(int(counts.double().mean()))
    variants = [
        _variant("plain", target, dim, seed, marks),
        _variant("weights n^(-1/2)", target, dim, seed, marks, weights=sqrt),
        _variant("logit-adjusted", target, dim, seed, marks, offsets=frequencies),
        _variant("balanced", level, dim, seed, marks),
    ]
    rows, summary, checks = [], [], []
    for variant in variants:
        rows += _rows(variant, marks, last)
        errors = variant.errors(marks)
        bounds = variant.path.error_bound(marks).tolist()
        inside = [k for k, mark in enumerate(marks) if 0 < mark <= variant.horizon]
        exact = variant.path.accuracy([marks[k] for k in inside]).tolist()
        simulated = variant.accuracies()
        summary.append(
            {
                "panel": "accuracy",
                "series": variant.name,
                "steps_simulated": marks[-1],
                "largest_deviation": max(abs(a - simulated[k]) for a, k in zip(exact, inside, strict=True)),
                "largest_deviation_from_flow": "",
                "unit": "of the accuracy",
            }
        )
        checks += [
            Check(
                f"{variant.name}: the bound is never below the true error",
                all(error <= bound for error, bound in zip(errors, bounds, strict=True)),
                f"bound over error {min(bounds[k] / errors[k] for k in inside):.2f} to "
                f"{max(bounds[k] / errors[k] for k in inside):.2f} up to the horizon, step {variant.horizon}",
            ),
            Check(
                f"{variant.name}: inside the horizon the exact accuracy is that of cross-entropy "
                "within two in a hundred",
                summary[-1]["largest_deviation"] <= 0.02,
                f"largest difference {summary[-1]['largest_deviation']:.4f}",
            ),
        ]
    balanced = variants[-1]
    final = balanced.path.accuracy(balanced.horizon).item()
    checks.append(
        Check(
            "balanced classes are all right before the horizon ends",
            final == 1,
            f"{final:.4f} at step {balanced.horizon}",
        )
    )
    parameters = {"counts": counts.tolist(), "steps": last, "start": START, "dim": dim, "tolerance": TOLERANCE}
    return Outcome(rows, summary, checks, parameters)


def _variant(
    name: str,
    target: Tensor,
    dim: int,
    seed: int,
    marks: list[int],
    weights: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Variant:
    """The exact path, and torch.optim.SGD on F.cross_entropy itself from the same start."""
    problem = EarlyCrossEntropy(target, class_weight=weights, logit_adjustment=offsets)
    generator = torch.Generator().manual_seed(seed)
    classes = int(target.max()) + 1
    features = START * torch.randn(len(target), dim, generator=generator, dtype=torch.float64)
    weight = START * torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    # the step in units of each problem's own growth, so that all share one axis
    lr = 0.01 / (problem.scale.item() * problem.problem.critical_decay.item())
    path = problem.descent(features, weight, lr=lr)
    moving = [features.clone().requires_grad_(), weight.clone().requires_grad_()]
    optimizer = torch.optim.SGD(moving, lr=lr)
    counts = torch.bincount(target).double()
    states, learned = [], [math.inf] * classes
    for step in range(marks[-1] + 1):
        logits = moving[0] @ moving[1].mT
        hits = torch.zeros(classes, dtype=torch.float64).index_add(0, target, (logits.argmax(1) == target).double())
        for c in ((hits >= counts / 2) & torch.isinf(torch.tensor(learned))).nonzero().flatten().tolist():
            learned[c] = float(step)
        if step in marks:
            states.append((moving[0].detach().clone(), moving[1].detach().clone()))
        optimizer.zero_grad()
        F.cross_entropy(logits if offsets is None else logits + offsets, target, weight=weights).backward()
        optimizer.step()
    return Variant(name, path, target, states, learned)


def _marks(last: int, count: int) -> list[int]:
    """So many steps at even distances, and as many from the tenth on whose logarithms are: the axis has both ends."""
    early = torch.logspace(1, math.log10(last), count, dtype=torch.float64).round().long().tolist()
    return sorted({*grid(last, count), *early})


def _rows(variant: Variant, marks: list[int], last: int) -> list[Row]:
    shown = [step for step in _marks(last, 121) if step <= 1.2 * variant.horizon]
    rows = points("accuracy", variant.name, "exact", shown, variant.path.accuracy(shown).tolist())
    rows += points("accuracy", variant.name, "sgd", marks, variant.accuracies())
    rows += [Row("accuracy", variant.name, "level", variant.horizon, v) for v in (0.0, 1.0)]
    bounds = points("error", variant.name, "exact", shown[1:], variant.path.error_bound(shown[1:]).tolist())
    errors = points("error", variant.name, "sgd", marks[1:], variant.errors(marks)[1:])
    rows += [row for row in bounds if row.value < 10] + [row for row in errors if row.value < 2]
    when = variant.path.learned(0.5).tolist()
    for c, (exact, simulated) in enumerate(zip(when, variant.learned, strict=True)):
        if exact <= variant.horizon:
            rows.append(Row("order", variant.name, "exact", c + 1, max(exact, 1.0)))
        if math.isfinite(simulated):
            rows.append(Row("order", variant.name, "sgd", c + 1, max(simulated, 1.0)))
    limit = variant.path.direction()
    reference = limit.features, limit.weight
    apart = [state_distance(*state, reference) for state in variant.states]
    rows += points("direction", variant.name, "sgd", marks, apart)
    steps = grid(last, 61)
    return rows + points("direction", variant.name, "exact", steps, variant.path.distance(steps).tolist())
