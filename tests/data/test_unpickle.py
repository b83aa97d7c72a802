"""The reader of pickles gives what Python's would for the CIFAR files, and runs nothing."""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import pickletools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_makers as make
from unhinge.data.errors import DataError
from unhinge.data.unpickle import read_pickle

CONTENT = {
    "batch_label": "testing batch 1 of 1",
    "labels": [3, 8, 0, 300, -1],
    "data": make.images(5, 12),
    "filenames": ["a.png", "b.png"],
}


def assert_same(read: dict[str, object], expected: dict[str, object]) -> None:
    assert list(read) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(read[key], value)
        assert type(read[key]) is type(value)


def test_a_pickle_of_python_2_reads_as_pythons_own_unpickler_reads_it():
    raw = make.python2_pickle(CONTENT)
    assert {"SHORT_BINSTRING", "BINSTRING"} >= {op.name for op, _, _ in pickletools.genops(raw) if "STRING" in op.name}
    assert_same(read_pickle(raw, "f"), pickle.loads(raw, encoding="latin1"))
    assert_same(read_pickle(raw, "f"), CONTENT)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("keys", [str, str.encode])
def test_the_same_content_pickled_by_python_3_reads_the_same(protocol, keys):
    raw = pickle.dumps({keys(key): value for key, value in CONTENT.items()}, protocol=protocol)
    assert_same(read_pickle(raw, "f"), CONTENT)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64, ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_their_type_and_order(protocol, kind, order):
    array = np.asarray(np.arange(6).reshape(2, 3), dtype=kind, order=order)
    read = read_pickle(pickle.dumps({"a": array}, protocol=protocol), "f")["a"]
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype


class Harmful:
    def __reduce__(self):
        return os.system, ("echo this must not run",)


@pytest.mark.parametrize(
    "thing",
    [Harmful(), datetime.date(2020, 1, 1), np.float64(1.0), np.array([Harmful()]), print, 1.5, {1, 2}, 1 << 9000],
    ids=["a call", "a class", "a scalar", "an array of objects", "a function", "a float", "a set", "a huge number"],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_of_anything_else_is_refused(thing, protocol, capfd):
    with pytest.raises(DataError, match="some_file is truncated or damaged, or not one of the pickles"):
        read_pickle(pickle.dumps({"data": thing}, protocol=protocol), "some_file")
    assert "must not run" not in capfd.readouterr().out


def program(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


NAME = b"cnumpy\nndarray\n"
REBUILD = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(program(b"}" + b")" + b"\x85" * 1_000_000 + b"Ns"), id="a key of a million nested tuples"),
        pytest.param(program(NAME + b"}U\x08__call__Nsb"), id="a change of what a name means"),
        pytest.param(program(NAME + b"N}U\x01aNs\x86b"), id="a change of a name's attributes"),
        pytest.param(program(b"cbuiltins\neval\nU\x011\x85R"), id="eval"),
        pytest.param(program(b"cnumpy\nload\nU\x01x\x85R"), id="another function of numpy"),
        pytest.param(program(REBUILD + NAME + b"J\xff\xff\xff\x7f\x85U\x01b\x87R"), id="an array of two gigabytes"),
        pytest.param(program(REBUILD + NAME + b"K\x00\x85U\x01O\x87R"), id="an array of objects"),
        pytest.param(program(b"}U\x04data" + REBUILD + NAME + b"K\x00\x85U\x01b\x87Rs"), id="an array never filled"),
        pytest.param(program(b"\x8c\x05numpy\x8c\x05dtype\x93U\x02f8K\x00K\x01\x87R"), id="an array of floats"),
        pytest.param(program(b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R"), id="another codec"),
        pytest.param(program(b"]"), id="a list"),
        pytest.param(program(b"P1\n"), id="a persistent reference"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_program_that_is_no_data_is_refused(raw):
    with pytest.raises(DataError):
        read_pickle(raw, "f")


def test_a_reference_far_out_is_refused_before_memory_is_taken_for_it():
    # Python's unpickler would fill a table of twice as many entries: 8 gigabytes.
    with pytest.raises(DataError, match="points nowhere"):
        read_pickle(program(b"}r" + struct.pack("<I", 1 << 29)), "f")


def test_the_shape_of_an_array_must_match_its_bytes():
    raw = make.python2_pickle({"data": make.images(2, 3)})
    assert raw.count(struct.pack("<i", 3)) == 1
    with pytest.raises(DataError, match=r"shape \(2, 4\).* cannot have 6 bytes"):
        read_pickle(raw.replace(struct.pack("<i", 3), struct.pack("<i", 4)), "f")


def test_a_pickle_cut_anywhere_is_refused():
    raw = make.python2_pickle(CONTENT)
    for end in range(len(raw)):
        with pytest.raises(DataError):
            read_pickle(raw[:end], "f")


@pytest.mark.parametrize("protocol", [None, 2, 5])
@given(data=st.data())
@settings(max_examples=150)
def test_flipped_bits_give_data_or_our_error(protocol, data):
    raw = bytearray(make.python2_pickle(CONTENT) if protocol is None else pickle.dumps(CONTENT, protocol))
    for bit in data.draw(st.lists(st.integers(0, 8 * len(raw) - 1), min_size=1, max_size=4)):
        raw[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(DataError):
        assert isinstance(read_pickle(bytes(raw), "f"), dict)


PIECES = [
    b"}", b"]", b")", b"(", b"t", b"\x85", b"\x86", b"\x87", b"R", b"b", b"s", b"u", b"a", b"e", b"N", b"\x89", b"\x88",
    b"K\x00", b"K\x03", b"J\xff\xff\xff\xff", b"U\x01b", b"U\x02u1", b"U\x01|", b"U\x04data", b"q\x01", b"h\x01",
    b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", REBUILD, b"cnumpy.core.numeric\n_frombuffer\n", b"c_codecs\nencode\n",
    b"X\x06\x00\x00\x00latin1", b"C\x02ab", b"\x8a\x01\x7f", b"\x94", b"\x93",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40))
@settings(max_examples=300)
def test_any_program_of_the_allowed_instructions_gives_data_or_our_error(pieces):
    with contextlib.suppress(DataError):
        assert isinstance(read_pickle(program(b"}", *pieces), "f"), dict)
