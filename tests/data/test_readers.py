"""Each format, written from its description, comes back as it was; a damaged file is named."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import data_makers as make
import unhinge.data as ud
from unhinge.data import DataError, MissingFile, load
from unhinge.data.errors import verify
from unhinge.data.idx import read_idx
from unhinge.extras import MissingExtra


def quietly(name: str, root: Path, **options):
    """Tiny files are never the official ones."""
    return load(name, root, checksum="skip", **options)


def expected_pixels(seeds: range, number: int, *shape: int) -> torch.Tensor:
    return torch.cat([torch.from_numpy(make.images(number, *shape, seed=seed)) for seed in seeds])


CIFAR = {
    "cifar10 python": ("cifar10", make.cifar10_python, "cifar-10-python"),
    "cifar10 binary": ("cifar10", make.cifar10_binary, "cifar-10-binary"),
    "cifar100 python": ("cifar100", make.cifar100_python, "cifar-100-python"),
    "cifar100 binary": ("cifar100", make.cifar100_binary, "cifar-100-binary"),
}


@pytest.mark.parametrize("packed", ["", ".tar.gz", ".tgz", ".tar"])
@pytest.mark.parametrize("version", CIFAR)
def test_cifar_comes_back_as_written_in_both_versions_packed_and_unpacked(tmp_path, version, packed):
    name, write, archive = CIFAR[version]
    folder = write(tmp_path)
    if packed:
        make.tar(folder, tmp_path / f"{archive}{packed}")
    splits = quietly(name, tmp_path)
    batches, number, classes = (5, 20, 10) if name == "cifar10" else (1, 100, 100)
    train, test = splits.training, splits.test
    assert torch.equal(train.images, expected_pixels(range(batches), number, 3, 32, 32))
    assert torch.equal(test.images, expected_pixels(range(batches, batches + 1), number, 3, 32, 32))
    assert train.labels.tolist() == make.labels(number, classes) * batches
    assert test.labels.tolist() == make.labels(number, classes)
    assert len(train.classes) == len(set(train.classes)) == classes


@pytest.mark.parametrize("write", [make.cifar100_python, make.cifar100_binary])
def test_cifar_100_has_twenty_superclasses(tmp_path, write):
    write(tmp_path)
    splits = quietly("cifar100-coarse", tmp_path)
    assert splits.num_classes == len(set(splits.classes)) == 20
    assert splits.test.labels.tolist() == make.labels(100, 20)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_cifar_pickled_by_python_3_reads_the_same(tmp_path, protocol):
    make.cifar10_python(tmp_path / "a", protocol=protocol)
    make.cifar10_python(tmp_path / "b")
    first, second = (quietly("cifar10", tmp_path / which).training for which in "ab")
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)


def test_the_folder_of_the_files_itself_will_do_as_root(tmp_path):
    folder = make.cifar10_python(tmp_path)
    assert len(quietly("cifar10", folder).training) == 100


def test_root_may_come_from_the_environment(tmp_path, monkeypatch):
    make.cifar10_binary(tmp_path)
    monkeypatch.setenv("UNHINGE_DATA", str(tmp_path))
    assert len(load("cifar10", checksum="skip").test) == 20


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "MNIST/raw"), ("kmnist", "KMNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("mnist", ".")],
)
def test_idx_files_come_back_as_written_plain_and_packed(tmp_path, name, folder, packed):
    make.idx_set(tmp_path / "root" / folder if folder != "." else tmp_path / "root", packed=packed)
    splits = quietly(name, tmp_path / "root")
    assert torch.equal(splits.training.images, expected_pixels(range(1), 20, 1, 28, 28))
    assert torch.equal(splits.test.images, expected_pixels(range(1, 2), 20, 1, 28, 28))
    assert splits.test.labels.tolist() == make.labels(20, 10)
    assert splits.num_classes == 10


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn_comes_back_as_written_and_its_ten_is_the_digit_zero(tmp_path, compressed):
    make.svhn(tmp_path / "svhn", compressed=compressed)
    splits = quietly("svhn", tmp_path)
    assert torch.equal(splits.training.images, expected_pixels(range(1), 20, 3, 32, 32))
    assert splits.test.labels.tolist() == make.labels(20, 10)
    assert splits.test.classes[0] == "0"
    assert not splits.test.mirrored


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("svhn", lambda root: make.svhn(root / "svhn", splits=("test",))),
        ("kmnist", lambda root: make.idx_set(root / "KMNIST" / "raw", splits=("t10k",))),
        ("cifar100", lambda root: (make.cifar100_python(root) / "train").unlink()),
    ],
)
def test_a_set_may_have_test_files_only_and_says_so_when_asked_to_train(tmp_path, name, write):
    write(tmp_path)
    splits = quietly(name, tmp_path)
    assert splits.train is None
    assert len(splits.test) > 0
    with pytest.raises(MissingFile, match=r"train.*is missing.*md5"):
        _ = splits.training


def test_training_images_can_be_left_unread(tmp_path):
    folder = make.cifar10_python(tmp_path)
    (folder / "data_batch_2").write_bytes(b"never read")
    assert quietly("cifar10", tmp_path, train=False).train is None
    assert load("digits", train=False).train is None


@pytest.mark.parametrize(
    "name", [name for name in ud.NAMES if name not in ("digits", "patches", "glyphs", "folder:PATH")]
)
def test_a_missing_set_says_which_file_where_to_and_its_checksum(tmp_path, name):
    with pytest.raises(MissingFile) as caught:
        load(name, tmp_path / "nowhere")
    message = str(caught.value)
    assert str(tmp_path / "nowhere") in message
    assert "md5" in message
    assert "http" in message


def test_a_part_of_the_training_files_is_an_error_not_a_smaller_set(tmp_path):
    (make.cifar10_python(tmp_path) / "data_batch_3").unlink()
    with pytest.raises(MissingFile, match=r"data_batch_3 \(md5 54ebc095f3ab1f0389bbae665268c751\) is missing"):
        quietly("cifar10", tmp_path)


def all_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


FORMATS = {
    "cifar10 python": ("cifar10", make.cifar10_python),
    "cifar10 python packed": ("cifar10", lambda r: make.tar(make.cifar10_python(r), r / "cifar-10-python.tar.gz")),
    "cifar10 binary": ("cifar10", make.cifar10_binary),
    "cifar100 binary packed": ("cifar100", lambda r: make.tar(make.cifar100_binary(r), r / "cifar-100-binary.tar")),
    "mnist": ("mnist", lambda r: make.idx_set(r / "MNIST" / "raw")),
    "mnist packed": ("mnist", lambda r: make.idx_set(r / "MNIST" / "raw", packed=True)),
    "svhn": ("svhn", lambda r: make.svhn(r / "svhn")),
    "svhn plain": ("svhn", lambda r: make.svhn(r / "svhn", compressed=False)),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("share", [0.0, 0.31, 0.93])
def test_a_truncated_file_is_named_with_its_place_and_checksum(tmp_path, form, share):
    name, write = FORMATS[form]
    write(tmp_path)
    file = all_files(tmp_path)[-1]
    raw = file.read_bytes()
    file.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(DataError) as caught:
        quietly(name, tmp_path)
    message = str(caught.value)
    assert file.name in message or file.name.removesuffix(".gz") in message
    assert str(tmp_path) in message
    assert "md5" in message
    assert "http" in message


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    places = {}
    for form, (_, write) in FORMATS.items():
        places[form] = tmp_path_factory.mktemp(form.replace(" ", "-"))
        write(places[form])
    return places


@given(st.binary(max_size=64))
def test_any_bytes_as_idx_give_an_array_or_our_error(raw):
    with contextlib.suppress(DataError):
        assert read_idx(raw, "f").dtype == np.uint8


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "magic number"),
        (b"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "claims the shape"),
        (b"\0\0\x08\x01\0\0\0\x02a", "fewer follow"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "more follow"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x02abc", mtime=0), "more follow"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab", mtime=0)[:-5], "truncated"),
        (b"\0\0\x08", "within its header"),
    ],
)
def test_an_idx_file_says_what_is_wrong_with_it(raw, why):
    with pytest.raises(DataError, match=why):
        read_idx(raw, "labels")


@pytest.mark.parametrize("form", ["cifar10 python", "cifar10 binary", "mnist", "mnist packed", "svhn"])
def test_a_file_that_is_not_the_official_one_warns_fails_or_passes_as_chosen(written, form):
    name = FORMATS[form][0]
    with pytest.raises(DataError, match=r"is not the official file: its md5 is \w{32}, expected \w{32}"):
        load(name, written[form], checksum="error")
    with pytest.warns(ud.DataWarning, match="is not the official file"):
        load(name, written[form])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(name, written[form], checksum="skip")
    with pytest.raises(ValueError, match="checksum must be one of error, warn, skip"):
        load(name, written[form], checksum="md5")


def test_the_official_file_passes_every_policy():
    verify(b"abc", hashlib.md5(b"abc").hexdigest(), "f", "error")


def test_an_idx_file_packed_anew_is_known_by_its_content(tmp_path, monkeypatch):
    folder = make.idx_set(tmp_path / "MNIST" / "raw", packed=True)
    from unhinge.data import idx as reader

    plain = {
        file.name.removesuffix(".gz"): hashlib.md5(gzip.decompress(file.read_bytes())).hexdigest()
        for file in folder.iterdir()
    }
    for name, md5 in plain.items():
        monkeypatch.setitem(reader._MNIST.plain, name, md5)
    load("mnist", tmp_path, checksum="error")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"labels": None}, "labels under 'labels'"),
        ({"labels": [0] * 3}, "20 labels"),
        ({"labels": ["x"] * 20}, "20 labels"),
        ({"labels": [[0], [1, 2]] * 10}, "20 labels"),
        ({"labels": [10] * 20}, r"0 \.\. 9, but lie in 10 \.\. 10"),
        ({"data": None}, "should hold 'data'"),
        ({"data": make.images(20, 100)}, r"\(20, 100\)"),
        ({"data": make.images(0, 3072), "labels": []}, "no images"),
    ],
)
def test_a_pickle_with_other_content_says_what_it_should_hold(tmp_path, change, why):
    folder = make.cifar10_python(tmp_path)
    content = {"labels": make.labels(20, 10), "data": make.images(20, 3072), **change}
    (folder / "test_batch").write_bytes(make.python2_pickle({k: v for k, v in content.items() if v is not None}))
    with pytest.raises(DataError, match=rf"test_batch.*{why}"):
        quietly("cifar10", tmp_path)


def test_the_digits_are_split_by_class_the_same_way_every_time():
    first, second = load("digits"), load("digits")
    assert torch.equal(first.training.images, second.training.images)
    assert len(first.training) + len(first.test) == 1797
    shares = first.test.counts / (first.test.counts + first.training.counts)
    assert ((shares - 0.2).abs() < 0.01).all()
    assert first.test.white == 16
    x = first.training.normalize(first.training.images)
    torch.testing.assert_close(x.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0)


def test_no_digit_is_in_both_parts_and_none_is_lost():
    from sklearn.datasets import load_digits

    splits = load("digits")
    both = torch.cat([splits.training.images, splits.test.images]).flatten(1)
    shipped = torch.from_numpy(load_digits().data).to(torch.uint8)
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, shipped.tolist()))


def test_patches_play_the_unknown_for_digits():
    unknown, digits = load("patches"), load("digits")
    assert unknown.test.images.shape[1:] == digits.test.images.shape[1:]
    assert (unknown.test.white, int(unknown.test.images.max())) == (16, 16)
    assert torch.equal(unknown.test.images, load("patches").test.images)
    assert len(unknown.test) > 900
    with pytest.raises(ud.MissingFile, match="only play the unknown"):
        _ = unknown.training


def test_an_unknown_name_lists_the_names_there_are():
    with pytest.raises(
        ValueError,
        match=r"no data set 'cifar11'; did you mean cifar10\? There are digits, patches, glyphs, cifar10.*folder",
    ):
        load("cifar11")
    with pytest.raises(ValueError, match="image_size is for"):
        load("digits", image_size=16)


# Image folders.


def write_tree(root: Path, classes: list[str], per_class: int = 3, size: int = 8) -> dict[str, np.ndarray]:
    wrote = {}
    for index, name in enumerate(classes):
        for number in range(per_class):
            array = make.images(size, size, 3, seed=100 * index + number)
            make.image(root / name / f"{number}.png", array)
            wrote[f"{name}/{number}"] = array
    return wrote


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_a_folder_of_images_comes_back_as_written_with_classes_sorted(tmp_path, test_name):
    wrote = write_tree(tmp_path / "train", ["zebra", "ant"])
    write_tree(tmp_path / test_name, ["zebra", "ant"], per_class=1)
    splits = load(f"folder:{tmp_path}")
    train = splits.training
    assert train.classes == ("ant", "zebra")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for index, key in enumerate(["ant/0", "ant/1", "ant/2", "zebra/0", "zebra/1", "zebra/2"]):
        np.testing.assert_array_equal(train.images[index], wrote[key].transpose(2, 0, 1))
    x = train.normalize(train.images)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_a_folder_without_a_test_part_is_split_by_class(tmp_path):
    write_tree(tmp_path, ["a", "b", "c"], per_class=10)
    splits = load(f"folder:{tmp_path.name}", root=tmp_path.parent)
    assert splits.training.counts.tolist() == [8, 8, 8]
    assert splits.test.counts.tolist() == [2, 2, 2]


def test_images_of_other_sizes_and_modes_are_brought_to_one_size(tmp_path):
    make.image(tmp_path / "train" / "a" / "tall.png", np.full((20, 10, 3), 200, np.uint8))
    make.image(tmp_path / "train" / "a" / "grey.JPG", np.full((9, 30), 200, np.uint8))
    make.image(tmp_path / "test" / "a" / "small.png", np.full((3, 3, 4), 200, np.uint8))
    with pytest.raises(DataError, match="Pass image_size="):
        load(f"folder:{tmp_path}")
    splits = load(f"folder:{tmp_path}", image_size=8)
    assert tuple(splits.training.images.shape) == (2, 3, 8, 8)
    assert (splits.training.images.int() - 200).abs().max() <= 1  # JPEG rounds


def test_the_middle_of_an_image_is_kept(tmp_path):
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 250
    make.image(tmp_path / "test" / "a" / "0.png", wide)
    assert (load(f"folder:{tmp_path}", image_size=4).test.images == 250).all()


def test_a_line_of_pixels_is_not_blown_up_to_gigabytes(tmp_path):
    write_tree(tmp_path / "test", ["a"])
    make.image(tmp_path / "test" / "a" / "0.png", np.zeros((1, 100_000, 3), np.uint8))
    with pytest.raises(DataError, match="100000 by 1 pixels, too many where the shorter side has 64"):
        load(f"folder:{tmp_path}", image_size=64)


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda r: (r / "test" / "a").mkdir(parents=True), "has no images"),
        (lambda r: (r / "test").mkdir(), "has no subfolders"),
        (lambda r: (r / "train" / "a").mkdir(parents=True), "none of test, val"),
        (lambda r: write_tree(r, ["a"], per_class=1), "too few to split"),
        (lambda r: (write_tree(r / "train", ["a"]), write_tree(r / "test", ["b"])), "class 'b'"),
        (lambda r: (write_tree(r / "train", ["a", "b"]), write_tree(r / "test", ["a"])), "no folder 'b'"),
        (lambda r: (write_tree(r, ["a", "b"]), (r / "c").mkdir()), "c has no images"),
        (lambda r: (write_tree(r, ["a"]), (r / "a" / "1.png").write_bytes(b"\x89PNG no")), r"1\.png cannot be read"),
    ],
)
def test_a_folder_that_is_not_one_of_images_says_why(tmp_path, prepare, why):
    prepare(tmp_path)
    with pytest.raises(DataError, match=why):
        load(f"folder:{tmp_path}")


def test_a_class_may_have_no_test_images(tmp_path):
    write_tree(tmp_path / "train", ["a", "b"])
    write_tree(tmp_path / "test", ["a"])
    (tmp_path / "test" / "b").mkdir()
    assert load(f"folder:{tmp_path}").test.counts.tolist() == [3, 0]


@pytest.mark.parametrize("image_size", [0, 2.5, True, "8"])
def test_a_size_that_is_no_number_of_pixels_is_named(tmp_path, image_size):
    write_tree(tmp_path, ["a", "b"])
    with pytest.raises(ValueError, match="image_size must be a whole number of pixels"):
        load(f"folder:{tmp_path}", image_size=image_size)


def test_images_of_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    for name, level in (("dark", 10), ("light", 200)):
        make.image(tmp_path / "test" / name / "0.png", np.full((4, 4), 257 * level, np.uint16))
    images = load(f"folder:{tmp_path}").test.images
    assert images.flatten(1).unique(dim=1).tolist() == [[10], [200]]


def test_images_whose_white_is_not_known_are_refused(tmp_path):
    make.image(tmp_path / "test" / "a" / "0.tif", np.full((4, 4), 0.5, np.float32))
    with pytest.raises(DataError, match="whose white is not known"):
        load(f"folder:{tmp_path}")


def test_imagenet_100_is_the_first_hundred_wnids_in_sorted_order(tmp_path):
    wnids = [f"n{number:08d}" for number in np.random.default_rng(0).permutation(103) * 7]
    for wnid in wnids:
        make.image(tmp_path / "imagenet" / "val" / wnid / "x.JPEG", np.full((5, 5, 3), 9, np.uint8))
        make.image(tmp_path / "imagenet" / "train" / wnid / "y.JPEG", np.full((6, 4, 3), 9, np.uint8))
    splits = load("imagenet100", tmp_path, image_size=4)
    assert splits.classes == tuple(sorted(wnids)[:100])
    assert splits.training.labels.tolist() == list(range(100))
    assert tuple(splits.test.images.shape) == (100, 3, 4, 4)


def test_without_pillow_the_error_says_to_install_it(tmp_path, monkeypatch):
    write_tree(tmp_path / "test", ["a"])
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r'reading image files needs PIL, .* pip install "unhinge\[train\]"'):
        load(f"folder:{tmp_path}")


def test_an_archive_that_ends_within_a_member_is_refused(tmp_path):
    archive = make.tar(make.cifar10_binary(tmp_path), tmp_path / "cifar-10-binary.tar")
    archive.write_bytes(archive.read_bytes()[:-20_000])
    with pytest.raises(DataError, match="truncated or damaged"):
        quietly("cifar10", tmp_path)


@pytest.mark.filterwarnings("ignore:.*data_batch_:unhinge.data.DataWarning")  # made for the test, like the cut one
def test_a_binary_file_cut_between_two_records_is_told_by_its_checksum(tmp_path):
    file = make.cifar10_binary(tmp_path) / "test_batch.bin"
    file.write_bytes(file.read_bytes()[: 7 * 3073])
    with pytest.warns(ud.DataWarning, match=r"test_batch\.bin is not the official file"):
        assert len(load("cifar10", tmp_path).test) == 7


def test_images_left_unread_say_so_when_asked_for(tmp_path):
    make.cifar10_binary(tmp_path)
    with pytest.raises(MissingFile, match=r"pass train=True"):
        _ = quietly("cifar10", tmp_path, train=False).training
