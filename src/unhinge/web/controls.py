"""One parameter of a view: its name, its range, its words, and how its text is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Control", "Value", "choice", "count", "number", "read", "text", "written"]

Value = float | int | str | None
LONGEST_TEXT = 4000


@dataclass(frozen=True)
class Control:
    """What a person can move. `default` None means: chosen by the theory until a value is given."""

    key: str
    label: str
    help: str
    default: Value
    kind: Literal["number", "count", "choice", "text"]
    low: float = 0.0
    high: float = 1.0
    slide: tuple[float, float] = (0.0, 1.0)  # the ends of the slider, which may be narrower than what is allowed
    log: bool = False
    zero: bool = False  # a logarithmic slider whose left end means 0
    choices: tuple[tuple[str, str], ...] = ()  # value, label
    when: tuple[str, tuple[str, ...]] | None = None  # shown only if that control has one of these values


def number(
    key: str,
    label: str,
    help: str,
    default: float | None,
    low: float,
    high: float,
    slide: tuple[float, float] | None = None,
    log: bool = False,
    zero: bool = False,
    when: tuple[str, tuple[str, ...]] | None = None,
) -> Control:
    """A real number from `low` to `high`."""
    return Control(key, label, help, default, "number", low, high, slide or (low, high), log, zero, when=when)


def count(
    key: str,
    label: str,
    help: str,
    default: int | None,
    low: int,
    high: int,
    slide: tuple[float, float] | None = None,
    log: bool = False,
    when: tuple[str, tuple[str, ...]] | None = None,
) -> Control:
    """A whole number from `low` to `high`."""
    return Control(key, label, help, default, "count", low, high, slide or (low, high), log, when=when)


def choice(
    key: str,
    label: str,
    help: str,
    choices: tuple[tuple[str, str], ...],
    when: tuple[str, tuple[str, ...]] | None = None,
) -> Control:
    """One of a few; the first is the default."""
    return Control(key, label, help, choices[0][0], "choice", choices=choices, when=when)


def text(key: str, label: str, help: str, default: str, when: tuple[str, tuple[str, ...]] | None = None) -> Control:
    """Free text, read by the view."""
    return Control(key, label, help, default, "text", when=when)


def read(control: Control, given: str) -> Value:
    """The value of a text from the address bar or a field; a ValueError says what is wrong with it.

    Example:
        >>> gamma = number("gamma", "γ", "weight of the other logits", None, 0.0, 100.0)
        >>> read(gamma, "0.25"), read(gamma, "1/4"), read(gamma, "")
        (0.25, 0.25, None)
        >>> read(gamma, "much")
        Traceback (most recent call last):
        ValueError: γ must be a number, got 'much'.
    """
    shown = repr(given if len(given) <= 40 else given[:37] + "...")
    if control.kind == "choice":
        names = [value for value, _ in control.choices]
        if given not in names:
            raise ValueError(f"{control.label} must be one of {', '.join(names)}, got {shown}.")
        return given
    if control.kind == "text":
        if len(given) > LONGEST_TEXT:
            raise ValueError(f"{control.label} may have {LONGEST_TEXT} characters, got {len(given)}.")
        return given
    if not given.strip():
        if control.default is None:
            return None
        raise ValueError(f"{control.label} is empty.")
    try:
        value = _number(given)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{control.label} must be a number, got {shown}.") from None
    if not math.isfinite(value) or not control.low <= value <= control.high:
        raise ValueError(f"{control.label} must lie between {control.low:g} and {control.high:g}, got {shown}.")
    if control.kind == "count":
        if value != int(value):
            raise ValueError(f"{control.label} must be a whole number, got {shown}.")
        return int(value)
    return value


def _number(given: str) -> float:
    """A number, or a quotient of two such as 1/9."""
    above, slash, below = given.partition("/")
    return float(above) / float(below) if slash else float(given)


def written(value: Value) -> str:
    """The shortest text that reads back to the same value.

    Example:
        >>> written(0.1), written(100), written(None), written(1e-7)
        ('0.1', '100', '', '1e-07')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    return str(value)
