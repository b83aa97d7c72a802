"""The number of threads belongs to a run: recorded, taken again when it is continued, refused when it is another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unhinge.results.sealed import read_sealed, write_sealed
from unhinge.training import Recipe, RecipeError, fit
from unhinge.training.machine import machine, using_threads

TINY = Recipe(width=4, epochs=3, batch=32, lr=0.05)
TRAIN = ("train", "--width", "4", "--epochs", "3", "--batch", "256")
# Killed while it writes the weights of the second epoch.
KILLED = """
import os, signal, sys
put, seen = os.replace, []
def replace(source, target):
    seen.append(str(target))
    if sum("last.safetensors" in name for name in seen) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    put(source, target)
if os.environ.get("KILL"):
    os.replace = replace
from unhinge.cli import app
app()
"""


def command(threads: int, *arguments: object, kill: bool = False) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which would use that many threads of its own accord."""
    settings = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "KILL": "1" if kill else ""}
    return subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | settings,
        check=False,
    )


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
def test_killed_under_two_threads_and_continued_under_one_it_takes_its_own(tmp_path: Path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert command(2, *TRAIN, "--out", whole).returncode == 0
    assert command(2, *TRAIN, "--out", broken, kill=True).returncode == -9
    refused = command(1, *TRAIN, "--out", broken, "--threads", 1)
    assert refused.returncode == 2
    assert "holds this run with threads = 2, and with 1" in " ".join(refused.stderr.split())
    done = command(1, *TRAIN, "--out", broken)
    assert done.returncode == 0, done.stderr
    for name in ("last.safetensors", "log.jsonl", "recipe.json", "machine.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
    assert Recipe.from_json((whole / "recipe.json").read_text()).threads == 2
    assert json.loads((whole / "machine.json").read_text())["threads"] == 2


def test_a_run_computes_with_its_own_threads_and_leaves_others_theirs(tmp_path, few):
    seen = []
    before = torch.get_num_threads()
    fit(replace(TINY, threads=2), tmp_path, material=few, progress=lambda *_: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}
    assert torch.get_num_threads() == before
    assert read_sealed(tmp_path / "machine.json") == {**machine(), "threads": 2}


def test_another_number_of_threads_is_refused(tmp_path, few):
    fit(TINY, tmp_path, material=few)
    with pytest.raises(RecipeError, match="holds this run with threads = 1, and with 2 it would not end in the same"):
        fit(replace(TINY, threads=2), tmp_path, material=few)


@pytest.mark.parametrize("name", ["torch", "cpu_capability"])
def test_continuing_on_another_build_or_processor_warns(tmp_path, few, name):
    assert fit(TINY, tmp_path, material=few).warnings == ()
    note = tmp_path / "machine.json"
    write_sealed(note, read_sealed(note) | {name: "another"})
    (warning,) = fit(TINY, tmp_path, material=few).warnings
    assert f"{name} was another, now {machine()[name]}" in warning


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 10_000])
def test_a_damaged_note_is_made_anew_and_told(tmp_path, few, content):
    (tmp_path / "machine.json").write_text(content)
    (warning,) = fit(replace(TINY, epochs=1), tmp_path, material=few).warnings
    assert "machine.json" in warning
    assert "It is made anew" in warning
    with using_threads(1):
        assert read_sealed(tmp_path / "machine.json") == machine()
