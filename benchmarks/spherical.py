"""Normalized features: the loop over features against two scalars per example and against the closed forms.

    python benchmarks/spherical.py [--json]

p = 512, n = 1000, C = 100, 20,000 steps, one thread. The loop is measured on a part of its steps and scaled; errors are
of the features after `CHECKED` steps, in eps of the largest norm, against the loop, and of the angles of one example
against mpmath.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import mpmath as mp
import torch
from torch import Tensor

from unhinge.theory import Spherical, SphericalPath

DIM, CLASSES, SIZE, STEPS, LOOPED, CHECKED, RATE = 512, 100, 1000, 20_000, 200, 1000, 10.0
EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    motion: str
    method: str
    asked: str
    seconds: float
    ratio: float  # how many times faster than the loop with the gradient written out
    loop_error: float | None  # eps, against the loop
    exact_error: float | None  # eps, against mpmath


def best_of(times: int, function: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def start() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SIZE, DIM, generator=generator, dtype=torch.float64)
    weight = torch.nn.functional.normalize(torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64))
    return features, weight, torch.arange(SIZE) % CLASSES


def pulls(weight: Tensor, target: Tensor) -> Tensor:
    gamma = 1 / (CLASSES - 1)
    return ((1 + gamma) * weight[target] - gamma * weight.sum(0)) / SIZE


def loop(features: Tensor, weight: Tensor, target: Tensor, steps: int, rescaled: bool) -> Tensor:
    pull, h = pulls(weight, target), features.clone()
    for _ in range(steps):
        norm = h.norm(dim=1, keepdim=True)
        unit = h / norm
        tangent = pull - (unit * pull).sum(1, keepdim=True) * unit
        h += RATE * (tangent if rescaled else tangent / norm)
    return h


def autograd_loop(features: Tensor, weight: Tensor, target: Tensor, steps: int, rescaled: bool) -> Tensor:
    gamma, h = 1 / (CLASSES - 1), features.clone().requires_grad_(True)
    for _ in range(steps):
        logits = torch.nn.functional.normalize(h) @ weight.mT
        true = logits.gather(1, target[:, None])[:, 0]
        (gradient,) = torch.autograd.grad((gamma * logits.sum(1) - (1 + gamma) * true).mean(), h)
        with torch.no_grad():
            h -= RATE * (gradient * h.norm(dim=1, keepdim=True) if rescaled else gradient)
    return h.detach()


def exact_angle(h: list[float], v: list[float], steps: int, rescaled: bool) -> float:
    """Angle of one example by vectors of 40 digits, in the plane that mpmath finds for itself."""
    with mp.workdps(40):
        first, target = mp.matrix([mp.mpf(x) for x in h]), mp.matrix([mp.mpf(x) for x in v])
        size = mp.norm(target)
        along = (first.T * target)[0] / size
        across = mp.norm(first - along / size * target)
        a, b, step = along, across, mp.mpf(RATE) * size
        for _ in range(steps):
            norm = mp.sqrt(a * a + b * b)
            push = step if rescaled else step / norm
            a, b = a + push * (b / norm) ** 2, b - push * a * b / norm**2
        return float(mp.atan2(abs(b), a))


def rows() -> list[Row]:
    """Every line of the table; asks take what users ask: loss, norm and distance."""
    torch.set_num_threads(1)
    features, weight, target = start()
    problem = Spherical(target, weight)
    every = torch.arange(0, STEPS + 1, 10)
    found = []
    for rescaled in (False, True):
        motion = "rescaled descent" if rescaled else "plain descent"
        looped = best_of(3, lambda r=rescaled: loop(features, weight, target, LOOPED, r)) * STEPS / LOOPED
        graph = best_of(3, lambda r=rescaled: autograd_loop(features, weight, target, LOOPED // 4, r))
        graph *= 4 * STEPS / LOOPED
        found.append(Row(motion, "loop, autograd", "the end", graph, looped / graph, None, None))
        found.append(Row(motion, "loop, gradient written out", "the end", looped, 1.0, None, None))

        def ask(steps: Tensor, r: bool = rescaled) -> SphericalPath:
            path = problem.descent(features, lr=RATE, rescaled=r)
            path.loss(steps), path.feature_norm(steps), path.distance(steps)
            return path

        expected = loop(features, weight, target, CHECKED, rescaled)
        path = problem.descent(features, lr=RATE, rescaled=rescaled)
        dense = torch.arange(CHECKED + 1)
        true = exact_angle(features[0].tolist(), pulls(weight, target)[0].tolist(), CHECKED, rescaled)
        for asked, steps, checked in (("2,001 times", every, dense), ("the end", every[-1:], dense[-1:])):
            stepped = not rescaled and len(steps) > 1
            here = path.motion.position(checked)  # at(checked) would hold every feature at every step
            along, across = here.norm[-1] * here.cos[-1], here.norm[-1] * here.sin[-1]
            state = path.motion.planes.assemble(along, across)
            error = ((state - expected).norm(dim=1).max() / expected.norm(dim=1).max()).item() / EPS
            angle = abs(path.angles(checked)[-1, 0].item() - true) / EPS
            seconds = best_of(3, lambda s=steps: ask(s))
            method = "two scalars, step by step" if stepped else "closed form" if rescaled else "series"
            found.append(Row(motion, method, asked, seconds, looped / seconds, error, angle))
    flow = best_of(3, lambda: problem.flow(features, lr=RATE).distance(every.double()))
    found.append(Row("flow", "closed form", "2,001 times", flow, found[1].seconds / flow, None, None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    options = parser.parse_args()
    records = rows()
    if options.json:
        print(json.dumps([asdict(row) for row in records], indent=2))
        return
    print(
        f"p = {DIM}, n = {SIZE}, C = {CLASSES}, {STEPS} steps, lr = {RATE:g}, torch {torch.__version__}, one thread\n"
    )
    print("| motion | method | asked | seconds | faster | error vs loop (eps) | angle vs mpmath (eps) |")
    print("|---|---|---|---:|---:|---:|---:|")
    for row in records:
        errors = " | ".join("" if e is None else f"{e:.1f}" for e in (row.loop_error, row.exact_error))
        print(f"| {row.motion} | {row.method} | {row.asked} | {row.seconds:.4g} | {row.ratio:,.1f} | {errors} |")


if __name__ == "__main__":
    main()
