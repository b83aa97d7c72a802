"""Killed at any moment and started again, a run ends in the bits it would have ended in anyway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from unhinge.results.lock import LockError, only_writer
from unhinge.results.sealed import SealError
from unhinge.training import Recipe, fit, loop
from unhinge.training.checkpoint import CheckpointError, load_newest, read_tensors, write_tensors
from unhinge.training.loop import Interrupted

TINY = Recipe(width=4, epochs=3, batch=32, lr=0.05)
SAME = ("last.safetensors", "best.safetensors", "log.jsonl", "log.csv", "recipe.json", "data.json")
PULLED = replace(TINY, loss="unhinged", head="pal", radius=5.0, class_weight=0.5, momentum=0.0)
CASES = {
    "each step saved": {"recipe": asdict(TINY), "way": "randomly", "save_every": 0.0, "seed": 0},
    "each epoch saved": {"recipe": asdict(TINY), "way": "randomly", "save_every": 1e9, "seed": 1},
    "fixed prototypes": {"recipe": asdict(PULLED), "way": "randomly", "save_every": 0.0, "seed": 2},
    "each write": {"recipe": asdict(replace(TINY, batch=102, epochs=2)), "way": "at-every-write", "save_every": 0.0},
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, dict[str, int]]:
    """What the driver beside this file did, once for all: its folder, and how often it struck."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "cases.json").write_text(json.dumps(CASES))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed.py")), str(folder), str(folder / "cases.json")],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return folder, {one["name"]: one["struck"] for one in told}


def assert_same(folder: Path, whole: Path) -> None:
    checkpoints = sorted(path.name for path in whole.glob("checkpoint-*"))[-1:]
    for name in [*SAME, *checkpoints]:
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(folder.glob(".*.partial"))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["way"] == "randomly"])
def test_killed_at_random_moments_it_ends_in_the_same_bits(killed, name):
    folder, struck = killed
    assert struck[name] == 6
    assert_same(folder / name / "broken", folder / name / "whole")


def test_killed_before_or_after_any_file_is_put_in_its_place_it_ends_in_the_same_bits(killed):
    folder, struck = killed
    # twice each: recipe, data and two logs at the start; two logs, weights and two checkpoints an epoch
    assert struck["each write"] >= 2 * (4 + 2 * 5)
    for count in range(struck["each write"]):
        assert_same(folder / "each write" / str(count), folder / "each write" / "whole")


class Stop(Exception):
    pass


def stop_after(epochs: int):
    def progress(done: int, total: int, record: object) -> None:
        if record is not None and done * 3 == total * epochs:
            raise Stop

    return progress


def interrupted(folder: Path, few, epochs: int = 2) -> None:
    with pytest.raises(Stop):
        fit(TINY, folder, material=few, progress=stop_after(epochs))


@pytest.mark.parametrize("damage", ["cut short", "empty", "a flipped bit", "zeros"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, few, damage):
    whole = fit(TINY, tmp_path / "whole", material=few)
    folder = tmp_path / "broken"
    interrupted(folder, few)
    older, newest = sorted(folder.glob("checkpoint-*"))
    content = newest.read_bytes()
    flipped = content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]
    newest.write_bytes(
        {"cut short": content[:-5], "empty": b"", "a flipped bit": flipped, "zeros": bytes(len(content))}[damage]
    )
    again = fit(TINY, folder, material=few)
    assert len(again.complaints) == 1
    assert newest.name in again.complaints[0]
    assert again.complaints[0].endswith("The one before it was used.")
    assert again.records == whole.records
    assert_same(folder, tmp_path / "whole")
    assert older.name not in [path.name for path in folder.glob("checkpoint-*")]


def test_with_all_checkpoints_damaged_it_starts_over_and_says_so(tmp_path, few):
    whole = fit(TINY, tmp_path / "whole", material=few)
    folder = tmp_path / "broken"
    interrupted(folder, few)
    for path in folder.glob("checkpoint-*"):
        path.write_bytes(b"no checkpoint")
    again = fit(TINY, folder, material=few)
    assert len(again.complaints) == 2
    assert again.complaints[-1].endswith("No whole one is left, so the run began anew.")
    assert not any("was used" in complaint for complaint in again.complaints)
    assert again.records == whole.records
    assert_same(folder, tmp_path / "whole")


def test_while_a_damaged_checkpoint_lies_there_two_whole_ones_are_kept(tmp_path, few):
    """The damaged one has the highest number, and must not take the place of a whole one."""
    interrupted(tmp_path, few)
    max(tmp_path.glob("checkpoint-*")).write_bytes(b"damaged")
    with pytest.raises(Stop):
        fit(TINY, tmp_path, material=few, save_every=0.0, progress=stop_after(2))
    kept = sorted(tmp_path.glob("checkpoint-*"))
    assert len(kept) == 2
    for path in kept:
        path.rename(tmp_path / "checkpoint-999999999.safetensors")
        assert load_newest(tmp_path)[1] == []


def test_a_log_that_lost_records_is_an_error_that_says_what_to_do(tmp_path, few):
    interrupted(tmp_path, few)
    lines = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text(lines[0])
    with pytest.raises(SealError, match="has 1 records, but the checkpoint counts 2"):
        fit(TINY, tmp_path, material=few)


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path, few):
    gone = 2**22 + 1  # no process has a number above Linux's largest
    left = tmp_path / f".checkpoint-000000007.safetensors.{gone}.partial"
    left.write_bytes(bytes(10))
    fit(replace(TINY, epochs=1), tmp_path, material=few)
    assert not left.exists()


def test_what_a_living_process_is_writing_is_left_alone(tmp_path, few):
    left = tmp_path / f".evaluation.json.{os.getppid()}.partial"
    left.write_bytes(bytes(10))
    fit(replace(TINY, epochs=1), tmp_path, material=few)
    assert left.exists()


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path, few):
    with only_writer(tmp_path), pytest.raises(LockError, match="is being written to by process"):
        fit(TINY, tmp_path, material=few)


@pytest.mark.parametrize("after", [1, 3, 7, 9])  # 7 steps make an epoch: within it, at its end, in the next
def test_a_run_asked_to_end_saves_and_continues_to_the_same_bits(tmp_path, few, after):
    fit(TINY, tmp_path / "whole", material=few)
    steps = iter(range(1000))
    with pytest.raises(Interrupted, match="saved after step"):
        fit(TINY, tmp_path / "asked", material=few, interrupted=lambda: next(steps) + 1 >= after)
    place = load_newest(tmp_path / "asked")[0].standing
    assert (place["epoch"], place["step"]) == divmod(after, 7)
    fit(TINY, tmp_path / "asked", material=few)
    for name in SAME:
        assert (tmp_path / "asked" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"damaged")])
def test_the_weights_of_a_finished_run_are_made_again_where_they_are_gone(tmp_path, few, damage):
    fit(TINY, tmp_path, material=few)
    before = (tmp_path / "last.safetensors").read_bytes()
    damage(tmp_path / "last.safetensors")
    fit(TINY, tmp_path, material=few)
    assert (tmp_path / "last.safetensors").read_bytes() == before


def test_best_weights_that_cannot_be_made_again_are_an_error(tmp_path, few, monkeypatch):
    records = iter([0.9, 0.1, 0.1])
    monkeypatch.setattr(loop, "score", lambda *_: torch.tensor([next(records), 1.0]))
    fit(TINY, tmp_path, material=few)
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"best\.safetensors is missing.*put the file back"):
        fit(TINY, tmp_path, material=few)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 10**9},
        {"epoch": -1},
        {"step": 10**9},
        {"records": 7},
        {"epoch": "two"},
        {"best": None},
        {"step": None},
    ],
)
def test_a_checkpoint_with_a_checksum_and_senseless_content_is_refused(tmp_path, few, change):
    interrupted(tmp_path, few)
    path = max(tmp_path.glob("checkpoint-*"))
    whole = read_tensors(path)
    write_tensors(path, whole.tensors, whole.standing | change)
    with pytest.raises(CheckpointError, match="is whole, but not of this run"):
        fit(TINY, tmp_path, material=few)


def test_a_checkpoint_of_other_tensors_is_refused(tmp_path, few):
    interrupted(tmp_path, few)
    path = max(tmp_path.glob("checkpoint-*"))
    whole = read_tensors(path)
    write_tensors(path, {"model.other": torch.zeros(3), "running": torch.zeros(2)}, whole.standing)
    with pytest.raises(CheckpointError, match="is whole, but not of this run"):
        fit(TINY, tmp_path, material=few)


def test_a_checkpoint_holds_nothing_that_executes(tmp_path, few):
    fit(replace(TINY, epochs=1), tmp_path, material=few)
    files = list(tmp_path.glob("*.safetensors"))
    assert {path.name for path in files} >= {"best.safetensors", "last.safetensors"}
    for path in files:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])  # a length, JSON, raw numbers: that is the whole format
        about = json.loads(header["__metadata__"]["unhinge"])
        assert "recipe" in about
        assert max(part["data_offsets"][1] for key, part in header.items() if key != "__metadata__") == (
            len(content) - 8 - size
        )


def test_momentum_and_running_sums_are_part_of_a_checkpoint(tmp_path, few):
    fit(TINY, tmp_path, material=few)
    actual, complaints = load_newest(tmp_path)
    assert complaints == []
    assert actual is not None
    weights = {name.removeprefix("model.") for name in actual.tensors if name.startswith("model.")}
    momenta = {name.removeprefix("momentum.") for name in actual.tensors if name.startswith("momentum.")}
    assert momenta == {name for name in weights if "running" not in name and "num_batches" not in name}
    assert torch.equal(actual.tensors["running"], torch.zeros(4, dtype=torch.float64))
    assert actual.standing["epoch"] == 3
