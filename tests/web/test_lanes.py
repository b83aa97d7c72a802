"""Where answers are computed: here, and in other processes that may die."""

import itertools
import os
import signal
import threading
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


def slowly() -> int:
    time.sleep(0.05)
    return os.getpid()


def fail_slowly() -> int:
    time.sleep(0.05)
    return int("x")


def processes(lanes: Lanes) -> set[int]:
    """Where four clients are answered that ask at once, twice each."""
    with ThreadPoolExecutor(4) as clients:
        return set(clients.map(lambda _: lanes.run(slowly), range(8)))


def test_without_a_helper_all_is_computed_here():
    lanes = Lanes()
    assert {lanes.run(os.getpid) for _ in range(4)} == {os.getpid()}


def test_a_helper_takes_its_share_but_nothing_that_must_be_made_here(helped):
    assert len(processes(helped)) == 2
    assert {helped.run_here(os.getpid) for _ in range(4)} == {os.getpid()}


def test_what_is_wrong_with_a_state_is_said_by_the_helper_too(helped):
    with ThreadPoolExecutor(4) as clients:
        for failed in [clients.submit(helped.run, fail_slowly) for _ in range(8)]:
            with pytest.raises(ValueError, match="invalid literal"):
                failed.result()


def test_a_helper_that_dies_is_replaced_and_its_work_is_done(helped):
    (helper,) = processes(helped) - {os.getpid()}
    os.kill(helper, signal.SIGKILL)
    assert helper not in processes(helped)  # all of it was done
    (another,) = processes(helped) - {os.getpid()}
    assert another != helper


def test_nobody_who_asks_again_comes_before_those_who_wait():
    """Of one who asks once beside five who never pause: at most what was asked before is computed first."""
    lanes, stop, counted = Lanes(), threading.Event(), itertools.count()

    def greedy() -> None:
        for _ in range(1000):
            if stop.is_set():
                break
            lanes.run(lambda: (next(counted), time.sleep(0.002)))

    with ThreadPoolExecutor(6) as clients:
        busy = [clients.submit(greedy) for _ in range(5)]
        try:
            time.sleep(0.05)
            passed = []
            for _ in range(20):
                asked = next(counted)
                passed.append(lanes.run(lambda: next(counted)) - asked - 1)
        finally:
            stop.set()
        for each in busy:
            each.result()
    # Five are in front, two of them just being computed; more if this thread was held up before it had asked.
    assert max(passed) < 500, passed


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
