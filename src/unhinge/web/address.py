"""The state of the page and the address that holds it: each the other, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from unhinge.web.controls import Control, Value, read, written

__all__ = ["State", "address", "default_state", "from_address"]

LONGEST_ADDRESS = 16_000


@dataclass(frozen=True)
class State:
    """A view and the value of each of its controls; hashable, so that answers can be kept by it."""

    view: str
    items: tuple[tuple[str, Value], ...]

    def __getitem__(self, key: str) -> Value:
        for name, value in self.items:
            if name == key:
                return value
        raise KeyError(key)

    def number(self, key: str) -> float:
        """A value that is a number."""
        value = self[key]
        assert isinstance(value, float | int)
        return float(value)

    def maybe(self, key: str) -> float | None:
        """A number, or None where the theory chooses."""
        return None if self[key] is None else self.number(key)

    def count(self, key: str) -> int:
        """A value that is a whole number."""
        value = self[key]
        assert isinstance(value, int)
        return value

    def word(self, key: str) -> str:
        """A value that is a text or a choice."""
        value = self[key]
        assert isinstance(value, str)
        return value

    def replaced(self, **changes: Value) -> State:
        """The same state with some values changed."""
        assert all(key in dict(self.items) for key in changes), changes
        return State(self.view, tuple((key, changes.get(key, value)) for key, value in self.items))


def default_state(view: str, controls: Sequence[Control]) -> State:
    """Every control at its default."""
    return State(view, tuple((control.key, control.default) for control in controls))


def address(state: State, controls: Sequence[Control]) -> str:
    """The query string of a state: what differs from the defaults.

    Example:
        >>> from unhinge.web.controls import count
        >>> controls = [
        ...     count("classes", "classes C", "how many", 10, 2, 1000),
        ...     count("seed", "seed", "", 0, 0, 99),
        ... ]
        >>> address(State("free", (("classes", 100), ("seed", 0))), controls)
        '?view=free&classes=100'
    """
    pairs = [(c.key, written(state[c.key])) for c in controls if state[c.key] != c.default]
    return "?" + urlencode([("view", state.view), *pairs])


def from_address(search: str, views: Mapping[str, Sequence[Control]]) -> tuple[State, tuple[str, ...], tuple[str, ...]]:
    """The state an address asks for, a message for each value it cannot have, and the keys of their controls, which
    the page marks.

    Never an error: a value that cannot be read is replaced by its default, and said so.

    Example:
        >>> from unhinge.web.controls import count
        >>> free = [count("classes", "classes C", "how many", 10, 2, 1000)]
        >>> from_address("?classes=many", {"free": free})[2]
        ('classes',)
    """
    messages: list[str] = []
    wrong: list[str] = []
    if len(search) > LONGEST_ADDRESS:
        messages.append(f"The address has {len(search)} characters, more than {LONGEST_ADDRESS}; it was not read.")
        search = ""
    pairs = dict(parse_qsl(search.lstrip("?"), keep_blank_values=True, errors="replace", max_num_fields=None))
    first = next(iter(views))
    view = pairs.pop("view", first)
    if view not in views:
        messages.append(f"There is no view {view[:40]!r}; there are {', '.join(views)}.")
        view = first
    values: list[tuple[str, Value]] = []
    for control in views[view]:
        value = control.default
        given = pairs.pop(control.key, None)
        if given is not None:
            try:
                value = read(control, given)
            except ValueError as error:
                messages.append(f"{error} The default is shown instead.")
                wrong.append(control.key)
        values.append((control.key, value))
    if pairs:
        unknown = ", ".join(repr(name[:40]) for name in list(pairs)[:5])
        messages.append(f"The address has parts this view does not know: {unknown}.")
    return State(view, tuple(values)), tuple(messages), tuple(wrong)
