"""Normalized features and fixed prototypes: over learning rates, plain and rescaled by the feature norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from unhinge.paper.figures.curves import agreement, points, slope
from unhinge.paper.figures.registry import Check, Outcome, Panel, Row, experiment
from unhinge.paper.figures.scale import Scale
from unhinge.paper.figures.simulate import deviation, fitted_rate, grid, pull_of, simulate
from unhinge.theory import Spherical, SphericalPath

KINDS = ("plain", "rescaled")
RATES = (0.1, 0.5, 1.0, 5.0, 10.0)
QUANTITIES = ("accuracy", "error", "feature_norm")
PANELS = tuple(
    panel
    for kind in KINDS
    for panel in (
        Panel(f"{kind}_accuracy", f"{kind}: training accuracy", "accuracy", yscale="linear"),
        Panel(f"{kind}_error", f"{kind}: distance from the prototypes", r"$\|\hat H-\hat WY\|$", floor=1e-8),
        Panel(f"{kind}_feature_norm", f"{kind}: norm of H", r"$\|H\|$", yscale="linear"),
    )
)


@dataclass(frozen=True)
class Run:
    """One learning rate of one kind: the exact path and what was simulated."""

    kind: str
    lr: float
    path: SphericalPath
    steps: list[int]
    marks: list[int]
    sgd: dict[str, list[float]]

    @property
    def name(self) -> str:
        return f"eta={self.lr:g}"

    def exact(self, key: str, steps: list[int]) -> list[float]:
        path = self.path
        question = {"accuracy": path.accuracy, "error": path.distance, "feature_norm": path.feature_norm}[key]
        values: list[float] = question(torch.tensor(steps)).tolist()
        return values

    def rows(self) -> list[Row]:
        rows = []
        for key in QUANTITIES:
            panel = f"{self.kind}_{key}"
            rows += points(panel, self.name, "exact", self.steps, self.exact(key, self.steps))
            rows += points(panel, self.name, "sgd", self.marks, self.sgd[key])
        return rows

    def summary(self) -> list[dict[str, str | float]]:
        return [
            {
                "panel": f"{self.kind}_{key}",
                "series": self.name,
                "steps_simulated": self.marks[-1],
                "largest_deviation": deviation(self.sgd[key], self.exact(key, self.marks), key != "accuracy"),
            }
            for key in QUANTITIES
        ]


@experiment(
    "spherical-lr",
    label="spherical-lr-behaviors",
    claim="Normalized features turn to their prototypes exponentially, by |1 - α| per step; rescaling helps if |h| > 1",
    panels=PANELS,
    errata=(24, 27, 39),
    note="α is η|v|/|h|² for plain steps and η|v|/|h| for rescaled ones, with the final norm of the slowest example. "
    "The norms never fall, and they stay bounded. The condition on the step in the paper has one power of |h| too few "
    "(erratum 24).",
    quick=4,
    paper=179,
)
def spherical_lr(scale: Scale, seed: int) -> Outcome:
    """Five learning rates, without and with rescaling; prototypes are centred, so that each is its features' limit."""
    target = scale.target
    features, weight = scale.start(seed)
    weight = weight - weight.mean(0)
    lasts = {"plain": scale.pick(400, 10_000), "rescaled": scale.pick(100, 2_000)}
    marks = {"plain": scale.pick(400, 2_000), "rescaled": scale.pick(100, 800)}
    runs = []
    for kind in KINDS:
        for lr in RATES:
            path = Spherical(target, weight).descent(features, lr=lr, rescaled=kind == "rescaled")
            recorded = grid(marks[kind], 31)
            sgd = _simulate(features, weight, target, lr, kind == "rescaled", recorded)
            runs.append(Run(kind, lr, path, grid(lasts[kind], 81), recorded, sgd))
    rows = [row for run in runs for row in run.rows()]
    summary = [entry for run in runs for entry in run.summary()]
    checks = [agreement(summary)]
    fastest = {run.kind: run for run in runs if run.lr == max(RATES)}
    for kind, run in fastest.items():
        rows += slope(
            f"{kind}_error", run.name, run.path.rate().item(), run.steps, run.exact("error", run.steps), floor=1e-8
        )
        checks.append(_ends_at_its_rate(run))
    for kind in KINDS:
        norms = [run.sgd["feature_norm"] for run in runs if run.kind == kind]
        change = min((b - a) / a for values in norms for a, b in pairwise(values))
        checks.append(Check(f"{kind}: the norm never falls", change > -1e-12, f"smallest relative change {change:.2g}"))
    plain, rescaled = (fastest[kind].path.rate().item() for kind in KINDS)
    checks.append(
        Check(
            "rescaling is faster here, where |h| > 1",
            rescaled < plain,
            f"{rescaled:.3g} against {plain:.3g} per step at eta=10",
        )
    )
    parameters = {"lr": list(RATES), "steps": lasts, "steps_simulated": marks, "prototypes": "centred"}
    return Outcome(rows, summary, checks, parameters)


def _ends_at_its_rate(run: Run) -> Check:
    """The error far out, at a time only the exact path reaches, falls at the predicted rate."""
    rate = run.path.rate().item()
    far = math.ceil(200 / abs(rate))
    late = run.path.distance(torch.tensor([far, 2 * far])).log()
    measured = ((late[1] - late[0]) / far).item()
    so_far = fitted_rate(run.marks, run.sgd["error"])
    return Check(
        f"{run.kind}, {run.name}: the error ends at the rate of its slowest example, exp({rate:.4g} step)",
        math.isclose(measured, rate, rel_tol=1e-2),
        f"{measured:.4g} far out, {so_far:.4g} where the simulation ends",
    )


def _simulate(
    start: Tensor, weight: Tensor, target: Tensor, lr: float, rescaled: bool, marks: list[int]
) -> dict[str, list[float]]:
    """SGD on the features through h/|h|; when rescaled, each gradient is multiplied by |h|."""
    features = start.clone().requires_grad_()
    pull = pull_of(weight, target, gamma=1 / (len(weight) - 1))
    along = weight[target] / weight[target].norm(dim=1, keepdim=True)

    def loss() -> Tensor:
        return -torch.linalg.vecdot(features, pull).div(features.norm(dim=1)).sum()

    def rescale() -> None:
        assert features.grad is not None
        features.grad.mul_(features.detach().norm(dim=1, keepdim=True))

    def record() -> dict[str, float]:
        unit = features / features.norm(dim=1, keepdim=True)
        return {
            "accuracy": ((unit @ weight.mT).argmax(1) == target).double().mean().item(),
            "error": (unit - along).norm().item(),
            "feature_norm": features.norm().item(),
        }

    return simulate([features], loss, [{"lr": lr}], marks, record, rescale if rescaled else None)
