"""Reading: what is there comes back, and whatever is wrong ends in one line."""

from __future__ import annotations

import io
import pickle
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from prediction_makers import arrays
from safetensors.torch import save_file

from unhinge.prediction import FileError, read_features


def npz(folder: Path, **content: object) -> Path:
    file = folder / "features.npz"
    np.savez(file, **content)  # type: ignore[arg-type]
    return file


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_three_formats_give_the_same(tmp_path: Path, dtype: type):
    content = arrays([3, 2, 4], dtype=dtype)
    tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in content.items()}
    save_file(tensors, tmp_path / "features.safetensors")
    torch.save(tensors, tmp_path / "features.pt")
    files = [npz(tmp_path, **content), tmp_path / "features.safetensors", tmp_path / "features.pt"]
    for file in files:
        actual = read_features(file)
        assert torch.equal(actual.features, tensors["features"])
        assert torch.equal(actual.labels, tensors["labels"])
        assert actual.weight is not None
        assert torch.equal(actual.weight, tensors["weight"].double())
        assert actual.num_classes == 3


@pytest.mark.parametrize("dtype", [">f4", "<f8", ">i2", "u1", np.longdouble])
def test_other_number_types_and_byte_orders_are_read(tmp_path: Path, dtype: str):
    values = np.array([[1, 2], [3, 4], [5, 6]])
    actual = read_features(npz(tmp_path, features=values.astype(dtype), target=np.array([0, 1, 1], dtype=">u2")))
    assert actual.features.tolist() == values.tolist()
    assert actual.labels.tolist() == [0, 1, 1]


GOOD = arrays([3, 3])
BAD = {
    "no labels": ({"features": GOOD["features"]}, "no labels"),
    "no features": ({"labels": GOOD["labels"]}, "no features"),
    "nothing": ({}, "no features and no labels"),
    "one-dimensional features": ({**GOOD, "features": np.ones(6)}, "features must have shape (n, p)"),
    "no examples": ({"features": np.ones((0, 3)), "labels": np.zeros(0, int)}, "at least one example"),
    "too few labels": ({**GOOD, "labels": GOOD["labels"][:5]}, "labels must have shape (6,)"),
    "fractional labels": ({**GOOD, "labels": GOOD["labels"] * 1.5}, "whole numbers"),
    "negative labels": ({**GOOD, "labels": GOOD["labels"] - 1}, "labels must be 0 or larger, got -1"),
    "labels out of range": ({**GOOD, "labels": GOOD["labels"] + 1}, "0 .. 1, got values from 1 to 2"),
    "huge labels": ({**GOOD, "labels": np.full(6, 2**63, np.uint64)}, "got values up to 9223372036854775808"),
    "too many classes": ({"features": np.ones((1, 1)), "labels": np.array([10**9])}, "classes"),
    "an empty class": ({"features": np.ones((2, 3)), "labels": np.array([0, 2])}, "Number the classes"),
    "one class": ({"features": np.ones((2, 3)), "labels": np.array([0, 0])}, "at least 2 classes"),
    "NaN": ({**GOOD, "features": np.full((6, 4), np.nan)}, "NaN"),
    "infinite weight": (
        {**GOOD, "weight": np.full((2, 4), np.inf)},
        "weight holds NaN, infinite or huge values, the first at [0, 0]",
    ),
    "huge values": ({**GOOD, "features": np.full((6, 4), 1e200)}, "huge"),
    "wrong width": ({**GOOD, "weight": np.ones((2, 3))}, "weight must be (C, 4)"),
    "wrong bias": ({**GOOD, "bias": np.ones(3)}, "bias must have 2 entries"),
    "objects": ({**GOOD, "features": np.array([{}], dtype=object)}, "save it as numbers"),
    "names as objects": ({**GOOD, "labels": np.array(["a", "b"], dtype=object)}, "or as text: labels.astype(str)"),
    "words": ({**GOOD, "features": np.array([["a"]])}, "real numbers"),
    "complex": ({**GOOD, "features": np.ones((6, 4), complex)}, "real numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_npz_says_what_is_wrong_in_one_line(tmp_path: Path, name: str):
    content, said = BAD[name]
    with pytest.raises(FileError) as error:
        read_features(npz(tmp_path, **content))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def damaged(folder: Path) -> dict[str, bytes]:
    good = npz(folder, **GOOD).read_bytes()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**10)})
    liar = io.BytesIO()
    with zipfile.ZipFile(liar, "w") as archive:
        archive.writestr("features.npy", header.getvalue())
        archive.writestr("labels.npy", b"")
    return {
        "empty": b"",
        "text": b"features, labels\n",
        "a pickle": pickle.dumps({"features": [1.0]}),
        "cut off": good[: len(good) // 2],
        "a byte turned over": good[:200] + bytes([good[200] ^ 255]) + good[201:],
        "a header that claims petabytes": liar.getvalue(),
    }


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize("kind", ["empty", "text", "a pickle", "cut off", "a header that claims petabytes"])
def test_a_damaged_file_is_refused(tmp_path: Path, kind: str, suffix: str):
    file = tmp_path / f"bad{suffix}"
    file.write_bytes(damaged(tmp_path)[kind])
    with pytest.raises(FileError) as error:
        read_features(file)
    assert "\n" not in str(error.value)


def test_a_byte_turned_over_is_found_by_its_checksum(tmp_path: Path):
    file = tmp_path / "bad.npz"
    file.write_bytes(damaged(tmp_path)["a byte turned over"])
    with pytest.raises(FileError, match="damaged"):
        read_features(file)


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_pt_with_code_in_it_is_refused_and_not_run(tmp_path: Path):
    file, mark = tmp_path / "bad.pt", tmp_path / "mark"
    torch.save({"features": Harmful(mark)}, file)
    with pytest.raises(FileError, match="more than tensors"):
        read_features(file)
    assert not mark.exists()


def test_a_pt_of_a_tensor_alone_or_of_an_endless_view_is_refused(tmp_path: Path):
    file = tmp_path / "bad.pt"
    torch.save(torch.ones(3), file)
    with pytest.raises(FileError, match="dictionary"):
        read_features(file)
    torch.save({"features": torch.ones(1).expand(2**20, 2**20), "labels": torch.zeros(1, dtype=torch.int64)}, file)
    with pytest.raises(FileError, match="at most"):
        read_features(file)


def test_a_file_that_is_not_there_or_of_no_known_kind_is_refused(tmp_path: Path):
    with pytest.raises(FileError, match="cannot read"):
        read_features(tmp_path / "missing.npz")
    with pytest.raises(FileError, match=r"features\.xlsx is none of \.npz, \.safetensors, \.pt"):
        read_features(tmp_path / "features.xlsx")
    with pytest.raises(FileError, match=r"unhinge predict features\.parquet"):
        read_features(tmp_path / "features.parquet")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileError, match="not a file"):
        read_features(tmp_path / "folder.npz")


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("unhinge.prediction.files.LARGEST_BYTES", 2000)
    file = tmp_path / "bomb.npz"
    np.savez_compressed(file, features=np.zeros((1000, 8)), labels=np.arange(1000) % 2)
    with pytest.raises(FileError, match="unpacks to"):
        read_features(file)
    np.savez(file, features=np.zeros((1000, 8)), labels=np.arange(1000) % 2)
    with pytest.raises(FileError, match="at most 2,000"):
        read_features(file)


def test_a_small_file_that_claims_gigabytes_is_refused_before_they_are_allocated(tmp_path):
    one = torch.zeros(1).expand(40_000, 40_000)  # 6.4 GB of one number, by a stride of 0
    torch.save({"features": one, "labels": torch.arange(40_000) % 2}, tmp_path / "shared.pt")
    with pytest.raises(FileError, match=r"claims 6,400,000,000 bytes and the file holds 4 .*contiguous"):
        read_features(tmp_path / "shared.pt")


# ---- other kinds of files and labels ---------------------------------------------------------------------------------


def test_labels_may_be_words_or_whole_floats(tmp_path: Path):
    content = arrays([3, 3])
    plain = read_features(npz(tmp_path, **content)).labels
    for labels in (content["labels"] * 1.0, np.array(["ant", "bee"])[content["labels"]]):
        assert torch.equal(read_features(npz(tmp_path, **{**content, "labels": labels})).labels, plain)


def test_npy_files_beside_each_other_are_read_as_one(tmp_path: Path):
    content = arrays([3, 2])
    np.save(tmp_path / "train.npy", content["features"])
    with pytest.raises(FileError, match=r"put labels.npy beside it"):
        read_features(tmp_path / "train.npy")
    np.save(tmp_path / "labels.npy", content["labels"])
    actual = read_features(tmp_path / "train.npy")
    assert actual.features.tolist() == content["features"].tolist()
    assert actual.labels.tolist() == content["labels"].tolist()
    assert actual.weight is None
    np.save(tmp_path / "weight.npy", content["weight"])
    assert read_features(tmp_path / "train.npy").weight is not None
    (tmp_path / "labels.npy").write_bytes((tmp_path / "labels.npy").read_bytes()[:-3])
    with pytest.raises(FileError, match=r"labels.npy is damaged"):
        read_features(tmp_path / "train.npy")


CSVS = {
    "named": "a,label,b\n1,cat,2\n3,dog,4\n5,dog,6\n",
    "without names": "1,2,0\n3,4,1\n5,6,1\n",
    "floats as labels": "x,y,target\n1,2,0.0\n3,4,1.0\n5,6,1.0\n",
    "any case": "x,y,Label\n1,2,a\n3,4,b\n5,6,b\n",
    "as spreadsheets write it": "\ufefflabel,x,y\n0,1,2\n1,3,4\n1,5,6\n",
    "spaces after commas": "x, y, label\n1, 2, a\n3, 4, b\n5, 6, b\n",
}


@pytest.mark.parametrize("name", CSVS)
def test_a_csv_has_one_example_a_line(tmp_path: Path, name: str):
    (tmp_path / "features.csv").write_text(CSVS[name])
    actual = read_features(tmp_path / "features.csv")
    assert actual.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert actual.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b,label\n", "no example below them"),
        ("", "is empty"),
        ("a,b\n1,2\n", "no column called label"),
        ("label,a\n0,1\n1\n", "row 2 has 1 columns"),
        ("label,a\n0,1\n1,many\n", "row 2: features must be numbers, got 'many'"),
        ("label,a\n0,\n1,2\n", "row 1: features must be numbers, got an empty cell"),
        ("a;b;label\n1;2;0\n3;4;1\n", "one column.*separated by commas"),
        ("label\n0\n1\n", "one column"),
    ],
)
def test_a_csv_that_cannot_be_used_says_why(tmp_path: Path, content: str, said: str):
    (tmp_path / "features.csv").write_text(content)
    with pytest.raises(FileError, match=said):
        read_features(tmp_path / "features.csv")


def test_too_many_classes_are_refused_with_the_estimate_before_memory_is_taken(tmp_path: Path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    file = npz(tmp_path, features=np.ones((10_000, 2)), labels=np.arange(10_000))
    with pytest.raises(FileError, match=r"10,000 classes: their C x C matrices would take about 4.8 GB"):
        read_features(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_name_without_an_ending_is_named_in_the_message():
    with pytest.raises(FileError, match=r"^'\.' is none of"):
        read_features(".")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b,label\n1,2,0\n3,4,\n5,6,1\n", "row 2 has no label"),
        ("0,1,species\n5.1,3.5,setosa\n4.9,3.0,virginica\n", "counts the columns"),
        ("0,1,2\n5.1,3.5,0\n4.9,3.0,1\n", "counts the columns"),
        (",a,b,label\n0,5.1,3.5,0\n1,4.9,3.0,1\n", "column 1 has no name.*index=False"),
        ("a,label,target\n5.1,0,0\n4.9,1,1\n", "only one of them is the class"),
    ],
)
def test_a_csv_that_would_be_misread_is_refused(tmp_path: Path, text: str, told: str):
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(FileError, match=told):
        read_features(file)


def test_classes_named_by_numbers_keep_the_order_of_numbers(tmp_path: Path):
    """So that the rows of a weight belong to them: as words, 10 comes before 2."""
    labels, weight = np.arange(24) % 12, np.eye(12)
    np.savez(tmp_path / "words.npz", features=weight[labels], labels=labels.astype(str), weight=weight)
    assert read_features(tmp_path / "words.npz").labels.tolist() == labels.tolist()
    np.savez(tmp_path / "names.npz", features=weight[labels][:, :2], labels=np.array(["b", "a"])[labels % 2])
    assert read_features(tmp_path / "names.npz").labels.tolist() == (1 - labels % 2).tolist()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_labels_are_labels(tmp_path: Path, dtype: torch.dtype):
    torch.save({"features": torch.eye(4), "labels": torch.tensor([0, 1, 0, 1]).to(dtype)}, tmp_path / "a.pt")
    assert read_features(tmp_path / "a.pt").labels.tolist() == [0, 1, 0, 1]
