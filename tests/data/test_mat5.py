"""Matlab files read as scipy reads them, where scipy can."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.io import loadmat, savemat

import data_makers as make
from unhinge.data import DataError
from unhinge.data.mat5 import read_mat


def written(arrays: dict[str, object], compressed: bool) -> bytes:
    stream = io.BytesIO()
    savemat(stream, arrays, do_compression=compressed)
    return stream.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@given(
    arrays=st.dictionaries(
        st.sampled_from(["X", "y", "a_long_name_of_a_variable"]),
        hnp.arrays(
            st.sampled_from([np.uint8, np.int16, np.int32, np.uint16, np.float32, np.float64, np.int64]),
            hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=4),
            elements=st.integers(0, 100),
        ),
    )
)
def test_numeric_arrays_read_as_scipy_reads_them(compressed, arrays):
    raw = written(arrays, compressed)
    actual, expected = read_mat(raw, "f"), loadmat(io.BytesIO(raw))
    assert set(actual) == {name for name in expected if not name.startswith("__")}
    for name, array in actual.items():
        np.testing.assert_array_equal(array, expected[name])


def test_what_is_no_numeric_array_is_left_out():
    raw = written({"X": np.arange(3.0), "text": "abc", "cell": np.array([1, "a"], object), "z": np.array([1j])}, True)
    assert set(read_mat(raw, "f")) == {"X"}


def test_doubles_stored_as_bytes_are_read_too():
    # As Matlab itself writes them: class double (6), stored as uint8 (2) in a small element.
    body = bytes.fromhex("06000000 08000000 06000000 00000000 05000000 08000000 01000000 02000000 01000100 79000000")
    body += bytes.fromhex("02000200 03070000")
    raw = b" " * 124 + b"\x00\x01IM" + bytes.fromhex("0e000000") + len(body).to_bytes(4, "little") + body
    assert read_mat(raw, "f")["y"].tolist() == [[3, 7]]
    assert loadmat(io.BytesIO(raw))["y"].tolist() == [[3, 7]]


def test_a_compressed_element_that_claims_gigabytes_is_refused_before_it_is_unpacked():
    packed = zlib.compress(struct.pack("<II", 14, 0xFFFFFFF0) + bytes(64))
    raw = b" " * 124 + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed
    with pytest.raises(DataError, match="claims 4294967280 bytes"):
        read_mat(raw, "f")


def test_of_a_file_of_version_7_3_the_version_is_named_and_no_damage():
    raw = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n" + bytes(100)
    with pytest.raises(DataError, match="no header of Matlab's version 5; in Matlab, save it with -v7"):
        read_mat(raw, "f")


@pytest.mark.parametrize("raw", [b"", b"MATLAB 7.3 MAT-file" + b" " * 200, b" " * 126 + b"IM" + b"\x01"])
def test_what_is_no_such_file_is_refused(raw):
    with pytest.raises(DataError, match="some_file is truncated or damaged"):
        read_mat(raw, "some_file")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_anywhere_is_refused_or_lacks_an_array(compressed):
    raw = written({"X": make.images(2, 3), "y": np.arange(4)}, compressed)
    for end in range(len(raw)):
        try:
            assert len(read_mat(raw[:end], "f")) < 2
        except DataError:
            continue


@pytest.mark.parametrize("compressed", [False, True])
@given(data=st.data())
@settings(max_examples=200)
def test_flipped_bits_give_arrays_or_our_error(compressed, data):
    raw = bytearray(written({"X": make.images(2, 3), "y": np.arange(4)}, compressed))
    for bit in data.draw(st.lists(st.integers(8 * 124, 8 * len(raw) - 1), min_size=1, max_size=4)):
        raw[bit // 8] ^= 1 << bit % 8
    try:
        actual = read_mat(bytes(raw), "f")
    except DataError:
        return
    assert all(isinstance(array, np.ndarray) for array in actual.values())
