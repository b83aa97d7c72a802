"""A file is the old one or the new one; a damaged one is told from a whole one; a full disk loses nothing."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest
import torch

from unhinge.training import Recipe, fit
from unhinge.training.checkpoint import (
    CheckpointError,
    load_newest,
    read_tensors,
    save,
    write_atomically,
    write_tensors,
)

TENSORS = {
    "model.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7,
    "model.steps": torch.tensor(5),
    "running": torch.tensor([1.5, -2.0], dtype=torch.float64),
    "empty": torch.zeros(0, 3),
}
ABOUT = {"recipe": "abc", "epoch": 3, "best": 0.1 + 0.2, "text": "ä|\"'"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.safetensors"
    write_tensors(path, TENSORS, ABOUT)
    return path.read_bytes()


def test_what_was_written_is_read_to_the_bit(tmp_path):
    write_tensors(tmp_path / "a.safetensors", TENSORS, ABOUT)
    actual = read_tensors(tmp_path / "a.safetensors")
    assert actual.standing == ABOUT
    assert actual.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert actual.tensors[name].dtype == tensor.dtype
        assert torch.equal(actual.tensors[name], tensor)


def test_equal_content_is_an_equal_file(tmp_path, whole):
    for number in range(8):  # in as many orders as a hash table has
        write_tensors(tmp_path / f"{number}.safetensors", dict(reversed(TENSORS.items())), ABOUT)
        assert (tmp_path / f"{number}.safetensors").read_bytes() == whole


def test_other_libraries_can_read_it(tmp_path):
    from safetensors.torch import load_file

    write_tensors(tmp_path / "a.safetensors", TENSORS, ABOUT)
    assert torch.equal(load_file(tmp_path / "a.safetensors")["model.weight"], TENSORS["model.weight"])


def test_a_tensor_in_any_layout_is_written_as_its_numbers(tmp_path):
    x = torch.randn(2, 3, 4, 5)
    write_tensors(tmp_path / "a.safetensors", {"x": x.to(memory_format=torch.channels_last), "y": x[:, 1].mT}, {})
    actual = read_tensors(tmp_path / "a.safetensors").tensors
    assert torch.equal(actual["x"], x)
    assert torch.equal(actual["y"], x[:, 1].mT)


def test_every_truncation_is_noticed(tmp_path, whole):
    path = tmp_path / "a.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"a\.safetensors"):
            read_tensors(path)


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path, whole):
    """Names, dtypes, shapes, offsets, the standing of the run and the numbers: all of it is under the checksum."""
    path = tmp_path / "a.safetensors"
    unnoticed = 0
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                actual = read_tensors(path)
            except CheckpointError:
                continue
            unnoticed += 1
            assert actual.standing == ABOUT
            assert actual.tensors.keys() == TENSORS.keys()
            assert all(torch.equal(actual.tensors[name], TENSORS[name]) for name in TENSORS)
            assert all(actual.tensors[name].dtype == TENSORS[name].dtype for name in TENSORS)
    assert unnoticed < 40  # blanks within the JSON


@pytest.mark.parametrize("metadata", [None, {"a": "b"}, {"unhinge": "3"}, {"unhinge": "{}"}, {"unhinge": "{"}])
def test_a_safetensors_file_of_others_is_not_taken_for_ours(tmp_path, metadata):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(CheckpointError, match="not ours"):
        read_tensors(tmp_path / "a.safetensors")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors"):
        read_tensors(tmp_path / "gone.safetensors")


def test_the_newest_whole_one_is_found_and_two_are_kept(tmp_path):
    for step in (3, 20, 100):
        save(tmp_path, step, {"x": torch.tensor(step)}, {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000000020.safetensors",
        "checkpoint-000000100.safetensors",
    ]
    actual, complaints = load_newest(tmp_path)
    assert actual is not None
    assert (actual.standing, complaints) == ({"step": 100}, [])


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert load_newest(tmp_path) == (None, [])


# ---- a full disk


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _full)
            with pytest.raises(OSError, match=r"No space left on device, while writing file \(3 bytes\)") as error:
                write_atomically(path, b"new")
        assert error.value.errno == errno.ENOSPC
        assert "make room and run the same command again" in str(error.value)
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["gone", "a file"])
def test_no_room_is_blamed_only_where_there_is_none(tmp_path, place):
    (tmp_path / "a file").touch()
    with pytest.raises(OSError, match=r"directory, while writing file \(3 bytes\)") as error:
        write_atomically(tmp_path / place / "file", b"new")
    assert "make room" not in str(error.value)
    assert "remove the cause and run the same command again" in str(error.value)


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("number", [2, 5, 8, 9, 12, 15])
def test_a_disk_that_fills_up_at_any_write_loses_nothing(tmp_path, few, monkeypatch, number):
    recipe = Recipe(width=4, epochs=3, batch=102)
    whole = fit(recipe, tmp_path / "whole", material=few)
    calls, sync = 0, os.fsync

    def fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= number:
            _full()
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left"):
            fit(recipe, tmp_path / "full", material=few)
    before = load_newest(tmp_path / "full")[0]
    again = fit(recipe, tmp_path / "full", material=few)
    assert again.records == whole.records
    assert again.complaints == ()
    if before is not None:
        assert before.standing["epoch"] >= 1
    for name in ("last.safetensors", "best.safetensors", "log.jsonl", "log.csv"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


LIMITED = """
import resource, signal, sys
from unhinge.cli import app
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
app(sys.argv[1:])
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="the system cannot limit the size of files")
def test_the_command_says_what_to_do_about_a_full_disk(tmp_path):
    """Files of more than 6,000 bytes cannot be written: the weights, that is, but not the logs."""
    out = tmp_path / "run"
    arguments = ["train", "--epochs", "1", "--width", "4", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 1
    assert "while writing last.safetensors" in done.stderr
    assert "run the same command again" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert len((out / "log.jsonl").read_text().splitlines()) == 1
    assert not list(out.glob(".*.partial"))


def test_a_run_with_records_that_are_not_finite_still_has_weights_that_can_be_read(tmp_path, few):
    # A rate at which the first epoch ends with finite numbers, and the second does not.
    fit(Recipe(width=4, epochs=2, batch=102, loss="unhinged", lr=1e19), tmp_path, material=few)
    assert '"nan"' in (tmp_path / "log.jsonl").read_text()
    files = list(tmp_path.glob("*.safetensors"))
    assert files
    for path in files:
        assert read_tensors(path).standing
