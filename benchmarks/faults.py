"""Faults on purpose, counted: killed trainings and sweeps, flipped bits, two writers at once, damaged files.

    python benchmarks/faults.py [--quick] [--only train sweep ddp flips writers files] [--count N] [--minutes M]
                                [--keep FILE]

Prints one table: what was done, how often, how often the promise held, and how long it took. Everything is seeded but
for the moments of the kills, which depend on how fast the machine is. With `--keep` the counts are kept in a file as
they come, and the same command goes on from there. Trainings are forked, which spares each the import of torch. `ddp`
needs the extra `train`; `files` needs the extra `dev`, since its readers and its ways to damage a file come from
tests/test_fuzz_readers.py.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import torch

torch.set_num_threads(1)

from unhinge.data import load
from unhinge.paper.claims import find
from unhinge.paper.claims.page import read_claims
from unhinge.paper.claims.report import as_sealed_json
from unhinge.paper.figures.run import reproduce, results
from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.follow import Task, follow, read_run
from unhinge.paper.studies.run import reproduce_studies
from unhinge.paper.studies.study import Study
from unhinge.paper.studies.write import read_study
from unhinge.results.lock import LockError
from unhinge.results.sealed import SealError, read_sealed, write_atomically
from unhinge.training import Material, Recipe, evaluate, fit, processes
from unhinge.training.checkpoint import CheckpointError, read_tensors
from unhinge.training.recipes import Method
from unhinge.training.records import read_records, seconds_spent

TINY = Recipe(width=4, epochs=3, batch=32, lr=0.05)
SAME = ("last.safetensors", "best.safetensors", "log.jsonl", "log.csv", "recipe.json")
BATCH = 100  # damaged files read by one process: one that crashes costs itself only


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


def killed_trainings(folder: Path, first: int, few: Material) -> Iterator[bool]:
    """Kill a training at a random moment, let it be continued, compare every file with the undisturbed run's."""

    def train(place: Path) -> list[int]:
        return [forked(lambda: fit(TINY, place, material=few, save_every=0.0))]

    return killed(train, folder, first, SAME)


def tiny_study() -> Study:
    """Three networks of a second each."""
    recipe = replace(TINY, epochs=1, largest=20)
    cells = [Cell(Method(), Column(lr=lr), replace(recipe, lr=lr)) for lr in (0.02, 0.05, 0.1)]
    return Study("tiny", None, "a sweep can be killed", "table", lambda scale: cells)


def killed_sweeps(folder: Path, first: int) -> Iterator[bool]:
    """Kill a sweep of three runs (training, evaluating, tables), start it again, compare its table and its numbers."""

    def sweep(place: Path) -> list[int]:
        return [forked(lambda: reproduce_studies([tiny_study()], "quick", place, seeds=1))]

    return killed(sweep, folder, first, ("tiny/table.csv", "tiny/table.md"), numbers_of_runs)


def numbers_of_runs(place: Path) -> object:
    """What a sweep measured, without the times."""
    runs = {path.name: read_run(path) or {} for path in sorted((place / "runs").glob("*.json"))}
    return {name: {key: run[key] for key in run if "seconds" not in key} for name, run in runs.items()}


def killed_pairs(folder: Path, first: int, few: Material) -> Iterator[bool]:
    """Kill one of the two processes of a run (DDP): the other must end too, and the continued run be the same."""
    import lightning_fabric  # noqa: F401  once, before the forks

    from unhinge.training import parallel

    parallel.MEETING = 20.0  # the two start at once: what has not come by then was killed

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

    return killed(start, folder, first, SAME)


def killed(
    start: Callable[[Path], list[int]],
    folder: Path,
    first: int,
    same: tuple[str, ...],
    numbers: Callable[[Path], object] = lambda place: None,
) -> Iterator[bool]:
    """Kill one of the processes that `start` starts at a random moment, and start again.

    Each time all of them must have ended, and the second start must have made the files `same` and the `numbers` of an
    undisturbed one.
    """
    began = time.perf_counter()
    assert not any(ended(child) for child in start(folder / "whole"))
    seconds = time.perf_counter() - began
    whole = [(folder / "whole" / name).read_bytes() for name in same], numbers(folder / "whole")
    place = folder / "broken"
    for number in count(first):
        chance, struck = random.Random(f"kill {number}"), False
        while not struck:  # a moment after the end is no kill: draw another
            shutil.rmtree(place, ignore_errors=True)
            children = start(place)
            time.sleep(chance.uniform(0, seconds))
            os.kill(children[number % len(children)], signal.SIGKILL)
            struck = all([ended(child) != 0 for child in children])
        again = [ended(child) for child in start(place)]
        made = all((place / name).exists() for name in same)
        yield (not any(again) and made and whole == ([(place / name).read_bytes() for name in same], numbers(place)))


def damaged_files(folder: Path, first: int) -> Iterator[bool]:
    """Damage a file that some reader reads: it must give whole data or its one error, never another."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from test_fuzz_readers import KINDS, READERS, damaged, files_of

    readers = list(READERS.items())
    for which, (_, reader) in enumerate(readers):
        (folder / str(which)).mkdir()
        reader.write(folder / str(which))

    def holds(number: int) -> bool:
        chance, which = random.Random(f"file {number}"), number % len(readers)
        name, reader = readers[which]
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
                held = bool(reader.check(reader.read(folder / str(which))))
        except Exception as error:
            expected = reader.error is not None and isinstance(error, reader.error)
            held = expected and type(error) is not UnicodeDecodeError and "\n" not in str(error)
            if not held:
                print(f"file {number}, {name}, {changes}: {error!r}", file=sys.stderr, flush=True)
        file.write_bytes(content)
        return held

    def read_many(numbers: range, pipe: int) -> None:
        for number in numbers:
            os.write(pipe, b"1" if holds(number) else b"0")

    while True:
        numbers = range(first, first + BATCH)
        inlet, outlet = os.pipe()
        child = forked(lambda numbers=numbers, outlet=outlet: read_many(numbers, outlet))
        os.close(outlet)
        with os.fdopen(inlet, "rb") as answers:
            told = answers.read()
        yield from (one == ord("1") for one in told)
        first += len(told)
        if (code := ended(child)) != 0 or len(told) < BATCH:  # it crashed in the next one
            print(f"file {first}, {readers[first % len(readers)][0]}: the reader's process ended with {code}")
            shutil.rmtree(folder / str(first % len(readers)))  # the damaged one was left behind
            (folder / str(first % len(readers))).mkdir()
            readers[first % len(readers)][1].write(folder / str(first % len(readers)))
            first += 1
            yield False


def flipped_bits(folder: Path, first: int, few: Material) -> Iterator[bool]:
    """Flip one bit of one file that a later step reads; it must be refused, or have left the content as it was."""
    run = folder / "run"
    fit(TINY, run, material=few)
    task = Task(replace(TINY, epochs=1), None, str(folder), None)
    follow(task)
    evaluate(run, material=few)
    study = reproduce_studies([tiny_study()], "quick", folder / "sweep", seeds=1)[0].study.id
    reproduce(["beyond-large-steps"], "quick", folder, jobs=1)
    (folder / "claims.json").write_text(as_sealed_json([one.run() for one in find("lemma-1-value")]), encoding="utf-8")
    figure, table = folder / "beyond-large-steps", folder / "sweep" / study
    readers: dict[Path, Callable[[], object]] = {
        run / "log.jsonl": lambda: read_records(run),
        run / "times.jsonl": lambda: seconds_spent(run),
        run / "last.safetensors": lambda: plain(run / "last.safetensors"),
        run / "best.safetensors": lambda: plain(run / "best.safetensors"),
        task.path: lambda: read_run(task.path),
        run / "evaluation.json": lambda: read_sealed(run / "evaluation.json"),
        figure / "recipe.json": lambda: only_figure(folder),
        figure / "data.csv": lambda: only_figure(folder),
        table / "recipe.json": lambda: read_study(table),
        table / "table.csv": lambda: read_study(table),
        folder / "claims.json": lambda: read_claims(folder),
    }
    whole = {path: (path.read_bytes(), json.dumps(read(), sort_keys=True)) for path, read in readers.items()}
    for number in count(first):
        chance, path = random.Random(f"flip {number}"), list(readers)[number % len(readers)]
        content, known = whole[path]
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            noticed = json.dumps(readers[path](), sort_keys=True) == known
        except (SealError, CheckpointError):
            noticed = True
        path.write_bytes(content)
        yield noticed


def only_figure(folder: Path) -> object:
    """The recipe of the one figure of a folder; a damaged one is no result, which says that it was noticed."""
    found = results(folder)
    if not found:
        raise SealError("it is left out, and made again by the next call")
    return found[0].recipe


def plain(path: Path) -> object:
    """What a file of tensors holds, comparable."""
    stored = read_tensors(path)
    return [stored.standing, {name: tensor.double().flatten().tolist() for name, tensor in stored.tensors.items()}]


def second_writers(folder: Path, first: int, few: Material) -> Iterator[bool]:
    """Start a second training in a folder while the first is at it: it must be refused, and the first unharmed."""
    assert ended(forked(lambda: fit(TINY, folder / "whole", material=few))) == 0

    def intrude(place: Path) -> None:
        try:
            fit(TINY, place, material=few)
        except LockError:
            os._exit(7)

    for number in count(first):
        place = folder / str(number)
        child = forked(lambda place=place: fit(TINY, place, material=few, save_every=0.0))
        while not (place / "log.jsonl").exists():
            time.sleep(0.002)
        second = ended(forked(lambda place=place: intrude(place)))
        unharmed = ended(child) == 0 and all(
            (place / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in SAME
        )
        yield second == 7 and unharmed


@dataclass
class Count:
    """How often a fault was tried, how often the promise held, and in how many seconds."""

    tried: int = 0
    held: int = 0
    seconds: float = 0.0


class Kept:
    """The counts so far, in a file if there is one, so that what is stopped is not lost."""

    def __init__(self, path: Path | None) -> None:
        known = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.path, self.counts = path, {key: Count(**one) for key, one in known.items()}

    def write(self) -> None:
        if self.path is not None:
            plain = {key: vars(one) for key, one in self.counts.items()}
            write_atomically(self.path, (json.dumps(plain, indent=1) + "\n").encode())

    def go_on(self, key: str, wanted: int, seconds: float, trials: Callable[[int], Iterator[bool]]) -> Count:
        """Try until there are as many as wanted, or no time is left; said and written about every ten seconds."""
        so_far = self.counts.setdefault(key, Count())
        before, began = so_far.seconds, time.perf_counter()
        said, running = began, trials(so_far.tried) if so_far.tried < wanted else iter(())
        for held in running:
            now = time.perf_counter()
            so_far.tried, so_far.held, so_far.seconds = so_far.tried + 1, so_far.held + held, before + now - began
            over = so_far.tried >= wanted or now - began > seconds
            if over or now - said > 10:
                self.write()
                print(f"{key}: {so_far.tried:,} of {wanted:,} tried, {so_far.held:,} held", file=sys.stderr, flush=True)
                said = now
            if over:
                break
        return so_far


def main() -> None:
    few = material()
    rows: dict[str, tuple[str, int, Callable[[Path, int], Iterator[bool]]]] = {
        "train": (
            "training killed (SIGKILL), continued: same bytes",
            100,
            lambda place, first: killed_trainings(place, first, few),
        ),
        "sweep": ("sweep killed (SIGKILL), continued: same numbers", 100, killed_sweeps),
        "ddp": (
            "one of two processes of a run killed: the other ends, continued: same bytes",
            100,
            lambda place, first: killed_pairs(place, first, few),
        ),
        "flips": (
            "bit flipped in a file that is read later: noticed",
            500,
            lambda place, first: flipped_bits(place, first, few),
        ),
        "writers": (
            "second writer in a folder: refused, first unharmed",
            50,
            lambda place, first: second_writers(place, first, few),
        ),
        "files": ("damaged file of any kind: whole data or one clear error", 20_000, damaged_files),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", nargs="+", choices=rows, default=list(rows), help="which faults; all by default")
    parser.add_argument("--count", type=int, help="how often each, instead of the numbers of the documentation")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for each row at most")
    parser.add_argument("--keep", type=Path, help="a file for the counts, from which the same command goes on")
    asked = parser.parse_args()
    kept = Kept(asked.keep)
    print("| fault | tried | promise held | seconds |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for key in asked.only:
            what, usual, measure = rows[key]
            place = Path(name) / key
            place.mkdir()
            wanted = asked.count or (usual // 10 if asked.quick else usual)
            found = kept.go_on(
                key, wanted, 60 * asked.minutes, lambda first, place=place, measure=measure: measure(place, first)
            )
            print(f"| {what} | {found.tried:,} | {found.held:,} | {found.seconds:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
