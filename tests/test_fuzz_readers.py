"""Every reader of files and uploads, fed damaged ones: data of the right kind or one clear error, and nothing else.

Two ways to damage: hypothesis changes bytes of small whole files; `hostile.py` has files made to run code, to leave
their folder, to fill the memory or never to end, which are read in a process of their own.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import data_makers as make
import hostile
from unhinge.data import DataError, Splits, load
from unhinge.paper.studies.follow import Task, measured
from unhinge.prediction import FileError, read_features
from unhinge.results.sealed import SealError, seal, write_sealed
from unhinge.training import Material, Recipe, RecipeError, evaluate, fit
from unhinge.training.checkpoint import CheckpointError, load_newest, read_tensors, save, write_tensors
from unhinge.training.records import read_records

EXAMPLES = 100  # of each reader
MEGABYTES = 400  # that reading one damaged file may take beyond what was taken before


@dataclass(frozen=True)
class Reader:
    """How a small whole example is written into a folder, how it is read, what may come of it, what may be raised."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    check: Callable[[Any], bool]
    error: type[Exception] | None = None


# ---- features for `unhinge predict` --------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "features": RANDOM.normal(size=(6, 4)),
    "labels": np.arange(6) % 2,
    "weight": RANDOM.normal(size=(2, 4)),
    "bias": np.zeros(2),
}


def write_features(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from safetensors.torch import save_file

        tensors = {key: torch.from_numpy(value) for key, value in ARRAYS.items()}
        file = folder / name
        if name.endswith(".npz"):
            (np.savez_compressed if "packed" in name else np.savez)(file, **ARRAYS)
        elif name.endswith(".safetensors"):
            save_file(tensors, file)
        else:
            torch.save(tensors, file, _use_new_zipfile_serialization="old" not in name)

    return write


def features(name: str) -> Reader:
    def check(found: Any) -> bool:
        return bool(torch.isfinite(found.features).all()) and int(found.labels.max()) < found.num_classes

    return Reader(write_features(name), lambda folder: read_features(folder / name), check, FileError)


# ---- images --------------------------------------------------------------------------------------------------------


def images(name: str, write: Callable[[Path], object], image_size: int | None = None) -> Reader:
    def read(folder: Path) -> Splits:
        where = f"folder:{folder}" if name == "folder" else name
        return load(where, None if name == "folder" else folder, checksum="skip", image_size=image_size)

    def check(found: Any) -> bool:
        part = found.test
        return part.images.dtype == torch.uint8 and 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(
            part.classes
        )

    return Reader(write, read, check, DataError)


def write_pictures(ending: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from PIL import Image

        for name in ("ant", "bee"):
            (folder / name).mkdir()
            for number in range(5):
                Image.fromarray(make.images(8, 8, 3, seed=number)).save(folder / name / f"{number}.{ending}")

    return write


# ---- what training leaves behind -----------------------------------------------------------------------------------

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(5)}


def as_written(recipe: Recipe) -> dict[str, Any]:
    """As a file of JSON has them: tuples are lists there."""
    return json.loads(json.dumps(asdict(recipe)))


ABOUT = {"recipe": as_written(Recipe(width=4)), "epoch": 3}
RECORDS = [{"epoch": epoch, "train_loss": 1 / epoch, "stopped": None} for epoch in range(1, 6)]


def same(found: Any) -> bool:
    return found.standing == ABOUT and all(torch.equal(found.tensors[key], TENSORS[key]) for key in TENSORS)


def write_checkpoints(folder: Path) -> None:
    for step in (10, 20):
        save(folder, step, TENSORS, ABOUT)


def write_records(folder: Path) -> None:
    (folder / "log.jsonl").write_text("".join(seal(record) + "\n" for record in RECORDS))


def write_recipe(folder: Path) -> None:
    (folder / "recipe.json").write_text(Recipe(imbalance="exp:100", head_scale=0.1).to_json())


def read_recipe(folder: Path) -> Recipe:
    return Recipe.from_json((folder / "recipe.json").read_bytes().decode("utf-8", "replace"))


def write_cell(folder: Path) -> None:
    task = Task(Recipe(), None, str(folder), None)
    write_sealed(task.path, {"recipe": as_written(task.recipe), "accuracy": 0.5, "seconds": 1.0})


# ---- the explorer --------------------------------------------------------------------------------------------------


def write_upload(folder: Path) -> None:
    np.savez(folder / "start.npz", **ARRAYS)


def read_upload(folder: Path) -> Any:
    from unhinge.web.uploads import read_npz

    return read_npz((folder / "start.npz").read_bytes())


def write_browsed(folder: Path) -> None:
    from web.folder_of_results import write_results

    write_results(folder)


def read_browsed(folder: Path) -> list[object]:
    from unhinge.web.view_results import body, export, find_items

    return [
        made for item in find_items(folder) for made in (body(folder, item.name, "light"), export(folder, item.name))
    ]


READERS = {
    "features.npz": features("features.npz"),
    "packed features.npz": features("packed.npz"),
    "features.safetensors": features("features.safetensors"),
    "features.pt": features("features.pt"),
    "features of an old torch": features("old.pt"),
    "cifar10, python": images("cifar10", lambda r: make.cifar10_python(r, per_batch=2)),
    "cifar10, python, packed": images(
        "cifar10", lambda r: make.tar(make.cifar10_python(r, per_batch=2), r / "cifar-10-python.tar.gz")
    ),
    "cifar10, binary": images("cifar10", lambda r: make.cifar10_binary(r, per_batch=2)),
    "cifar100, binary, packed": images(
        "cifar100", lambda r: make.tar(make.cifar100_binary(r, number=2), r / "cifar-100-binary.tar")
    ),
    "mnist": images("mnist", lambda r: make.idx_set(r / "MNIST" / "raw", number=3)),
    "mnist, packed": images("mnist", lambda r: make.idx_set(r / "MNIST" / "raw", number=3, packed=True)),
    "svhn": images("svhn", lambda r: make.svhn(r / "svhn", number=3)),
    "svhn, plain": images("svhn", lambda r: make.svhn(r / "svhn", number=3, compressed=False)),
    **{f"pictures, {ending}": images("folder", write_pictures(ending)) for ending in ("png", "gif", "tif")},
    **{f"pictures, {ending}, resized": images("folder", write_pictures(ending), 6) for ending in ("jpg", "bmp")},
    "weights": Reader(
        lambda folder: write_tensors(folder / "last.safetensors", TENSORS, ABOUT),
        lambda folder: read_tensors(folder / "last.safetensors"),
        same,
        CheckpointError,
    ),
    "checkpoints": Reader(write_checkpoints, load_newest, lambda found: found[0] is None or same(found[0])),
    "recipe.json": Reader(write_recipe, read_recipe, lambda found: isinstance(found, Recipe), RecipeError),
    "log.jsonl": Reader(
        write_records, read_records, lambda found: found == RECORDS[: len(found)], SealError
    ),
    "a measured cell": Reader(
        write_cell,
        lambda folder: measured(Task(Recipe(), None, str(folder), None)),
        lambda found: found == {"recipe": as_written(Recipe()), "accuracy": 0.5, "seconds": 1.0},
        SealError,
    ),
    "an upload": Reader(
        write_upload, read_upload, lambda start: bool(torch.isfinite(start.features).all()), ValueError
    ),
}  # fmt: skip
if importlib.util.find_spec("dash") is not None:
    READERS["results in the explorer"] = Reader(write_browsed, read_browsed, bool)


# ---- damage --------------------------------------------------------------------------------------------------------

KINDS = ("bit", "byte", "cut", "drop", "repeat", "insert", "huge", "number")
DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 2**30),  # where
        st.integers(0, 2**30),  # what
    ),
    min_size=1,
    max_size=3,
)
HUGE = (b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80" + bytes(4), bytes(4))


def place_in(raw: bytearray, where: int) -> int:
    """Anywhere, or near the front or the end, where the sizes are."""
    size = max(1, len(raw))
    return (
        (where // 4) % (size if where % 4 < 2 else min(size, 300))
        if where % 4 < 3
        else size - 1 - (where // 4) % min(size, 200)
    )


def damaged(content: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    raw = bytearray(content)
    for kind, where, what in changes:
        at, some = place_in(raw, where), 1 + what % 64
        if kind == "bit" and raw:
            raw[at] ^= 1 << what % 8
        elif kind == "byte" and raw:
            raw[at] = what % 256
        elif kind == "cut":
            del raw[at:]
        elif kind == "drop":
            del raw[at : at + some]
        elif kind == "repeat":
            begin = what % max(1, len(raw))
            raw[at:at] = raw[begin : begin + some]
        elif kind == "insert":
            raw[at:at] = what.to_bytes(4, "little") * (1 + what % 3)
        elif kind == "huge":
            value = HUGE[what % len(HUGE)]
            raw[at : at + len(value)] = value
        elif kind == "number":  # the digits from there on, of a header in text
            first = next((k for k in range(at, len(raw)) if raw[k : k + 1].isdigit()), None)
            if first is not None:
                raw[first : first + 1] = (b"99999999999", b"-1", b"1e999", b"0", b"4294967297")[what % 5]
    return bytes(raw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A folder with a whole example for each reader."""
    places = {}
    for number, (name, reader) in enumerate(READERS.items()):
        places[name] = tmp_path_factory.mktemp(f"whole{number}")
        reader.write(places[name])
    yield places
    for place in places.values():
        shutil.rmtree(place)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(whole, name):
    assert READERS[name].check(READERS[name].read(whole[name]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
@given(which=st.integers(0, 99), changes=DAMAGE)
@settings(max_examples=EXAMPLES)
def test_a_damaged_file_gives_data_or_one_clear_error(whole, name, which, changes):
    reader, files = READERS[name], files_of(whole[name])
    file = files[which % len(files)]
    content = file.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        file.write_bytes(damaged(content, changes))
        actual = reader.read(whole[name])
    except Exception as error:
        if reader.error is None or type(error) is UnicodeDecodeError or not isinstance(error, reader.error):
            raise
        said = str(error)
        assert "\n" not in said
        assert "Traceback" not in said
        # Uploads and recipes come without a name; whoever hands them over adds it.
        assert name in ("an upload", "recipe.json") or file.name.removesuffix(".gz") in said or file.parent.name in said
        assert len(said.split()) > 5
    else:
        assert reader.check(actual)
    finally:
        file.write_bytes(content)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEGABYTES


@given(st.binary(max_size=300))
@pytest.mark.parametrize("name", READERS)
@settings(max_examples=15)
def test_any_bytes_at_all_give_data_or_one_clear_error(whole, name, content):
    reader, file = READERS[name], files_of(whole[name])[-1]
    kept = file.read_bytes()
    try:
        file.write_bytes(content)
        assert reader.check(reader.read(whole[name]))
    except Exception as error:
        if reader.error is None or type(error) is UnicodeDecodeError or not isinstance(error, reader.error):
            raise
    finally:
        file.write_bytes(kept)


def test_the_damage_does_damage():
    """A fuzz that only ever read whole files would show nothing."""
    content = json.dumps(ABOUT).encode() + bytes(300)
    for kind in KINDS:
        assert any(damaged(content, [(kind, where, 77)]) != content for where in range(1, 2000, 97)), kind


# ---- the explorer's address and the results it browses -------------------------------------------------------------


@given(st.text(max_size=300), st.sampled_from(["", "?view=free&", "?view=sphere&classes=", "?view=results&item="]))
@settings(max_examples=EXAMPLES)
def test_no_address_is_an_error(text, start):
    pytest.importorskip("dash", reason="the explorer is optional")
    from unhinge.web.address import State, from_address
    from unhinge.web.app import all_controls

    assert isinstance(from_address(start + text, all_controls())[0], State)


# ---- a run that is continued, and one that is measured -------------------------------------------------------------

RUN = Recipe(width=2, epochs=1, batch=64)


@pytest.fixture(scope="module")
def few() -> Material:
    splits = load("digits")
    return Material(splits.training.subset(torch.arange(64)), splits.test.subset(torch.arange(20)), None)


@pytest.fixture(scope="module")
def followed(few: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("followed")
    fit(RUN, folder, material=few)
    return folder


@given(which=st.integers(0, 99), changes=DAMAGE)
@settings(max_examples=40)
def test_a_damaged_run_is_continued_or_refused_and_so_is_measuring_it(few, followed, which, changes):
    kept = {file: file.read_bytes() for file in files_of(followed)}
    file = list(kept)[which % len(kept)]
    try:
        for use in (lambda: fit(RUN, followed, material=few), lambda: evaluate(followed, material=few)):
            file.write_bytes(damaged(kept[file], changes))
            said = ""
            try:
                use()
            except (RecipeError, CheckpointError, SealError, FileNotFoundError) as error:
                said = str(error)
            assert not said or str(followed) in said
    finally:
        for extra in set(files_of(followed)) - set(kept):
            extra.unlink()
        for file, content in kept.items():
            file.write_bytes(content)


# ---- hostile files -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each hostile file, read one after the other in processes with limits."""
    place = tmp_path_factory.mktemp("hostile")
    here = os.pathsep.join([str(Path(hostile.__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": here, "TMPDIR": str(place), "OMP_NUM_THREADS": "1"}
    found: dict[str, dict[str, Any]] = {}
    while missing := [name for name in hostile.CASES if name not in found]:  # a process that ends early is replaced
        run = subprocess.run(
            [sys.executable, "-W", "ignore", hostile.__file__, *missing],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        lines = [json.loads(line) for line in run.stdout.splitlines()]
        assert lines, run.stderr
        found |= {line["name"]: line for line in lines}
    return found


HARMLESS = (
    "pt: eight bits",
    "images: loops",
    "images: a pipe",
    "images: a device",
)


@pytest.mark.parametrize("name", hostile.CASES)
def test_a_hostile_file_is_refused_at_little_cost(outcomes, name):
    actual = outcomes[name]
    assert actual["outcome"].startswith("read" if name in HARMLESS else "refused: "), actual
    assert actual["megabytes"] < 600, actual  # a quarter of a gigabyte and its copy is what the real files take


def test_a_run_of_another_recipe_file_is_refused_with_its_name(tmp_path):
    from typer.testing import CliRunner

    from unhinge.cli import app

    for number, content in enumerate((b"\xff\xfe", b"{", hostile.DEEP, b"[]")):
        file = tmp_path / f"{number}.json"
        file.write_bytes(content)
        run = CliRunner().invoke(app, ["train", "--recipe", str(file), "--dry-run"])
        assert run.exit_code == 2, run.output
        assert f"cannot read the recipe {file}" in run.stderr.replace("\n", "")


def test_an_upload_is_named_by_its_content_alone():
    from unhinge.web.uploads import Uploads

    stream = io.BytesIO()
    np.savez(stream, **ARRAYS)
    assert Uploads().add(stream.getvalue()).isalnum()
