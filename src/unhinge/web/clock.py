"""Learning rates, the steps shown, and how many of them each question is asked at."""

from __future__ import annotations

import math

from unhinge.web.address import State
from unhinge.web.controls import Control, choice, count, number

__all__ = [
    "RATES",
    "SAMPLES",
    "length_shown",
    "nice_length",
    "rates",
    "runs_out",
    "shown_length",
    "stride_for",
    "times",
]

SAMPLES = 100  # of a curve: a piece of it is some 4 pixels long

RATES: tuple[Control, ...] = (
    number("lr", "rate η", "Learning rate of the prototypes.", 0.1, 1e-6, 1e4, log=True, slide=(1e-3, 10.0)),
    choice(
        "schedule",
        "schedule",
        "How the rate changes: constant; half a cosine down to 0; a tenth at each third of the length; exponentially "
        "to a hundredth at the length; or a straight rise during the length.",
        (("constant", "const"), ("cosine", "cos"), ("step", "step"), ("exponential", "exp"), ("warmup", "warm")),
    ),
    count(
        "length",
        "schedule length",
        "In steps.",
        2000,
        3,
        1_000_000,
        log=True,
        slide=(100, 100_000),
        when=("schedule", ("cosine", "step", "exponential", "warmup")),
    ),
)


def rates(state: State, ratio: float = 1.0) -> str:
    """What `lr=` takes, as Python: the rate of the prototypes, or a pair with `ratio` times that for the features."""
    lr, length = state.number("lr"), state.count("length")
    kind = state.word("schedule")
    if kind == "constant":
        return repr(lr) if ratio == 1 else f"({ratio * lr!r}, {lr!r})"
    made = {
        "cosine": f"unhinge.cosine({lr!r}, total={length})",
        "step": f"unhinge.step({lr!r}, every={max(1, round(length / 3))})",
        "exponential": f"unhinge.exponential({lr!r}, decay={0.01 ** (1 / length)!r})",
        "warmup": f"unhinge.warmup({lr!r}, duration={length})",
    }
    return made[kind] if ratio == 1 else f"({ratio!r} * (r := {made[kind]}), r)"


def runs_out(state: State) -> bool:
    """Whether the rate falls to zero, so that training stops by itself."""
    return state.word("schedule") in ("cosine", "step", "exponential")


def nice_length(steps: float) -> int:
    """The next length of a few digits that 100 divides, from 100 on.

    Example:
        >>> nice_length(1286.0), nice_length(3.0)
        (1300, 100)
    """
    if not steps > SAMPLES:
        return SAMPLES
    parts = steps / SAMPLES
    digit = 10.0 ** max(0, math.floor(math.log10(parts)) - 1)
    return SAMPLES * int(digit * math.ceil(parts / digit))


def times(length: int, discrete: bool, samples: int = SAMPLES) -> str:
    """The moments shown, as Python: `samples` + 1 times of the flow, or about as many whole steps.

    Example:
        >>> times(1400, True)
        'torch.arange(0, 1401, 14)'
    """
    if not discrete:
        return f"torch.linspace(0, {length}, {samples + 1}, dtype=torch.float64)"
    return f"torch.arange(0, {length + 1}, {max(1, length // samples)})"


def shown_length(asked: float) -> int:
    """The steps asked for, or where they are many the next smaller number that 100 divides."""
    length = int(asked)
    return length if length < SAMPLES else SAMPLES * (length // SAMPLES)


def length_shown(state: State, wanted: float, most: int, otherwise: int) -> int:
    """The steps asked for in the control `horizon`; else a nice number from `wanted` on, or `otherwise` if that is not
    finite."""
    asked = state.maybe("horizon")
    if asked is not None:
        return shown_length(asked)
    return min(nice_length(wanted), most) if math.isfinite(wanted) else otherwise


def stride_for(cost: float, budget: float, samples: int = SAMPLES) -> int:
    """Ask at every how-many-th moment, so that `cost` per moment stays within `budget` (but at 11 moments at least).

    Example:
        >>> stride_for(1.0, budget=1000.0), stride_for(1.0, budget=20.0)
        (1, 5)
    """
    affordable = max(budget / cost, 11)
    for stride in (1, 2, 4, 5, 8, 10):
        if samples / stride <= affordable:
            return stride
    return 20
