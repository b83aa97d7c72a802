"""Faults on purpose, counted: killed trainings and sweeps, flipped bits, two writers at once, damaged files.

    python benchmarks/faults.py [--quick] [--only train sweep ddp flips writers files] [--count N]

Prints one table: what was done, how often, how often the promise held, and how long it took. Everything is seeded but
for the moments of the kills, which depend on how fast the machine is. Trainings are forked, which spares each the
import of torch. `ddp` needs the extra `train`; `files` needs the extra `dev`, since its readers and its ways to damage
a file come from tests/test_fuzz_readers.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

torch.set_num_threads(1)

from unhinge.data import load
from unhinge.paper.studies.follow import Task, follow, measured, read_run
from unhinge.results.lock import LockError
from unhinge.results.sealed import SealError
from unhinge.training import Material, Recipe, fit, processes
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


def killed_pairs(folder: Path, kills: int, few: Material) -> tuple[int, int]:
    """Kill one of the two processes of a run (DDP): the other must end too, and the continued run be the same."""
    import lightning_fabric  # noqa: F401  once, before the forks

    def start(place: Path) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])

        def work(rank: int) -> None:
            # What torchrun sets: with these, Lightning starts no further process.
            os.environ.update(
                {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                | {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "faults"}
            )
            if place.name == "broken":  # the survivor's complaint is expected
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            fit(TINY, place, material=few, processes=processes(2, "ddp", "cpu"), save_every=0.0)

        return [forked(lambda rank=rank: work(rank)) for rank in (0, 1)]

    began = time.perf_counter()
    assert [ended(child) for child in start(folder / "whole")] == [0, 0]
    seconds, chance, struck, same = time.perf_counter() - began, random.Random(3), 0, 0
    place = folder / "broken"
    while struck < kills:
        shutil.rmtree(place, ignore_errors=True)
        children = start(place)
        time.sleep(chance.uniform(0, seconds))
        os.kill(children[struck % 2], signal.SIGKILL)
        if any(code == 0 for code in [ended(child) for child in children]):
            continue  # one of them was done before
        struck += 1
        assert [ended(child) for child in start(place)] == [0, 0]
        same += all((place / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in SAME)
    return struck, same


def damaged_files(folder: Path, times: int) -> tuple[int, int]:
    """Damage a file that some reader reads: it must give whole data or its one error, never another."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from test_fuzz_readers import KINDS, READERS, damaged, files_of

    for number, reader in enumerate(READERS.values()):
        (folder / str(number)).mkdir()
        reader.write(folder / str(number))
    chance, held = random.Random(4), 0
    for number in range(times):
        which = number % len(READERS)
        name, reader = list(READERS.items())[which]
        file = chance.choice(files_of(folder / str(which)))
        content = file.read_bytes()
        changes = [
            (chance.choice(KINDS), chance.randrange(2**30), chance.randrange(2**30))
            for _ in range(chance.randint(1, 3))
        ]
        file.write_bytes(damaged(content, changes))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held += bool(reader.check(reader.read(folder / str(which))))
        except Exception as error:
            expected = reader.error is not None and isinstance(error, reader.error)
            held += expected and type(error) is not UnicodeDecodeError and "\n" not in str(error)
            if not expected:
                print(f"{name}, {changes}: {error!r}", file=sys.stderr, flush=True)
        file.write_bytes(content)
    return times, held


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
    few = material()
    rows: dict[str, tuple[str, int, Callable[[Path, int], tuple[int, int]]]] = {
        "train": (
            "training killed (SIGKILL), continued: same bytes",
            100,
            lambda place, count: killed_trainings(place, count, few),
        ),
        "sweep": ("sweep killed (SIGKILL), continued: same numbers", 100, killed_sweeps),
        "ddp": (
            "one of two processes of a run killed: the other ends, continued: same bytes",
            100,
            lambda place, count: killed_pairs(place, count, few),
        ),
        "flips": (
            "bit flipped in a file that is read later: noticed",
            500,
            lambda place, count: flipped_bits(place, count, few),
        ),
        "writers": (
            "second writer in a folder: refused, first unharmed",
            50,
            lambda place, count: second_writers(place, count, few),
        ),
        "files": ("damaged file of any kind: whole data or one clear error", 20_000, damaged_files),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", nargs="+", choices=rows, default=list(rows), help="which faults; all by default")
    parser.add_argument("--count", type=int, help="how often each, instead of the numbers of the documentation")
    asked = parser.parse_args()
    print("| fault | tried | promise held | seconds |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for key in asked.only:
            what, count, measure = rows[key]
            place = Path(name) / key
            place.mkdir()
            began = time.perf_counter()
            tried, held = measure(place, asked.count or (count // 10 if asked.quick else count))
            print(f"| {what} | {tried:,} | {held:,} | {time.perf_counter() - began:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
