"""Rows that are made on demand are the same rows every time."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unhinge.nn import functional as UF
from unhinge.nn.frames import separation
from unhinge.nn.generated import GeneratedPrototypes, philox

MASK = 0xFFFFFFFF

# The test vectors of the authors' own implementation (Random123, kat_vectors): counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def slow_philox(counter: list[int], key: list[int]) -> list[int]:
    """From the paper's definition, with Python's whole numbers."""
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 1 << 32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def slow_row(number: int, dim: int, seed: int) -> torch.Tensor:
    """One direction, entry by entry."""
    entries: list[float] = []
    for block in range(-(-dim // 4)):
        bits = slow_philox([block, number & MASK, number >> 32, 0], [seed & MASK, seed >> 32])
        u = [(b + 0.5) / 2**32 for b in bits]
        first, second = (math.sqrt(-2 * math.log(x)) for x in u[:2])
        entries += [
            first * math.cos(2 * math.pi * u[2]),
            second * math.cos(2 * math.pi * u[3]),
            first * math.sin(2 * math.pi * u[2]),
            second * math.sin(2 * math.pi * u[3]),
        ]
    row = torch.tensor(entries[:dim], dtype=torch.float64)
    return row / row.norm()


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_the_generator_gives_the_published_words(counter, key, result):
    low, high = (int(word, 16) for word in key.split())
    words = philox(np.array([int(word, 16) for word in counter.split()], dtype=np.uint64), low | high << 32)
    assert [f"{int(word):08x}" for word in words] == result.split()


@given(st.integers(2, 1 << 40), st.integers(2, 20), st.integers(0, (1 << 64) - 1), st.data())
def test_a_row_is_the_one_its_number_and_the_seed_define(classes, dim, seed, data):
    frame = GeneratedPrototypes(classes, dim, seed, dtype=torch.float64)
    paired = classes if classes % 2 == 0 else classes - 2  # rows before the last two of a triangle
    index = data.draw(st.integers(0, paired - 1))
    sign = -1 if index % 2 else 1
    row = frame.rows(torch.tensor(index))
    torch.testing.assert_close(row, sign * slow_row(index // 2, dim, seed), rtol=0, atol=1e-14)


@given(st.integers(2, 60), st.integers(2, 9), st.integers(0, 99))
def test_all_rows_have_length_one_and_sum_to_zero(classes, dim, seed):
    frame = GeneratedPrototypes(classes, dim, seed, dtype=torch.float64)
    rows = frame.rows(torch.arange(classes))
    assert rows.shape == frame.shape == (classes, dim)
    assert (rows.norm(dim=1) - 1).abs().max() < 1e-15 * 4
    assert rows.sum(0).abs().max() < 1e-14
    assert torch.equal(frame.weight_sum, torch.zeros(dim, dtype=torch.float64))


@pytest.mark.parametrize("classes", [3, 7, 101])
def test_the_last_three_of_an_odd_number_form_a_triangle(classes):
    rows = GeneratedPrototypes(classes, 5, dtype=torch.float64).rows(torch.arange(classes))[-3:]
    expected = torch.full((3, 3), -0.5, dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-14)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30), st.randoms())
def test_order_and_company_do_not_change_a_row(index, random):
    frame = GeneratedPrototypes(10_001, 6, seed=5)
    together = frame.rows(torch.tensor(index))
    alone = torch.stack([frame.rows(torch.tensor(i)) for i in index])
    assert torch.equal(together, alone)
    order = list(range(len(index)))
    random.shuffle(order)
    assert torch.equal(frame.rows(torch.tensor(index)[order]), together[order])


def test_another_process_makes_the_same_rows():
    code = (
        "import torch; from unhinge.nn.generated import GeneratedPrototypes; "
        "print(GeneratedPrototypes(10**9, 4, 7).rows(torch.tensor([123456789])).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = GeneratedPrototypes(10**9, 4, 7).rows(torch.tensor([123456789])).tolist()
    assert run.stdout.strip() == str(here)


def test_these_are_the_rows_of_every_release():
    """A saved model holds only the seed: a change of the numbers would be another model."""
    rows = GeneratedPrototypes(1_000_000, 4, seed=2024).rows(torch.tensor([0, 1, 999_998]))
    expected = torch.tensor(PINNED)
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-7)


PINNED = [
    [0.52422535, 0.73546910, -0.05088769, 0.42624339],
    [-0.52422535, -0.73546910, 0.05088769, -0.42624339],
    [-0.51928759, -0.19024619, 0.77945495, -0.29427338],
]


def test_seeds_and_rows_are_unrelated():
    """Over 4,000 rows of dimension 64 the mean and the covariance are those of uniform directions."""
    rows = GeneratedPrototypes(1 << 40, 64, 1, torch.float64).rows(2 * torch.arange(4000))
    other = GeneratedPrototypes(1 << 40, 64, 2, torch.float64).rows(2 * torch.arange(4000))
    assert rows.mean(0).norm() < 1.3 / math.sqrt(4000)
    covariance = rows.T @ rows * (64 / 4000) - torch.eye(64)
    assert covariance.abs().max() < 0.1
    assert (rows * other).sum(1).abs().max() < 0.65
    neighbours = (rows[1:] * rows[:-1]).sum(1)
    assert neighbours.mean().abs() < 4 / math.sqrt(64 * 4000)


def test_the_closest_pair_is_about_as_close_as_promised():
    rows = GeneratedPrototypes(4000, 64).rows(torch.arange(4000))
    promised = math.sqrt(1 - 4000 ** (-4 / 64))
    assert 0.9 < math.cos(separation(rows).smallest_angle) / promised < 1.02


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rows_have_the_shape_of_the_index_and_the_dtype_asked_for(dtype):
    frame = GeneratedPrototypes(50, 6, dtype=dtype)
    assert frame.rows(torch.zeros(2, 3, dtype=torch.int32)).shape == (2, 3, 6)
    assert frame.rows(torch.tensor([4])).dtype == frame.weight_sum.dtype == dtype
    assert frame.rows(torch.zeros(0, dtype=torch.int64)).shape == (0, 6)


def test_blocks_are_the_rows_in_order():
    frame = GeneratedPrototypes(23, 4)
    blocks = list(frame.blocks(10))
    assert [start for start, _ in blocks] == [0, 10, 20]
    assert torch.equal(torch.cat([rows for _, rows in blocks]), frame.rows(torch.arange(23)))


def test_the_rows_of_a_batch_give_the_loss_of_the_whole_weight():
    frame = GeneratedPrototypes(101, 6, dtype=torch.float64)
    features, target = torch.randn(8, 6, dtype=torch.float64), torch.randint(101, (8,))
    rows = frame.rows(target)
    ours = UF.unhinged_loss_from_features(
        features, rows, torch.arange(8), gamma=frame.gamma, weight_sum=frame.weight_sum
    )
    logits = features @ frame.rows(torch.arange(101)).T
    torch.testing.assert_close(ours, UF.unhinged_loss(logits, target), rtol=1e-12, atol=1e-12)


def test_two_classes_on_a_line_are_opposite_points():
    assert GeneratedPrototypes(2, 1).rows(torch.tensor([0, 1])).sum() == 0
    with pytest.raises(ValueError, match="only two unit vectors"):
        GeneratedPrototypes(3, 1)


@pytest.mark.parametrize("index", [-1, 50])
def test_a_class_that_is_not_there_is_refused(index):
    with pytest.raises(ValueError, match=rf"0 .. 49, got values from {index} to {index}"):
        GeneratedPrototypes(50, 4).rows(torch.tensor([index]))


def test_what_is_no_number_of_a_class_is_refused():
    with pytest.raises(ValueError, match="integer dtype"):
        GeneratedPrototypes(50, 4).rows(torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"index must be a torch.Tensor, got list"):
        GeneratedPrototypes(50, 4).rows([1, 2])
    for seed in (-1, 1 << 64, 1.5, "1", True):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            GeneratedPrototypes(50, 4, seed=seed)
    with pytest.raises(ValueError, match="dtype must be a floating one"):
        GeneratedPrototypes(50, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="num_classes"):
        GeneratedPrototypes(1, 4)
