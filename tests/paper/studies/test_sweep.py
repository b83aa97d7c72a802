"""Sweeps: every piece once, failures apart, dead workers replaced; here and on Ray."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paper.studies import sweep_work
from ray_sessions import ray_session
from unhinge.paper.studies.sweep import Failure, sweep


def tasks(folder: Path, count: int = 5) -> list[tuple[int, str]]:
    return [(number, str(folder)) for number in range(count)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_piece_is_done_once(tmp_path: Path, jobs: int):
    answers = list(sweep(tasks(tmp_path), sweep_work.square, jobs=jobs))
    assert sorted((task[0], answer) for task, answer in answers) == [(n, n * n) for n in range(5)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_piece_is_reported_and_stops_nothing(tmp_path: Path, jobs: int):
    answers = {task[0]: answer for task, answer in sweep(tasks(tmp_path), sweep_work.fail_on_three, jobs=jobs)}
    failure = answers.pop(3)
    assert isinstance(failure, Failure)
    assert failure.reason == "ValueError: three is not for us"
    assert "second line" in failure.details
    assert answers == {n: n * n for n in (0, 1, 2, 4)}


def test_the_piece_of_a_dead_worker_is_tried_again(tmp_path: Path):
    answers = {task[0]: answer for task, answer in sweep(tasks(tmp_path), sweep_work.die_once, jobs=2)}
    assert answers == {n: n * n for n in range(5)}
    assert (tmp_path / "died").exists()


def test_a_worker_that_always_dies_is_given_up(tmp_path: Path):
    answers = {task[0]: answer for task, answer in sweep(tasks(tmp_path, 3), sweep_work.die_always, jobs=2)}
    assert isinstance(answers[2], Failure)
    assert "died" in answers[2].reason


def test_no_tasks_are_no_work():
    assert list(sweep([], sweep_work.square, jobs=2)) == []


def test_an_unknown_engine_names_those_there_are(tmp_path: Path):
    with pytest.raises(ValueError, match="local, ray"):
        list(sweep(tasks(tmp_path), sweep_work.square, engine="slurm"))  # type: ignore[arg-type]


def test_a_ray_cluster_does_the_same_and_replaces_a_lost_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Workers import the tests' module from here.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
    with ray_session(2):
        answers = {task[0]: answer for task, answer in sweep(tasks(tmp_path), sweep_work.die_once, engine="ray")}
        assert answers == {n: n * n for n in range(5)}
        assert (tmp_path / "died").exists()
        actual = {task[0]: a for task, a in sweep(tasks(tmp_path, 4), sweep_work.fail_on_three, engine="ray")}
        assert isinstance(actual[3], Failure)
