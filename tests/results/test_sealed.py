"""A sealed record reads back to the same content, and any change of its text is noticed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhinge.results.sealed import SealError, read_sealed, seal, unseal, write_atomically, write_sealed

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
records = st.dictionaries(st.text().filter(lambda name: name != "crc32"), values, max_size=5)


@given(records)
def test_what_was_sealed_reads_back(record):
    assert unseal(seal(record), "it") == record


@pytest.mark.parametrize("seed", range(200))
def test_one_changed_byte_is_noticed(seed):
    """Or it left the content as it was: JSON knows white space and two ways to write some characters."""
    record = {"epoch": 3, "accuracy": 0.8125, "curves": [1.5, -2.25, 1e-300], "name": "résumé", "stopped": None}
    chance = random.Random(seed)
    text = bytearray(seal(record).encode())
    place = chance.randrange(len(text))
    text[place] ^= 1 << chance.randrange(8)
    try:
        actual = unseal(bytes(text), "the line")
    except SealError:
        return
    assert actual == record


def test_an_error_names_the_file_and_what_to_do(tmp_path: Path):
    file = tmp_path / "run.json"
    write_sealed(file, {"accuracy": 0.5})
    file.write_text(file.read_text().replace("0.5", "0.9"))
    with pytest.raises(SealError, match=r"run\.json was changed .* delete it to have it made again"):
        read_sealed(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '{"a": 1e999, "crc32": "00000000"}',
        '{"a": NaN, "crc32": "00000000"}',
        '{"a": 1}',
        '{"crc32": 5}',
        "[" * 100_000,
    ],
)
def test_what_is_no_sealed_record_is_refused_in_one_line(text):
    with pytest.raises(SealError) as caught:
        unseal(text, "the line")
    assert "\n" not in str(caught.value)


def test_a_file_beside_the_record_is_covered_by_it(tmp_path: Path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    write_sealed(tmp_path / "recipe.json", {"id": "fig", "γ": 0.5}, beside=["table.csv"], indent=2)
    assert read_sealed(tmp_path / "recipe.json") == {"id": "fig", "γ": 0.5}
    (tmp_path / "table.csv").write_text("a,b\n1,3\n")
    with pytest.raises(SealError, match=r"table\.csv was changed .* delete it to have it made again"):
        read_sealed(tmp_path / "recipe.json")
    (tmp_path / "table.csv").unlink()
    with pytest.raises(SealError, match=r"table\.csv is missing"):
        read_sealed(tmp_path / "recipe.json")


@pytest.mark.parametrize("files", [5, ["a"], {"../outside": "00000000"}, {"/dev/zero": "00000000"}, {"a": 5}])
def test_a_record_that_names_strange_files_reads_none_of_them(tmp_path: Path, files: object):
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "outside").write_text("")
    (folder / "recipe.json").write_text(seal({"files": files}))
    with pytest.raises(SealError, match=r"is missing|names no files"):
        read_sealed(folder / "recipe.json")


def test_a_file_of_an_older_version_is_read_where_that_is_allowed(tmp_path: Path):
    file = tmp_path / "recipe.json"
    file.write_text('{"id": "fig"}')
    assert read_sealed(file, older=True) == {"id": "fig"}
    with pytest.raises(SealError, match="carries no checksum"):
        read_sealed(file)
    file.write_text('{"id": "fig", "files": {}, "crc33": "00000000"}')  # a bit of the checksum's name was flipped
    with pytest.raises(SealError, match="carries no checksum"):
        read_sealed(file, older=True)
    file.write_text('{"id": "fig", "crc32": "00000000"}')
    with pytest.raises(SealError, match="was changed"):
        read_sealed(file, older=True)


def test_a_record_cannot_bring_its_own_checksum():
    with pytest.raises(ValueError, match="name of the checksum"):
        seal({"crc32": "00000000"})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "last"
    write_atomically(file, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="What was saved before is whole"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_the_folder_is_flushed_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda *args: (order.append("rename"), replace(*args)))

    def flushed(handle: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", flushed)
    write_atomically(tmp_path / "last", b"new")
    assert order[:2] == ["file", "rename"]
    assert len(order) == 3
