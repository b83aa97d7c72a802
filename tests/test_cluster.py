"""A session of Ray is started again where Ray's own time limit was too short, and ended by whoever began it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from unhinge import cluster
from unhinge.cluster import using_ray


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for the module: it fails as often as `failures` says."""
    fake = SimpleNamespace(failures=0, started=[], ended=0, running=False, words="node timed out during startup")

    def init(**options: Any) -> None:
        fake.started.append(options)
        if len(fake.started) <= fake.failures:
            raise Exception(fake.words)

    def shutdown() -> None:
        fake.ended += 1

    fake.init, fake.shutdown, fake.is_initialized = init, shutdown, lambda: fake.running
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


def test_a_slow_start_is_tried_again(ray: SimpleNamespace):
    ray.failures = 2
    with using_ray(2) as found:
        assert found is ray
    assert len(ray.started) == 3
    assert ray.started[0]["num_cpus"] == 2
    assert ray.started[0]["include_dashboard"] is False
    assert ray.ended == 3  # after each failed start, and at the end


def test_a_start_that_never_succeeds_says_what_to_do(ray: SimpleNamespace):
    ray.failures = 99
    with pytest.raises(RuntimeError, match="use engine local, or start Ray yourself"), using_ray(1):
        pass
    assert len(ray.started) == cluster.TRIALS


def test_another_error_is_passed_on(ray: SimpleNamespace):
    ray.failures, ray.words = 1, "no such address"
    with pytest.raises(Exception, match="no such address"), using_ray(1):
        pass
    assert len(ray.started) == 1


def test_a_session_in_use_is_used_and_left_running(ray: SimpleNamespace):
    ray.running = True
    with using_ray(1) as found:
        assert found is ray
    assert (ray.started, ray.ended) == ([], 0)


def test_a_named_cluster_keeps_its_own_size(ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with using_ray(7):
        pass
    assert ray.started == [{"include_dashboard": False, "log_to_driver": False}]
