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
        return set(clients.map(lambda _: lanes.run("slow", slowly), range(8)))


def test_without_a_helper_all_is_computed_here():
    lanes = Lanes()
    assert {lanes.run("quick", os.getpid) for _ in range(4)} == {os.getpid()}


def test_a_helper_takes_its_share_but_nothing_that_must_be_made_here(helped):
    assert len(processes(helped)) == 2
    assert {helped.run_here("quick", os.getpid) for _ in range(4)} == {os.getpid()}


def test_what_is_wrong_with_a_state_is_said_by_the_helper_too(helped):
    with ThreadPoolExecutor(4) as clients:
        for failed in [clients.submit(helped.run, "slow", fail_slowly) for _ in range(8)]:
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
            lanes.run("quick", lambda: (next(counted), time.sleep(0.002)))

    with ThreadPoolExecutor(6) as clients:
        busy = [clients.submit(greedy) for _ in range(5)]
        try:
            time.sleep(0.05)
            passed = []
            for _ in range(20):
                asked = next(counted)
                passed.append(lanes.run("quick", lambda: next(counted)) - asked - 1)
        finally:
            stop.set()
        for each in busy:
            each.result()
    # Five are in front, two of them just being computed; more if this thread was held up before it had asked.
    assert max(passed) < 500, passed


def test_what_takes_longer_is_begun_earlier_by_as_much():
    """So all wait about equally long for what they asked."""
    lanes, gates, taken, began = Lanes(), [threading.Event(), threading.Event()], threading.Semaphore(0), []
    lanes._takes = {"long": 1000.0, "short": 0.001}  # as if known from earlier work

    def hold(gate: threading.Event) -> None:
        taken.release()
        gate.wait(60)

    with ThreadPoolExecutor(6) as clients:
        held = [clients.submit(lanes.run, "gate", hold, gate) for gate in gates]
        assert all(taken.acquire(timeout=60) for _ in gates)  # both lanes are busy
        asked = []
        for waiting, kind in enumerate(("short", "short", "long", "long")):
            asked.append(clients.submit(lanes.run, kind, began.append, kind))
            while lanes._asked.qsize() == waiting:
                time.sleep(0.001)
        gates[0].set()  # one lane does all that waits
        for each in asked:
            each.result()
        gates[1].set()
    assert all(each.result() is None for each in held)
    assert began == ["long", "long", "short", "short"]
    assert 800 < lanes._takes["long"] < 1000  # what it took now counts too


def test_more_helpers_come_when_answers_wait_and_not_before():
    lanes = Lanes(cores=3)
    started = lanes.start_helper()
    assert started is not None
    assert lanes.start_helper() is None  # one at a time
    started.result(timeout=300)
    try:
        for _ in range(6):
            lanes.run("slow", slowly)  # one after the other: nobody waits
        assert len(lanes._helpers) == 1
        seen: set[int] = set()
        with ThreadPoolExecutor(8) as clients:
            for _ in range(600):  # until the new one has started; it ends by itself long before
                seen |= set(clients.map(lambda _: lanes.run("slow", slowly), range(8)))
                if len(seen) == 3:
                    break
        assert len(seen) == 3
        assert len(lanes._helpers) == 2  # no more than cores beside this one
    finally:
        lanes.stop_helpers()
    assert lanes.run("quick", os.getpid) == os.getpid()
