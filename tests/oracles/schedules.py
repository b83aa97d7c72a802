"""Learning rates with what they are by definition: the rate as a plain function of time, and where it breaks."""

from __future__ import annotations

import math

from unhinge import constant, cosine, exponential, piecewise, step, warmup

__all__ = ["SCHEDULES"]


def damped(t):
    return 0.3 / (1 + 0.1 * t)


def wavy(t: float) -> float:
    """A function of plain floats."""
    return 0.2 + 0.1 * math.sin(float(t))


SCHEDULES = {
    "constant": (constant(0.3), lambda t: 0.3, ()),
    "cosine": (cosine(0.3, total=20), lambda t: 0.15 * (1 + math.cos(math.pi * min(t, 20) / 20)), (20,)),
    "cosine with an end": (
        cosine(0.3, total=20, end=0.05),
        lambda t: 0.05 + 0.125 * (1 + math.cos(math.pi * min(t, 20) / 20)),
        (20,),
    ),
    "step": (step(0.3, every=7, factor=0.5), lambda t: 0.3 * 0.5 ** math.floor(t / 7), (7, 14, 21, 28)),
    "step at times": (step(0.3, every=[5, 11], factor=0.3), lambda t: 0.3 * 0.3 ** ((t >= 5) + (t >= 11)), (5, 11)),
    "exponential": (exponential(0.3, decay=0.93), lambda t: 0.3 * 0.93**t, ()),
    "warmup": (warmup(0.3, duration=8), lambda t: 0.3 * min(t / 8, 1.0), (8,)),
    "warmup then cosine": (
        warmup(cosine(0.3, total=15), duration=5, start=0.2),
        lambda t: 0.3 * (0.2 + 0.8 * t / 5) if t < 5 else 0.15 * (1 + math.cos(math.pi * min(t - 5, 15) / 15)),
        (5, 20),
    ),
    "piecewise": (piecewise([4, 13], [0.1, 0.3, 0.02]), lambda t: 0.1 if t < 4 else (0.3 if t < 13 else 0.02), (4, 13)),
    "function of tensors": (damped, damped, ()),
    "function of floats": (wavy, wavy, ()),
}
