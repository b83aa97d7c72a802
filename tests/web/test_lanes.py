"""Where answers are computed: here, and in a second process that may die."""

import os
import signal

import pytest

from unhinge.web.lanes import Lanes


@pytest.fixture(scope="module")
def helped():
    lanes = Lanes()
    started = lanes.start_helper()
    if started is None:
        pytest.skip("one core: there is no helper")
    started.result(timeout=300)
    yield lanes
    lanes.stop_helper()


def test_without_a_helper_all_is_computed_here():
    lanes = Lanes()
    assert {lanes.run(os.getpid) for _ in range(4)} == {os.getpid()}


def test_a_helper_takes_every_second_answer_but_none_that_must_be_made_here(helped):
    assert len({helped.run(os.getpid) for _ in range(4)} - {os.getpid()}) == 1
    assert {helped.run_here(os.getpid) for _ in range(4)} == {os.getpid()}


def test_what_is_wrong_with_a_state_is_said_by_the_helper_too(helped):
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            helped.run(int, "x")


def test_a_helper_that_dies_is_replaced_and_its_work_is_done(helped):
    (helper,) = {helped.run(os.getpid) for _ in range(2)} - {os.getpid()}
    os.kill(helper, signal.SIGKILL)
    assert {helped.run(os.getpid) for _ in range(2)} == {os.getpid()}
    (another,) = {helped.run(os.getpid) for _ in range(2)} - {os.getpid()}
    assert another != helper
