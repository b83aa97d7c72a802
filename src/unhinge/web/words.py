"""Numbers as a person reads them, and the sentences that more than one view says."""

from __future__ import annotations

import math

__all__ = ["duration", "exponent_text", "plain", "share", "threshold"]


def plain(value: float, digits: int = 3) -> str:
    """A number in few digits.

    Example:
        >>> plain(0.049690)
        '0.0497'
        >>> plain(12345.6)
        '12,300'
        >>> plain(3.1e-9)
        '3.1e-9'
        >>> plain(float("inf"))
        '∞'
        >>> plain(2.0)
        '2'
    """
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        rounded = float(f"{value:.{digits}g}")
        return f"{rounded:,.0f}" if abs(rounded) >= 100 or rounded == int(rounded) else f"{rounded:.{digits}g}"
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(power)}"


def share(value: float) -> str:
    """A share as a percentage.

    Example:
        >>> share(1.0), share(0.1), share(0.9987)
        ('100 %', '10 %', '99.9 %')
    """
    return f"{100 * value:.3g} %"


def duration(steps: float, discrete: bool) -> str:
    """A number of steps, or a time.

    Example:
        >>> duration(1286.0, True), duration(float("inf"), False), duration(0.25, False)
        ('1,286 steps', 'never', '0.25 time units')
    """
    if math.isnan(steps):
        return "unknown"
    if math.isinf(steps):
        return "never"
    if discrete and steps < 1e6:
        return f"{round(steps):,} step" + ("" if round(steps) == 1 else "s")
    return plain(steps, 4) + (" steps" if discrete else " time units")


def exponent_text(exponent: float, discrete: bool) -> str:
    """What an exponent does in how long: doubling, halving, or nothing.

    Example:
        >>> exponent_text(0.00494, False)
        'doubles every 140 time units'
        >>> exponent_text(-0.01, True)
        'halves every 69 steps'
        >>> exponent_text(0.0, True)
        'stays'
    """
    if math.isnan(exponent):
        return "has no exponent"
    if exponent == 0:
        return "stays"
    if math.isinf(exponent):
        return "at once"
    verb = "doubles" if exponent > 0 else "halves"
    time = math.log(2) / abs(exponent)
    if discrete and time < 10:
        return f"{verb} every {plain(time, 2)} steps"
    return f"{verb} every {duration(time, discrete)}"


def threshold(num_classes: int) -> float:
    """2/(C-2): the gamma above which all classes end on one vector; infinite for two classes."""
    return math.inf if num_classes == 2 else 2 / (num_classes - 2)
