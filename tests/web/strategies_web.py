"""States of the page that a person could reach, small enough to solve in a test."""

from __future__ import annotations

from hypothesis import strategies as st

from unhinge.web.address import State
from unhinge.web.controls import Control, Value

SMALL: dict[str, st.SearchStrategy[Value]] = {
    "classes": st.integers(2, 6),
    "per_class": st.integers(1, 8),
    "dim": st.integers(2, 9),
    "ratio": st.floats(1, 8),
    "counts": st.lists(st.integers(1, 9), min_size=2, max_size=5).map(lambda sizes: ", ".join(map(str, sizes))),
    "gamma": st.none() | st.floats(0, 2),
    "feature_decay": st.just(0.0) | st.floats(1e-4, 0.3),
    "weight_decay": st.just(0.0) | st.floats(1e-4, 0.3),
    "s": st.floats(0.2, 5),
    "lr": st.floats(0.01, 1),
    "length": st.integers(10, 300),
    "momentum": st.just(0.0) | st.floats(0.1, 0.95),
    "noise": st.just(0.0) | st.floats(0.01, 0.45),
    "norm": st.floats(0.5, 10),
    "spread": st.floats(0, 1),
    "seed": st.integers(0, 99),
    "horizon": st.integers(20, 900),
    "reach": st.floats(1e-6, 1),
    "file": st.just(""),
    "scale": st.floats(1e-3, 1),
    "smoothing": st.just(0.0) | st.floats(0.01, 0.5),
    "temperature": st.just(1.0) | st.floats(0.3, 3),
    "adjustment": st.just(0.0) | st.floats(-1, 2),
    "tolerance": st.floats(1e-3, 1),
}


def value_of(control: Control) -> st.SearchStrategy[Value]:
    """Any value the control allows."""
    if control.kind == "choice":
        return st.sampled_from([value for value, _ in control.choices])
    if control.kind == "text":
        return st.text(max_size=30)
    if control.kind == "count":
        numbers: st.SearchStrategy[Value] = st.integers(int(control.low), int(control.high))
    else:
        numbers = st.floats(control.low, control.high)
    return numbers | st.none() if control.default is None else numbers


def states(view: str, controls: tuple[Control, ...]) -> st.SearchStrategy[State]:
    """Any state of a view."""
    return st.tuples(*(value_of(c) for c in controls)).map(
        lambda values: State(view, tuple((c.key, value) for c, value in zip(controls, values, strict=True)))
    )


def small_states(view: str, controls: tuple[Control, ...], **fixed: Value) -> st.SearchStrategy[State]:
    """States that can be solved quickly; `fixed` holds some values."""

    def one(control: Control) -> st.SearchStrategy[Value]:
        if control.key in fixed:
            return st.just(fixed[control.key])
        return SMALL[control.key] if control.key in SMALL else value_of(control)

    return st.tuples(*(one(c) for c in controls)).map(
        lambda values: State(view, tuple((c.key, value) for c, value in zip(controls, values, strict=True)))
    )
