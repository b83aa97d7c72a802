"""Two processes do not write to one folder; a dead one leaves nothing behind that holds the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import unhinge
from unhinge.results.lock import LockError, only_writer

SOURCE = str(Path(unhinge.__file__).parents[1])
HOLD = (
    f"import sys; sys.path.insert(0, {SOURCE!r})\n"
    "from pathlib import Path\nfrom unhinge.results.lock import only_writer\n"
    "with only_writer(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path):
    with holder(tmp_path) as first:
        with pytest.raises(LockError, match=rf"process {first.pid} on .*choose another folder"), only_writer(tmp_path):
            pass
        assert first.stdin is not None
        first.stdin.close()


def test_a_killed_writer_leaves_the_folder_free(tmp_path: Path):
    with holder(tmp_path) as first:
        first.kill()
    with only_writer(tmp_path):
        assert (tmp_path / ".writer.lock").is_file()


def test_a_folder_is_free_after_the_block_even_after_an_error(tmp_path: Path):
    with pytest.raises(KeyError), only_writer(tmp_path):
        raise KeyError
    with only_writer(tmp_path):
        pass


def test_one_process_does_not_hold_a_folder_twice(tmp_path: Path):
    with only_writer(tmp_path), pytest.raises(LockError), only_writer(tmp_path):
        pass


def test_two_folders_are_two_locks(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with only_writer(tmp_path), only_writer(tmp_path / "a"):
        pass
