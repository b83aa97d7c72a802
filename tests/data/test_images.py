"""Image sets as values."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import data_makers as make
from unhinge.data import ImageSet, Splits, channel_statistics, conform, shrink
from unhinge.data.stratify import stratified_split


def image_set(number: int = 12, channels: int = 3, size: int = 8, classes: int = 3, **more) -> ImageSet:
    return ImageSet(
        torch.from_numpy(make.images(number, channels, size, size)),
        torch.tensor(make.labels(number, classes)),
        tuple("abcdefghij"[:classes]),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        **more,
    )


@pytest.mark.parametrize("white", [16, 255])
def test_normalized_pixels_are_the_formula(white):
    images = image_set(white=white)
    expected = (images.images.numpy().astype(np.float64) / white - 0.5) / 0.25
    np.testing.assert_allclose(images.normalize(images.images).numpy(), expected, atol=1e-5)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 5))
def test_channel_statistics_are_numpys(number, channels, size):
    pixels = make.images(number, channels, size, size)
    mean, std = channel_statistics(torch.from_numpy(pixels))
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), atol=1e-14)
    np.testing.assert_allclose(std, scaled.std((0, 2, 3)), atol=1e-14)


def test_a_subset_has_the_images_asked_for_in_that_order():
    images = image_set()
    part = images.subset(torch.tensor([5, 0]))
    assert torch.equal(part.images, images.images[[5, 0]])
    assert part.labels.tolist() == [5 % 3, 0]
    assert part.classes == images.classes


def test_an_image_set_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        image_set().white = 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"images": torch.zeros(12, 3, 8, 8)}, "uint8"),
        ({"images": torch.zeros(12, 8, 8, dtype=torch.uint8)}, r"\(n, c, h, w\)"),
        ({"labels": torch.zeros(11, dtype=torch.int64)}, "one per image"),
        ({"labels": torch.zeros(12)}, "int64"),
        ({"labels": torch.full((12,), 3)}, r"0 \.\. 2"),
        ({"mean": (0.5,)}, "3 channels"),
        ({"std": (0.0, 1.0, 1.0)}, "above 0"),
    ],
)
def test_an_image_set_that_does_not_fit_together_says_why(change, why):
    with pytest.raises(ValueError, match=why):
        dataclasses.replace(image_set(), **change)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_shrinking_takes_the_mean_of_blocks(factor):
    images = image_set()
    blocks = images.images.numpy().astype(np.float64).reshape(12, 3, 8 // factor, factor, 8 // factor, factor)
    np.testing.assert_array_equal(shrink(images, factor).images, np.round(blocks.mean((3, 5))))


def test_shrinking_by_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="must divide"):
        shrink(image_set(), 3)


def test_a_set_conformed_to_another_has_its_shape_and_statistics():
    like = image_set(channels=3, size=16, white=16)
    grey = image_set(number=5, channels=1, size=8)
    shown = conform(grey, like)
    assert shown.images.shape == (5, 3, 16, 16)
    assert (shown.mean, shown.std, shown.white) == (like.mean, like.std, like.white)
    assert torch.equal(shown.labels, grey.labels)
    assert torch.equal(shown.images[:, 0], shown.images[:, 2])
    assert shown.images.max() <= 16


def test_a_set_conformed_to_its_like_keeps_its_pixels():
    images = image_set()
    assert torch.equal(conform(images, image_set(number=2)).images, images.images)


def test_color_conformed_to_grey_is_its_luma():
    color = image_set(number=4)
    expected = np.round(np.tensordot(color.images.numpy().astype(np.float64), [0.299, 0.587, 0.114], axes=(1, 0)))
    shown = conform(color, image_set(channels=1)).images[:, 0].numpy()
    assert np.abs(shown - expected).max() <= 1  # a tie in floats may round either way


def test_flat_color_stays_flat_when_resized():
    flat = dataclasses.replace(image_set(number=2), images=torch.full((2, 3, 8, 8), 77, dtype=torch.uint8))
    assert (conform(flat, image_set(size=5)).images == 77).all()


def test_splits_without_training_images_say_why():
    with pytest.raises(ValueError, match=r"svhn has no training images here\. The file is lost"):
        _ = Splits("svhn", None, image_set(), absent="The file is lost.").training


@given(st.lists(st.integers(0, 4), max_size=60), st.floats(0.05, 0.95))
def test_a_stratified_split_is_a_partition_with_the_share_of_each_class(labels, share):
    target = torch.tensor(labels, dtype=torch.int64)
    first, second = stratified_split(target, share, seed=0)
    assert sorted(first.tolist() + second.tolist()) == list(range(len(labels)))
    for label in set(labels):
        whole, part = labels.count(label), int((target[second] == label).sum())
        assert abs(part - share * whole) <= 1
        assert part >= 1 or whole == 1
        assert part < whole
