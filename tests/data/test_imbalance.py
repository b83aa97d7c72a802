"""Imbalance by the literature's counts, and label noise by the theory's distribution."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import data_makers as make
from unhinge.data import ImageSet, Imbalance, imbalanced, with_label_noise
from unhinge.theory import symmetric_noise


def image_set(counts: list[int]) -> ImageSet:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    images = torch.from_numpy(make.images(len(labels), 1, 2, 2))
    return ImageSet(images, labels, tuple(map(str, range(len(counts)))), (0.5,), (1.0,))


def reference_counts(kind: str, ratio: float, size: int, classes: int) -> list[int]:
    """Oracle: the published code of Cao et al. 2019, with its imbalance factor 1 / ratio."""
    factor = 1 / ratio
    if kind == "exp":
        return [int(size * factor ** (c / (classes - 1.0))) for c in range(classes)]
    return [int(size)] * (classes // 2) + [int(size * factor)] * (classes // 2)


@pytest.mark.parametrize("ratio", [1, 2, 5, 10, 20, 50, 100, 150, 200, 256, 500])
@pytest.mark.parametrize("kind", ["exp", "step"])
@pytest.mark.parametrize(("size", "classes"), [(5000, 10), (500, 100), (6000, 10)])
def test_counts_are_those_of_the_published_long_tailed_cifar(kind, ratio, size, classes):
    assert list(Imbalance(kind, ratio).counts([size] * classes)) == reference_counts(kind, ratio, size, classes)


def test_the_sizes_of_cifar_10_lt_and_cifar_100_lt_at_100_are_the_known_ones():
    assert sum(Imbalance("exp", 100).counts([5000] * 10)) == 12406
    assert sum(Imbalance("exp", 100).counts([500] * 100)) == 10847


@given(st.integers(2, 12), st.integers(1, 60), st.integers(1, 400))
@example(classes=2, ratio=49, smallest=1)  # 49 * (1 / 49) < 1 in floats
def test_the_smallest_class_is_exactly_the_largest_over_the_ratio(classes, ratio, smallest):
    # Exact arithmetic: n_max / ratio is whole here, and a floor in floats must not lose one.
    counts = Imbalance("exp", ratio).counts([smallest * ratio] * classes)
    assert (counts[0], counts[-1]) == (smallest * ratio, Fraction(smallest * ratio, ratio))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.floats(1, 20), st.sampled_from(["exp", "step"]))
def test_unequal_classes_keep_the_profile_as_large_as_they_allow(available, ratio, kind):
    profile = Imbalance(kind, ratio)
    shares = profile.shares(len(available))
    if min(int(min(n / s for n, s in zip(available, shares, strict=True)) * share) for share in shares) < 1:
        with pytest.raises(ValueError, match="without images"):
            profile.counts(available)
        return
    counts = profile.counts(available)
    largest = counts[0]
    assert all(1 <= n <= have for n, have in zip(counts, available, strict=True))
    assert all(abs(n - largest * share) <= 1 for n, share in zip(counts, shares, strict=True))
    # One more in the largest class would be more than some class has.
    assert any((largest + 1) * share > have for share, have in zip(shares, available, strict=True))


def test_an_odd_number_of_classes_has_the_middle_one_large():
    assert Imbalance("step", 10).counts([100] * 5) == (100, 100, 100, 10, 10)


@pytest.mark.parametrize("spec", ["exp:10", "step:4"])
def test_the_kept_indices_are_those_of_the_images(spec):
    images = image_set([40] * 6)
    part = imbalanced(images, spec, seed=3)
    assert torch.equal(images.images[part.indices], part.images.images)
    assert torch.equal(images.labels[part.indices], part.images.labels)
    assert part.images.counts.tolist() == list(Imbalance.parse(spec).counts([40] * 6))
    assert part.indices.tolist() == sorted(set(part.indices.tolist()))


def test_the_seed_decides_which_images_are_kept_and_nothing_else_does():
    images = image_set([50] * 4)
    first = imbalanced(images, "exp:5", seed=0).indices
    torch.rand(1)
    assert torch.equal(first, imbalanced(images, "exp:5", seed=0).indices)
    assert not torch.equal(first, imbalanced(images, "exp:5", seed=1).indices)


@pytest.mark.parametrize("counts", [[50] * 4, [60, 55, 70, 50]])
def test_of_one_largest_class_a_stronger_imbalance_keeps_a_part_of_a_weaker_one(counts):
    images = image_set(counts)
    kept = [set(imbalanced(images, f"exp:{ratio}", seed=0, largest=50).indices.tolist()) for ratio in (2, 5, 25)]
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("text", ["exp:100", "step:10", "exp:1.5"])
def test_a_spec_reads_back_as_written(text):
    assert str(Imbalance.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exp", "must read like"),
        ("exp:", "must read like"),
        ("100", "must read like"),
        ("exp:ten", "must read like"),
        ("linear:10", "one of exp, step"),
        ("exp:0.01", "at least 1"),
        ("exp:nan", "at least 1"),
        ("exp:inf", "at least 1"),
    ],
)
def test_a_spec_that_is_none_says_how_one_looks(text, why):
    with pytest.raises(ValueError, match=why):
        Imbalance.parse(text)


def test_a_ratio_by_itself_or_in_words_is_refused():
    with pytest.raises(ValueError, match="must read like exp:100 or step:10, got 100"):
        imbalanced(image_set([50] * 3), 100, seed=0)
    with pytest.raises(ValueError, match="at least 1, got '10'"):
        Imbalance("exp", "10")


def test_a_ratio_that_empties_a_class_is_refused():
    with pytest.raises(ValueError, match=r"exp:100 would leave a class without images.*at most 50"):
        imbalanced(image_set([50] * 3), "exp:100", seed=0)
    with pytest.raises(ValueError, match=r"exp:1e\+308 would leave a class without images"):
        imbalanced(image_set([50] * 3), "exp:1e308", seed=0)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_noisy_labels_have_the_distribution_of_the_theory(rate):
    images = image_set([4000] * 3)
    noisy = with_label_noise(images, rate, seed=0)
    rows = symmetric_noise(torch.arange(3), 3, rate)
    for label in range(3):
        actual = torch.bincount(noisy.labels[images.labels == label], minlength=3) / 4000
        # Five standard deviations of a share of 4,000.
        assert (actual - rows[label]).abs().max() <= 5 * math.sqrt(0.25 / 4000)
        if rate in (0.0, 1.0):
            assert actual[label] == 1 - rate


def test_noise_has_its_own_seed_and_leaves_the_images_alone():
    images = image_set([30] * 4)
    first, second = (with_label_noise(images, 0.5, seed=seed) for seed in (0, 1))
    assert torch.equal(first.labels, with_label_noise(images, 0.5, seed=0).labels)
    assert not torch.equal(first.labels, second.labels)
    assert first.images is images.images


@pytest.mark.parametrize("rate", [-0.1, 1.1, 40, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(ValueError, match="not a percentage"):
        with_label_noise(image_set([3, 3]), rate, seed=0)


@given(st.sampled_from(["exp", "step"]), st.integers(1, 50), st.integers(50, 400), st.integers(2, 12))
def test_the_largest_class_has_the_size_asked_for(kind, ratio, largest, classes):
    counts = Imbalance(kind, ratio).counts([400] * classes, largest)
    assert counts == Imbalance(kind, ratio).counts([largest] * classes)  # as if there were no more
    assert counts[0] == largest


@pytest.mark.parametrize("largest", [0, -1, 401])
def test_a_largest_class_that_cannot_be_had_is_refused(largest):
    with pytest.raises(ValueError, match="1 to 400"):
        Imbalance("exp", 10).counts([400] * 3, largest)


def test_without_an_imbalance_too_many_images_are_refused_without_naming_one():
    with pytest.raises(ValueError, match=r"^each class shall have 100 images.* at most 60"):
        imbalanced(image_set([60, 80]), None, seed=0, largest=100)


def test_fewer_images_are_a_part_of_more_and_without_imbalance_all_classes_are_alike():
    images = image_set([60, 60, 60])
    more, fewer = (imbalanced(images, "exp:4", seed=3, largest=n).indices.tolist() for n in (40, 20))
    assert set(fewer) < set(more)
    assert imbalanced(images, None, seed=3, largest=7).images.counts.tolist() == [7, 7, 7]
