"""The address is the state, and nothing one can type into it breaks the page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhinge.web.address import address, default_state, from_address
from unhinge.web.app import VIEWS, all_controls
from unhinge.web.controls import read, written

from web.strategies_web import states  # isort: skip


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.key)
@given(data=st.data())
def test_an_address_reads_back_to_the_same_state(view, data):
    state = data.draw(states(view.key, tuple(view.controls)))
    assert from_address(address(state, view.controls), all_controls()) == (state, (), ())


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.key)
def test_the_default_state_has_the_shortest_address(view):
    assert address(default_state(view.key, view.controls), view.controls) == f"?view={view.key}"


@given(st.dictionaries(st.sampled_from([c.key for c in VIEWS[0].controls]), st.text(max_size=20), max_size=6))
def test_a_bad_value_is_named_and_its_default_shown(pairs):
    from urllib.parse import urlencode

    state, messages, _ = from_address("?" + urlencode(pairs), all_controls())
    for control in VIEWS[0].controls:
        if control.key in pairs:
            try:
                expected, bad = read(control, pairs[control.key]), False
            except ValueError:
                expected, bad = control.default, True
            assert state[control.key] == expected
            assert not bad or any(control.label in message for message in messages)


def test_unknown_views_and_parts_are_named():
    state, messages, _ = from_address("?view=nowhere&shoe=7", all_controls())
    assert state.view == "free"
    assert "nowhere" in messages[0]
    assert "shoe" in messages[1]


def test_an_endless_address_is_not_read():
    _, messages, _ = from_address("?view=free&counts=" + "1," * 20_000, all_controls())
    assert "characters" in messages[0]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9))
def test_numbers_are_written_so_that_they_read_back(value):
    assert float(written(value)) == value


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.key)
def test_no_slider_leaves_what_is_allowed(view):
    for control in view.controls:
        if control.kind in ("number", "count"):
            assert control.low <= control.slide[0] < control.slide[1] <= control.high, control.key
