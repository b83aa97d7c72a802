"""Runs that are killed: a program that forks trainings and ends them with SIGKILL, at random moments or at every write.

    python killed.py FOLDER CASES.JSON

Each case has a name, a recipe, a `save_every` and a `way`. It is trained once undisturbed in FOLDER/NAME/whole. Then
`randomly`: in FOLDER/NAME/broken, killed after a random part of that time, again and again, and at last let through.
`at-every-write`: in FOLDER/NAME/0, 1, ... killed before or after the so-manieth file is put in its place, then let
through. Prints how often it struck. Forking spares each training the import of torch; the parent never computes
gradients, for their threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

KILLS = 6


def main(folder: Path, cases: Path) -> None:
    import safetensors.torch  # noqa: F401  # once, not once in every child
    import torch

    from unhinge.data import load
    from unhinge.training import Material, Recipe, fit

    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()  # imports more of the kind
    splits = load("digits")
    few = Material(splits.training.subset(torch.arange(203)), splits.test.subset(torch.arange(60)), None)

    def train(place: Path, case: dict[str, Any], prepare: Callable[[], None] = lambda: None) -> int:
        """Start a training in a child; its process id."""
        child = os.fork()
        if child:
            return child
        try:
            prepare()
            fit(Recipe.of(case["recipe"]), place, material=few, save_every=case["save_every"])
        except BaseException as error:
            print(f"{place}: {error!r}", file=sys.stderr, flush=True)
            os._exit(3)
        os._exit(0)

    for name, case in json.loads(cases.read_text()).items():
        place = folder / name
        place.mkdir()
        began = time.perf_counter()
        assert ended(train(place / "whole", case)) == 0
        seconds = time.perf_counter() - began
        if case["way"] == "randomly":
            struck = randomly(train, place / "broken", case, seconds)
        else:
            struck = at_every_write(train, place, case)
        print(json.dumps({"name": name, "struck": struck}), flush=True)


def ended(child: int) -> int:
    """Exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def randomly(train: Callable[..., int], place: Path, case: dict[str, Any], seconds: float) -> int:
    chance, struck = random.Random(case["seed"]), 0
    while struck < KILLS:
        child = train(place, case)
        time.sleep(chance.uniform(0, 0.6 * seconds))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        if code == 0:  # it was done before its time: again from the start, with less patience
            shutil.rmtree(place)
            struck, seconds = 0, seconds / 2
            continue
        assert code == -signal.SIGKILL
        struck += 1
    assert ended(train(place, case)) == 0
    return struck


def at_every_write(train: Callable[..., int], place: Path, case: dict[str, Any]) -> int:
    count = 0
    while True:
        code = ended(train(place / str(count), case, partial(strike, count // 2, after=count % 2 == 1)))
        if code == 0:  # there are no more writes
            return count
        assert code == -signal.SIGKILL
        assert ended(train(place / str(count), case)) == 0
        count += 1


def strike(number: int, after: bool) -> None:
    """Die at the file of that number, before or after it is put in its place."""
    place, seen = os.replace, 0
    os.fsync = lambda _: None  # against a loss of power, not against this

    def replace(source: Path, target: Path) -> None:
        nonlocal seen
        if seen == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        place(source, target)
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    os.replace = replace


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
