"""A file is read without executing anything, and refused with a sentence."""

from __future__ import annotations

import io
import pickle
import zipfile

import numpy as np
import pytest

from unhinge.web.uploads import LARGEST_FILE, Uploads, read_npz


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def good(seed: int = 0, **changes: np.ndarray) -> bytes:
    random = np.random.default_rng(seed)
    arrays = {"features": random.normal(size=(6, 4)), "weight": random.normal(size=(3, 4)), "labels": np.arange(6) % 3}
    return npz(**(arrays | changes))


class Trap:
    """Executed by unpickling: leaves a trace."""

    sprung: list[int] = []  # noqa: RUF012

    def __reduce__(self):
        return Trap.sprung.append, (1,)


def test_a_good_file_is_read_to_the_last_bit():
    start = read_npz(good())
    random = np.random.default_rng(0)
    assert (start.features.numpy() == random.normal(size=(6, 4))).all()
    assert (start.weight.numpy() == random.normal(size=(3, 4))).all()
    assert start.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_pickled_objects_are_refused_and_not_executed():
    with pytest.raises(ValueError, match="Python objects"):
        read_npz(good(features=np.array([Trap()], dtype=object)))
    with pytest.raises(ValueError, match=r"no \.npz"):
        read_npz(pickle.dumps(Trap()))
    assert Trap.sprung == []


def test_a_file_that_unpacks_to_too_much_is_refused_before_unpacking():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", bytes(LARGEST_FILE + 1))
    assert len(buffer.getvalue()) < LARGEST_FILE // 100
    with pytest.raises(ValueError, match="unpacks"):
        read_npz(buffer.getvalue())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": np.zeros((3, 5))}, "same p"),
        ({"labels": np.arange(5)}, "6 whole numbers"),
        ({"labels": np.arange(6) / 2}, "whole numbers"),
        ({"labels": np.full(6, 3)}, r"0 \.\. 2"),
        ({"labels": np.zeros(6, int)}, "every class"),
        ({"features": np.full((6, 4), np.nan)}, "NaN"),
        ({"features": np.array([["a"] * 4] * 6)}, "numbers"),
        ({"features": np.zeros(6)}, r"\(n, p\)"),
    ],
)
def test_what_is_wrong_is_said(changes, words):
    with pytest.raises(ValueError, match=words):
        read_npz(good(**changes))


def test_a_missing_array_is_named_beside_those_there_are():
    with pytest.raises(ValueError, match="it has features"):
        read_npz(npz(features=np.zeros((2, 2))))


def test_only_the_last_files_are_kept():
    uploads = Uploads(limit=3 * read_npz(good(0)).size())
    names = [uploads.add(good(seed)) for seed in range(5)]
    assert uploads.get(names[-1]).features.shape == (6, 4)
    with pytest.raises(ValueError, match="choose it again"):
        uploads.get(names[0])
