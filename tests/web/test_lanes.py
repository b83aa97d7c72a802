"""Where answers are computed: here, and in other processes that may die."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

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
    lanes.stop_helpers()


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


def slowly() -> int:
    time.sleep(0.05)
    return os.getpid()


def test_more_helpers_come_when_answers_wait_and_not_before():
    lanes = Lanes(cores=3)
    started = lanes.start_helper()
    assert started is not None
    assert lanes.start_helper() is None  # one at a time
    started.result(timeout=300)
    try:
        for _ in range(6):
            lanes.run(slowly)  # one after the other: nobody waits
        assert len(lanes._helpers) == 1
        seen: set[int] = set()
        with ThreadPoolExecutor(8) as clients:
            for _ in range(600):  # until the new one has started; it ends by itself long before
                seen |= set(clients.map(lambda _: lanes.run(slowly), range(8)))
                if len(seen) == 3:
                    break
        assert len(seen) == 3
        assert len(lanes._helpers) == 2  # no more than cores beside this one
    finally:
        lanes.stop_helpers()
    assert lanes.run(os.getpid) == os.getpid()
