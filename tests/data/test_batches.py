"""Batches and augmentation: functions of (seed, epoch, step), equal to one image after another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import data_makers as make
from unhinge.data import Augment, ImageSet, augment_for, batches, generator_of, num_batches


def numbered(number: int, size: int = 4, classes: int = 5) -> ImageSet:
    """Images that show which one they are."""
    images = torch.from_numpy(make.images(number, 1, size, size))
    images[:, 0, size // 2, size // 2] = torch.arange(number) % 256
    labels = torch.arange(number) % classes
    return ImageSet(images, labels, tuple("abcde"), mean=(0.1,), std=(0.3,))


def shifted(image: np.ndarray, down: int, right: int, mirrored: bool, shift: int) -> np.ndarray:
    """Oracle: pixel (i, j) of the result is pixel (i + down - shift, j + right - shift), black outside."""
    _, height, width = image.shape
    out = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            source = (i + down - shift, (width - 1 - j if mirrored else j) + right - shift)
            if 0 <= source[0] < height and 0 <= source[1] < width:
                out[:, i, j] = image[:, source[0], source[1]]
    return out


@given(
    number=st.integers(0, 5),
    channels=st.integers(1, 3),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    shift=st.integers(0, 3),
    mirror=st.booleans(),
    seed=st.integers(0, 9),
)
def test_augmenting_a_batch_is_augmenting_each_image(number, channels, height, width, shift, mirror, seed):
    images = make.images(number, channels, height, width)
    augment = Augment(shift, mirror)
    choices = augment.draw(number, generator_of(seed))
    result = augment(torch.from_numpy(images), generator_of(seed))
    assert result.dtype == torch.uint8
    for index, (down, right, mirrored) in enumerate(choices.T.tolist()):
        np.testing.assert_array_equal(result[index], shifted(images[index], down, right, bool(mirrored), shift))


def test_every_window_and_both_mirrors_come_up_equally_often():
    down, right, mirrored = Augment(shift=1).draw(18_000, generator_of(0))
    counts = torch.bincount(down * 6 + right * 2 + mirrored, minlength=18)
    # 17 degrees of freedom: 50 is passed once in 20,000 tries.
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 50


def test_without_mirror_nothing_is_mirrored():
    assert Augment(shift=2, mirror=False).draw(100, generator_of(0))[2].sum() == 0


def test_a_negative_shift_is_refused():
    with pytest.raises(ValueError, match="number of pixels"):
        Augment(shift=-1)


def test_the_usual_augmentation_shifts_by_an_eighth_and_mirrors_where_that_is_fair():
    frogs = ImageSet(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([0]), ("a",), (0.5,) * 3, (1.0,) * 3)
    assert augment_for(frogs) == Augment(shift=4, mirror=True)


@given(st.integers(1, 40), st.integers(1, 50), st.booleans(), st.integers(0, 3))
def test_an_epoch_gives_every_image_once(number, batch_size, drop_last, epoch):
    images = numbered(number)
    given_batches = list(batches(images, batch_size, seed=3, epoch=epoch, drop_last=drop_last))
    assert len(given_batches) == num_batches(images, batch_size, drop_last=drop_last)
    kept = number - number % batch_size if drop_last else number
    seen = torch.cat([x for x, _ in given_batches]) if given_batches else torch.empty(0, 1, 4, 4)
    labels = torch.cat([y for _, y in given_batches]) if given_batches else torch.empty(0)
    everything = {tuple(row) for row in images.normalize(images.images).flatten(1).tolist()}
    rows = [tuple(row) for row in seen.flatten(1).tolist()]
    assert len(rows) == len(set(rows)) == len(labels) == kept
    assert set(rows) <= everything


def test_images_and_labels_stay_together():
    images = numbered(50)
    for x, y in batches(images, 8, seed=0):
        which = ((x[:, 0, 2, 2] * 0.3 + 0.1) * 255).round().long()
        assert torch.equal(y, which % 5)


def test_without_a_seed_the_order_is_that_of_the_files():
    images = numbered(10)
    x = torch.cat([x for x, _ in batches(images, 3)])
    assert torch.equal(x, images.normalize(images.images))


AUGMENT = Augment(shift=1)


def collect(images: ImageSet, **options) -> list[torch.Tensor]:
    return [x for x, _ in batches(images, 7, augment=AUGMENT, **options)]


@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_an_epoch_entered_in_the_middle_goes_on_bit_for_bit(start):
    images = numbered(40)
    whole = collect(images, seed=1, epoch=2)
    torch.rand(3)  # the global generator has no part in it
    rest = collect(images, seed=1, epoch=2, start=start)
    assert len(whole) == 6
    assert len(rest) == 6 - start
    for x, y in zip(whole[start:], rest, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("other", [{"seed": 2, "epoch": 0}, {"seed": 1, "epoch": 1}])
def test_another_seed_or_epoch_is_another_order(other):
    first, second = (torch.cat([y for _, y in batches(numbered(40), 7, **key)]) for key in ({"seed": 1}, other))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("other", [{"seed": 2, "epoch": 0}, {"seed": 1, "epoch": 1}])
def test_another_seed_or_epoch_is_another_augmentation(other):
    images = torch.from_numpy(make.images(1, 1, 8, 8)).expand(64, 1, 8, 8)
    alike = ImageSet(images, torch.zeros(64, dtype=torch.int64), ("a",), (0.0,), (1.0,))
    assert not torch.equal(collect(alike, seed=1, epoch=0)[0], collect(alike, **other)[0])


def test_steps_of_an_epoch_are_augmented_differently():
    images = torch.from_numpy(make.images(1, 1, 8, 8)).expand(64, 1, 8, 8)
    alike = ImageSet(images, torch.zeros(64, dtype=torch.int64), ("a",), (0.0,), (1.0,))
    first, second = (x for x, _ in batches(alike, 32, seed=0, augment=Augment(shift=2)))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shards_together_are_the_whole_batch(processes):
    images = numbered(41)
    whole = collect(images, seed=1, epoch=0)
    shards = [collect(images, seed=1, epoch=0, shard=(rank, processes)) for rank in range(processes)]
    for step, batch in enumerate(whole):
        together = torch.empty_like(batch)
        for rank in range(processes):
            together[rank::processes] = shards[rank][step]
        assert torch.equal(together, batch)


def test_the_memory_format_is_as_asked():
    x, _ = next(batches(numbered(8), 8, memory_format=torch.channels_last))
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"start": 9}, "start must be a step"),
        ({"shard": (2, 2)}, "rank < processes"),
        ({"augment": AUGMENT}, "augment needs a seed"),
    ],
)
def test_a_mistake_is_told_before_the_first_batch(options, why):
    with pytest.raises(ValueError, match=why):
        batches(numbered(8), **{"batch_size": 4, **options})


@given(st.lists(st.integers(0, 2**40), max_size=4), st.lists(st.integers(0, 2**40), max_size=4))
def test_generators_are_equal_exactly_where_their_keys_are(first, second):
    same = generator_of(*first).initial_seed() == generator_of(*second).initial_seed()
    assert same == (first == second)


def test_a_key_with_zeros_at_its_end_is_another_key():
    assert len({generator_of(*key).initial_seed() for key in [(), (0,), (0, 0), (1,), (1, 0)]}) == 5


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="not negative"):
        generator_of(-1)
