"""Faults on purpose, counted: killed trainings and sweeps, flipped bits in every file of a result, two writers at once.

    python benchmarks/faults.py [--quick]

Prints one table: what was done, how often, and how often the promise held. Everything is seeded but for the moments of
the kills, which depend on how fast the machine is. Trainings are forked, which spares each the import of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

torch.set_num_threads(1)

from unhinge.data import load
from unhinge.paper.studies.follow import Task, follow, measured, read_run
from unhinge.results.lock import LockError
from unhinge.results.sealed import SealError
from unhinge.training import Material, Recipe, fit
from unhinge.training.checkpoint import CheckpointError, read_tensors
from unhinge.training.records import read_records, seconds_spent

TINY = Recipe(width=4, epochs=3, batch=32, lr=0.05)
SAME = ("last.safetensors", "best.safetensors", "log.jsonl", "log.csv", "recipe.json")


def material() -> Material:
    """A few digits: enough to train on, few enough for a second."""
    splits = load("digits")
    return Material(splits.training.subset(torch.arange(203)), splits.test.subset(torch.arange(60)), None)


def forked(work: Callable[[], object]) -> int:
    """Run in a child; its process id. The child ends with 0, or with 3 after an error."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(3)
    os._exit(0)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_trainings(folder: Path, kills: int, few: Material) -> tuple[int, int]:
    """Kill a training at a random moment, let it be continued, compare every file with the undisturbed run's."""
    began = time.perf_counter()
    assert ended(forked(lambda: fit(TINY, folder / "whole", material=few, save_every=0.0))) == 0
    seconds, chance, same = time.perf_counter() - began, random.Random(0), 0
    struck = 0
    place = folder / "broken"
    while struck < kills:
        shutil.rmtree(place, ignore_errors=True)
        child = forked(lambda: fit(TINY, place, material=few, save_every=0.0))
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        if ended(child) == 0:
            continue  # it was done before
        struck += 1
        assert ended(forked(lambda: fit(TINY, place, material=few, save_every=0.0))) == 0
        same += all((place / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in SAME)
    return struck, same


def killed_sweeps(folder: Path, kills: int) -> tuple[int, int]:
    """Kill a sweep of two runs, start it again, compare its numbers with the undisturbed one's."""
    recipes = [replace(TINY, epochs=1, seed=seed) for seed in (0, 1)]

    def sweep(place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for recipe in recipes:
            task = Task(recipe, None, str(place), None)
            if measured(task) is None:
                follow(task)

    def numbers(place: Path) -> list[object]:
        runs = [read_run(Task(recipe, None, str(place), None).path) for recipe in recipes]
        return [{k: v for k, v in run.items() if "seconds" not in k} for run in runs if run is not None]

    began = time.perf_counter()
    assert ended(forked(lambda: sweep(folder / "whole"))) == 0
    seconds, chance, struck, same = time.perf_counter() - began, random.Random(1), 0, 0
    place = folder / "broken"
    while struck < kills:
        shutil.rmtree(place, ignore_errors=True)
        child = forked(lambda: sweep(place))
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        if ended(child) == 0:
            continue
        struck += 1
        assert ended(forked(lambda: sweep(place))) == 0
        same += numbers(place) == numbers(folder / "whole")
    return struck, same


def flipped_bits(folder: Path, flips: int, few: Material) -> tuple[int, int]:
    """Flip one bit of one file that a later step reads; it must be refused, or have left the content as it was."""
    run = folder / "run"
    fit(TINY, run, material=few)
    task = Task(replace(TINY, epochs=1), None, str(folder), None)
    follow(task)
    readers: dict[Path, Callable[[], object]] = {
        run / "log.jsonl": lambda: read_records(run),
        run / "times.jsonl": lambda: seconds_spent(run),
        run / "last.safetensors": lambda: plain(run / "last.safetensors"),
        run / "best.safetensors": lambda: plain(run / "best.safetensors"),
        task.path: lambda: read_run(task.path),
    }
    whole = {path: (path.read_bytes(), json.dumps(read(), sort_keys=True)) for path, read in readers.items()}
    chance, noticed = random.Random(2), 0
    for number in range(flips):
        path = list(readers)[number % len(readers)]
        content, known = whole[path]
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            noticed += json.dumps(readers[path](), sort_keys=True) == known
        except (SealError, CheckpointError):
            noticed += 1
        path.write_bytes(content)
    return flips, noticed


def plain(path: Path) -> object:
    """What a file of tensors holds, comparable."""
    stored = read_tensors(path)
    return [stored.standing, {name: tensor.double().flatten().tolist() for name, tensor in stored.tensors.items()}]


def second_writers(folder: Path, times: int, few: Material) -> tuple[int, int]:
    """Start a second training in a folder while the first is at it: it must be refused, and the first unharmed."""
    assert ended(forked(lambda: fit(TINY, folder / "whole", material=few))) == 0
    refused = 0

    def intrude(place: Path) -> None:
        try:
            fit(TINY, place, material=few)
        except LockError:
            os._exit(7)

    for number in range(times):
        place = folder / str(number)
        first = forked(lambda place=place: fit(TINY, place, material=few, save_every=0.0))
        while not (place / "log.jsonl").exists():
            time.sleep(0.002)
        second = ended(forked(lambda place=place: intrude(place)))
        unharmed = ended(first) == 0 and all(
            (place / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in SAME
        )
        refused += second == 7 and unharmed
    return times, refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    share = 10 if parser.parse_args().quick else 1
    few = material()
    print("| fault | tried | promise held |\n| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        rows = (
            (
                "training killed (SIGKILL), continued: same bytes",
                lambda: killed_trainings(place / "a", 100 // share, few),
            ),
            ("sweep killed (SIGKILL), continued: same numbers", lambda: killed_sweeps(place / "b", 20 // share)),
            ("bit flipped in a file that is read later: noticed", lambda: flipped_bits(place / "c", 500 // share, few)),
            (
                "second writer in a folder: refused, first unharmed",
                lambda: second_writers(place / "d", 50 // share, few),
            ),
        )
        for letter in "abcd":
            (place / letter).mkdir()
        for what, measure in rows:
            tried, held = measure()
            print(f"| {what} | {tried} | {held} |", flush=True)


if __name__ == "__main__":
    main()
